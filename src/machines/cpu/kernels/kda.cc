#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "machines/cpu/kernels/kda.cc"
#include <algorithm>
#include <cmath>

#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "machines/cpu/kernels/delta-inl.h"
#include "machines/cpu/kernels/kernel.h"

HWY_BEFORE_NAMESPACE();
namespace megalith::HWY_NAMESPACE {

// decay[i] = e^(lower_bound · sigmoid(rate · (f_i + dt_bias_i))).
HWY_INLINE void Decays(const float* f, const float* dt_bias, float rate, float lower_bound, int64_t dim, float* decay) {
  const D d;
  for (int64_t i = 0; i < dim; i += kN) {
    const V gate = hn::Mul(hn::Set(d, rate), hn::Add(hn::LoadU(d, f + i), hn::LoadU(d, dt_bias + i)));
    hn::StoreU(Exp(hn::Mul(hn::Set(d, lower_bound), Sigmoid(gate))), d, decay + i);
  }
}

// All rows of a run, one after the other, through one head.
void RunKdaHead(const OpContext& c, const Kda& how, const Run& run, int64_t head, float* scratch) {
  const int64_t dim = how.dim;
  float* s = c.state[0] + run.sequence * c.state_stride[0] + head * dim * dim;
  if (run.first_position == 0) std::fill(s, s + dim * dim, 0.0f);
  const float rate = Exp1(c.plain_weight(0)[head]);
  const float scale = 1.0f / std::sqrt(static_cast<float>(dim));
  float *q = scratch, *k = scratch + dim, *decay = scratch + 2 * dim;
  for (int64_t row = run.first_row; row < run.first_row + run.rows; ++row) {
    const int64_t at = row * c.out_width + head * dim;
    Normalise(c.in[0] + at, dim, scale, q);
    Normalise(c.in[1] + at, dim, 1.0f, k);
    Decays(c.in[3] + at, c.plain_weight(1) + head * dim, rate, how.lower_bound, dim, decay);
    const float beta = Sigmoid1(c.in[4][row * c.in_width[4] + head]);
    UpdateState({q, k, decay, beta}, c.in[2] + at, s, dim, dim, c.out + at);
  }
}

void RunKda(const OpContext& c, const StepArgs& step, Part part, Scratch scratch) {
  const auto& how = c.op->get<Kda>();
  const Range range = part.of(static_cast<int64_t>(step.runs.size()) * how.heads);
  for (int64_t i = range.begin; i < range.end; ++i) {
    RunKdaHead(c, how, step.runs[static_cast<size_t>(i / how.heads)], i % how.heads, scratch.floats);
  }
}

}  // namespace megalith::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace megalith {

HWY_EXPORT(RunKda);

void run_kda(const OpContext& c, const StepArgs& step, Part part, Scratch scratch) {
  HWY_DYNAMIC_DISPATCH(RunKda)(c, step, part, scratch);
}

int64_t kda_scratch_floats(const Kda& how) {
  return 3 * how.dim;
}

}  // namespace megalith
#endif
