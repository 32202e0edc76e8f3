#include "engine/speculation.h"

#include <numeric>

namespace megalith {

int64_t accepted(const std::vector<int32_t>& guesses, const int32_t* choices) {
  size_t count = 0;
  while (count < guesses.size() && guesses[count] == choices[count]) ++count;
  return static_cast<int64_t>(count);
}

int64_t SpeculationReport::tried() const {
  return std::accumulate(guesses.begin(), guesses.end(), int64_t{0});
}

int64_t SpeculationReport::kept() const {
  return std::accumulate(accepted.begin(), accepted.end(), int64_t{0});
}

std::vector<double> SpeculationReport::acceptance_by_position() const {
  std::vector<double> kept, tried;
  for (size_t step = 0; step < guesses.size(); ++step) {
    const auto size = static_cast<size_t>(guesses[step]);
    if (tried.size() < size) {
      tried.resize(size);
      kept.resize(size);
    }
    for (size_t i = 0; i < size; ++i) {
      tried[i] += 1;
      kept[i] += i < static_cast<size_t>(accepted[step]) ? 1 : 0;
    }
  }
  for (size_t i = 0; i < kept.size(); ++i) kept[i] /= tried[i];
  return kept;
}

double SpeculationReport::tokens_per_step() const {
  if (accepted.empty()) return 0;
  return 1 + static_cast<double>(kept()) / static_cast<double>(accepted.size());
}

}  // namespace megalith
