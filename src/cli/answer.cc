#include "cli/answer.h"

#include <fmt/format.h>

#include <stdexcept>
#include <utility>

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

std::string statistics(const Generation& generation) {
  // The first token comes from the prefill; the rate is that of the others.
  const auto decoded = static_cast<double>(generation.tokens.empty() ? 0 : generation.tokens.size() - 1);
  const double rate = generation.decode_s > 0 ? decoded / generation.decode_s : 0;
  return fmt::format("[{} prompt tokens, prefill {:.1f} ms; {} tokens, {:.1f} tokens/s{}]", generation.prompt.size(),
                     1e3 * generation.prefill_s, generation.tokens.size(), rate,
                     generation.finish == Finish::length      ? "; cut at the limit"
                     : generation.finish == Finish::cancelled ? "; stopped"
                                                              : "");
}

void require_success(const Generation& generation) {
  if (generation.finish == Finish::failed) throw std::runtime_error(generation.error);
}

}  // namespace megalith
