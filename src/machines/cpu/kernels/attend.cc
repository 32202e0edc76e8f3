#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "machines/cpu/kernels/attend.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <algorithm>
#include <cmath>

#include "machines/cpu/kernels/kernel.h"
#include "machines/cpu/kernels/math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace megalith::HWY_NAMESPACE {

// Attention of one query head over one head's cache.
struct Query {
  const float* q;     // [dim], scaled
  const float* keys;  // [block of 16 positions, dim, 16]
  const float* values;  // [position, dim]
  int64_t dim;
  int64_t positions;  // that are visible
};

// A softmax-weighted sum that is not yet divided: output = sum / weight, with weights relative to e^max.
struct Partial {
  float max;
  float weight;
  float* sum;  // [dim]
};

// scores[p] of positions [first, first + count): each one chain over dim. Lanes past the end hold anything.
HWY_INLINE void Scores(const Query& a, int64_t first, int64_t count, float* scores) {
  for (int64_t p = 0; p < count; p += kPositionBlock) {
    const float* block = a.keys + (first + p) * a.dim;
    V sum[kVectors];
    for (auto& s : sum) s = hn::Zero(D());
    for (int64_t i = 0; i < a.dim; ++i) {
      const V q = hn::Set(D(), a.q[i]);
      for (int64_t j = 0; j < kVectors; ++j) sum[j] = hn::MulAdd(q, hn::LoadU(D(), block + i * 16 + j * kN), sum[j]);
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

// Joins the next chunk to what is there: both are brought to the greater max.
HWY_INLINE void Join(Partial& whole, const Partial& chunk, int64_t dim) {
  const float max = std::max(whole.max, chunk.max);
  const float old_scale = Exp1(whole.max - max);
  const float new_scale = Exp1(chunk.max - max);
  whole.weight = std::fma(whole.weight, old_scale, chunk.weight * new_scale);
  whole.max = max;
  for (int64_t i = 0; i < dim; i += kN) {
    const V fresh = hn::Mul(hn::LoadU(D(), chunk.sum + i), hn::Set(D(), new_scale));
    hn::StoreU(hn::MulAdd(hn::LoadU(D(), whole.sum + i), hn::Set(D(), old_scale), fresh), D(), whole.sum + i);
  }
}

void AttendHead(const Query& a, float* out, float* scores, float* chunk_sum) {
  Partial whole = {0, 0, out};
  for (int64_t first = 0; first < a.positions; first += kAttentionChunk) {
    const int64_t count = std::min(kAttentionChunk, a.positions - first);
    Partial chunk = {0, 0, first == 0 ? out : chunk_sum};
    Scores(a, first, count, scores);
    Weigh(scores, count, &chunk.max, &chunk.weight);
    WeightedSum(scores, a.values + first * a.dim, a.dim, count, chunk.sum);
    if (first == 0) {
      whole = chunk;
    } else {
      Join(whole, chunk, a.dim);
    }
  }
  for (int64_t i = 0; i < a.dim; i += kN) {
    hn::StoreU(hn::Div(hn::LoadU(D(), out + i), hn::Set(D(), whole.weight)), D(), out + i);
  }
}

void RunAttend(const OpContext& c, const StepArgs& step, Part part, Scratch scratch) {
  const auto& how = c.op->get<Attend>();
  const int64_t group = how.heads / how.kv_heads;
  float* scores = scratch.floats;
  float* chunk_sum = scores + kAttentionChunk;
  float* q = chunk_sum + how.dim;
  const Range range = part.of(c.rows(step) * how.kv_heads);
  for (int64_t i = range.begin; i < range.end; ++i) {
    const int64_t row = i / how.kv_heads;
    const int64_t kv_head = i % how.kv_heads;
    const Row& r = step.rows[static_cast<size_t>(row)];
    const int64_t cache = kv_head * c.context * how.dim;
    for (int64_t head = kv_head * group; head < (kv_head + 1) * group; ++head) {
      const float* query = c.in[0] + row * c.in_width[0] + head * how.dim;
      for (int64_t j = 0; j < how.dim; ++j) q[j] = query[j] * how.scale;
      AttendHead({q, c.state[0] + r.sequence * c.state_stride[0] + cache,
                  c.state[1] + r.sequence * c.state_stride[1] + cache, how.dim, r.position + 1},
                 c.out + row * c.out_width + head * how.dim, scores, chunk_sum);
    }
  }
}

}  // namespace megalith::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace megalith {

HWY_EXPORT(RunAttend);

void run_attend(const OpContext& c, const StepArgs& step, Part part, Scratch scratch) {
  HWY_DYNAMIC_DISPATCH(RunAttend)(c, step, part, scratch);
}

int64_t attend_scratch_floats(const Attend& how) { return kAttentionChunk + 2 * how.dim; }

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
