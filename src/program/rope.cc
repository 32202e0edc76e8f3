#include "program/rope.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace megalith {

namespace {

// The pair that turns `rotations` times over the positions that the model was trained for.
double pair_of(const Rope& how, double rotations) {
  return static_cast<double>(how.rotary) * std::log(how.yarn.original / (rotations * 2 * std::numbers::pi)) /
         (2 * std::log(how.theta));
}

}  // namespace

std::vector<float> rope_frequencies(const Rope& how) {
  const bool yarn = how.yarn.factor > 1;
  double low = 0, high = 0;
  if (yarn) {
    low = std::max(std::floor(pair_of(how, how.yarn.beta_fast)), 0.0);
    high = std::min(std::ceil(pair_of(how, how.yarn.beta_slow)), static_cast<double>(how.rotary - 1));
    if (low == high) high += 0.001;
  }
  std::vector<float> frequencies;
  for (int64_t j = 0; j < how.rotary / 2; ++j) {
    const double power = std::pow(how.theta, 2.0 * static_cast<double>(j) / static_cast<double>(how.rotary));
    const float fast = 1.0f / static_cast<float>(power);
    if (!yarn) {
      frequencies.push_back(fast);
      continue;
    }
    const float slow = 1.0f / static_cast<float>(how.yarn.factor * power);
    const auto ramp = static_cast<float>(std::clamp((static_cast<double>(j) - low) / (high - low), 0.0, 1.0));
    frequencies.push_back(slow * ramp + fast * (1 - ramp));
  }
  return frequencies;
}

}  // namespace megalith
