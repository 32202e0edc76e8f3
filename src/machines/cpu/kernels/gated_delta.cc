#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "machines/cpu/kernels/gated_delta.cc"
#include <algorithm>
#include <cmath>

#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "machines/cpu/kernels/delta-inl.h"
#include "machines/cpu/kernels/kernel.h"

HWY_BEFORE_NAMESPACE();
namespace megalith::HWY_NAMESPACE {

// All rows of a run, one after the other, through one value head.
void RunHead(const OpContext& c, const GatedDelta& how, const Run& run, int64_t head, float* scratch) {
  const int64_t key_head = head * how.key_heads / how.value_heads;
  const int64_t keys = how.key_heads * how.key_dim;
  float* s = c.state[0] + run.sequence * c.state_stride[0] + head * how.key_dim * how.value_dim;
  if (run.first_position == 0) std::fill(s, s + how.key_dim * how.value_dim, 0.0f);
  const float rate = -Exp1(c.plain_weight(0)[head]);
  const float dt_bias = c.plain_weight(1)[head];
  float* q = scratch;
  float* k = scratch + how.key_dim;
  float* decays = scratch + 2 * how.key_dim;  // all channels alike
  for (int64_t row = run.first_row; row < run.first_row + run.rows; ++row) {
    const float* x = c.in[0] + row * c.in_width[0];
    Normalise(x + key_head * how.key_dim, how.key_dim, 1.0f / std::sqrt(static_cast<float>(how.key_dim)), q);
    Normalise(x + keys + key_head * how.key_dim, how.key_dim, 1.0f, k);
    std::fill_n(decays, how.key_dim, Exp1(rate * Softplus1(c.in[2][row * c.in_width[2] + head] + dt_bias)));
    const float beta = Sigmoid1(c.in[1][row * c.in_width[1] + head]);
    const float* v = x + 2 * keys + head * how.value_dim;
    float* out = c.out + row * c.out_width + head * how.value_dim;
    UpdateState({q, k, decays, beta}, v, s, how.key_dim, how.value_dim, out);
  }
}

void RunGatedDelta(const OpContext& c, const StepArgs& step, Part part, Scratch scratch) {
  const auto& how = c.op->get<GatedDelta>();
  const Range range = part.of(static_cast<int64_t>(step.runs.size()) * how.value_heads);
  for (int64_t i = range.begin; i < range.end; ++i) {
    RunHead(c, how, step.runs[static_cast<size_t>(i / how.value_heads)], i % how.value_heads, scratch.floats);
  }
}

}  // namespace megalith::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace megalith {

HWY_EXPORT(RunGatedDelta);

void run_gated_delta(const OpContext& c, const StepArgs& step, Part part, Scratch scratch) {
  HWY_DYNAMIC_DISPATCH(RunGatedDelta)(c, step, part, scratch);
}

int64_t gated_delta_scratch_floats(const GatedDelta& how) {
  return 3 * how.key_dim;
}

}  // namespace megalith
#endif
