// Bodies of /v1/completions, /v1/chat/completions and the text routes in JSON, for both families of models. What is
// accepted is within the limits that the engine and the replies rely on.

#include <cmath>

#include "base/check.h"
#include "server/api_error.h"
#include "server/generation_request.h"
#include "server/text_routes.h"
#include "tests/fuzz/fuzz.h"
#include "tests/support/text_service.h"
#include "text/request_json.h"

namespace megalith {
namespace {

constexpr int64_t kContext = 512;

void check_ids(const std::vector<int32_t>& ids, const Service& service) {
  for (const int32_t id : ids) CHECK(id >= 0 && id < service.model.model->vocabulary(), "token {}", id);
}

void check_common(const CommonFields& common, const Service& service) {
  const Request& request = common.request;
  CHECK(request.max_tokens >= 0 && request.max_tokens <= kContext, "a budget of {}", request.max_tokens);
  CHECK(request.min_tokens >= 0 && request.min_tokens <= kContext, "at least {}", request.min_tokens);
  const Sampling& sampling = request.sampling;
  CHECK(sampling.temperature == 0 || std::isnormal(sampling.temperature), "temperature {}", sampling.temperature);
  CHECK(sampling.temperature >= 0 && sampling.temperature <= 100, "temperature {}", sampling.temperature);
  CHECK(sampling.top_p > 0 && sampling.top_p <= 1, "top_p {}", sampling.top_p);
  CHECK(sampling.min_p >= 0 && sampling.min_p <= 1, "min_p {}", sampling.min_p);
  CHECK(sampling.top_k >= 0, "top_k {}", sampling.top_k);
  CHECK(request.penalties.repetition > 0 && std::isfinite(request.penalties.repetition), "repetition");
  CHECK(std::abs(request.penalties.presence) <= 2 && std::abs(request.penalties.frequency) <= 2, "a penalty");
  for (const auto& [id, bias] : request.logit_bias) CHECK(std::abs(bias) <= 100, "a bias of {} for {}", bias, id);
  check_ids(request.end_tokens, service);
  CHECK(common.n >= 1 && common.n <= 16, "{} choices", common.n);
  CHECK(common.stop.size() <= 16, "{} stops", common.stop.size());
  for (const std::string& stop : common.stop) CHECK(!stop.empty() && stop.size() <= 2048, "a stop of {} bytes", stop.size());
  CHECK(!request.logprobs || (*request.logprobs >= 0 && *request.logprobs <= 20), "logprobs");
  CHECK(!request.score_prompt || request.logprobs, "a score without log-probabilities");
}

void check_prompt(const std::vector<int32_t>& prompt, const CommonFields& common, const Service& service) {
  const auto size = static_cast<int64_t>(prompt.size());
  CHECK(size > 0 && size + (common.request.max_tokens > 0 ? 1 : 0) <= kContext, "a prompt of {} tokens", size);
  check_ids(prompt, service);
}

void check_completion(const nlohmann::ordered_json& body, const Service& service) {
  const CompletionRequest read = parse_completion_request(body, service);
  check_common(read.common, service);
  CHECK(!read.prompts.empty() && read.prompts.size() * static_cast<size_t>(read.common.n) <= 1024, "too many choices");
  CHECK(!read.common.stream || read.prompts.size() == 1, "a stream of several prompts");
  for (const auto& prompt : read.prompts) check_prompt(prompt, read.common, service);
}

void check_chat(const nlohmann::ordered_json& body, const Service& service) {
  const ChatCompletionRequest read = parse_chat_completion_request(body, service);
  check_common(read.common, service);
  check_prompt(read.prompt, read.common, service);
  CHECK(read.logprobs || read.top_logprobs == 0, "alternatives of nothing");
}

// ApiError is the other way to refuse.
template <class Run>
void refuse_with_errors_only(Run run) {
  refuse_with_error_only([&] {
    try {
      run();
    } catch (const ApiError& error) {
      CHECK(error.status >= 400 && error.status < 500, "status {}", error.status);
    }
  });
}

void check_service(std::string_view text, const Service& service) {
  refuse_with_errors_only([&] { check_completion(parse_request_json(text, "request"), service); });
  refuse_with_errors_only([&] { check_chat(parse_request_json(text, "request"), service); });
  HttpRequest request;
  request.body = text;
  for (const auto route : {tokenize, detokenize, apply_template}) {
    refuse_with_errors_only([&] { CHECK(is_json(route(request, service).body), "a reply that is not JSON"); });
  }
}

}  // namespace
}  // namespace megalith

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace megalith;
  static const TextService qwen("tiny-qwen", kContext), kimi("tiny-kimi", kContext);
  for (const TextService* service : {&qwen, &kimi}) check_service(text_of(data, size), service->service);
  return 0;
}
