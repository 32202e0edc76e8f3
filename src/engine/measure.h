#pragma once

#include <cstdint>
#include <vector>

#include "machines/machine.h"

namespace megalith {

// Several measurements of one thing.
struct Spread {
  double median = 0, least = 0, most = 0;
};
// At least one value.
Spread spread_of(std::vector<double> values);

// Seconds that a step takes which continues `sequences` sequences by one token each, the mean of `steps` steps. Every
// sequence has `position` tokens before. Tokens follow a fixed pattern; what the model makes of them does not matter.
double decode_seconds(Machine& machine, int64_t vocabulary, int sequences, int position, int steps);

// Seconds that a step takes which begins a sequence with `rows` tokens.
double prefill_seconds(Machine& machine, int64_t vocabulary, int rows);

// One traced step of those that decode_seconds times: its tasks, in seconds since it began.
std::vector<TaskSpan> traced_decode(Machine& machine, int64_t vocabulary, int sequences, int position);

// Bytes that all ranks together must read and write in such a step, weights and states; and the operations of a
// prefill.
double decode_bytes(const Program& program, int sequences, int position);
double prefill_flops(const Program& program, int rows);

}  // namespace megalith
