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

// A run through one value head. Of a row that is kept aside, the head has [k | v | b | a].
void RunHead(const OpContext& c, const GatedDelta& how, const Run& run, int64_t head, float* scratch) {
  const int64_t key_dim = how.key_dim, keys = how.key_heads * key_dim;
  const int64_t key_at = head * how.key_heads / how.value_heads * key_dim, value_at = 2 * keys + head * how.value_dim;
  float* s = c.state[0] + run.sequence * c.state_stride[0] + head * key_dim * how.value_dim;
  float* kept = c.kept_rows(run, head, how.kept_floats());
  const float rate = -Exp1(c.plain_weight(0)[head]);
  const float dt_bias = c.plain_weight(1)[head];
  const auto add = [&](RowSet& set, const float* q, const float* k, const float* v, float b, float a, float* out) {
    std::fill_n(set.Add(q, k, v, b, out), key_dim, Exp1(rate * Softplus1(a + dt_bias)));  // all channels alike
  };
  const auto add_kept = [&](RowSet& set, int64_t t) {
    const float *k = kept + t * how.kept_floats(), *v = k + key_dim;
    add(set, nullptr, k, v, v[how.value_dim], v[how.value_dim + 1], nullptr);
  };
  const auto add_row = [&](RowSet& set, int64_t row) {
    const float *x = c.in[0] + row * c.in_width[0], *k = x + keys + key_at, *v = x + value_at;
    const float b = c.in[1][row * c.in_width[1] + head], a = c.in[2][row * c.in_width[2] + head];
    add(set, x + key_at, k, v, b, a, c.out + row * c.out_width + head * how.value_dim);
  };
  RunState(run, s, key_dim, how.value_dim, scratch, add_kept, add_row);
  for (int64_t t = 0; t < run.rows && run.speculative; ++t) {
    const int64_t row = run.first_row + t;
    const float* x = c.in[0] + row * c.in_width[0];
    float* entry = std::copy_n(x + keys + key_at, key_dim, kept + t * how.kept_floats());
    entry = std::copy_n(x + value_at, how.value_dim, entry);
    entry[0] = c.in[1][row * c.in_width[1] + head];
    entry[1] = c.in[2][row * c.in_width[2] + head];
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

// Two sets of rows, and a copy of some columns (delta-inl.h).
int64_t delta_scratch_floats(int64_t key_dim) {
  constexpr int64_t kWidest = 64;
  return 6 * kMaxBlock * key_dim + key_dim * kWidest;
}

int64_t gated_delta_scratch_floats(const GatedDelta& how) {
  return delta_scratch_floats(how.key_dim);
}

}  // namespace megalith
#endif
