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

// The T - 1 inputs before a run's rows, [T - 1, 16], oldest first, for `count` channels from `channel` on: the state
// [T - 1, width], and of the rows kept aside [rows, width] those that become permanent.
HWY_INLINE void InputsBefore(const Run& run, const float* state, const float* kept, int64_t taps, int64_t width,
                             int64_t channel, int64_t count, float* before) {
  for (int64_t h = 0; h < taps - 1; ++h) {
    const int64_t at = run.replay + h;  // in the state, then in the kept rows
    float* to = before + h * 16;
    if (at >= taps - 1) {
      std::copy_n(kept + (at - taps + 1) * width + channel, count, to);
    } else if (run.from_zero()) {
      std::fill_n(to, count, 0.0f);
    } else {
      std::copy_n(state + at * width + channel, count, to);
    }
  }
}

// Sixteen channels of a run: y_t = silu(Σ_τ w_τ u_{t-T+1+τ}), taps in order, oldest first. The state becomes the last
// T - 1 inputs of what is permanent; a speculative run's inputs are kept aside.
HWY_INLINE void ConvChannels(const OpContext& c, const Run& run, int64_t channel, int64_t count) {
  const int64_t taps = c.op->get<ShortConv>().taps, width = c.out_width;
  float* state = c.state[0] + run.sequence * c.state_stride[0];
  float* kept = c.kept_rows(run, 0, width);
  HWY_ALIGN float w[kMaxTaps * 16], before[kMaxTaps * 16];
  LoadTaps(c.plain_weight(0) + channel * taps, taps, count, w);
  InputsBefore(run, state, kept, taps, width, channel, count, before);
  // The input `t` rows after the run's first.
  const auto input = [&](int64_t t) {
    return t >= 0 ? c.in[0] + (run.first_row + t) * width + channel : before + (t + taps - 1) * 16;
  };
  for (int64_t t = 0; t < run.rows; ++t) {
    V sum[kVectors];
    for (auto& s : sum) s = hn::Zero(D());
    for (int64_t tap = 0; tap < taps; ++tap) {
      const float* u = input(t - taps + 1 + tap);
      for (int64_t j = 0; j < kVectors; ++j) {
        const int64_t left = std::clamp<int64_t>(count - j * kN, 0, kN);
        sum[j] = hn::MulAdd(hn::Load(D(), w + tap * 16 + j * kN), LoadFirst(u + j * kN, left), sum[j]);
      }
    }
    for (int64_t j = 0; j < kVectors; ++j) {
      const int64_t left = std::clamp<int64_t>(count - j * kN, 0, kN);
      hn::BlendedStore(Silu(sum[j]), hn::FirstN(D(), static_cast<size_t>(left)), D(),
                       c.out + (run.first_row + t) * width + channel + j * kN);
    }
  }
  const int64_t permanent = run.speculative ? 0 : run.rows;
  for (int64_t h = 0; h < taps - 1; ++h) {
    std::copy_n(input(permanent - taps + 1 + h), count, state + h * width + channel);
  }
  for (int64_t t = 0; t < run.rows && run.speculative; ++t) {
    std::copy_n(input(t), count, kept + t * width + channel);
  }
}

void RunShortConv(const OpContext& c, const StepArgs& step, Part part, Scratch) {
  const Range channels = part.of(c.out_width, kLanes);
  for (const Run& run : step.runs) {
    for (int64_t channel = channels.begin; channel < channels.end; channel += kLanes) {
      ConvChannels(c, run, channel, std::min(kLanes, channels.end - channel));
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
