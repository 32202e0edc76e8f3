#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "machines/machine.h"
#include "tests/support/same_bits.h"

namespace megalith {

// All logits of a prompt, cut into steps of `rows`, and then of the greedy continuation, row by row.
struct Transcript {
  std::vector<float> prompt_logits, greedy_logits;
  std::vector<int32_t> greedy;
};

inline void run_rows(Machine& machine, StepArgs& step, std::vector<float>& logits) {
  machine.run(step);
  const auto read = machine.read(machine.program().output("logits"));
  logits.insert(logits.end(), read.begin(), read.end());
}

inline int32_t last_token(const Machine& machine) {
  return static_cast<int32_t>(machine.read(machine.program().output("tokens")).back());
}

inline Transcript transcribe(Machine& machine, const std::vector<int32_t>& prompt, size_t rows_per_step, size_t n_greedy) {
  Transcript t;
  StepArgs step;
  for (size_t at = 0; at < prompt.size(); at += rows_per_step) {
    step.clear();
    const size_t end = std::min(prompt.size(), at + rows_per_step);
    step.add_run(0, static_cast<int32_t>(at), {prompt.begin() + static_cast<int64_t>(at), prompt.begin() + static_cast<int64_t>(end)});
    for (size_t row = 0; row < end - at; ++row) step.choose(static_cast<int32_t>(row), {});
    run_rows(machine, step, t.prompt_logits);
  }
  const size_t vocabulary = t.prompt_logits.size() / prompt.size();
  t.greedy_logits.assign(t.prompt_logits.end() - static_cast<int64_t>(vocabulary), t.prompt_logits.end());
  t.greedy.push_back(last_token(machine));
  while (t.greedy.size() < n_greedy) {
    step.clear();
    step.add_run(0, static_cast<int32_t>(prompt.size() + t.greedy.size() - 1), {t.greedy.back()});
    step.choose(0, {});
    run_rows(machine, step, t.greedy_logits);
    t.greedy.push_back(last_token(machine));
  }
  return t;
}

// The states of all ranks, joined along their heads (dimension 0 of the rank's shape).
inline std::vector<float> joined_state(const Machine& machine, const std::string& name, int positions) {
  const Program& program = machine.program();
  std::vector<float> all;
  for (size_t i = 0; i < program.states.size(); ++i) {
    if (program.states[i].name != name) continue;
    for (int rank = 0; rank < program.ranks; ++rank) {
      const auto part = machine.read_state(static_cast<int>(i), rank, 0, positions);
      all.insert(all.end(), part.begin(), part.end());
    }
  }
  return all;
}

inline void prefill(Machine& machine, const std::vector<int32_t>& prompt) {
  StepArgs step;
  step.add_run(0, 0, prompt);
  machine.run(step);
}

}  // namespace megalith
