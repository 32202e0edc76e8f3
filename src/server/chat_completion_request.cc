#include <algorithm>

#include "server/common_fields.h"
#include "server/generation_request.h"
#include "server/prompt.h"
#include "server/request_constraint.h"

namespace megalith {

namespace {

using Json = nlohmann::ordered_json;

void read_logprobs(const RequestFields& fields, ChatCompletionRequest& chat) {
  chat.logprobs = fields.flag("logprobs").value_or(false);
  chat.top_logprobs = static_cast<int>(fields.integer("top_logprobs", 0, kMostLogprobs).value_or(0));
  if (chat.top_logprobs > 0 && !chat.logprobs) fields.refuse("top_logprobs", "0, unless logprobs is true");
  if (chat.logprobs) chat.common.request.logprobs = chat.top_logprobs;
}

// Two names for the tokens that thoughts may have.
std::optional<int64_t> read_thinking_budget(const RequestFields& fields) {
  const auto first = fields.integer("thinking_budget", 0, INT64_MAX);
  const auto second = fields.integer("thinking_token_budget", 0, INT64_MAX);
  return first ? first : second;
}

void check_tool_choice(const RequestFields& fields, const ChatRequest& chat) {
  if (chat.tool_choice.kind != ToolChoice::Kind::required || !chat.tools.empty()) return;
  const auto declares = [](const Message& message) { return !message.tools.empty(); };
  if (std::any_of(chat.messages.begin(), chat.messages.end(), declares)) return;
  fields.refuse("tool_choice", "\"auto\" or \"none\" without tools");
}

}  // namespace

ChatCompletionRequest parse_chat_completion_request(const Json& body, const Service& service) {
  const RequestFields fields(body);
  ChatCompletionRequest read;
  read.chat = parse_chat_request(body);
  check_tool_choice(fields, read.chat);
  read.common = read_common_fields(fields, service,
                                   {.budgets = {"max_completion_tokens", "max_tokens"}, .formed = has_form(read.chat)});
  read_logprobs(fields, read);
  read.parallel_tool_calls = fields.flag("parallel_tool_calls").value_or(true);
  const auto budget = read_thinking_budget(fields);
  read.prompt = chat_prompt(service, read.chat);
  Request& request = read.common.request;
  require_room(read.prompt, request.max_tokens, service, "messages");
  request.constraint = chat_constraint(service, read.chat, budget, read.parallel_tool_calls, request);
  return read;
}

}  // namespace megalith
