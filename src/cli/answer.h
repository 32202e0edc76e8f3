#pragma once

#include <functional>
#include <span>
#include <string>

#include "engine/engine.h"
#include "engine/loaded_model.h"

namespace megalith {

// Runs one request to its end. `on_tokens` gets the new tokens after each step; `stop` is asked after each step, and ends
// the generation by returning true.
Generation answer(Engine& engine, Request request, const std::function<void(std::span<const int32_t>)>& on_tokens,
                  const std::function<bool()>& stop = [] { return false; });

// Tokens without the one that ended the generation.
std::span<const int32_t> text_tokens(const Generation& generation);

// "[12 prompt tokens, 8.1 ms; 40 tokens, 61.3 tokens/s]"
std::string statistics(const Generation& generation);

// Throws std::runtime_error for a generation that failed.
void require_success(const Generation& generation);

}  // namespace megalith
