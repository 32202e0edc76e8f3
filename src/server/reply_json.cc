#include "server/reply_json.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "server/random_hex.h"

namespace megalith {

namespace {

using Json = nlohmann::ordered_json;

// JSON has no infinity; clients compare and add up these numbers.
constexpr double kLeastLogprob = -9999;

double finite(float logprob) {
  return std::isfinite(logprob) ? double{logprob} : kLeastLogprob;
}

int64_t characters(std::string_view text) {
  return std::count_if(text.begin(), text.end(),
                       [](char byte) { return (static_cast<unsigned char>(byte) & 0xc0) != 0x80; });
}

std::string text_of(const Tokenizer& tokenizer, int32_t token) {
  return tokenizer.decode({&token, 1}, false);
}

// Two tokens may have the same text alone, as parts of characters do; the likelier one counts.
void raise(Json& values, const std::string& text, double value) {
  Json& slot = values[text];
  if (slot.is_null() || slot.get<double>() < value) slot = value;
}

Json chat_entry(const Tokenizer& tokenizer, int32_t token, float logprob) {
  Json bytes = Json::array();
  for (const char byte : tokenizer.token_bytes(token)) bytes.push_back(static_cast<unsigned char>(byte));
  return {{"token", text_of(tokenizer, token)}, {"logprob", finite(logprob)}, {"bytes", std::move(bytes)}};
}

double per(double value, double count) {
  return count > 0 ? value / count : 0;
}

Json speculation_json(const SpeculationReport& report, int draft_guesses) {
  std::vector<int64_t> histogram(static_cast<size_t>(draft_guesses) + 1);
  int64_t steps = 0;
  for (size_t i = 0; i < report.guesses.size(); ++i) {
    if (report.guesses[i] == 0) continue;
    ++steps;
    ++histogram[static_cast<size_t>(std::min(report.accepted[i], draft_guesses))];
  }
  const int64_t guesses = report.tried(), accepted = report.kept();
  return {{"mean_acceptance_length", 1 + per(static_cast<double>(accepted), static_cast<double>(steps))},
          {"draft_acceptance_rate", per(static_cast<double>(accepted), static_cast<double>(guesses))},
          {"acceptance_histogram", histogram},
          {"num_spec_steps", steps},
          {"num_accepted_draft_tokens", accepted},
          {"num_draft_tokens", guesses},
          {"num_spec_tokens", draft_guesses}};
}

}  // namespace

std::string random_id(std::string_view prefix) {
  return std::string(prefix) + random_hex(24);
}

Json Usage::json() const {
  Json usage = {{"prompt_tokens", prompt},
                {"completion_tokens", completion},
                {"total_tokens", prompt + completion},
                {"prompt_tokens_details", {{"cached_tokens", cached}}}};
  if (reasoning) usage["completion_tokens_details"] = {{"reasoning_tokens", *reasoning}};
  return usage;
}

Json metrics_json(const Generation& generation, int draft_guesses) {
  const auto gaps = static_cast<double>(generation.tokens.size()) - 1;
  Json metrics = {{"time_to_first_token_ms", nullptr},
                  {"generation_time_ms", generation.decode_s * 1e3},
                  {"queue_time_ms", generation.queue_s * 1e3},
                  {"mean_itl_ms", nullptr},
                  {"tokens_per_second", nullptr}};
  if (gaps >= 0) metrics["time_to_first_token_ms"] = (generation.queue_s + generation.prefill_s) * 1e3;
  if (gaps > 0 && generation.decode_s > 0) {
    metrics["mean_itl_ms"] = generation.decode_s * 1e3 / gaps;
    metrics["tokens_per_second"] = gaps / generation.decode_s;
  }
  if (draft_guesses > 0) metrics["speculative_decoding"] = speculation_json(generation.steps, draft_guesses);
  return metrics;
}

void CompletionLogprobs::add_prompt(const Generation& generation) {
  const auto& prompt = generation.prompt;
  for (size_t i = 0; i < prompt.size(); ++i) add(prompt[i], i == 0 ? nullptr : &generation.prompt_logprobs.at(i - 1));
}

void CompletionLogprobs::add_tokens(const Generation& generation, size_t first, size_t last) {
  for (size_t i = first; i < last; ++i) add(generation.tokens[i], &generation.logprobs.at(i));
}

Json CompletionLogprobs::take() {
  return std::exchange(arrays_, empty());
}

void CompletionLogprobs::add(int32_t token, const Logprobs* logprobs) {
  const std::string text = text_of(tokenizer_, token);
  Json value = nullptr, top = nullptr;
  if (logprobs) {
    value = finite(logprobs->logprob);
    top = Json::object();
    const auto n = std::min(logprobs->top.size(), static_cast<size_t>(alternatives_));
    for (size_t i = 0; i < n; ++i) raise(top, text_of(tokenizer_, logprobs->top[i].token), finite(logprobs->top[i].logprob));
    raise(top, text, finite(logprobs->logprob));
  }
  arrays_["tokens"].push_back(text);
  arrays_["token_logprobs"].push_back(std::move(value));
  arrays_["top_logprobs"].push_back(std::move(top));
  arrays_["text_offset"].push_back(offset_);
  offset_ += characters(text);
}

Json CompletionLogprobs::empty() {
  const Json none = Json::array();
  return {{"tokens", none}, {"token_logprobs", none}, {"top_logprobs", none}, {"text_offset", none}};
}

Json chat_logprobs(const Tokenizer& tokenizer, const Generation& generation, size_t first, size_t last, int alternatives) {
  Json content = Json::array();
  for (size_t i = first; i < last; ++i) {
    const Logprobs& at = generation.logprobs.at(i);
    Json top = Json::array();
    const auto n = std::min(at.top.size(), static_cast<size_t>(alternatives));
    for (size_t j = 0; j < n; ++j) top.push_back(chat_entry(tokenizer, at.top[j].token, at.top[j].logprob));
    Json entry = chat_entry(tokenizer, generation.tokens[i], at.logprob);
    entry["top_logprobs"] = std::move(top);
    content.push_back(std::move(entry));
  }
  return {{"content", std::move(content)}};
}

}  // namespace megalith
