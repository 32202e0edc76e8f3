#pragma once

#include <cstdint>
#include <memory>

namespace megalith {

// What a machine can do at most, measured by all of its workers together: the speed of reading memory far beyond the
// caches, and of fused multiply-adds in f32.
class CpuLimits {
 public:
  // With `threads` workers, pinned as the CPU machine pins its own (0: as many as it would have), over `bytes` of
  // memory that they touch first. Throws Error when the memory cannot be had.
  CpuLimits(int threads, int64_t bytes);
  ~CpuLimits();

  // Bytes a second: the best of `times` passes, since other load can only slow one down.
  double read_rate(int times);
  // Operations a second, two for each multiply-add: the best of `times` trials.
  double fma_rate(int times);

 private:
  struct Workforce;
  std::unique_ptr<Workforce> workforce_;
};

}  // namespace megalith
