#pragma once

#include <functional>
#include <span>
#include <string>

#include "engine/engine.h"
#include "engine/loaded_model.h"
#include "machines/machine.h"

namespace megalith {

// Runs one request to its end. `on_tokens` gets the new tokens after each call of `steps` steps; `stop` is asked then, and
// ends the generation by returning true.
Generation answer(
    Engine& engine, Request request, int steps, const std::function<void(std::span<const int32_t>)>& on_tokens,
    const std::function<bool()>& stop = [] { return false; });

// Tokens without the one that ended the generation.
std::span<const int32_t> text_tokens(const Generation& generation);

// How fast this machine reads memory: measured by all workers when first asked for, which takes a fraction of a second.
class MemorySpeed {
 public:
  explicit MemorySpeed(const Machine& machine) : machine_(machine) {}
  // What share of it decoding used: ", 91% of the 23.1 GB/s that memory gives"; empty where nothing was decoded.
  std::string share(const Generation& generation);

 private:
  const Machine& machine_;
  double bytes_per_s_ = 0;
};

// "[12 prompt tokens, prefill 8.1 ms; 40 tokens, 61.3 tokens/s]"; `more` stands after the rate.
std::string statistics(const Generation& generation, const std::string& more = "");

// "2.9 tokens a step, 61% of 1,204 guesses right"; empty where nothing was guessed.
std::string speculation(const SpeculationReport& report);

// A text decoded with a draft beside the same without: "plain decoding 61.3 tokens/s, so 2.8 times as fast; 40 of 40 tokens
// agree".
std::string comparison(const Generation& drafted, const Generation& plain);
int64_t leading_equal(const std::vector<int32_t>& a, const std::vector<int32_t>& b);

// Tokens a second. The first token comes from the prefill; the rate is that of the others.
double decode_rate(const Generation& generation);

// Throws std::runtime_error for a generation that failed.
void require_success(const Generation& generation);

}  // namespace megalith
