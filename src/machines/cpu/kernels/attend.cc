#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "machines/cpu/kernels/attend.cc"
#include <algorithm>
#include <cmath>

#include <hwy/cache_control.h>
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "machines/cpu/kernels/kernel.h"
#include "machines/cpu/kernels/math-inl.h"
#include "program/attention.h"

#ifndef MEGALITH_ATTEND_SIZES
#define MEGALITH_ATTEND_SIZES
namespace megalith {
inline constexpr int64_t kHeadsAtOnce =
    4;  // query heads that read keys and values together, each with chains of its own
inline constexpr int64_t kKeysAhead = 768;      // floats of keys that are fetched ahead of their use
inline constexpr int64_t kPositionsAhead = 12;  // positions of values
}  // namespace megalith
#endif

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

// Sixteen positions of rows [position, stride] as keys are laid out: [dim, 16].
HWY_INLINE void TransposeBlock(const float* rows, int64_t stride, int64_t dim, int64_t count, float* block) {
  for (int64_t p = 0; p < kPositionBlock; ++p) {
    const float* row = rows + std::min(p, count - 1) * stride;  // lanes past the end hold anything
    for (int64_t i = 0; i < dim; ++i) block[i * kPositionBlock + p] = row[i];
  }
}

// scores[head, p] of `count` positions from the start of a block: each one chain over dim. q is [kHeads, dim], scores
// [kHeads, chunk]. Lanes past the end hold anything.
template <int64_t kHeads>
HWY_INLINE void Scores(const float* q, const float* keys, int64_t dim, int64_t count, float* scores) {
  for (int64_t p = 0; p < count; p += kPositionBlock) {
    const float* block = keys + p * dim;
    V sum[kHeads * kVectors];
    HWY_UNROLL(8)
    for (int64_t c = 0; c < kHeads * kVectors; ++c) sum[c] = hn::Zero(D());
    for (int64_t i = 0; i < dim; ++i) {
      hwy::Prefetch(block + i * 16 + kKeysAhead);
      __builtin_prefetch(block + i * 16 + 4 * kKeysAhead, 0, 2);  // into L2
      HWY_UNROLL(8)
      for (int64_t c = 0; c < kHeads * kVectors; ++c) {
        const V key = hn::LoadU(D(), block + i * 16 + c % kVectors * kN);
        sum[c] = hn::MulAdd(hn::Set(D(), q[c / kVectors * dim + i]), key, sum[c]);
      }
    }
    HWY_UNROLL(8)
    for (int64_t c = 0; c < kHeads * kVectors; ++c) {
      hn::StoreU(sum[c], D(), scores + c / kVectors * kAttentionChunk + p + c % kVectors * kN);
    }
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

// sums[head, i] = Σ_p weights[head, p] · value[p, i] for kColumns of i, positions in order. weights is [kHeads, chunk],
// values are `stride` floats apart, sums [kHeads, dim + 2].
template <int64_t kHeads, int64_t kColumns>
HWY_INLINE void WeightedColumns(const float* weights, const float* values, int64_t stride, int64_t dim, int64_t count,
                                float* sums) {
  constexpr int64_t kParts = kColumns / kN;
  V total[kHeads * kParts];
  HWY_UNROLL(16)
  for (int64_t c = 0; c < kHeads * kParts; ++c) total[c] = hn::Zero(D());
  for (int64_t p = 0; p < count; ++p) {
    const float* value = values + p * stride;
    for (int64_t line = 0; line < kColumns; line += 16) hwy::Prefetch(value + kPositionsAhead * stride + line);
    HWY_UNROLL(16)
    for (int64_t c = 0; c < kHeads * kParts; ++c) {
      const V part = hn::LoadU(D(), value + c % kParts * kN);
      total[c] = hn::MulAdd(hn::Set(D(), weights[c / kParts * kAttentionChunk + p]), part, total[c]);
    }
  }
  HWY_UNROLL(16)
  for (int64_t c = 0; c < kHeads * kParts; ++c) {
    hn::StoreU(total[c], D(), sums + c / kParts * (dim + 2) + c % kParts * kN);
  }
}

// All of a head's dim columns: as many at once as stay in registers, so that memory is read in long pieces.
template <int64_t kHeads>
HWY_INLINE void WeightedSums(const float* weights, const float* values, int64_t stride, int64_t dim, int64_t count,
                             float* sums) {
  constexpr int64_t kWide = kN == 16 || kHeads == 1 ? 64 : 16;
  int64_t i = 0;
  for (; i + kWide <= dim; i += kWide) {
    WeightedColumns<kHeads, kWide>(weights, values + i, stride, dim, count, sums + i);
  }
  for (; i < dim; i += 16) WeightedColumns<kHeads, 16>(weights, values + i, stride, dim, count, sums + i);
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
  const float* keys;    // [block of 16 positions, key_dim, 16]; null where values hold them
  const float* values;  // [position, stride], the first value_dim of each
  int64_t key_dim, value_dim, stride;
  Range positions;
};

// A worker's memory for a chunk: scores [kHeadsAtOnce, chunk], sums [kHeadsAtOnce, value_dim + 2], scaled queries
// [heads, key_dim], and keys [chunk, key_dim] where they do not lie in blocks.
struct ChunkScratch {
  float* scores;
  float* sums;
  float* queries;
  float* keys;

  ChunkScratch(float* memory, const Attend& how)
      : scores(memory),
        sums(scores + kHeadsAtOnce * kAttentionChunk),
        queries(sums + kHeadsAtOnce * (how.value_dim + 2)),
        keys(queries + how.heads / how.kv_heads * how.key_dim) {}
};

// The chunk of `count` positions from `first` on, for kHeads query heads; their partial sums begin at `out`.
template <int64_t kHeads>
HWY_INLINE void AttendChunk(const Span& span, const float* keys, int64_t first, int64_t count, const float* queries,
                            const ChunkScratch& scratch, float* out) {
  const int64_t dim = span.value_dim, partial = dim + 2;
  const bool begins = first == span.positions.begin;
  float* sums = begins ? out : scratch.sums;
  Scores<kHeads>(queries, keys, span.key_dim, count, scratch.scores);
  for (int64_t h = 0; h < kHeads; ++h) {
    const Partial chunk = {sums + h * partial, dim};
    Weigh(scratch.scores + h * kAttentionChunk, count, &chunk.max(), &chunk.weight());
  }
  WeightedSums<kHeads>(scratch.scores, span.values + first * span.stride, span.stride, dim, count, sums);
  for (int64_t h = 0; h < kHeads && !begins; ++h) Join({out + h * partial, dim}, sums + h * partial);
}

// The keys of a chunk, in blocks.
HWY_INLINE const float* KeysOf(const Span& span, int64_t first, int64_t count, const ChunkScratch& scratch) {
  if (span.keys) return span.keys + first * span.key_dim;
  for (int64_t p = 0; p < count; p += kPositionBlock) {
    TransposeBlock(span.values + (first + p) * span.stride, span.stride, span.key_dim, count - p,
                   scratch.keys + p * span.key_dim);
  }
  return scratch.keys;
}

// Chunk after chunk, and in each all query heads, so that keys and values come from memory once.
void AttendSpan(const Span& span, int64_t heads, const ChunkScratch& scratch, float* out) {
  const int64_t partial = span.value_dim + 2;
  for (int64_t first = span.positions.begin; first < span.positions.end; first += kAttentionChunk) {
    const int64_t count = std::min(kAttentionChunk, span.positions.end - first);
    const float* keys = KeysOf(span, first, count, scratch);
    int64_t h = 0;
    for (; h + kHeadsAtOnce <= heads; h += kHeadsAtOnce) {
      AttendChunk<kHeadsAtOnce>(span, keys, first, count, scratch.queries + h * span.key_dim, scratch, out + h * partial);
    }
    for (; h < heads; ++h) {
      AttendChunk<1>(span, keys, first, count, scratch.queries + h * span.key_dim, scratch, out + h * partial);
    }
  }
}

// The query heads [heads, key_dim] of a KV head, scaled. Their tails come from the second input where there are any.
void ScaleQueries(const OpContext& c, const Attend& how, int64_t row, int64_t kv_head, float* out) {
  const int64_t group = how.heads / how.kv_heads, own = how.key_dim - how.tail.dim;
  for (int64_t head = kv_head * group; head < (kv_head + 1) * group; ++head) {
    const float* query = c.in[0] + row * c.in_width[0] + head * own;
    for (int64_t i = 0; i < own; ++i) *out++ = query[i] * how.scale;
    if (how.tail.dim == 0) continue;
    const float* tail = c.in[1] + row * c.in_width[1] + how.tail.offset + head * how.tail.stride;
    for (int64_t i = 0; i < how.tail.dim; ++i) *out++ = tail[i] * how.scale;
  }
}

Span SpanOf(const OpContext& c, const Attend& how, const Row& row, int64_t kv_head, Range positions) {
  const float* first = c.state[0] + row.sequence * c.state_stride[0];
  if (how.latent) return {nullptr, first, how.key_dim, how.value_dim, how.key_dim, positions};
  const float* second = c.state[1] + row.sequence * c.state_stride[1];
  return {first + kv_head * c.context * how.key_dim, second + kv_head * c.context * how.value_dim, how.key_dim,
          how.value_dim, how.value_dim, positions};
}

void RunAttend(const OpContext& c, const StepArgs& step, Part part, Scratch scratch) {
  const auto& how = c.op->get<Attend>();
  const int64_t group = how.heads / how.kv_heads;
  const ChunkScratch memory(scratch.floats, how);
  const Range range = part.of(c.rows(step) * how.kv_heads * kAttentionSpans);
  for (int64_t i = range.begin; i < range.end; ++i) {
    const int64_t span = i % kAttentionSpans;
    const int64_t kv_head = i / kAttentionSpans % how.kv_heads;
    const int64_t row = i / kAttentionSpans / how.kv_heads;
    const Row& r = step.rows[static_cast<size_t>(row)];
    const Range positions = attention_span(r.position + 1, span);
    if (positions.size() == 0) continue;
    ScaleQueries(c, how, row, kv_head, memory.queries);
    float* out = c.out + row * c.out_width + (span * how.heads + kv_head * group) * (how.value_dim + 2);
    AttendSpan(SpanOf(c, how, r, kv_head, positions), group, memory, out);
  }
}

void RunJoinSpans(const OpContext& c, const StepArgs& step, Part part, Scratch scratch) {
  const auto& how = c.op->get<Attend>();
  const Partial whole = {scratch.floats, how.value_dim};
  const Range range = part.of(c.rows(step) * how.heads);
  for (int64_t i = range.begin; i < range.end; ++i) {
    const int64_t row = i / how.heads;
    const int64_t head = i % how.heads;
    const int64_t positions = step.rows[static_cast<size_t>(row)].position + 1;
    bool begun = false;
    for (int64_t span = 0; span < kAttentionSpans; ++span) {
      if (attention_span(positions, span).size() == 0) continue;
      const float* sum = c.in[0] + row * c.in_width[0] + (span * how.heads + head) * (how.value_dim + 2);
      if (begun) {
        Join(whole, sum);
      } else {
        std::copy(sum, sum + how.value_dim + 2, whole.sum);
        begun = true;
      }
    }
    float* out = c.out + row * c.out_width + head * how.value_dim;
    const V weight = hn::Set(D(), whole.weight());
    for (int64_t j = 0; j < how.value_dim; j += kN) hn::StoreU(hn::Div(hn::LoadU(D(), whole.sum + j), weight), D(), out + j);
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

// As ChunkScratch has it; a joined sum is smaller.
int64_t attend_scratch_floats(const Attend& how) {
  const int64_t keys = how.latent ? kAttentionChunk * how.key_dim : 0;
  return kHeadsAtOnce * (kAttentionChunk + how.value_dim + 2) + how.heads / how.kv_heads * how.key_dim + keys;
}

// The row of the cache is what a latent attention reads as keys, and its beginning as values.
void run_append_latent(const OpContext& c, const StepArgs& step, Part part, Scratch) {
  const int64_t latent = c.in_width[0], width = c.in_width[1];
  const Range range = part.of(c.rows(step));
  for (int64_t row = range.begin; row < range.end; ++row) {
    const Row& r = step.rows[static_cast<size_t>(row)];
    float* entry = c.state[0] + r.sequence * c.state_stride[0] + r.position * width;
    std::copy_n(c.in[0] + row * latent, latent, entry);
    std::copy_n(c.in[1] + row * width + latent, width - latent, entry + latent);
  }
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
