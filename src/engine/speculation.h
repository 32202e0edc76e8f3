#pragma once

#include <cstdint>
#include <functional>
#include <vector>

namespace megalith {

struct Generation;

// Guesses what comes next in a text that has at least one generated token: up to `most` tokens, which are verified all
// at once. Guesses cost time when they are wrong, and never change the text.
using Drafter = std::function<std::vector<int32_t>(const Generation& text, int64_t most)>;

// How an engine speculates.
struct Speculation {
  int width = 1;  // rows of a block: the newest token, and width - 1 guesses; 1 is plain decoding
  Drafter drafter;
  // Makes the states of a sequence permanent when it ends, so that they are those of plain decoding.
  bool settle = false;
};

// How many of the guesses are what the target chose at their places: row i chooses what guess i should have been.
int64_t accepted(const std::vector<int32_t>& guesses, const int32_t* choices);

}  // namespace megalith
