#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "machines/cpu/kernels/attend.cc"
#include <algorithm>
#include <cmath>

#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "machines/cpu/kernels/kernel.h"
#include "machines/cpu/kernels/math-inl.h"
#include "program/attention.h"

HWY_BEFORE_NAMESPACE();
namespace megalith::HWY_NAMESPACE {

// A softmax-weighted sum that is not yet divided: output = sum / weight, with weights relative to e^max. It lies as
// program/attention.h says.
struct Partial {
  float* sum;  // [dim]
  int64_t dim;

  float& max() const { return sum[dim]; }
  float& weight() const { return sum[dim + 1]; }
};

// scores[p] of `count` positions from the start of a block: each one chain over dim. Lanes past the end hold anything.
HWY_INLINE void Scores(const float* q, const float* keys, int64_t dim, int64_t count, float* scores) {
  for (int64_t p = 0; p < count; p += kPositionBlock) {
    const float* block = keys + p * dim;
    V sum[kVectors];
    for (auto& s : sum) s = hn::Zero(D());
    for (int64_t i = 0; i < dim; ++i) {
      const V value = hn::Set(D(), q[i]);
      for (int64_t j = 0; j < kVectors; ++j) {
        sum[j] = hn::MulAdd(value, hn::LoadU(D(), block + i * 16 + j * kN), sum[j]);
      }
    }
    for (int64_t j = 0; j < kVectors; ++j) hn::StoreU(sum[j], D(), scores + p + j * kN);
  }
}

// Turns scores into weights e^(score - max), zero past the end; returns the max and the sum of weights.
HWY_INLINE void Weigh(float* scores, int64_t count, float* max, float* weight) {
  const int64_t padded = (count + 15) / 16 * 16;
  std::fill(scores + count, scores + padded, -HUGE_VALF);
  float top = -HUGE_VALF;
  for (int64_t p = 0; p < count; ++p) top = scores[p] > top || scores[p] != scores[p] ? scores[p] : top;
  V sum[kVectors];
  for (auto& s : sum) s = hn::Zero(D());
  const V centre = hn::Set(D(), top);
  for (int64_t p = 0; p < padded; p += 16) {
    for (int64_t j = 0; j < kVectors; ++j) {
      const V e = Exp(hn::Sub(hn::LoadU(D(), scores + p + j * kN), centre));
      sum[j] = hn::Add(sum[j], e);
      hn::StoreU(e, D(), scores + p + j * kN);
    }
  }
  *max = top;
  *weight = SumLanes(sum);
}

// sum[i] = Σ_p weights[p] · value[p, i], positions in order.
HWY_INLINE void WeightedSum(const float* weights, const float* values, int64_t dim, int64_t count, float* sum) {
  for (int64_t i = 0; i < dim; i += 16) {
    V total[kVectors];
    for (auto& t : total) t = hn::Zero(D());
    for (int64_t p = 0; p < count; ++p) {
      const V w = hn::Set(D(), weights[p]);
      for (int64_t j = 0; j < kVectors; ++j) {
        total[j] = hn::MulAdd(w, hn::LoadU(D(), values + p * dim + i + j * kN), total[j]);
      }
    }
    for (int64_t j = 0; j < kVectors; ++j) hn::StoreU(total[j], D(), sum + i + j * kN);
  }
}

// Joins what comes next to what is there: both are brought to the greater max.
HWY_INLINE void Join(const Partial& whole, const float* next) {
  const float max = std::max(whole.max(), next[whole.dim]);
  const float old_scale = Exp1(whole.max() - max);
  const float new_scale = Exp1(next[whole.dim] - max);
  for (int64_t i = 0; i < whole.dim; i += kN) {
    const V fresh = hn::Mul(hn::LoadU(D(), next + i), hn::Set(D(), new_scale));
    hn::StoreU(hn::MulAdd(hn::LoadU(D(), whole.sum + i), hn::Set(D(), old_scale), fresh), D(), whole.sum + i);
  }
  whole.weight() = std::fma(whole.weight(), old_scale, next[whole.dim + 1] * new_scale);
  whole.max() = max;
}

// What the query heads of one KV head have in common in a span.
struct Span {
  const float* keys;    // [block of 16 positions, dim, 16]
  const float* values;  // [position, dim]
  int64_t dim;
  Range positions;
};

// Chunk after chunk, and in each all query heads, so that keys and values come from memory once.
void AttendSpan(const Span& span, const float* queries, int64_t heads, float* out, float* scores, float* chunk_sum) {
  const int64_t dim = span.dim;
  for (int64_t first = span.positions.begin; first < span.positions.end; first += kAttentionChunk) {
    const int64_t count = std::min(kAttentionChunk, span.positions.end - first);
    for (int64_t head = 0; head < heads; ++head) {
      const Partial whole = {out + head * (dim + 2), dim};
      const Partial chunk = {first == span.positions.begin ? whole.sum : chunk_sum, dim};
      Scores(queries + head * dim, span.keys + first * dim, dim, count, scores);
      Weigh(scores, count, &chunk.max(), &chunk.weight());
      WeightedSum(scores, span.values + first * dim, dim, count, chunk.sum);
      if (chunk.sum != whole.sum) Join(whole, chunk.sum);
    }
  }
}

void RunAttend(const OpContext& c, const StepArgs& step, Part part, Scratch scratch) {
  const auto& how = c.op->get<Attend>();
  const int64_t group = how.heads / how.kv_heads;
  float* scores = scratch.floats;
  float* chunk_sum = scores + kAttentionChunk;
  float* queries = chunk_sum + how.dim + 2;
  const Range range = part.of(c.rows(step) * how.kv_heads * kAttentionSpans);
  for (int64_t i = range.begin; i < range.end; ++i) {
    const int64_t span = i % kAttentionSpans;
    const int64_t kv_head = i / kAttentionSpans % how.kv_heads;
    const int64_t row = i / kAttentionSpans / how.kv_heads;
    const Row& r = step.rows[static_cast<size_t>(row)];
    const Range positions = attention_span(r.position + 1, span);
    if (positions.size() == 0) continue;
    const float* query = c.in[0] + row * c.in_width[0] + kv_head * group * how.dim;
    for (int64_t j = 0; j < group * how.dim; ++j) queries[j] = query[j] * how.scale;
    const int64_t cache = kv_head * c.context * how.dim;
    AttendSpan({c.state[0] + r.sequence * c.state_stride[0] + cache,
                c.state[1] + r.sequence * c.state_stride[1] + cache, how.dim, positions},
               queries, group, c.out + row * c.out_width + (span * how.heads + kv_head * group) * (how.dim + 2), scores,
               chunk_sum);
  }
}

void RunJoinSpans(const OpContext& c, const StepArgs& step, Part part, Scratch scratch) {
  const auto& how = c.op->get<Attend>();
  const Partial whole = {scratch.floats, how.dim};
  const Range range = part.of(c.rows(step) * how.heads);
  for (int64_t i = range.begin; i < range.end; ++i) {
    const int64_t row = i / how.heads;
    const int64_t head = i % how.heads;
    const int64_t positions = step.rows[static_cast<size_t>(row)].position + 1;
    bool begun = false;
    for (int64_t span = 0; span < kAttentionSpans; ++span) {
      if (attention_span(positions, span).size() == 0) continue;
      const float* sum = c.in[0] + row * c.in_width[0] + (span * how.heads + head) * (how.dim + 2);
      if (begun) {
        Join(whole, sum);
      } else {
        std::copy(sum, sum + how.dim + 2, whole.sum);
        begun = true;
      }
    }
    float* out = c.out + row * c.out_width + head * how.dim;
    const V weight = hn::Set(D(), whole.weight());
    for (int64_t j = 0; j < how.dim; j += kN) hn::StoreU(hn::Div(hn::LoadU(D(), whole.sum + j), weight), D(), out + j);
  }
}

}  // namespace megalith::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace megalith {

HWY_EXPORT(RunAttend);
HWY_EXPORT(RunJoinSpans);

void run_attend(const OpContext& c, const StepArgs& step, Part part, Scratch scratch) {
  HWY_DYNAMIC_DISPATCH(RunAttend)(c, step, part, scratch);
}

void run_join_spans(const OpContext& c, const StepArgs& step, Part part, Scratch scratch) {
  HWY_DYNAMIC_DISPATCH(RunJoinSpans)(c, step, part, scratch);
}

// Scores and the sum of a chunk, and the scaled queries of a KV head; a joined sum is smaller.
int64_t attend_scratch_floats(const Attend& how) {
  return kAttentionChunk + how.dim + 2 + how.heads / how.kv_heads * how.dim;
}

// Key p of a head goes to lane p mod 16 of block p / 16; values lie as they come.
void run_append_kv(const OpContext& c, const StepArgs& step, Part part, Scratch) {
  const int64_t dim = c.head_dim;
  const int64_t heads = c.in_width[0] / dim;
  const Range range = part.of(c.rows(step) * heads);
  for (int64_t i = range.begin; i < range.end; ++i) {
    const int64_t row = i / heads;
    const int64_t head = i % heads;
    const Row& r = step.rows[static_cast<size_t>(row)];
    const float* k = c.in[0] + row * c.in_width[0] + head * dim;
    const float* v = c.in[1] + row * c.in_width[1] + head * dim;
    const int64_t block = r.position / kPositionBlock * kPositionBlock;
    float* keys = c.state[0] + r.sequence * c.state_stride[0] + (head * c.context + block) * dim;
    float* values = c.state[1] + r.sequence * c.state_stride[1] + (head * c.context + r.position) * dim;
    for (int64_t j = 0; j < dim; ++j) keys[j * kPositionBlock + r.position - block] = k[j];
    std::copy(v, v + dim, values);
  }
}

}  // namespace megalith
#endif
