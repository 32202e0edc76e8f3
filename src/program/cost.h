#pragma once

#include <cstdint>
#include <vector>

#include "program/program.h"

namespace megalith {

// The step whose cost is asked for: `sequences` sequences with `rows_each` rows each, at the end of `context` positions.
struct CostArgs {
  int64_t sequences = 1;
  int64_t rows_each = 1;
  int64_t context = 2048;
  // How many different experts of a layer the rows choose; 0: what is expected where each row chooses as if by lot.
  double experts = 0;
  bool draft = true;  // a draft block follows each sequence, where the program has a draft
  int64_t rows() const { return sequences * rows_each; }
};

// What an op must move and compute on one rank, in one step. Weights are counted as the checkpoint holds them, without
// the padding of panels; activations stay in caches and are counted apart.
struct Cost {
  int64_t weight_bytes = 0;      // streamed once a step
  int64_t state_bytes = 0;       // read and written
  int64_t wire_bytes = 0;        // sent to other ranks
  int64_t activation_bytes = 0;  // read and written
  double flops = 0;

  Cost& operator+=(const Cost& other);
  int64_t memory_bytes() const { return weight_bytes + state_bytes; }
};

// True where an op has no rows: of a draft, in a step that has none.
bool idle(const Program& program, const Op& op, const CostArgs& args);
Cost op_cost(const Program& program, const Op& op, const CostArgs& args);
// Bytes of the weights that a step streams, each counted once however many ranks share it; of experts, the chosen ones.
int64_t streamed_bytes(const Program& program, const CostArgs& args = {});
// How many different experts of a layer the step's rows choose (CostArgs::experts); 0 where no op routes.
double chosen_experts(const Program& program, const CostArgs& args);
Cost program_cost(const Program& program, const CostArgs& args);

}  // namespace megalith
