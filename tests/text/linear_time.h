#pragma once

// Checks that time grows with the size only, however busy the machine is.

#include <algorithm>
#include <ctime>
#include <functional>
#include <limits>

#include <gtest/gtest.h>

namespace megalith {

// The processor time of this thread, which other programs do not add to.
inline double thread_seconds() {
  timespec now = {};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

// Runs inputs of sizes `n` and 2n, which are made before the time is taken. Twice the size may take at most 2.5 times as
// long; what takes quadratic time needs four times.
// Shared caches can still disturb a measurement, so the best of up to 20 counts; and where twice the size is the first
// that a cache or an allocator's pool does not hold, the next sizes tell.
template <typename Make, typename Run>
void expect_linear_time(size_t n, const Make& make, const Run& run) {
  double once = 0, twice = 0;
  for (int doubled = 0; doubled < 3; ++doubled, n *= 2) {
    const auto small = make(n), large = make(2 * n);
    once = twice = std::numeric_limits<double>::infinity();
    for (int round = 0; round < 20; ++round) {
      double begin = thread_seconds();
      run(small);
      double middle = thread_seconds();
      run(large);
      once = std::min(once, middle - begin);
      twice = std::min(twice, thread_seconds() - middle);
      if (twice < 2.5 * once) return;
      // Time that grows so fast that 20 rounds would be minutes needs no second look.
      if (twice > 10) break;
    }
    if (twice > 10) break;
  }
  ADD_FAILURE() << once << " s, and " << twice << " s for twice the size";
}

inline void expect_linear_time(size_t n, const std::function<void(size_t)>& run) {
  expect_linear_time(n, [](size_t size) { return size; }, run);
}

}  // namespace megalith
