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

// A run through one head. Of a row that is kept aside, the head has [k | f | v | b].
void RunKdaHead(const OpContext& c, const Kda& how, const Run& run, int64_t head, float* scratch) {
  const int64_t dim = how.dim;
  float* s = c.state[0] + run.sequence * c.state_stride[0] + head * dim * dim;
  float* kept = c.kept_rows(run, head, how.kept_floats());
  const float rate = Exp1(c.plain_weight(0)[head]);
  const auto add = [&](RowSet& set, const float* q, const float* k, const float* v, const float* f, float b, float* out) {
    Decays(f, c.plain_weight(1) + head * dim, rate, how.lower_bound, dim, set.Add(q, k, v, b, out));
  };
  const auto add_kept = [&](RowSet& set, int64_t t) {
    const float* k = kept + t * how.kept_floats();
    add(set, nullptr, k, k + 2 * dim, k + dim, k[3 * dim], nullptr);
  };
  const auto add_row = [&](RowSet& set, int64_t row) {
    const int64_t at = row * c.out_width + head * dim;
    const float b = c.in[4][row * c.in_width[4] + head];
    add(set, c.in[0] + at, c.in[1] + at, c.in[2] + at, c.in[3] + at, b, c.out + at);
  };
  RunState(run, s, dim, dim, scratch, add_kept, add_row);
  for (int64_t t = 0; t < run.rows && run.speculative; ++t) {
    const int64_t row = run.first_row + t, at = row * c.out_width + head * dim;
    float* entry = kept + t * how.kept_floats();
    for (const size_t input : {1, 3, 2}) entry = std::copy_n(c.in[input] + at, dim, entry);
    entry[0] = c.in[4][row * c.in_width[4] + head];
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
  return delta_scratch_floats(how.dim);
}

}  // namespace megalith
#endif
