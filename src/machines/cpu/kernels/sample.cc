#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "machines/cpu/kernels/sample.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "machines/cpu/kernels/kernel.h"
#include "machines/cpu/kernels/sample-inl.h"

// The token after a row: argmax of the logits, or argmax over the kept set of log p + g(seed, position, token) with
// Gumbel noise g, which draws from p (Gumbel-max). Filters act in this order: temperature, top_k, top_p, min_p; ties go to
// the lower id. Nothing depends on other rows, or on what was drawn before.

#ifndef MEGALITH_SAMPLE_REACH
#define MEGALITH_SAMPLE_REACH
namespace megalith {

// Noise lies in (kNoiseMin, kNoiseMax) (noise.h). The largest logit scores more than kNoiseMin, so a token whose score is
// below kNoiseMin - kNoiseMax cannot win, whatever its noise.
inline constexpr float kReach = kNoiseMax - kNoiseMin;

inline constexpr int64_t kCandidateFloats = sizeof(Candidate) / sizeof(float);

}  // namespace megalith
#endif

HWY_BEFORE_NAMESPACE();
namespace megalith::HWY_NAMESPACE {

// The largest logit; NaN where one is NaN or +inf, or all are -inf.
float LargestLogit(const float* logits, int64_t size) {
  V top[2] = {hn::Set(D(), -HUGE_VALF), hn::Set(D(), -HUGE_VALF)};
  auto bad = hn::Lt(hn::Set(D(), 1.0f), hn::Zero(D()));
  int64_t i = 0;
  for (; i + 2 * kN <= size; i += 2 * kN) {
    for (int64_t j = 0; j < 2; ++j) {
      const V x = hn::LoadU(D(), logits + i + j * kN);
      bad = hn::Or(bad, hn::Not(hn::Lt(x, hn::Set(D(), HUGE_VALF))));
      top[j] = hn::Max(top[j], x);
    }
  }
  HWY_ALIGN float lanes[16];
  hn::Store(hn::Max(top[0], top[1]), D(), lanes);
  float largest = *std::max_element(lanes, lanes + kN);
  bool broken = !hn::AllFalse(D(), bad);
  for (; i < size; ++i) {
    broken = broken || !(logits[i] < HUGE_VALF);
    largest = std::max(largest, logits[i]);
  }
  return broken || largest == -HUGE_VALF ? __builtin_nanf("") : largest;
}

// Σ e^score over all tokens: sixteen lanes, joined by SumLanes.
float TotalWeight(const float* logits, int64_t size, float largest, float temperature) {
  V sum[kVectors];
  for (auto& s : sum) s = hn::Zero(D());
  for (int64_t i = 0; i < size; i += 16) {
    for (int64_t j = 0; j < kVectors; ++j) {
      const int64_t left = std::clamp<int64_t>(size - i - j * kN, 0, kN);
      const auto there = hn::FirstN(D(), static_cast<size_t>(left));
      const V x = hn::MaskedLoad(there, D(), logits + i + j * kN);
      const V e = Exp(hn::Div(hn::Sub(x, hn::Set(D(), largest)), hn::Set(D(), temperature)));
      sum[j] = hn::Add(sum[j], hn::IfThenElseZero(there, e));
    }
  }
  return SumLanes(sum);
}

// Tokens whose score is at least `least`, ascending by id; returns how many.
int64_t Gather(const float* logits, int64_t size, float largest, float temperature, float least, Candidate* out) {
  int64_t count = 0;
  const V floor = hn::Set(D(), least);
  for (int64_t i = 0; i < size; i += kN) {
    const int64_t left = std::min(kN, size - i);
    const V score = hn::Div(hn::Sub(LoadFirst(logits + i, left), hn::Set(D(), largest)), hn::Set(D(), temperature));
    const auto enough = hn::And(hn::Ge(score, floor), hn::FirstN(D(), static_cast<size_t>(left)));
    if (hn::AllFalse(D(), enough)) continue;
    HWY_ALIGN float lanes[16];
    hn::Store(score, D(), lanes);
    for (int64_t j = 0; j < left; ++j) {
      if (lanes[j] >= least) out[count++] = {lanes[j], static_cast<int32_t>(i + j)};
    }
  }
  return count;
}

int64_t KeepFiltered(const float* logits, int64_t size, float largest, const Sampling& how, Candidate* candidates,
                     int64_t count) {
  const bool by_k = how.top_k > 0 && how.top_k < size;
  if (by_k && count < how.top_k) count = Gather(logits, size, largest, how.temperature, -HUGE_VALF, candidates);
  if (by_k && count > how.top_k) {
    std::nth_element(candidates, candidates + how.top_k, candidates + count);
    count = how.top_k;
  }
  if (how.top_p < 1) {
    std::sort(candidates, candidates + count);
    const double total = by_k ? WeightOf(candidates, count) : TotalWeight(logits, size, largest, how.temperature);
    count = KeepTopP(candidates, count, total, how.top_p);
  }
  return KeepMinP(candidates, count, how.min_p);
}

int32_t SampleRow(const float* logits, int64_t size, const Sampling& how, int32_t position, Candidate* candidates) {
  const float largest = LargestLogit(logits, size);
  if (largest != largest) return -1;
  if (how.temperature == 0 || how.top_k == 1) {
    return static_cast<int32_t>(std::find(logits, logits + size, largest) - logits);
  }
  int64_t count = Gather(logits, size, largest, how.temperature, -kReach, candidates);
  count = KeepFiltered(logits, size, largest, how, candidates, count);
  return ArgmaxWithNoise(candidates, count, how.seed, position);
}

// A token id is exact in f32 below 2^24. -1 says that the logits hold a NaN or an infinity. Logits are for the host, too,
// so what a request changes is changed in a copy: scratch has the candidates, then the copy.
void RunSample(const OpContext& c, const StepArgs& step, Part part, Scratch scratch) {
  const Range rows = part.of(c.rows(step));
  const int64_t size = c.in_width[0];
  for (int64_t i = rows.begin; i < rows.end; ++i) {
    const auto index = static_cast<size_t>(i);
    const float* logits = c.in[0] + i * size;
    if (const LogitChanges* changes = step.changes[index]) {
      float* changed = scratch.floats + size * kCandidateFloats;
      std::copy_n(logits, size, changed);
      changes->apply(changed, size);
      logits = changed;
    }
    const int32_t position = step.rows[static_cast<size_t>(step.chosen[index])].position + 1;
    c.out[i] = static_cast<float>(
        SampleRow(logits, size, step.sampling[index], position, reinterpret_cast<Candidate*>(scratch.floats)));
  }
}

}  // namespace megalith::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace megalith {

HWY_EXPORT(RunSample);

void run_sample(const OpContext& c, const StepArgs& step, Part part, Scratch scratch) {
  HWY_DYNAMIC_DISPATCH(RunSample)(c, step, part, scratch);
}

int64_t sample_scratch_floats(int64_t vocabulary) {
  return vocabulary * (kCandidateFloats + 1);
}

}  // namespace megalith
#endif
