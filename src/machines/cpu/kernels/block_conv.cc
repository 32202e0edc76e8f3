#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "machines/cpu/kernels/block_conv.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <algorithm>

#include "machines/cpu/kernels/kernel.h"
#include "machines/cpu/kernels/lanes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace megalith::HWY_NAMESPACE {

// Up to sixteen channels of a block: y_t = Σ_τ (base_τ + dynamic_tτ) x_{t-τ}, taps in order, the row's own first. What comes
// before the block counts as zero.
HWY_INLINE void ConvColumns(const OpContext& c, const BlockConv& how, const Run& run, int64_t channel, int64_t count) {
  const int64_t groups = how.channels / how.group;
  const auto some = hn::FirstN(D(), static_cast<size_t>(count));
  for (int64_t t = 0; t < run.rows; ++t) {
    const float* dynamic = c.in[1] + (run.first_row + t) * c.in_width[1] + how.side * how.taps * groups;
    V sum = hn::Zero(D());
    for (int64_t tap = 0; tap < how.taps && tap <= t; ++tap) {
      HWY_ALIGN float own[16] = {};
      for (int64_t i = 0; i < count; ++i) own[i] = dynamic[tap * groups + (channel + i) / how.group];
      const V base = hn::MaskedLoad(some, D(), c.plain_weight(0) + (how.side * how.taps + tap) * how.channels + channel);
      const V x = hn::MaskedLoad(some, D(), c.in[0] + (run.first_row + t - tap) * how.channels + channel);
      sum = hn::MulAdd(hn::Add(base, hn::Load(D(), own)), x, sum);
    }
    hn::BlendedStore(sum, some, D(), c.out + (run.first_row + t) * how.channels + channel);
  }
}

void RunBlockConv(const OpContext& c, const StepArgs& step, Part part, Scratch) {
  const auto& how = c.op->get<BlockConv>();
  const Range channels = part.of(how.channels, kLanes);
  for (const Run& run : step.runs) {
    for (int64_t channel = channels.begin; channel < channels.end; channel += kN) {
      ConvColumns(c, how, run, channel, std::min(kN, channels.end - channel));
    }
  }
}

}  // namespace megalith::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace megalith {

HWY_EXPORT(RunBlockConv);

void run_block_conv(const OpContext& c, const StepArgs& step, Part part, Scratch scratch) {
  HWY_DYNAMIC_DISPATCH(RunBlockConv)(c, step, part, scratch);
}

}  // namespace megalith
#endif
