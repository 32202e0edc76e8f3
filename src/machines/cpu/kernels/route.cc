#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "machines/cpu/kernels/route.cc"
#include <algorithm>
#include <cmath>

#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "machines/cpu/kernels/kernel.h"
#include "machines/cpu/kernels/math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace megalith::HWY_NAMESPACE {

// scores = sigmoid(logits), ranked = scores + bias; a NaN ranks below everything.
HWY_INLINE void RankExperts(const float* logits, const float* bias, int64_t experts, float* scores, float* ranked) {
  const D d;
  for (int64_t i = 0; i < experts; i += kN) {
    const int64_t count = experts - i < kN ? experts - i : kN;
    const auto mask = hn::FirstN(d, static_cast<size_t>(count));
    const V score = Sigmoid(LoadFirst(logits + i, count));
    const V biased = hn::Add(score, LoadFirst(bias + i, count));
    hn::BlendedStore(score, mask, d, scores + i);
    hn::BlendedStore(hn::IfThenElse(hn::Eq(biased, biased), biased, hn::Set(d, -HUGE_VALF)), mask, d, ranked + i);
  }
}

// Fills `ids` with the top_k experts of greatest rank, equal ones by id, then puts the ids in order.
HWY_INLINE void Choose(const float* ranked, const Route& how, float* ids) {
  int64_t kept = 0;
  for (int64_t e = 0; e < how.experts; ++e) {
    if (kept == how.top_k && !(ranked[e] > ranked[static_cast<int64_t>(ids[kept - 1])])) continue;
    if (kept < how.top_k) ++kept;
    int64_t at = kept - 1;  // the place falls free; those behind the new one move back
    for (; at > 0 && ranked[e] > ranked[static_cast<int64_t>(ids[at - 1])]; --at) ids[at] = ids[at - 1];
    ids[at] = static_cast<float>(e);
  }
  std::sort(ids, ids + how.top_k);
}

void RunRoute(const OpContext& c, const StepArgs& step, Part part, Scratch scratch) {
  const auto& how = c.op->get<Route>();
  float *scores = scratch.floats, *ranked = scratch.floats + how.experts;
  const Range range = part.of(c.rows(step));
  for (int64_t row = range.begin; row < range.end; ++row) {
    float *ids = c.out + row * c.out_width, *weights = ids + how.top_k;
    RankExperts(c.in[0] + row * how.experts, c.plain_weight(0), how.experts, scores, ranked);
    Choose(ranked, how, ids);
    float total = 1e-20f;
    for (int64_t slot = 0; slot < how.top_k; ++slot) {
      weights[slot] = scores[static_cast<int64_t>(ids[slot])];
      total += weights[slot];
    }
    for (int64_t slot = 0; slot < how.top_k; ++slot) weights[slot] /= total;
  }
}

}  // namespace megalith::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace megalith {

HWY_EXPORT(RunRoute);

void run_route(const OpContext& c, const StepArgs& step, Part part, Scratch scratch) {
  HWY_DYNAMIC_DISPATCH(RunRoute)(c, step, part, scratch);
}

int64_t route_scratch_floats(const Route& how) {
  return 2 * how.experts;
}

}  // namespace megalith
#endif
