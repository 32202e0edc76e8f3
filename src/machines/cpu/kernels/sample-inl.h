// Included once for each instruction set (Highway's foreach_target), so there is no #pragma once.
#if defined(MEGALITH_SAMPLE_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef MEGALITH_SAMPLE_INL_H
#undef MEGALITH_SAMPLE_INL_H
#else
#define MEGALITH_SAMPLE_INL_H
#endif

#include <algorithm>
#include <cmath>

#include "machines/cpu/kernels/math-inl.h"
#include "program/noise.h"
#include "program/step_args.h"

#ifndef MEGALITH_SAMPLE_TYPES
#define MEGALITH_SAMPLE_TYPES
namespace megalith {

struct Candidate {
  float score;  // (logit - largest logit) / temperature
  int32_t token;

  // By score, ties to the lower id.
  friend bool operator<(const Candidate& a, const Candidate& b) {
    return a.score > b.score || (a.score == b.score && a.token < b.token);
  }
};

}  // namespace megalith
#endif

HWY_BEFORE_NAMESPACE();
namespace megalith::HWY_NAMESPACE {

// How many of the sorted candidates top_p keeps: those before which less than top_p of the weight has gone by.
inline int64_t KeepTopP(const Candidate* candidates, int64_t count, double total, float top_p) {
  const double enough = static_cast<double>(top_p) * total;
  double gone = 0;
  for (int64_t i = 0; i < count; ++i) {
    if (i > 0 && gone >= enough) return i;
    gone += Exp1(candidates[i].score);
  }
  return count;
}

// Σ e^score.
inline double WeightOf(const Candidate* candidates, int64_t count) {
  double total = 0;
  for (int64_t i = 0; i < count; ++i) total += Exp1(candidates[i].score);
  return total;
}

// Those of at least min_p of the largest probability, in front; returns how many.
inline int64_t KeepMinP(Candidate* candidates, int64_t count, float min_p) {
  if (min_p <= 0) return count;
  const float least = Log1(min_p);
  return std::partition(candidates, candidates + count, [&](const Candidate& c) { return c.score >= least; }) - candidates;
}

// Sixteen candidates' noise at once; -log(-log u).
inline int32_t ArgmaxWithNoise(const Candidate* candidates, int64_t count, uint64_t seed, int32_t position) {
  Candidate best = {-HUGE_VALF, -1};
  HWY_ALIGN float u[16] = {};
  for (int64_t i = 0; i < count; i += kN) {
    const int64_t left = std::min(kN, count - i);
    for (int64_t j = 0; j < kN; ++j) u[j] = j < left ? uniform(seed, position, candidates[i + j].token) : 0.5f;
    const V noise = hn::Neg(Log(hn::Neg(Log(hn::Load(D(), u)))));
    hn::Store(noise, D(), u);
    for (int64_t j = 0; j < left; ++j) {
      const Candidate c = {candidates[i + j].score + u[j], candidates[i + j].token};
      if (best.token < 0 || c < best) best = c;
    }
  }
  return best.token;
}

}  // namespace megalith::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
