#include "cli/answer.h"

#include <stdexcept>
#include <utility>

#include <fmt/format.h>

#include "engine/measure.h"
#include "machines/limits.h"

namespace megalith {

Generation answer(Engine& engine, Request request, const std::function<void(std::span<const int32_t>)>& on_tokens,
                  const std::function<bool()>& stop) {
  const Engine::Id id = engine.add(std::move(request));
  size_t seen = 0;
  while (engine.generation(id).finish == Finish::running && engine.step()) {
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

constexpr int64_t kProbeBytes = int64_t{256} << 20;

// Tokens a second. The first token comes from the prefill; the rate is that of the others.
double decode_rate(const Generation& generation) {
  const auto decoded = static_cast<double>(generation.tokens.empty() ? 0 : generation.tokens.size() - 1);
  return generation.decode_s > 0 ? decoded / generation.decode_s : 0;
}

}  // namespace

std::string MemorySpeed::share(const Generation& generation) {
  const double rate = decode_rate(generation);
  if (rate == 0) return "";
  if (bytes_per_s_ == 0) bytes_per_s_ = CpuLimits(machine_.options().threads, kProbeBytes).read_rate(3);
  const auto position = static_cast<int>(generation.prompt.size() + generation.tokens.size() / 2);
  const double used = rate * decode_bytes(machine_.program(), 1, position);
  return fmt::format(", {:.0f}% of the {:.1f} GB/s that memory gives", 100 * used / bytes_per_s_, bytes_per_s_ / 1e9);
}

std::string statistics(const Generation& generation, const std::string& more) {
  return fmt::format("[{} prompt tokens, prefill {:.1f} ms; {} tokens, {:.1f} tokens/s{}{}]", generation.prompt.size(),
                     1e3 * generation.prefill_s, generation.tokens.size(), decode_rate(generation), more,
                     generation.finish == Finish::length      ? "; cut at the limit"
                     : generation.finish == Finish::cancelled ? "; stopped"
                                                              : "");
}

void require_success(const Generation& generation) {
  if (generation.finish == Finish::failed) throw std::runtime_error(generation.error);
}

}  // namespace megalith
