// Included once for each instruction set (Highway's foreach_target), so there is no #pragma once.
#if defined(MEGALITH_DELTA_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef MEGALITH_DELTA_INL_H
#undef MEGALITH_DELTA_INL_H
#else
#define MEGALITH_DELTA_INL_H
#endif

#include <cmath>

#include "machines/cpu/kernels/math-inl.h"

// What the delta rules have in common: a state S of [key_dim, value_dim] that every row decays by key channel, corrects
// and reads.

HWY_BEFORE_NAMESPACE();
namespace megalith::HWY_NAMESPACE {

// Of l2(x) = x / sqrt(Σ x² + eps); the same in all models.
inline constexpr float kL2Eps = 1e-6f;

HWY_INLINE void Normalise(const float* x, int64_t dim, float scale, float* out) {
  const V factor = hn::Set(D(), scale / std::sqrt(Dot(x, x, dim) + kL2Eps));
  for (int64_t i = 0; i < dim; i += kN) hn::StoreU(hn::Mul(hn::LoadU(D(), x + i), factor), D(), out + i);
}

// Columns of a state that are updated together: as many sums as stay in registers, and lines enough in a row of memory.
inline constexpr int64_t kStateWide = kN == 16 ? 64 : 32;

// What one row does to a head's state.
struct Update {
  const float* q;  // [key_dim], normalised and scaled
  const float* k;  // [key_dim], normalised
  const float* decay;  // [key_dim]
  float beta;
};

// One row over kColumns columns of S [key_dim, value_dim]: each column is a chain over key_dim. The first pass forms
// S^T k of the decayed state; the second, which finds these columns in the cache, updates them and reads the output.
template <int64_t kColumns>
HWY_INLINE void UpdateColumns(const Update& u, const float* v, float* s, int64_t key_dim, int64_t stride, float* out) {
  constexpr int64_t kParts = kColumns / kN;
  const D d;
  V read[kParts], delta[kParts];
  HWY_UNROLL(8)
  for (int64_t j = 0; j < kParts; ++j) read[j] = hn::Zero(d);
  for (int64_t i = 0; i < key_dim; ++i) {
    const V k = hn::Set(d, u.k[i]), decay = hn::Set(d, u.decay[i]);
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
    const V k = hn::Set(d, u.k[i]), decay = hn::Set(d, u.decay[i]);
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

// One row over all columns of S.
HWY_INLINE void UpdateState(const Update& u, const float* v, float* s, int64_t key_dim, int64_t value_dim, float* out) {
  int64_t column = 0;
  for (; column + kStateWide <= value_dim; column += kStateWide) {
    UpdateColumns<kStateWide>(u, v + column, s + column, key_dim, value_dim, out + column);
  }
  for (; column < value_dim; column += 16) {
    UpdateColumns<16>(u, v + column, s + column, key_dim, value_dim, out + column);
  }
}

}  // namespace megalith::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
