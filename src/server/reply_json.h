#pragma once

// Parts of the replies of /v1/completions and /v1/chat/completions.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

#include "engine/engine.h"
#include "text/tokenizer.h"

namespace megalith {

// A prefix, and 24 random hexadecimal digits.
std::string random_id(std::string_view prefix);

// Tokens of one request.
struct Usage {
  int64_t prompt = 0;  // once for each prompt, however many choices it has
  int64_t completion = 0;
  int64_t cached = 0;                // of the prompts
  std::optional<int64_t> reasoning;  // of the completions; chat only

  nlohmann::ordered_json json() const;
};

// What one text took, in the fields of vLLM's per-request metrics; with `draft_guesses` of a step, what became of them.
nlohmann::ordered_json metrics_json(const Generation& generation, int draft_guesses);

// The four arrays of a completion's log-probabilities. Each token's text is that of the token alone, and offsets count the
// characters of these texts from the first one on, so arrays of consecutive tokens joined are the arrays of all.
class CompletionLogprobs {
 public:
  // `alternatives`: the most of each place, beside the token that is there.
  CompletionLogprobs(Tokenizer tokenizer, int alternatives)
      : tokenizer_(std::move(tokenizer)), alternatives_(alternatives) {}

  // The prompt's tokens; the first one has nothing before it, and null for its values.
  void add_prompt(const Generation& generation);
  // Generated tokens [first, last).
  void add_tokens(const Generation& generation, size_t first, size_t last);
  // What was added since the last call.
  nlohmann::ordered_json take();

 private:
  void add(int32_t token, const Logprobs* logprobs);

  Tokenizer tokenizer_;
  int alternatives_;
  int64_t offset_ = 0;
  nlohmann::ordered_json arrays_ = empty();

  static nlohmann::ordered_json empty();
};

// The entries of a chat's log-probabilities for generated tokens [first, last): all of them, those of thoughts and marks
// too.
nlohmann::ordered_json chat_logprobs(const Tokenizer& tokenizer, const Generation& generation, size_t first, size_t last,
                                     int alternatives);

}  // namespace megalith
