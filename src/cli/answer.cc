#include "cli/answer.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

#include <fmt/format.h>

#include "engine/measure.h"
#include "machines/limits.h"

namespace megalith {

Generation answer(Engine& engine, Request request, int steps,
                  const std::function<void(std::span<const int32_t>)>& on_tokens, const std::function<bool()>& stop) {
  const Engine::Id id = engine.add(std::move(request));
  size_t seen = 0;
  while (engine.generation(id).finish == Finish::running) {
    for (int i = 0; i < steps && engine.step(); ++i) {
    }
    const auto tokens = text_tokens(engine.generation(id));
    if (tokens.size() > seen) on_tokens(tokens.subspan(seen));
    seen = tokens.size();
    if (stop()) engine.cancel(id);
  }
  Generation generation = engine.generation(id);
  engine.forget(id);
  return generation;
}

std::span<const int32_t> text_tokens(const Generation& generation) {
  const std::span<const int32_t> tokens = generation.tokens;
  return generation.finish == Finish::end_token ? tokens.first(tokens.size() - 1) : tokens;
}

namespace {

constexpr int64_t kDoubtful = 40;  // guesses, of which hardly any is right
constexpr int64_t kQuickProbeBytes = int64_t{256} << 20;

}  // namespace

double decode_rate(const Generation& generation) {
  const auto decoded = static_cast<double>(generation.tokens.empty() ? 0 : generation.tokens.size() - 1);
  return generation.decode_s > 0 ? decoded / generation.decode_s : 0;
}

std::string speculation(const SpeculationReport& report) {
  const int64_t guesses = report.tried();
  if (guesses == 0) return "";
  const int64_t right = report.kept();
  return fmt::format("{:.2f} tokens a step, {:.0f}% of {} guesses right{}", report.tokens_per_step(),
                     100.0 * static_cast<double>(right) / static_cast<double>(guesses), guesses,
                     guesses >= kDoubtful && right * 50 < guesses ? " (so few that the draft may be of another model)" : "");
}

int64_t leading_equal(const std::vector<int32_t>& a, const std::vector<int32_t>& b) {
  return std::mismatch(a.begin(), a.begin() + static_cast<int64_t>(std::min(a.size(), b.size())), b.begin()).first - a.begin();
}

std::string comparison(const Generation& drafted, const Generation& plain) {
  return fmt::format("plain decoding {:.1f} tokens/s, so {:.2f} times as fast; {} of {} tokens agree", decode_rate(plain),
                     decode_rate(drafted) / decode_rate(plain), leading_equal(drafted.tokens, plain.tokens),
                     std::max(drafted.tokens.size(), plain.tokens.size()));
}

std::string MemorySpeed::share(const Generation& generation) {
  const double rate = decode_rate(generation);
  // Only plain decoding reads what is counted below for each token.
  const auto& guesses = generation.steps.guesses;
  if (rate == 0 || std::any_of(guesses.begin(), guesses.end(), [](int n) { return n > 0; })) return "";
  if (bytes_per_s_ == 0) bytes_per_s_ = CpuLimits(machine_.options().threads, kQuickProbeBytes).read_rate(3);
  const auto position = static_cast<int>(generation.prompt.size() + generation.tokens.size() / 2);
  const double used = rate * decode_bytes(machine_.program(), 1, position);
  return fmt::format(", {:.0f}% of the {:.1f} GB/s that memory gives", 100 * used / bytes_per_s_, bytes_per_s_ / 1e9);
}

std::string statistics(const Generation& generation, const std::string& more) {
  const std::string guessed = speculation(generation.steps);
  return fmt::format("[{} prompt tokens, prefill {:.1f} ms; {} tokens, {:.1f} tokens/s{}{}{}]", generation.prompt.size(),
                     1e3 * generation.prefill_s, generation.tokens.size(), decode_rate(generation),
                     guessed.empty() ? "" : "; " + guessed, more,
                     generation.finish == Finish::length      ? "; cut at the limit"
                     : generation.finish == Finish::cancelled ? "; stopped"
                                                              : "");
}

void require_success(const Generation& generation) {
  if (generation.finish == Finish::failed) throw std::runtime_error(generation.error);
}

}  // namespace megalith
