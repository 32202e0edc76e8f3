#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "machines/cpu/kernels/limits.cc"
#include "machines/cpu/kernels/limits.h"

#include <hwy/cache_control.h>
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "machines/cpu/kernels/lanes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace megalith::HWY_NAMESPACE {

uint64_t ReadBytes(const std::byte* data, size_t size) {
  constexpr size_t kAhead = 2048;
  constexpr int64_t kLoads = 256 / (4 * kN);  // vectors of four lines
  auto sum = hn::Zero(DU());
  for (size_t at = 0; at < size; at += 256) {
    for (size_t line = 0; line < 256; line += 64) hwy::Prefetch(data + at + kAhead + line);
    const auto* words = reinterpret_cast<const uint32_t*>(data + at);
    HWY_UNROLL(8)
    for (int64_t i = 0; i < kLoads; ++i) sum = hn::Xor(sum, hn::LoadU(DU(), words + i * kN));
  }
  return hn::GetLane(hn::SumOfLanes(DU(), sum));
}

// The compiler may not reorder a chain, and cannot know that its end is finite; so nothing is left out.
double MultiplyAdd(int64_t rounds) {
  constexpr int64_t kChains = 12;
  const D d;
  V sums[kChains];
  HWY_UNROLL(12)
  for (int64_t i = 0; i < kChains; ++i) sums[i] = hn::Set(d, static_cast<float>(i));
  const V factor = hn::Set(d, 0.999f);
  const V step = hn::Set(d, 1e-3f);
  for (int64_t round = 0; round < rounds; ++round) {
    HWY_UNROLL(12)
    for (int64_t i = 0; i < kChains; ++i) sums[i] = hn::MulAdd(sums[i], factor, step);
  }
  V sum = sums[0];
  HWY_UNROLL(12)
  for (int64_t i = 1; i < kChains; ++i) sum = hn::Add(sum, sums[i]);
  const float rest = hn::GetLane(hn::SumOfLanes(d, sum)) * 0.0f;
  return 2.0 * static_cast<double>(kChains * kN * rounds) + static_cast<double>(rest);
}

}  // namespace megalith::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace megalith {

HWY_EXPORT(ReadBytes);
HWY_EXPORT(MultiplyAdd);

uint64_t read_bytes(const std::byte* data, size_t size) {
  return HWY_DYNAMIC_DISPATCH(ReadBytes)(data, size);
}
double multiply_add(int64_t rounds) {
  return HWY_DYNAMIC_DISPATCH(MultiplyAdd)(rounds);
}

}  // namespace megalith
#endif
