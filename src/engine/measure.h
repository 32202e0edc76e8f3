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

// Means of some steps.
struct DecodeTime {
  double seconds = 0;  // of a step
  double experts = 0;  // different ones of a layer that a step's rows chose; 0 where the model has none
  double draft_s = 0;  // of `seconds`, the draft
};
// Times steps that continue `sequences` sequences by one token each. Every sequence has `position` tokens before. Tokens
// follow a fixed pattern; what the model makes of them does not matter.
DecodeTime time_decode(Machine& machine, int64_t vocabulary, int sequences, int position, int steps);

// Steps that speculate, as an engine's do: each sequence verifies a block of rows, of which the next step makes those
// permanent that are kept.
struct BlockSteps {
  int sequences = 1;
  int rows = 1;        // of a block
  int kept = 1;        // of these, whatever was chosen
  bool draft = false;  // each step guesses a block, too
};
// The same for such steps, after one that is not timed. Guesses follow a fixed pattern.
DecodeTime time_blocks(Machine& machine, int64_t vocabulary, const BlockSteps& how, int position, int steps);

// How many different experts the rows of the last step chose, the mean of all layers that have some.
double experts_of_step(const Machine& machine);

// Seconds that a step takes which begins a sequence with `rows` tokens.
double prefill_seconds(Machine& machine, int64_t vocabulary, int rows);

// One traced step of those that time_decode times: its tasks, in seconds since it began.
std::vector<TaskSpan> traced_decode(Machine& machine, int64_t vocabulary, int sequences, int position);
std::vector<TaskSpan> traced_blocks(Machine& machine, int64_t vocabulary, const BlockSteps& how, int position);

// Bytes that all ranks together must read and write in such a step, weights and states (of experts, those that were
// chosen: CostArgs::experts), without the draft; and the operations of a prefill.
double decode_bytes(const Program& program, int sequences, int position, double experts = 0);
double prefill_flops(const Program& program, int rows);

}  // namespace megalith
