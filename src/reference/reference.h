#pragma once

#include <cstdint>
#include <vector>

#include "program/draft_steps.h"
#include "program/program.h"
#include "program/step_args.h"

namespace megalith {

// Runs any program with plain loops: one function an op (ops.h), one op after the other, rank after rank, every value
// kept. Slow and obviously right: the oracle of the machines' tests, and the place to read what an op means.
//
// Matrix products, and all that only moves or adds numbers, have the bits that the contract asks for; the rest is
// formed in double precision with the platform's functions and rounded once.
class Reference {
 public:
  // Slots for `max_sequences` sequences of up to `context` positions.
  Reference(Program program, int max_sequences, int context);

  // Unpacks all weights of all ranks. Called once, before run().
  void load(const TapeSource& source);
  void run(const StepArgs& step);

  // Any value of the last step on a rank, [rows, width]. Ops that are done once have their value on rank 0.
  const std::vector<float>& read(Value value, int rank = 0) const;
  // A state of a sequence on a rank: [shape], or [shape[0], positions, shape[1]] for the first `positions` positions;
  // with a window, for its slots, as far as so many positions fill them.
  std::vector<float> read_state(int state, int rank, int sequence, int positions) const;

  const Program& program() const { return program_; }

 private:
  struct RankMemory {
    std::vector<std::vector<float>> weights;  // [outputs, inputs]
    std::vector<std::vector<float>> values;
    std::vector<std::vector<float>>
        states;  // [sequence] of the state's shape; a position's entry is [head, position, dim]
  };

  void run_op(const Op& op, int rank, const StepArgs& step);
  // Floats from one sequence's state to the next.
  int64_t state_size(int state) const;

  const Program program_;
  const int max_sequences_;
  const int64_t context_;
  const std::vector<bool> once_;  // of each value: written once, on the first rank
  DraftSteps drafts_;             // of the step
  std::vector<RankMemory> ranks_;
};

}  // namespace megalith
