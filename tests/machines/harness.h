#pragma once

#include <cmath>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "machines/machine.h"
#include "program/builder.h"
#include "reference/reference.h"
#include "tests/support/random_weights.h"
#include "tests/support/same_bits.h"

namespace megalith {

// Every matrix is of this dtype.
inline TensorCatalog all_of(DType dtype) {
  return [dtype](const std::string&) { return TensorInfo{dtype, {}}; };
}

// A new step with one run of tokens, of which row i has token (first_token + i) mod tokens.
inline void add_tokens(StepArgs& step, int sequence, int position, int rows, int first_token, int tokens) {
  std::vector<int32_t> ids;
  for (int i = 0; i < rows; ++i) ids.push_back((first_token + i) % tokens);
  step.add_run(sequence, position, ids);
}

inline void choose_all(StepArgs& step) {
  for (size_t row = 0; row < step.rows.size(); ++row) step.choose(static_cast<int32_t>(row), {});
}

// got against want: equal bits where tolerance is 0, else |got - want| ≤ tolerance · the largest |want|.
inline void expect_equal(const float* got, const float* want, size_t size, double tolerance, const std::string& what) {
  if (tolerance == 0) {
    for (size_t i = 0; i < size; ++i) {
      ASSERT_TRUE(same_bits(got + i, want + i, 1))
          << what << " at " << i << " of " << size << ": " << got[i] << ", want " << want[i];
    }
    return;
  }
  double scale = 0;
  for (size_t i = 0; i < size; ++i) scale = std::max(scale, std::abs(static_cast<double>(want[i])));
  for (size_t i = 0; i < size; ++i) {
    const double error = std::abs(static_cast<double>(got[i]) - want[i]);
    ASSERT_TRUE(error <= tolerance * scale)
        << what << " at " << i << " of " << size << ": " << got[i] << ", want " << want[i];
  }
}

// Runs steps on the CPU machine and on the reference; compares all outputs and all states after every step.
class Parity {
 public:
  Parity(Program program, double tolerance, int max_sequences = 4, int context = 304)
      : program_(std::move(program)), tolerance_(tolerance), max_sequences_(max_sequences), context_(context) {}

  RandomWeights weights;

  void run(const std::vector<StepArgs>& steps, const std::vector<int>& thread_counts = {1, 3}) {
    Reference reference(program_, max_sequences_, context_);
    reference.load(weights);
    std::vector<std::unique_ptr<Machine>> machines;
    for (const int threads : thread_counts) {
      machines.push_back(make_cpu_machine(
          program_, {.threads = threads, .max_rows = 320, .max_sequences = max_sequences_, .context = context_}));
      machines.back()->load(weights, nullptr);
    }
    for (size_t i = 0; i < steps.size(); ++i) {
      reference.run(steps[i]);
      for (auto& machine : machines) {
        machine->run(steps[i]);
        const std::string where =
            "step " + std::to_string(i) + ", " + std::to_string(machine->options().threads) + " threads, ";
        compare(*machine, reference, steps[i], where);
        if (::testing::Test::HasFatalFailure()) return;
      }
    }
  }

 private:
  void compare(const Machine& machine, const Reference& reference, const StepArgs& step,
               const std::string& where) const {
    for (const auto& [name, value] : program_.outputs) {
      const auto got = machine.read(value);
      const std::vector<float>& want = reference.read(value);
      ASSERT_EQ(got.size(), want.size()) << where << name;
      expect_equal(got.data(), want.data(), want.size(), tolerance_, where + name);
    }
    for (const Run& run : step.runs) {
      for (int state = 0; state < static_cast<int>(program_.states.size()); ++state) {
        for (int rank = 0; rank < program_.ranks; ++rank) {
          const int positions = run.first_position + run.rows;
          const auto got = machine.read_state(state, rank, run.sequence, positions);
          const auto want = reference.read_state(state, rank, run.sequence, positions);
          ASSERT_EQ(got.size(), want.size()) << where;
          expect_equal(got.data(), want.data(), want.size(), tolerance_,
                       where + program_.states[static_cast<size_t>(state)].name + " of rank " + std::to_string(rank));
        }
      }
    }
  }

  const Program program_;
  const double tolerance_;
  const int max_sequences_, context_;
};

// Steps that a sequence's states could confuse: runs of several sequences side by side, a new start in a used slot,
// rows that end within and beyond a block of positions.
inline std::vector<StepArgs> mixed_steps(int tokens) {
  std::vector<StepArgs> steps(6);
  add_tokens(steps[0], 1, 0, 17, 3, tokens);
  add_tokens(steps[1], 0, 0, 1, 1, tokens);
  add_tokens(steps[1], 1, 17, 3, 9, tokens);
  add_tokens(steps[1], 3, 0, 2, 5, tokens);
  add_tokens(steps[2], 3, 2, 1, 6, tokens);
  add_tokens(steps[2], 0, 1, 1, 2, tokens);
  add_tokens(steps[2], 1, 20, 12, 4, tokens);
  add_tokens(steps[3], 1, 0, 20, 8, tokens);
  add_tokens(steps[3], 3, 3, 14, 7, tokens);
  add_tokens(steps[4], 1, 20, 1, 1, tokens);
  add_tokens(steps[5], 1, 21, 1, 2, tokens);
  add_tokens(steps[5], 3, 17, 1, 3, tokens);
  for (StepArgs& step : steps) choose_all(step);
  return steps;
}

// One sequence, past the borders of blocks (16) and chunks (256) of positions.
inline std::vector<StepArgs> long_steps(int tokens) {
  std::vector<StepArgs> steps;
  int position = 0;
  for (const int rows : {15, 1, 1, 230, 8, 1, 1, 2, 40, 1}) {
    steps.emplace_back();
    add_tokens(steps.back(), 0, position, rows, position, tokens);
    choose_all(steps.back());
    position += rows;
  }
  return steps;
}

}  // namespace megalith
