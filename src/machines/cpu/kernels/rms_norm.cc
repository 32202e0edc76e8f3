#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "machines/cpu/kernels/rms_norm.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <cmath>

#include "machines/cpu/kernels/kernel.h"
#include "machines/cpu/kernels/math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace megalith::HWY_NAMESPACE {

// 1 / sqrt(mean(x²) + eps), by division and square root, which are exact to the last bit everywhere.
HWY_INLINE float InverseRms(const float* x, int64_t size, float eps) {
  return 1.0f / std::sqrt(Dot(x, x, size) / static_cast<float>(size) + eps);
}

// Calls f(i, mask-free count) for every vector of a row; the last may be short.
template <class F>
HWY_INLINE void ForVectors(int64_t size, F f) {
  for (int64_t i = 0; i < size; i += kN) f(i, size - i < kN ? size - i : kN);
}

HWY_INLINE void StoreFirst(V v, float* p, int64_t count) {
  if (count == kN) {
    hn::StoreU(v, D(), p);
  } else {
    hn::BlendedStore(v, hn::FirstN(D(), static_cast<size_t>(count)), D(), p);
  }
}

void NormHead(const float* x, const float* w, float* out, const RmsNorm& how) {
  const int64_t dim = how.heads.dim;
  const V scale = hn::Set(D(), InverseRms(x, dim, how.eps));
  const V centre = hn::Set(D(), how.zero_centred ? 1.0f : 0.0f);
  ForVectors(dim, [&](int64_t i, int64_t count) {
    const V weight = hn::Add(LoadFirst(w + i, count), centre);
    StoreFirst(hn::Mul(hn::Mul(LoadFirst(x + i, count), scale), weight), out + i, count);
  });
}

void RunRmsNorm(const OpContext& c, const StepArgs& step, Part part, Scratch) {
  const auto& how = c.op->get<RmsNorm>();
  const Range range = part.of(c.rows(step) * how.heads.count);
  for (int64_t i = range.begin; i < range.end; ++i) {
    const int64_t row = i / how.heads.count;
    const int64_t head = i % how.heads.count;
    NormHead(c.in[0] + row * c.in_width[0] + how.heads.offset + head * how.heads.stride, c.plain_weight(0),
             c.out + row * c.out_width + head * how.heads.dim, how);
  }
}

void GatedNormHead(const float* x, const float* z, const float* w, float* out, const GatedNorm& how) {
  const V scale = hn::Set(D(), InverseRms(x, how.dim, how.eps));
  ForVectors(how.dim, [&](int64_t i, int64_t count) {
    const V normed = hn::Mul(hn::Mul(LoadFirst(x + i, count), scale), LoadFirst(w + i, count));
    const V gate = LoadFirst(z + i, count);
    StoreFirst(hn::Mul(normed, how.gate == Gate::silu ? Silu(gate) : Sigmoid(gate)), out + i, count);
  });
}

void RunGatedNorm(const OpContext& c, const StepArgs& step, Part part, Scratch) {
  const auto& how = c.op->get<GatedNorm>();
  const Range range = part.of(c.rows(step) * how.heads);
  for (int64_t i = range.begin; i < range.end; ++i) {
    GatedNormHead(c.in[0] + i * how.dim, c.in[1] + i * how.dim, c.plain_weight(0), c.out + i * how.dim, how);
  }
}

}  // namespace megalith::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace megalith {

HWY_EXPORT(RunRmsNorm);
HWY_EXPORT(RunGatedNorm);

void run_rms_norm(const OpContext& c, const StepArgs& step, Part part, Scratch scratch) {
  HWY_DYNAMIC_DISPATCH(RunRmsNorm)(c, step, part, scratch);
}

void run_gated_norm(const OpContext& c, const StepArgs& step, Part part, Scratch scratch) {
  HWY_DYNAMIC_DISPATCH(RunGatedNorm)(c, step, part, scratch);
}

}  // namespace megalith
#endif
