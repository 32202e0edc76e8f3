#include "server/prompt.h"

#include <fmt/format.h>

#include "base/error.h"
#include "server/api_error.h"
#include "text/characters.h"

namespace megalith {

namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kForms = "a string, a list of token ids, or a list of strings or of such lists";

[[noreturn]] void refuse(const std::string& where, std::string expected, std::string found) {
  throw Error({.where = where, .expected = std::move(expected), .found = std::move(found), .next = {}});
}

std::vector<int32_t> read_prompt(const Json& value, const std::string& path, const Service& service) {
  std::vector<int32_t> prompt = value.is_string() ? text_prompt(service, value.get_ref<const std::string&>())
                                                  : read_token_ids(value, path, vocabulary_of(service));
  if (prompt.empty()) refuse(path, "at least one token", value.is_string() ? "an empty text" : "an empty list");
  return prompt;
}

}  // namespace

const Tokenizer& tokenizer_of(const Service& service) {
  if (service.model.text.tokenizer) return *service.model.text.tokenizer;
  throw ApiError(400, "invalid_request_error", "The model has no tokenizer: send token ids, to /v1/completions.");
}

const ChatFormat& chat_format_of(const Service& service) {
  if (service.model.text.format) return *service.model.text.format;
  throw ApiError(400, "invalid_request_error", "The model has no chat format that is known: use /v1/completions.");
}

int64_t vocabulary_of(const Service& service) {
  return service.model.model->vocabulary();
}

std::vector<int32_t> text_prompt(const Service& service, std::string_view text) {
  tokenizer_of(service);  // or a 400
  return service.model.text.prompt_of(text);
}

std::vector<int32_t> chat_prompt(const Service& service, const ChatRequest& chat) {
  return tokenizer_of(service).encode(chat_format_of(service).render(chat));
}

std::vector<std::vector<int32_t>> read_prompts(const RequestFields& fields, const Service& service) {
  const Json* given = fields.find("prompt");
  if (given == nullptr || !(given->is_string() || given->is_array())) fields.refuse("prompt", kForms);
  const bool one = given->is_string() || given->empty() || given->front().is_number();
  if (one) return {read_prompt(*given, "prompt", service)};
  require_few_choices(static_cast<int64_t>(given->size()));
  std::vector<std::vector<int32_t>> prompts;
  for (const Json& prompt : *given) {
    const std::string path = fmt::format("prompt[{}]", prompts.size());
    if (!prompt.is_string() && !prompt.is_array()) refuse(path, "a string or a list of token ids", shown(prompt));
    if (prompt.type() != given->front().type()) refuse(path, "the form of those before it", shown(prompt));
    prompts.push_back(read_prompt(prompt, path, service));
  }
  return prompts;
}

void require_few_choices(int64_t choices) {
  if (choices <= kMostChoices) return;
  throw Error({.where = "prompt",
               .expected = fmt::format("at most {} choices of all prompts together", kMostChoices),
               .found = fmt::format("{}", choices),
               .next = "Send several requests."});
}

void require_room(const std::vector<int32_t>& prompt, int64_t max_tokens, const Service& service, const char* field) {
  const auto size = static_cast<int64_t>(prompt.size());
  if (size + (max_tokens > 0 ? 1 : 0) <= service.context) return;
  throw ApiError(
      400, "invalid_request_error",
      fmt::format("The prompt has {} tokens; this model's maximum context length is {} tokens, for the prompt and "
                  "the answer. Shorten the prompt.",
                  size, service.context),
      field, "context_length_exceeded");
}

void check_model_name(const RequestFields& fields, const Service& service) {
  const auto name = fields.text("model");
  if (!service.defaults.strict_model || !name || *name == service.model_name) return;
  throw ApiError(404, "not_found_error",
                 fmt::format("The model \"{}\" is not served here; \"{}\" is.", shortened(*name), service.model_name),
                 "model", "model_not_found");
}

}  // namespace megalith
