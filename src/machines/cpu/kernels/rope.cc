#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "machines/cpu/kernels/rope.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <algorithm>
#include <cmath>

#include "machines/cpu/kernels/kernel.h"
#include "machines/cpu/kernels/lanes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace megalith::HWY_NAMESPACE {

// cos and sin of an angle of up to 2^20, right to the last bit of f32 but for ties that double precision cannot tell. In
// double, by fused multiply-adds: x = n π/2 + r, then Taylor polynomials on |r| ≤ π/4. Not libm's, which differ.
HWY_INLINE void CosSin(double x, float* cosine, float* sine) {
  const double n = std::nearbyint(x * 0.63661977236758134308);
  double r = std::fma(-n, 1.57079632679489655800, x);
  r = std::fma(-n, 6.12323399573676603587e-17, r);
  const double z = r * r;
  double s = -1.0 / 1307674368000;
  for (const double c : {1.0 / 6227020800, -1.0 / 39916800, 1.0 / 362880, -1.0 / 5040, 1.0 / 120, -1.0 / 6}) {
    s = std::fma(s, z, c);
  }
  s = std::fma(s * z, r, r);
  double t = 1.0 / 20922789888000;
  for (const double c : {-1.0 / 87178291200, 1.0 / 479001600, -1.0 / 3628800, 1.0 / 40320, -1.0 / 720, 1.0 / 24, -0.5}) {
    t = std::fma(t, z, c);
  }
  t = std::fma(t, z, 1.0);
  const auto quarter = static_cast<int64_t>(n) & 3;
  const double cos_r = quarter & 1 ? s : t;
  const double sin_r = quarter & 1 ? t : s;
  *cosine = static_cast<float>(quarter == 1 || quarter == 2 ? -cos_r : cos_r);
  *sine = static_cast<float>(quarter >= 2 ? -sin_r : sin_r);
}

// Rotates (x_j, x_{j + rotary/2}) of each head by position · theta^(-2j/rotary); the angle is formed in f32, as in the
// models' own code.
void RunRope(const OpContext& c, const StepArgs& step, Part part, Scratch scratch) {
  const auto& how = c.op->get<Rope>();
  const int64_t half = how.rotary / 2;
  float* cosine = scratch.floats;
  float* sine = scratch.floats + half;
  const Range rows = part.of(c.rows(step));
  for (int64_t row = rows.begin; row < rows.end; ++row) {
    const auto position = static_cast<float>(step.rows[static_cast<size_t>(row)].position);
    for (int64_t j = 0; j < half; ++j) {
      CosSin(position * c.frequencies[static_cast<size_t>(j)], cosine + j, sine + j);
      cosine[j] *= how.amplitude;
      sine[j] *= how.amplitude;
    }
    for (int64_t head = 0; head < how.heads; ++head) {
      const float* x = c.in[0] + row * c.in_width[0] + head * how.dim;
      float* out = c.out + row * c.out_width + head * how.dim;
      for (int64_t j = 0; j < half; ++j) {
        out[j] = x[j] * cosine[j] - x[j + half] * sine[j];
        out[j + half] = x[j + half] * cosine[j] + x[j] * sine[j];
      }
      std::copy(x + how.rotary, x + how.dim, out + how.rotary);
    }
  }
}

}  // namespace megalith::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace megalith {

HWY_EXPORT(RunRope);

void run_rope(const OpContext& c, const StepArgs& step, Part part, Scratch scratch) {
  HWY_DYNAMIC_DISPATCH(RunRope)(c, step, part, scratch);
}

}  // namespace megalith
#endif
