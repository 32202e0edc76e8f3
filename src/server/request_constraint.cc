#include "server/request_constraint.h"

#include "server/prompt.h"
#include "text/channel_constraint.h"
#include "text/json_constraint.h"

namespace megalith {

bool has_form(const ResponseFormat& format) {
  return format.kind != ResponseFormat::Kind::text;
}

bool has_form(const ChatRequest& chat) {
  using Kind = ToolChoice::Kind;
  return has_form(chat.response_format) || chat.tool_choice.kind == Kind::required ||
         chat.tool_choice.kind == Kind::function;
}

std::shared_ptr<const Constraint> completion_constraint(const Service& service, const ResponseFormat& format,
                                                        const Request& request) {
  if (!has_form(format)) return nullptr;
  return make_json_constraint(tokenizer_of(service), format, request.end_tokens);
}

std::shared_ptr<const Constraint> chat_constraint(const Service& service, const ChatRequest& chat,
                                                  std::optional<int64_t> thinking_budget, bool parallel_tool_calls,
                                                  const Request& request) {
  return make_answer_constraint(chat_format_of(service), tokenizer_of(service), chat, thinking_budget, request.end_tokens,
                                parallel_tool_calls);
}

}  // namespace megalith
