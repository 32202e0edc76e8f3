#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "program/program.h"
#include "program/step_args.h"

namespace megalith {

// The rows of the draft that follows a step, in the same step: a block of rows for each run that asks for one. How many
// there are is known when the step begins; tokens and positions when its tokens are chosen.
struct DraftSteps {
  StepArgs rows;    // of all blocks, one run each: the anchor, then masks
  StepArgs blocks;  // one row for each block: the token that the next guess follows, and its position; all chosen

  // Makes room for the blocks of `block` rows that the step asks for.
  void prepare(const StepArgs& step, int block);
  // Fills the blocks in: each begins after the guesses that are right, at the choice that follows them. `tokens` are the
  // choices of the step's chosen rows; accepted[j] receives how many guesses of block j's run are right.
  void begin(const StepArgs& step, const float* tokens, int32_t mask, float* accepted);
  // tokens[j] follows in block j.
  void advance(const float* tokens);
  // The step whose rows these are; `step` where they are not the draft's.
  const StepArgs& of(Rows which, const StepArgs& step) const;

 private:
  struct Source {
    size_t run = 0;           // of the step
    size_t first_chosen = 0;  // index of its first chosen row
    size_t chosen = 0;
  };
  std::vector<Source> sources_;  // of each block
};

}  // namespace megalith
