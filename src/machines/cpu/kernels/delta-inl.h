// Included once for each instruction set (Highway's foreach_target), so there is no #pragma once.
#if defined(MEGALITH_DELTA_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef MEGALITH_DELTA_INL_H
#undef MEGALITH_DELTA_INL_H
#else
#define MEGALITH_DELTA_INL_H
#endif

#include <algorithm>
#include <cmath>

#include "machines/cpu/kernels/kernel.h"
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

// Rows whose keys, queries and decays are formed before the state is passed, so that a piece of it stays in the cache
// for all of them.
inline constexpr int64_t kRowsAhead = kMaxBlock;

// What some rows do to a head's state.
struct RowSet {
  int64_t key_dim;
  float *q, *k, *decay;  // [kRowsAhead, key_dim]: normalised and scaled; normalised; factors
  int64_t count = 0;
  float beta[kRowsAhead];
  const float* v[kRowsAhead];
  float* out[kRowsAhead];  // null: no output is wanted, and there is no q

  RowSet(float* memory, int64_t dim)
      : key_dim(dim), q(memory), k(q + kRowsAhead * dim), decay(k + kRowsAhead * dim) {}

  // Takes a row; its decay is yet to be filled in.
  HWY_INLINE float* Add(const float* q_of, const float* k_of, const float* v_of, float b, float* out_of) {
    if (out_of) Normalise(q_of, key_dim, 1.0f / std::sqrt(static_cast<float>(key_dim)), q + count * key_dim);
    Normalise(k_of, key_dim, 1.0f, k + count * key_dim);
    beta[count] = Sigmoid1(b);
    v[count] = v_of;
    out[count] = out_of;
    return decay + count++ * key_dim;
  }
};

// Row `r` over kColumns columns of S [key_dim, stride]: each column is a chain over key_dim. The first pass forms S^T k
// of the decayed state; the second, which finds these columns in the cache, updates them and (kRead) reads the output.
template <int64_t kColumns, bool kRead>
HWY_INLINE void UpdateColumns(const RowSet& rows, int64_t r, int64_t column, float* s, int64_t stride) {
  constexpr int64_t kParts = kColumns / kN;
  const D d;
  const int64_t key_dim = rows.key_dim;
  const float *ks = rows.k + r * key_dim, *qs = rows.q + r * key_dim, *decays = rows.decay + r * key_dim;
  V read[kParts], delta[kParts];
  HWY_UNROLL(8)
  for (int64_t j = 0; j < kParts; ++j) read[j] = hn::Zero(d);
  for (int64_t i = 0; i < key_dim; ++i) {
    const V k = hn::Set(d, ks[i]), decay = hn::Set(d, decays[i]);
    HWY_UNROLL(8)
    for (int64_t j = 0; j < kParts; ++j) {
      read[j] = hn::MulAdd(k, hn::Mul(decay, hn::LoadU(d, s + i * stride + j * kN)), read[j]);
    }
  }
  HWY_UNROLL(8)
  for (int64_t j = 0; j < kParts; ++j) {
    delta[j] = hn::Mul(hn::Sub(hn::LoadU(d, rows.v[r] + column + j * kN), read[j]), hn::Set(d, rows.beta[r]));
    read[j] = hn::Zero(d);
  }
  for (int64_t i = 0; i < key_dim; ++i) {
    const V k = hn::Set(d, ks[i]), decay = hn::Set(d, decays[i]);
    HWY_UNROLL(8)
    for (int64_t j = 0; j < kParts; ++j) {
      float* cell = s + i * stride + j * kN;
      const V fresh = hn::MulAdd(k, delta[j], hn::Mul(decay, hn::LoadU(d, cell)));
      hn::StoreU(fresh, d, cell);
      if constexpr (kRead) read[j] = hn::MulAdd(hn::Set(d, qs[i]), fresh, read[j]);
    }
  }
  if constexpr (!kRead) return;
  HWY_UNROLL(8)
  for (int64_t j = 0; j < kParts; ++j) hn::StoreU(read[j], d, rows.out[r] + column + j * kN);
}

// Columns of a state through the rows that become permanent and through a run's own; those of a speculative run go
// through a copy [key_dim, kColumns].
template <int64_t kColumns>
HWY_INLINE void PassColumns(const RowSet& replay, const RowSet& own, bool speculative, int64_t column, float* s,
                            int64_t stride, float* copy) {
  s += column;
  for (int64_t r = 0; r < replay.count; ++r) UpdateColumns<kColumns, false>(replay, r, column, s, stride);
  if (speculative) {
    for (int64_t i = 0; i < own.key_dim; ++i) std::copy_n(s + i * stride, kColumns, copy + i * kColumns);
    s = copy;
    stride = kColumns;
  }
  for (int64_t r = 0; r < own.count; ++r) UpdateColumns<kColumns, true>(own, r, column, s, stride);
}

// A run through a head's state S [key_dim, value_dim]. add_kept(set, t) and add_row(set, row) put a kept row and a row of
// the step into a set.
template <class AddKept, class AddRow>
HWY_INLINE void RunState(const Run& run, float* s, int64_t key_dim, int64_t value_dim, float* scratch, AddKept add_kept,
                         AddRow add_row) {
  RowSet replay(scratch, key_dim), own(scratch + 3 * kRowsAhead * key_dim, key_dim);
  float* copy = scratch + 6 * kRowsAhead * key_dim;
  if (run.from_zero()) std::fill(s, s + key_dim * value_dim, 0.0f);
  for (int64_t t = 0; t < run.replay; ++t) add_kept(replay, t);
  const int64_t end = run.first_row + run.rows;
  for (int64_t row = run.first_row; row < end || replay.count > 0;) {
    own.count = 0;
    for (; row < end && own.count < kRowsAhead; ++row) add_row(own, row);
    int64_t column = 0;
    for (; column + kStateWide <= value_dim; column += kStateWide) {
      PassColumns<kStateWide>(replay, own, run.speculative, column, s, value_dim, copy);
    }
    for (; column < value_dim; column += 16) {
      PassColumns<16>(replay, own, run.speculative, column, s, value_dim, copy);
    }
    replay.count = 0;
  }
}

}  // namespace megalith::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
