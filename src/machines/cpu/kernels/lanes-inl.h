// Included once for each instruction set (Highway's foreach_target), so there is no #pragma once.
#if defined(MEGALITH_LANES_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef MEGALITH_LANES_INL_H
#undef MEGALITH_LANES_INL_H
#else
#define MEGALITH_LANES_INL_H
#endif

#include <hwy/highway.h>

#include <cstdint>

HWY_BEFORE_NAMESPACE();
namespace megalith::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// A vector is eight or sixteen floats. Where the order of a sum is in play, sixteen lanes are kept in 16 / kN vectors, so
// that every instruction set forms the same sums.
using D = hn::CappedTag<float, 16>;
using DI = hn::RebindToSigned<D>;
using DU = hn::RebindToUnsigned<D>;
using V = hn::Vec<D>;
inline constexpr int64_t kN = hn::MaxLanes(D());
inline constexpr int64_t kVectors = 16 / kN;

// Σ of sixteen lanes by a fixed tree: 8 apart, 4, 2, 1.
HWY_INLINE float SumLanes(const V (&lanes)[kVectors]) {
  HWY_ALIGN float a[16];
  for (int64_t i = 0; i < kVectors; ++i) hn::Store(lanes[i], D(), a + i * kN);
  for (int distance = 8; distance > 0; distance /= 2) {
    for (int i = 0; i < distance; ++i) a[i] += a[i + distance];
  }
  return a[0];
}

// Loads up to kN floats; lanes from `count` on are zero.
HWY_INLINE V LoadFirst(const float* p, int64_t count) {
  return hn::MaskedLoad(hn::FirstN(D(), static_cast<size_t>(count)), D(), p);
}

// Σ a_i b_i: element i in lane i mod 16, lanes joined by SumLanes.
HWY_INLINE float Dot(const float* a, const float* b, int64_t size) {
  V sum[kVectors];
  for (auto& s : sum) s = hn::Zero(D());
  int64_t i = 0;
  for (; i + 16 <= size; i += 16) {
    for (int64_t j = 0; j < kVectors; ++j) {
      sum[j] = hn::MulAdd(hn::LoadU(D(), a + i + j * kN), hn::LoadU(D(), b + i + j * kN), sum[j]);
    }
  }
  for (int64_t j = 0; j < kVectors && i + j * kN < size; ++j) {
    const int64_t left = size - i - j * kN < kN ? size - i - j * kN : kN;
    sum[j] = hn::MulAdd(LoadFirst(a + i + j * kN, left), LoadFirst(b + i + j * kN, left), sum[j]);
  }
  return SumLanes(sum);
}

}  // namespace megalith::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
