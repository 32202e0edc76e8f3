#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "machines/cpu/kernels/gated_delta.cc"
#include <algorithm>
#include <cmath>

#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "machines/cpu/kernels/kernel.h"
#include "machines/cpu/kernels/math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace megalith::HWY_NAMESPACE {

// Of l2(x) = x / sqrt(Σ x² + eps); the same in every model of the family.
inline constexpr float kL2Eps = 1e-6f;

HWY_INLINE void Normalise(const float* x, int64_t dim, float scale, float* out) {
  const V factor = hn::Set(D(), scale / std::sqrt(Dot(x, x, dim) + kL2Eps));
  for (int64_t i = 0; i < dim; i += kN) hn::StoreU(hn::Mul(hn::LoadU(D(), x + i), factor), D(), out + i);
}

// Columns of a state that are updated together: as many sums as stay in registers, and lines enough in a row of memory.
inline constexpr int64_t kWide = kN == 16 ? 64 : 32;

// What one row does to a head's state.
struct Update {
  const float* q;  // [key_dim], normalised and scaled
  const float* k;  // [key_dim], normalised
  float decay;
  float beta;
};

// One row over kColumns columns of S [key_dim, value_dim]: each column is a chain over key_dim. The first pass forms
// S^T k of the decayed state; the second, which finds these columns in the cache, updates them and reads the output.
template <int64_t kColumns>
HWY_INLINE void UpdateColumns(const Update& u, const float* v, float* s, int64_t key_dim, int64_t stride, float* out) {
  constexpr int64_t kParts = kColumns / kN;
  const D d;
  const V decay = hn::Set(d, u.decay);
  V read[kParts], delta[kParts];
  HWY_UNROLL(8)
  for (int64_t j = 0; j < kParts; ++j) read[j] = hn::Zero(d);
  for (int64_t i = 0; i < key_dim; ++i) {
    const V k = hn::Set(d, u.k[i]);
    HWY_UNROLL(8)
    for (int64_t j = 0; j < kParts; ++j) {
      read[j] = hn::MulAdd(k, hn::Mul(decay, hn::LoadU(d, s + i * stride + j * kN)), read[j]);
    }
  }
  HWY_UNROLL(8)
  for (int64_t j = 0; j < kParts; ++j) {
    delta[j] = hn::Mul(hn::Sub(hn::LoadU(d, v + j * kN), read[j]), hn::Set(d, u.beta));
    read[j] = hn::Zero(d);
  }
  for (int64_t i = 0; i < key_dim; ++i) {
    const V k = hn::Set(d, u.k[i]);
    const V q = hn::Set(d, u.q[i]);
    HWY_UNROLL(8)
    for (int64_t j = 0; j < kParts; ++j) {
      float* cell = s + i * stride + j * kN;
      const V fresh = hn::MulAdd(k, delta[j], hn::Mul(decay, hn::LoadU(d, cell)));
      hn::StoreU(fresh, d, cell);
      read[j] = hn::MulAdd(q, fresh, read[j]);
    }
  }
  HWY_UNROLL(8)
  for (int64_t j = 0; j < kParts; ++j) hn::StoreU(read[j], d, out + j * kN);
}

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
  for (int64_t row = run.first_row; row < run.first_row + run.rows; ++row) {
    const float* x = c.in[0] + row * c.in_width[0];
    Normalise(x + key_head * how.key_dim, how.key_dim, 1.0f / std::sqrt(static_cast<float>(how.key_dim)), q);
    Normalise(x + keys + key_head * how.key_dim, how.key_dim, 1.0f, k);
    const float decay = Exp1(rate * Softplus1(c.in[2][row * c.in_width[2] + head] + dt_bias));
    const float beta = Sigmoid1(c.in[1][row * c.in_width[1] + head]);
    const float* v = x + 2 * keys + head * how.value_dim;
    float* out = c.out + row * c.out_width + head * how.value_dim;
    const Update update = {q, k, decay, beta};
    int64_t column = 0;
    for (; column + kWide <= how.value_dim; column += kWide) {
      UpdateColumns<kWide>(update, v + column, s + column, how.key_dim, how.value_dim, out + column);
    }
    for (; column < how.value_dim; column += 16) {
      UpdateColumns<16>(update, v + column, s + column, how.key_dim, how.value_dim, out + column);
    }
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
  return 2 * how.key_dim;
}

}  // namespace megalith
#endif
