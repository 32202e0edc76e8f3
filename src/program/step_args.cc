#include "program/step_args.h"

#include <cmath>

namespace megalith {

void LogitChanges::apply(float* logits, int64_t vocabulary) const {
  for (const Change& change : tokens) {
    float& x = logits[change.token];
    x = (x > 0 ? x / change.divisor : x * change.divisor) + change.add;
  }
  if (allowed == nullptr) return;
  for (int64_t id = 0; id < vocabulary; ++id) {
    if ((allowed[id / 64] >> (id % 64) & 1) == 0) logits[id] = -HUGE_VALF;
  }
}

int32_t StepArgs::add_run(int32_t sequence, int32_t first_position, const std::vector<int32_t>& tokens, int32_t replay,
                          bool speculative) {
  const auto first_row = static_cast<int32_t>(rows.size());
  runs.push_back({sequence, first_row, static_cast<int32_t>(tokens.size()), first_position, replay, speculative});
  for (const int32_t token : tokens) rows.push_back({sequence, first_position++, token});
  return first_row;
}

void StepArgs::choose(int32_t row, const Sampling& how, const LogitChanges* change) {
  chosen.push_back(row);
  sampling.push_back(how);
  changes.push_back(change);
}

void StepArgs::clear() {
  rows.clear();
  runs.clear();
  chosen.clear();
  sampling.clear();
  changes.clear();
}

}  // namespace megalith
