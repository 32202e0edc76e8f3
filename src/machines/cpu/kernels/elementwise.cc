#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "machines/cpu/kernels/elementwise.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <algorithm>

#include "machines/cpu/kernels/kernel.h"
#include "machines/cpu/kernels/math-inl.h"

// Ops that form each element of a row from the same element of their inputs. Widths are multiples of sixteen, or end in a
// short vector.

HWY_BEFORE_NAMESPACE();
namespace megalith::HWY_NAMESPACE {

// out[i] = f(a[i], b[i]) for i in [range).
template <class F>
HWY_INLINE void Zip(const float* a, const float* b, float* out, Range range, F f) {
  int64_t i = range.begin;
  for (; i + kN <= range.end; i += kN) hn::StoreU(f(hn::LoadU(D(), a + i), hn::LoadU(D(), b + i)), D(), out + i);
  if (i == range.end) return;
  const int64_t left = range.end - i;
  const V last = f(LoadFirst(a + i, left), LoadFirst(b + i, left));
  hn::BlendedStore(last, hn::FirstN(D(), static_cast<size_t>(left)), D(), out + i);
}

template <class F>
HWY_INLINE void ZipRows(const OpContext& c, const StepArgs& step, Part part, F f) {
  const Range columns = part.of(c.out_width, kLanes);
  for (int64_t row = 0; row < c.rows(step); ++row) {
    Zip(c.in[0] + row * c.out_width, c.in[1] + row * c.out_width, c.out + row * c.out_width, columns, f);
  }
}

void RunAdd(const OpContext& c, const StepArgs& step, Part part, Scratch) {
  ZipRows(c, step, part, [](V a, V b) HWY_ATTR { return hn::Add(a, b); });
}

void RunSiluGate(const OpContext& c, const StepArgs& step, Part part, Scratch) {
  ZipRows(c, step, part, [](V gate, V up) HWY_ATTR { return hn::Mul(Silu(gate), up); });
}

void RunSituGate(const OpContext& c, const StepArgs& step, Part part, Scratch) {
  const Situ how = c.op->get<Situ>();
  ZipRows(c, step, part, [how](V gate, V up) HWY_ATTR { return SituOf(gate, up, how.beta, how.linear_beta); });
}

void RunSigmoidGate(const OpContext& c, const StepArgs& step, Part part, Scratch) {
  const Heads& gate = c.op->get<SigmoidGate>().gate;
  const Range range = part.of(c.rows(step) * gate.count);
  for (int64_t i = range.begin; i < range.end; ++i) {
    const int64_t row = i / gate.count;
    const int64_t head = i % gate.count;
    const int64_t at = row * c.out_width + head * gate.dim;
    Zip(c.in[0] + at, c.in[1] + row * c.in_width[1] + gate.offset + head * gate.stride, c.out + at, {0, gate.dim},
        [](V x, V g) HWY_ATTR { return hn::Mul(x, Sigmoid(g)); });
  }
}

// Taps of sixteen channels, [channel, taps] in memory, as w [taps, 16]; channels past `count` get zeros.
HWY_INLINE void LoadTaps(const float* taps_of, int64_t taps, int64_t count, float* w) {
  if (taps == 4 && count == 16) {  // what all known models have
    for (int64_t j = 0; j < 16; j += kN) {
      V tap[4];
      hn::LoadInterleaved4(D(), taps_of + j * 4, tap[0], tap[1], tap[2], tap[3]);
      for (int64_t t = 0; t < 4; ++t) hn::Store(tap[t], D(), w + t * 16 + j);
    }
    return;
  }
  std::fill(w, w + taps * 16, 0.0f);
  for (int64_t i = 0; i < count; ++i) {
    for (int64_t t = 0; t < taps; ++t) w[t * 16 + i] = taps_of[i * taps + t];
  }
}

// Sixteen channels of a run: y_t = silu(Σ_τ w_τ u_{t-T+1+τ}), taps in order, oldest first. The state is the last T - 1
// inputs, [T - 1, channels], oldest first.
HWY_INLINE void ConvChannels(const OpContext& c, const Run& run, int64_t channel, int64_t count, float* history) {
  const int64_t taps = c.op->get<ShortConv>().taps;
  const int64_t width = c.out_width;
  HWY_ALIGN float w[kMaxTaps * 16];
  LoadTaps(c.plain_weight(0) + channel * taps, taps, count, w);
  for (int64_t row = run.first_row; row < run.first_row + run.rows; ++row) {
    V sum[kVectors];
    for (auto& s : sum) s = hn::Zero(D());
    for (int64_t tap = 0; tap < taps; ++tap) {
      const int64_t source = row - taps + 1 + tap;  // a row of the run, or of the history before it
      const float* u = source >= run.first_row ? c.in[0] + source * width + channel
                                               : history + (source - run.first_row + taps - 1) * width + channel;
      for (int64_t j = 0; j < kVectors; ++j) {
        const int64_t left = std::clamp<int64_t>(count - j * kN, 0, kN);
        sum[j] = hn::MulAdd(hn::Load(D(), w + tap * 16 + j * kN), LoadFirst(u + j * kN, left), sum[j]);
      }
    }
    for (int64_t j = 0; j < kVectors; ++j) {
      const int64_t left = std::clamp<int64_t>(count - j * kN, 0, kN);
      hn::BlendedStore(Silu(sum[j]), hn::FirstN(D(), static_cast<size_t>(left)), D(),
                       c.out + row * width + channel + j * kN);
    }
  }
  const int64_t kept = taps - 1;
  for (int64_t h = 0; h < kept; ++h) {
    const int64_t source = run.first_row + run.rows - kept + h;
    const float* u = source >= run.first_row ? c.in[0] + source * width + channel
                                             : history + (source - run.first_row + kept) * width + channel;
    std::copy(u, u + count, history + h * width + channel);
  }
}

void RunShortConv(const OpContext& c, const StepArgs& step, Part part, Scratch) {
  const Range channels = part.of(c.out_width, kLanes);
  const int64_t kept = c.op->get<ShortConv>().taps - 1;
  for (const Run& run : step.runs) {
    float* history = c.state[0] + run.sequence * c.state_stride[0];
    for (int64_t channel = channels.begin; channel < channels.end; channel += kLanes) {
      const int64_t count = std::min(kLanes, channels.end - channel);
      if (run.first_position == 0) {
        for (int64_t h = 0; h < kept; ++h) std::fill_n(history + h * c.out_width + channel, count, 0.0f);
      }
      ConvChannels(c, run, channel, count, history);
    }
  }
}

// Σ over ranks in the order of ranks/tree.h: a rank's part is a subtree of the whole sum's tree (matmul).
void RunAllReduce(const OpContext& c, const StepArgs& step, Part part, Scratch) {
  const Range columns = part.of(c.out_width, kLanes);
  for (int64_t row = 0; row < c.rows(step); ++row) {
    for (int64_t i = columns.begin; i < columns.end; i += kN) {
      const int64_t at = row * c.out_width + i;
      const int64_t left = std::min(kN, columns.end - i);
      V sums[kMaxLocalRanks];
      for (int rank = 0; rank < c.ranks; ++rank) {
        sums[rank] = LoadFirst(c.in_of_ranks[static_cast<size_t>(rank)] + at, left);
      }
      for (const TreeSum& sum : c.tree) sums[sum.into] = hn::Add(sums[sum.into], sums[sum.from]);
      hn::BlendedStore(sums[0], hn::FirstN(D(), static_cast<size_t>(left)), D(), c.out + at);
    }
  }
}

}  // namespace megalith::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace megalith {

HWY_EXPORT(RunAdd);
HWY_EXPORT(RunSiluGate);
HWY_EXPORT(RunSituGate);
HWY_EXPORT(RunSigmoidGate);
HWY_EXPORT(RunShortConv);
HWY_EXPORT(RunAllReduce);

void run_add(const OpContext& c, const StepArgs& step, Part part, Scratch scratch) {
  HWY_DYNAMIC_DISPATCH(RunAdd)(c, step, part, scratch);
}
void run_silu_gate(const OpContext& c, const StepArgs& step, Part part, Scratch scratch) {
  HWY_DYNAMIC_DISPATCH(RunSiluGate)(c, step, part, scratch);
}
void run_situ_gate(const OpContext& c, const StepArgs& step, Part part, Scratch scratch) {
  HWY_DYNAMIC_DISPATCH(RunSituGate)(c, step, part, scratch);
}
void run_sigmoid_gate(const OpContext& c, const StepArgs& step, Part part, Scratch scratch) {
  HWY_DYNAMIC_DISPATCH(RunSigmoidGate)(c, step, part, scratch);
}
void run_short_conv(const OpContext& c, const StepArgs& step, Part part, Scratch scratch) {
  HWY_DYNAMIC_DISPATCH(RunShortConv)(c, step, part, scratch);
}
void run_all_reduce(const OpContext& c, const StepArgs& step, Part part, Scratch scratch) {
  HWY_DYNAMIC_DISPATCH(RunAllReduce)(c, step, part, scratch);
}

}  // namespace megalith
#endif
