#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "machines/cpu/kernels/residual_mix.cc"
#include <cmath>

#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "machines/cpu/kernels/kernel.h"
#include "machines/cpu/kernels/math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace megalith::HWY_NAMESPACE {

// rms_norm(v, norm) · proj: the two sums side by side, element i in lane i mod 16.
HWY_INLINE float Score(const float* v, const float* norm, const float* proj, int64_t size, float eps) {
  const D d;
  V squares[kVectors], fit[kVectors];
  for (int64_t j = 0; j < kVectors; ++j) squares[j] = fit[j] = hn::Zero(d);
  for (int64_t i = 0; i < size; i += 16) {
    for (int64_t j = 0; j < kVectors; ++j) {
      const int64_t at = i + j * kN, left = size - at;
      if (left <= 0) break;
      const int64_t count = left < kN ? left : kN;
      const V x = LoadFirst(v + at, count);
      squares[j] = hn::MulAdd(x, x, squares[j]);
      fit[j] = hn::MulAdd(x, hn::Mul(LoadFirst(norm + at, count), LoadFirst(proj + at, count)), fit[j]);
    }
  }
  return SumLanes(fit) / std::sqrt(SumLanes(squares) / static_cast<float>(size) + eps);
}

// Turns scores into shares that sum to 1.
HWY_INLINE void Softmax(float* scores, size_t count) {
  float top = scores[0], total = 0;
  for (size_t i = 1; i < count; ++i) top = scores[i] > top || scores[i] != scores[i] ? scores[i] : top;
  for (size_t i = 0; i < count; ++i) total += scores[i] = Exp1(scores[i] - top);
  for (size_t i = 0; i < count; ++i) scores[i] /= total;
}

void MixRow(const OpContext& c, int64_t row, float eps, float* shares) {
  const D d;
  const int64_t width = c.out_width, at = row * width;
  for (size_t i = 0; i < c.in.size(); ++i) {
    shares[i] = Score(c.in[i] + at, c.plain_weight(0), c.plain_weight(1), width, eps);
  }
  Softmax(shares, c.in.size());
  for (int64_t column = 0; column < width; column += kN) {
    const int64_t count = width - column < kN ? width - column : kN;
    V sum = hn::Zero(d);
    for (size_t i = 0; i < c.in.size(); ++i) {
      sum = hn::MulAdd(hn::Set(d, shares[i]), LoadFirst(c.in[i] + at + column, count), sum);
    }
    hn::BlendedStore(sum, hn::FirstN(d, static_cast<size_t>(count)), d, c.out + at + column);
  }
}

void RunResidualMix(const OpContext& c, const StepArgs& step, Part part, Scratch scratch) {
  const Range range = part.of(c.rows(step));
  for (int64_t row = range.begin; row < range.end; ++row) MixRow(c, row, c.op->get<ResidualMix>().eps, scratch.floats);
}

}  // namespace megalith::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace megalith {

HWY_EXPORT(RunResidualMix);

void run_residual_mix(const OpContext& c, const StepArgs& step, Part part, Scratch scratch) {
  HWY_DYNAMIC_DISPATCH(RunResidualMix)(c, step, part, scratch);
}

}  // namespace megalith
#endif
