#pragma once

#include <cstdint>
#include <vector>

#include "machines/machine.h"

namespace megalith {

// What a model computes for a text, row by row.
struct Forward {
  std::vector<float> logits;  // [tokens, vocabulary]
  // Where the program has hidden outputs: the residual stream after the embedding and every layer,
  // [layers + 1, tokens, hidden].
  std::vector<float> hidden;
  int64_t vocabulary = 0, hidden_outputs = 0, hidden_size = 0;
};

// Runs tokens through sequence slot 0, in steps of `rows_per_step`. Throws Error for ids outside the vocabulary or more
// tokens than the context.
Forward forward(Machine& machine, const std::vector<int32_t>& tokens, int rows_per_step);

}  // namespace megalith
