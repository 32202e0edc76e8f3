#include "program/step_args.h"

namespace megalith {

int32_t StepArgs::add_run(int32_t sequence, int32_t first_position, const std::vector<int32_t>& tokens, int32_t replay,
                          bool speculative) {
  const auto first_row = static_cast<int32_t>(rows.size());
  runs.push_back({sequence, first_row, static_cast<int32_t>(tokens.size()), first_position, replay, speculative});
  for (const int32_t token : tokens) rows.push_back({sequence, first_position++, token});
  return first_row;
}

void StepArgs::choose(int32_t row, const Sampling& how) {
  chosen.push_back(row);
  sampling.push_back(how);
}

void StepArgs::clear() {
  rows.clear();
  runs.clear();
  chosen.clear();
  sampling.clear();
}

}  // namespace megalith
