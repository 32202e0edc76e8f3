#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "machines/cpu/kernels/attend_block.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <algorithm>
#include <cmath>

#include "machines/cpu/kernels/kernel.h"
#include "machines/cpu/kernels/math-inl.h"

#ifndef MEGALITH_ATTEND_BLOCK_SIZES
#define MEGALITH_ATTEND_BLOCK_SIZES
namespace megalith {
inline constexpr int64_t kWindowChunk = 256;  // positions whose scores are formed at once
}  // namespace megalith
#endif

HWY_BEFORE_NAMESPACE();
namespace megalith::HWY_NAMESPACE {

// Of one draft row and head, what attention has come to: Σ e^(score - max) · value, Σ e^(score - max), max.
struct BlockHead {
  const float* query;  // [dim], scaled
  int64_t dim;
  float* scores;  // [kWindowChunk]
  float* sum;     // [dim]
  float weight = 0, max = -HUGE_VALF;

  // `count` more positions; row(i) has their keys and values.
  template <class Row>
  void Add(const Row& key, const Row& value, int64_t count);
};

template <class Row>
HWY_INLINE void BlockHead::Add(const Row& key, const Row& value, int64_t count) {
  if (count == 0) return;
  float top = max;
  for (int64_t i = 0; i < count; ++i) {
    scores[i] = Dot(query, key(i), dim);
    top = scores[i] > top || scores[i] != scores[i] ? scores[i] : top;
  }
  const float scale = Exp1(max - top);
  weight *= scale;
  for (int64_t i = 0; i < count; ++i) {
    scores[i] = Exp1(scores[i] - top);
    weight += scores[i];
  }
  for (int64_t j = 0; j < dim; j += kN) {
    V total = hn::Mul(hn::LoadU(D(), sum + j), hn::Set(D(), scale));
    for (int64_t i = 0; i < count; ++i) {
      total = hn::MulAdd(hn::Set(D(), scores[i]), hn::LoadU(D(), value(i) + j), total);
    }
    hn::StoreU(total, D(), sum + j);
  }
  max = top;
}

// Where a row or position has its floats.
struct RowsAt {
  const float* first;
  int64_t stride, offset, modulus;  // of position offset + i: first + (offset + i) mod modulus · stride
  HWY_INLINE const float* operator()(int64_t i) const { return first + (offset + i) % modulus * stride; }
};

// The context before the anchor, in chunks from the oldest position that the row sees; then the rows of its own block.
void AttendRow(const OpContext& c, const AttendBlock& how, const Run& run, int64_t i, int64_t kv_head, BlockHead& head) {
  const int64_t anchor = run.first_position, row_width = how.kv_heads * how.dim;
  const auto state = [&](size_t which) {
    return c.state[which] + run.sequence * c.state_stride[which] + kv_head * c.slots * how.dim;
  };
  int64_t first = 0;
  if (how.window > 0) first = std::max<int64_t>(how.from_anchor ? anchor - how.window : anchor + i - how.window + 1, 0);
  for (int64_t p = first; p < anchor; p += kWindowChunk) {
    head.Add(RowsAt{state(0), how.dim, p, c.slots}, RowsAt{state(1), how.dim, p, c.slots}, std::min(kWindowChunk, anchor - p));
  }
  const bool own_window = how.window > 0 && !how.from_anchor;
  const int64_t begin = own_window ? std::max<int64_t>(i - how.window + 1, 0) : 0;
  const int64_t last = how.causal ? i : own_window ? std::min<int64_t>(i + how.window - 1, run.rows - 1) : run.rows - 1;
  const auto of_block = [&](size_t input) {
    return RowsAt{c.in[input] + run.first_row * row_width + kv_head * how.dim, row_width, begin, run.rows};
  };
  head.Add(of_block(1), of_block(2), last - begin + 1);
}

void RunAttendBlock(const OpContext& c, const StepArgs& step, Part part, Scratch scratch) {
  const auto& how = c.op->get<AttendBlock>();
  const int64_t group = how.heads / how.kv_heads;
  const int64_t rows = step.runs.empty() ? 0 : step.runs[0].rows;  // of each block
  float* query = scratch.floats;
  const Range range = part.of(static_cast<int64_t>(step.runs.size()) * how.heads * rows);
  for (int64_t at = range.begin; at < range.end; ++at) {
    const int64_t i = at % rows, h = at / rows % how.heads;
    const Run& run = step.runs[static_cast<size_t>(at / rows / how.heads)];
    const int64_t place = (run.first_row + i) * c.out_width + h * how.dim;
    BlockHead head = {query, how.dim, query + 2 * how.dim, query + how.dim};
    for (int64_t j = 0; j < how.dim; ++j) query[j] = c.in[0][place + j] * how.scale;
    std::fill_n(head.sum, how.dim, 0.0f);
    AttendRow(c, how, run, i, h / group, head);
    const V weight = hn::Set(D(), head.weight);
    for (int64_t j = 0; j < how.dim; j += kN) hn::StoreU(hn::Div(hn::LoadU(D(), head.sum + j), weight), D(), c.out + place + j);
  }
}

}  // namespace megalith::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace megalith {

HWY_EXPORT(RunAttendBlock);

void run_attend_block(const OpContext& c, const StepArgs& step, Part part, Scratch scratch) {
  HWY_DYNAMIC_DISPATCH(RunAttendBlock)(c, step, part, scratch);
}

int64_t attend_block_scratch_floats(const AttendBlock& how) { return 2 * how.dim + kWindowChunk; }

// Of a run that is longer than the window, the last rows stay.
void run_append_window(const OpContext& c, const StepArgs& step, Part part, Scratch) {
  const int64_t dim = c.head_dim, width = c.in_width[0];
  const Range heads = part.of(width / dim);
  for (const Run& run : step.runs) {
    for (int64_t row = std::max<int64_t>(run.rows - c.slots, 0); row < run.rows; ++row) {
      const int64_t slot = (run.first_position + row) % c.slots;
      for (int64_t head = heads.begin; head < heads.end; ++head) {
        const int64_t from = (run.first_row + row) * width + head * dim;
        for (size_t which = 0; which < 2; ++which) {
          float* state = c.state[which] + run.sequence * c.state_stride[which];
          std::copy_n(c.in[which] + from, dim, state + (head * c.slots + slot) * dim);
        }
      }
    }
  }
}

}  // namespace megalith
#endif
