// Included once for each instruction set (Highway's foreach_target), so there is no #pragma once.
#if defined(MEGALITH_TREE_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef MEGALITH_TREE_INL_H
#undef MEGALITH_TREE_INL_H
#else
#define MEGALITH_TREE_INL_H
#endif

#include "machines/cpu/kernels/lanes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace megalith::HWY_NAMESPACE {

HWY_INLINE void AddInto(float* into, const float* from, int64_t size) {
  for (int64_t i = 0; i < size; i += kN) {
    hn::StoreU(hn::Add(hn::LoadU(D(), into + i), hn::LoadU(D(), from + i)), D(), into + i);
  }
}

// Joins segments by the binary tree over their indices. `levels` holds the sums of finished subtrees, [level, size];
// the segment just formed stands on top. After the last segment levels[0] is the whole.
HWY_INLINE int64_t JoinSegment(float* levels, int64_t level, int64_t segment, int64_t size) {
  for (int64_t bits = segment; bits & 1; bits >>= 1, --level) {
    AddInto(levels + (level - 1) * size, levels + level * size, size);
  }
  return level + 1;
}

}  // namespace megalith::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
