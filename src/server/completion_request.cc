#include "server/common_fields.h"
#include "server/generation_request.h"
#include "server/prompt.h"
#include "server/request_constraint.h"

namespace megalith {

namespace {

using Json = nlohmann::ordered_json;

// true is 1; 0 and false are off.
std::optional<int> read_logprobs(const RequestFields& fields) {
  const Json* given = fields.find("logprobs");
  if (given == nullptr) return std::nullopt;
  const int64_t count = given->is_boolean() ? given->get<bool>() : *fields.integer("logprobs", 0, kMostLogprobs);
  return count == 0 ? std::nullopt : std::optional<int>(static_cast<int>(count));
}

void refuse_unsupported(const RequestFields& fields, int n) {
  const auto best_of = fields.integer("best_of", 1, kMostChoicesOfPrompt);
  if (best_of && *best_of != 1 && *best_of != n) fields.refuse("best_of", "1, or as many as n: choices are not compared");
  if (!fields.text("suffix").value_or("").empty()) fields.refuse("suffix", "nothing: texts are not filled in");
}

}  // namespace

CompletionRequest parse_completion_request(const Json& body, const Service& service) {
  const RequestFields fields(body);
  const ResponseFormat format = parse_response_format(body);
  CompletionRequest completion;
  completion.common =
      read_common_fields(fields, service, {.budgets = {"max_tokens", "max_completion_tokens"}, .formed = has_form(format)});
  completion.echo = fields.flag("echo").value_or(false);
  completion.logprobs = read_logprobs(fields);
  refuse_unsupported(fields, completion.common.n);
  Request& request = completion.common.request;
  request.logprobs = completion.logprobs;
  request.score_prompt = completion.echo && completion.logprobs;
  completion.prompts = read_prompts(fields, service);
  const size_t prompts = completion.prompts.size();
  if (completion.common.stream && prompts > 1) fields.refuse("stream", "false, where there are several prompts");
  require_few_choices(static_cast<int64_t>(prompts) * completion.common.n);
  for (const auto& prompt : completion.prompts) require_room(prompt, request.max_tokens, service, "prompt");
  request.constraint = completion_constraint(service, format, request);
  return completion;
}

}  // namespace megalith
