#include "server/request_constraint.h"

#include "base/error.h"

namespace megalith {

bool has_form(const ResponseFormat& format) {
  return format.kind != ResponseFormat::Kind::text;
}

bool has_form(const ChatRequest& chat) {
  using Kind = ToolChoice::Kind;
  return has_form(chat.response_format) || chat.tool_choice.kind == Kind::required ||
         chat.tool_choice.kind == Kind::function;
}

std::shared_ptr<const Constraint> completion_constraint(const Service&, const ResponseFormat& format, const Request&) {
  if (!has_form(format)) return nullptr;
  throw Error({.where = "response_format", .expected = "text", .found = "another form", .next = {}});
}

std::shared_ptr<const Constraint> chat_constraint(const Service&, const ChatRequest& chat,
                                                  std::optional<int64_t> thinking_budget, bool, const Request&) {
  const auto refuse = [](const char* where, const char* expected) {
    throw Error({.where = where, .expected = expected, .found = "another form", .next = {}});
  };
  if (has_form(chat.response_format)) refuse("response_format", "text");
  if (has_form(chat)) refuse("tool_choice", "\"auto\" or \"none\"");
  if (thinking_budget) refuse("thinking_budget", "no budget");
  return nullptr;
}

}  // namespace megalith
