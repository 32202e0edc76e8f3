#include "reference/ops.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>

#include "program/attention.h"
#include "program/rope.h"

namespace megalith::reference {

namespace {

double sigmoid(double x) {
  return 1 / (1 + std::exp(-x));
}
double silu(double x) {
  return x * sigmoid(x);
}
double softplus(double x) {
  return x > 40 ? x : std::log1p(std::exp(x));
}

// Σ parts by a binary tree over their indices, neighbours first: the left subtree is the largest full one. Part of the
// contract on bits, so in f32.
float tree_sum(const float* parts, int64_t count) {
  if (count == 1) return parts[0];
  const auto left = static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(count)) / 2);
  return tree_sum(parts, left) + tree_sum(parts + left, count - left);
}

double mean_square(const float* x, int64_t size) {
  double sum = 0;
  for (int64_t i = 0; i < size; ++i) sum += double{x[i]} * x[i];
  return sum / static_cast<double>(size);
}

// x / sqrt(Σ x² + 1e-6) · scale.
std::vector<double> l2_normalised(const float* x, int64_t size, double scale) {
  const double length = std::sqrt(mean_square(x, size) * static_cast<double>(size) + 1e-6);
  std::vector<double> y;
  for (int64_t i = 0; i < size; ++i) y.push_back(x[i] / length * scale);
  return y;
}

double situ(double gate, double up, const Situ& how) {
  return how.beta * std::tanh(gate / how.beta) * sigmoid(gate) * how.linear_beta * std::tanh(up / how.linear_beta);
}

// What a head can look at: key p at keys + p · key_dim, value p at values + p · value_stride.
struct Visible {
  const float *keys, *values;
  int64_t value_stride;
};

// What a span of positions gives for one query head: Σ e^(s - max) V, the max, Σ e^(s - max); zeros for no positions.
void attend_span(const Attend& how, const std::vector<float>& q, const Visible& cache, Range positions, float* out) {
  std::vector<double> scores;
  for (int64_t p = positions.begin; p < positions.end; ++p) {
    double score = 0;
    for (int64_t i = 0; i < how.key_dim; ++i) score += double{q[static_cast<size_t>(i)]} * cache.keys[p * how.key_dim + i];
    scores.push_back(score * how.scale);
  }
  const double top = scores.empty() ? -HUGE_VAL : *std::max_element(scores.begin(), scores.end());
  double total = 0;
  std::vector<double> sum(static_cast<size_t>(how.value_dim));
  for (int64_t p = positions.begin; p < positions.end; ++p) {
    const double weight = std::exp(scores[static_cast<size_t>(p - positions.begin)] - top);
    total += weight;
    for (int64_t i = 0; i < how.value_dim; ++i) {
      sum[static_cast<size_t>(i)] += weight * cache.values[p * cache.value_stride + i];
    }
  }
  std::copy(sum.begin(), sum.end(), out);
  out[how.value_dim] = static_cast<float>(top);
  out[how.value_dim + 1] = static_cast<float>(total);
}

// Query head `head` of a row: of the first input, and the tail of the second where there is one.
std::vector<float> query_of(const Call& c, const Attend& how, int64_t row, int64_t head) {
  const int64_t own = how.key_dim - how.tail.dim;
  const float* first = c.in[0] + row * c.in_width[0] + head * own;
  std::vector<float> q(first, first + own);
  if (how.tail.dim > 0) {
    const float* tail = c.in[1] + row * c.in_width[1] + how.tail.offset + head * how.tail.stride;
    q.insert(q.end(), tail, tail + how.tail.dim);
  }
  return q;
}

Visible visible_to(const Call& c, const Attend& how, int sequence, int64_t kv_head) {
  const float* keys = c.states[0] + sequence * c.state_size[0] + kv_head * c.slots * how.key_dim;
  if (how.latent) return {keys, keys, how.key_dim};
  return {keys, c.states[1] + sequence * c.state_size[1] + kv_head * c.slots * how.value_dim, how.value_dim};
}

}  // namespace

void copy_table_row(const Call& c, int64_t token, int64_t width, float* out) {
  const Weight& table = *c.weight_info[0];
  const int64_t first = table.split.axis == Split::Axis::outputs ? table.split.blocks[0].begin(c.rank, c.ranks) : 0;
  const bool ours = token >= first && token - first < table.outputs(c.ranks);
  for (int64_t i = 0; i < width; ++i) {
    // + 0 turns -0 into 0, which is what adding the other ranks' zeros does.
    out[i] = ours ? c.weights[0][(token - first) * width + i] + 0.0f : 0.0f;
  }
}

void embed(const Call& c) {
  for (int64_t row = 0; row < c.rows; ++row) {
    copy_table_row(c, c.step.rows[static_cast<size_t>(row)].token, c.width, c.out + row * c.width);
  }
}

void rms_norm(const Call& c) {
  const auto& how = c.op.get<RmsNorm>();
  const int64_t dim = how.heads.dim;
  for (int64_t row = 0; row < c.rows; ++row) {
    for (int64_t head = 0; head < how.heads.count; ++head) {
      const float* x = c.in[0] + row * c.in_width[0] + how.heads.offset + head * how.heads.stride;
      const double scale = 1 / std::sqrt(mean_square(x, dim) + how.eps);
      for (int64_t i = 0; i < dim; ++i) {
        const double weight = (how.zero_centred ? 1.0 : 0.0) + c.weights[0][i];
        c.out[row * c.width + head * dim + i] = static_cast<float>(x[i] * scale * weight);
      }
    }
  }
}

namespace {

// One chain of fused multiply-adds.
float chain(const float* w, const float* x, int64_t size) {
  float sum = 0;
  for (int64_t k = 0; k < size; ++k) sum = std::fma(w[k], x[k], sum);
  return sum;
}

}  // namespace

// Each segment of the inputs is one chain from zero; the tree joins segments. These are the contract's bits.
void matmul(const Call& c) {
  const auto& how = c.op.get<Matmul>();
  const int64_t inputs = how.heads.dim, outputs_each = c.width / how.heads.count;
  const int64_t length = inputs / how.segments;
  std::vector<float> sums(static_cast<size_t>(how.segments));
  for (int64_t row = 0; row < c.rows; ++row) {
    for (int64_t output = 0; output < c.width; ++output) {
      const float* x = c.in[0] + row * c.in_width[0] + how.heads.offset + output / outputs_each * how.heads.stride;
      const float* w = c.weights[0] + output * inputs;
      for (int64_t segment = 0; segment < how.segments; ++segment) {
        sums[static_cast<size_t>(segment)] = chain(w + segment * length, x + segment * length, length);
      }
      c.out[row * c.width + output] = tree_sum(sums.data(), how.segments);
    }
  }
}

void rope(const Call& c) {
  const auto& how = c.op.get<Rope>();
  const int64_t half = how.rotary / 2;
  const std::vector<float> frequencies = rope_frequencies(how);
  for (int64_t row = 0; row < c.rows; ++row) {
    const double position = c.step.rows[static_cast<size_t>(row)].position;
    for (int64_t head = 0; head < how.heads; ++head) {
      const float* x = c.in[0] + row * c.width + head * how.dim;
      float* y = c.out + row * c.width + head * how.dim;
      std::copy(x, x + how.dim, y);
      for (int64_t j = 0; j < half; ++j) {
        // Frequency and angle are f32 in the models' own code, so their rounding is part of the model.
        const double angle = static_cast<float>(position) * frequencies[static_cast<size_t>(j)];
        const double cosine = how.amplitude * std::cos(angle), sine = how.amplitude * std::sin(angle);
        y[j] = static_cast<float>(x[j] * cosine - x[j + half] * sine);
        y[j + half] = static_cast<float>(x[j + half] * cosine + x[j] * sine);
      }
    }
  }
}

// A sequence's cache is [head, position, dim].
void append_kv(const Call& c) {
  for (size_t which = 0; which < 2; ++which) {
    const int64_t width = c.in_width[which];
    for (size_t row = 0; row < c.step.rows.size(); ++row) {
      const Row& r = c.step.rows[row];
      float* cache = c.states[which] + r.sequence * c.state_size[which];
      for (int64_t i = 0; i < width; ++i) {
        const int64_t head = i / c.head_dim;
        cache[(head * c.slots + r.position) * c.head_dim + i % c.head_dim] =
            c.in[which][static_cast<int64_t>(row) * width + i];
      }
    }
  }
}

void append_latent(const Call& c) {
  for (size_t row = 0; row < c.step.rows.size(); ++row) {
    const Row& r = c.step.rows[row];
    const float* kv = c.in[1] + static_cast<int64_t>(row) * c.in_width[1];
    float* entry = c.states[0] + r.sequence * c.state_size[0] + r.position * c.head_dim;
    std::copy(kv, kv + c.in_width[1], entry);
    const float* latent = c.in[0] + static_cast<int64_t>(row) * c.in_width[0];
    std::copy(latent, latent + c.in_width[0], entry);
  }
}

void attend(const Call& c) {
  const auto& how = c.op.get<Attend>();
  for (int64_t row = 0; row < c.rows; ++row) {
    const Row& r = c.step.rows[static_cast<size_t>(row)];
    for (int64_t head = 0; head < how.heads; ++head) {
      const Visible cache = visible_to(c, how, r.sequence, head / (how.heads / how.kv_heads));
      const std::vector<float> q = query_of(c, how, row, head);
      for (int64_t span = 0; span < kAttentionSpans; ++span) {
        float* out = c.out + row * c.width + (span * how.heads + head) * (how.value_dim + 2);
        attend_span(how, q, cache, attention_span(r.position + 1, span), out);
      }
    }
  }
}

void join_spans(const Call& c) {
  const auto& how = c.op.get<Attend>();
  const int64_t partial = how.value_dim + 2;
  for (int64_t row = 0; row < c.rows; ++row) {
    for (int64_t head = 0; head < how.heads; ++head) {
      const auto span = [&](int64_t s) { return c.in[0] + row * kAttentionSpans * how.heads * partial + (s * how.heads + head) * partial; };
      double top = -HUGE_VAL, total = 0;
      std::vector<double> sum(static_cast<size_t>(how.value_dim));
      for (int64_t s = 0; s < kAttentionSpans; ++s) top = std::max(top, double{span(s)[how.value_dim]});
      for (int64_t s = 0; s < kAttentionSpans; ++s) {
        const double scale = std::exp(span(s)[how.value_dim] - top);
        total += scale * span(s)[how.value_dim + 1];
        for (int64_t i = 0; i < how.value_dim; ++i) sum[static_cast<size_t>(i)] += scale * span(s)[i];
      }
      for (int64_t i = 0; i < how.value_dim; ++i) {
        c.out[row * c.width + head * how.value_dim + i] = static_cast<float>(sum[static_cast<size_t>(i)] / total);
      }
    }
  }
}

void sigmoid_gate(const Call& c) {
  const Heads& gate = c.op.get<SigmoidGate>().gate;
  for (int64_t row = 0; row < c.rows; ++row) {
    for (int64_t i = 0; i < c.width; ++i) {
      const double g = c.in[1][row * c.in_width[1] + gate.offset + i / gate.dim * gate.stride + i % gate.dim];
      c.out[row * c.width + i] = static_cast<float>(c.in[0][row * c.width + i] * sigmoid(g));
    }
  }
}

// The state is the last T - 1 inputs, [T - 1, channels], oldest first. A speculative run leaves it as it was after the
// replay, and keeps its inputs.
void short_conv(const Call& c) {
  const auto& how = c.op.get<ShortConv>();
  const int64_t before = how.taps - 1;
  for (const Run& run : c.step.runs) {
    float* state = c.states[0] + run.sequence * c.state_size[0];
    float* kept = c.states.size() > 1 ? c.states[1] + run.sequence * c.state_size[1] : nullptr;
    for (int64_t channel = 0; channel < how.channels; ++channel) {
      std::vector<float> u;  // the channel's inputs: those of the state, those replayed, then the run's
      for (int64_t i = 0; i < before; ++i) u.push_back(run.from_zero() ? 0.0f : state[i * how.channels + channel]);
      for (int64_t t = 0; t < run.replay; ++t) u.push_back(kept[t * how.channels + channel]);
      for (int64_t t = 0; t < run.rows; ++t) u.push_back(c.in[0][(run.first_row + t) * c.width + channel]);
      for (int64_t t = 0; t < run.rows; ++t) {
        double sum = 0;
        for (int64_t tap = 0; tap < how.taps; ++tap) {
          sum += double{c.weights[0][channel * how.taps + tap]} * u[static_cast<size_t>(run.replay + t + tap)];
        }
        c.out[(run.first_row + t) * c.width + channel] = static_cast<float>(silu(sum));
        if (run.speculative) kept[t * how.channels + channel] = u[static_cast<size_t>(before + run.replay + t)];
      }
      const int64_t permanent = run.replay + (run.speculative ? 0 : run.rows);
      for (int64_t i = 0; i < before; ++i) state[i * how.channels + channel] = u[static_cast<size_t>(permanent + i)];
    }
  }
}

namespace {

// Runs a recurrence over each run: `keep` writes what a row needs of one head to an entry, `advance` takes an entry
// through the head's state and writes the output of its row (none for a row of -1).
template <class Keep, class Advance>
void recur(const Call& c, int64_t heads, int64_t cells, int64_t kept_floats, Keep keep, Advance advance) {
  std::vector<float> fresh(static_cast<size_t>(kept_floats)), copy;
  for (const Run& run : c.step.runs) {
    for (int64_t head = 0; head < heads; ++head) {
      float* state = c.states[0] + run.sequence * c.state_size[0] + head * cells;
      float* kept = nullptr;
      if (c.states.size() > 1) kept = c.states[1] + run.sequence * c.state_size[1] + head * (c.state_size[1] / heads);
      if (run.from_zero()) std::fill(state, state + cells, 0.0f);
      for (int64_t t = 0; t < run.replay; ++t) advance(head, kept + t * kept_floats, state, -1);
      copy.assign(state, state + cells);
      for (int64_t t = 0; t < run.rows; ++t) {
        float* entry = run.speculative ? kept + t * kept_floats : fresh.data();
        keep(run.first_row + t, head, entry);
        advance(head, entry, run.speculative ? copy.data() : state, run.first_row + t);
      }
    }
  }
}

// One row through one value head: S ← e^g S, S ← S + k (β (v - S^T k))^T, y = S^T q. S is [key_dim, value_dim], `entry`
// [k | v | b | a].
void delta_row(const Call& c, const GatedDelta& how, int64_t head, const float* entry, float* s, int64_t row) {
  const auto k = l2_normalised(entry, how.key_dim, 1);
  const float* v = entry + how.key_dim;
  const double beta = sigmoid(v[how.value_dim]);
  const double a = double{v[how.value_dim + 1]} + c.weights[1][head];
  const double decay = std::exp(-std::exp(double{c.weights[0][head]}) * softplus(a));
  for (int64_t j = 0; j < how.value_dim; ++j) {
    double read = 0;
    for (int64_t i = 0; i < how.key_dim; ++i) read += k[static_cast<size_t>(i)] * decay * s[i * how.value_dim + j];
    for (int64_t i = 0; i < how.key_dim; ++i) {
      float& cell = s[i * how.value_dim + j];
      cell = static_cast<float>(decay * cell + k[static_cast<size_t>(i)] * beta * (v[j] - read));
    }
  }
  if (row < 0) return;
  const float* q_of_head = c.in[0] + row * c.in_width[0] + head * how.key_heads / how.value_heads * how.key_dim;
  const auto q = l2_normalised(q_of_head, how.key_dim, 1 / std::sqrt(static_cast<double>(how.key_dim)));
  for (int64_t j = 0; j < how.value_dim; ++j) {
    double y = 0;
    for (int64_t i = 0; i < how.key_dim; ++i) y += q[static_cast<size_t>(i)] * s[i * how.value_dim + j];
    c.out[row * c.width + head * how.value_dim + j] = static_cast<float>(y);
  }
}

}  // namespace

void gated_delta(const Call& c) {
  const auto& how = c.op.get<GatedDelta>();
  const int64_t keys = how.key_heads * how.key_dim;
  const auto keep = [&](int64_t row, int64_t head, float* entry) {
    const float* x = c.in[0] + row * c.in_width[0];
    entry = std::copy_n(x + keys + head * how.key_heads / how.value_heads * how.key_dim, how.key_dim, entry);
    entry = std::copy_n(x + 2 * keys + head * how.value_dim, how.value_dim, entry);
    entry[0] = c.in[1][row * how.value_heads + head];
    entry[1] = c.in[2][row * how.value_heads + head];
  };
  recur(c, how.value_heads, how.key_dim * how.value_dim, how.kept_floats(), keep,
        [&](int64_t head, const float* entry, float* s, int64_t row) { delta_row(c, how, head, entry, s, row); });
}

namespace {

// One row through one head: S ← diag(e^γ) S, S ← S + k (β (v - S^T k))^T, y = S^T q. S is [dim, dim], `entry`
// [k | f | v | b].
void kda_row(const Call& c, const Kda& how, int64_t head, const float* entry, float* s, int64_t row) {
  const int64_t dim = how.dim;
  const auto k = l2_normalised(entry, dim, 1);
  const float *f = entry + dim, *v = entry + 2 * dim;
  const double beta = sigmoid(entry[3 * dim]);
  std::vector<double> decay;
  for (int64_t i = 0; i < dim; ++i) {
    const double rate = std::exp(double{c.weights[0][head]});
    decay.push_back(std::exp(how.lower_bound * sigmoid(rate * (double{f[i]} + c.weights[1][head * dim + i]))));
  }
  for (int64_t j = 0; j < dim; ++j) {
    double read = 0;
    const auto old = [&](int64_t i) { return decay[static_cast<size_t>(i)] * s[i * dim + j]; };
    for (int64_t i = 0; i < dim; ++i) read += k[static_cast<size_t>(i)] * old(i);
    const double delta = beta * (v[j] - read);
    for (int64_t i = 0; i < dim; ++i) s[i * dim + j] = static_cast<float>(old(i) + k[static_cast<size_t>(i)] * delta);
  }
  if (row < 0) return;
  const int64_t at = row * how.heads * dim + head * dim;
  const auto q = l2_normalised(c.in[0] + at, dim, 1 / std::sqrt(static_cast<double>(dim)));
  for (int64_t j = 0; j < dim; ++j) {
    double y = 0;
    for (int64_t i = 0; i < dim; ++i) y += q[static_cast<size_t>(i)] * s[i * dim + j];
    c.out[at + j] = static_cast<float>(y);
  }
}

}  // namespace

void kda(const Call& c) {
  const auto& how = c.op.get<Kda>();
  const auto keep = [&](int64_t row, int64_t head, float* entry) {
    const int64_t at = row * how.heads * how.dim + head * how.dim;
    for (const size_t input : {1, 3, 2}) entry = std::copy_n(c.in[input] + at, how.dim, entry);
    entry[0] = c.in[4][row * how.heads + head];
  };
  recur(c, how.heads, how.dim * how.dim, how.kept_floats(), keep,
        [&](int64_t head, const float* entry, float* s, int64_t row) { kda_row(c, how, head, entry, s, row); });
}

void gated_norm(const Call& c) {
  const auto& how = c.op.get<GatedNorm>();
  for (int64_t i = 0; i < c.rows * how.heads; ++i) {
    const float* x = c.in[0] + i * how.dim;
    const double scale = 1 / std::sqrt(mean_square(x, how.dim) + how.eps);
    for (int64_t j = 0; j < how.dim; ++j) {
      const double z = c.in[1][i * how.dim + j];
      const double gate = how.gate == Gate::silu ? silu(z) : sigmoid(z);
      c.out[i * how.dim + j] = static_cast<float>(x[j] * scale * c.weights[0][j] * gate);
    }
  }
}

void silu_gate(const Call& c) {
  for (int64_t i = 0; i < c.rows * c.width; ++i) c.out[i] = static_cast<float>(silu(c.in[0][i]) * c.in[1][i]);
}

void situ_gate(const Call& c) {
  for (int64_t i = 0; i < c.rows * c.width; ++i) {
    c.out[i] = static_cast<float>(situ(c.in[0][i], c.in[1][i], c.op.get<Situ>()));
  }
}

void residual_mix(const Call& c) {
  const float eps = c.op.get<ResidualMix>().eps;
  for (int64_t row = 0; row < c.rows; ++row) {
    std::vector<double> scores;
    for (const float* in : c.in) {
      const float* v = in + row * c.width;
      double score = 0;
      for (int64_t i = 0; i < c.width; ++i) score += double{v[i]} * c.weights[0][i] * c.weights[1][i];
      scores.push_back(score / std::sqrt(mean_square(v, c.width) + eps));
    }
    const double top = *std::max_element(scores.begin(), scores.end());
    double total = 0;
    for (double& score : scores) total += score = std::exp(score - top);
    for (int64_t i = 0; i < c.width; ++i) {
      double sum = 0;
      for (size_t v = 0; v < scores.size(); ++v) sum += scores[v] / total * c.in[v][row * c.width + i];
      c.out[row * c.width + i] = static_cast<float>(sum);
    }
  }
}

// Scores are compared as the f32 numbers that machines have; equal ones go to the lower id, and NaN counts as the least.
void route(const Call& c) {
  const auto& how = c.op.get<Route>();
  for (int64_t row = 0; row < c.rows; ++row) {
    std::vector<float> scores;
    for (int64_t e = 0; e < how.experts; ++e) {
      scores.push_back(static_cast<float>(sigmoid(c.in[0][row * how.experts + e])));
    }
    const auto rank_of = [&](int64_t e) {
      const float biased = scores[static_cast<size_t>(e)] + c.weights[0][e];
      return std::isnan(biased) ? -HUGE_VALF : biased;
    };
    std::vector<int64_t> ids(static_cast<size_t>(how.experts));
    std::iota(ids.begin(), ids.end(), 0);
    std::stable_sort(ids.begin(), ids.end(), [&](int64_t a, int64_t b) { return rank_of(a) > rank_of(b); });
    ids.resize(static_cast<size_t>(how.top_k));
    std::sort(ids.begin(), ids.end());
    double total = 1e-20;
    for (const int64_t e : ids) total += scores[static_cast<size_t>(e)];
    for (int64_t slot = 0; slot < how.top_k; ++slot) {
      const int64_t e = ids[static_cast<size_t>(slot)];
      c.out[row * c.width + slot] = static_cast<float>(e);
      c.out[row * c.width + how.top_k + slot] = static_cast<float>(scores[static_cast<size_t>(e)] / total);
    }
  }
}

namespace {

// The index of an expert among this rank's, or -1.
int64_t own_expert(const Call& c, float id) {
  const Weight& w = *c.weight_info[0];
  const int64_t expert = static_cast<int64_t>(id) - w.first_matrix(c.rank, c.ranks);
  return expert >= 0 && expert < w.matrices(c.ranks) ? expert : -1;
}

}  // namespace

void expert_gate(const Call& c) {
  const auto& how = c.op.get<ExpertGate>();
  const int64_t inputs = c.in_width[0], outputs = c.width / how.top_k;
  for (int64_t row = 0; row < c.rows; ++row) {
    const float* x = c.in[0] + row * inputs;
    for (int64_t slot = 0; slot < how.top_k; ++slot) {
      const int64_t expert = own_expert(c, c.in[1][row * 2 * how.top_k + slot]);
      for (int64_t output = 0; output < outputs && expert >= 0; ++output) {
        const int64_t at = (expert * outputs + output) * inputs;
        const float gate = chain(c.weights[0] + at, x, inputs), up = chain(c.weights[1] + at, x, inputs);
        c.out[row * c.width + slot * outputs + output] = static_cast<float>(situ(gate, up, how.situ));
      }
    }
  }
}

void expert_down(const Call& c) {
  const auto& how = c.op.get<ExpertDown>();
  const int64_t inputs = c.in_width[0] / how.top_k, length = inputs / how.segments;
  const int64_t per_group = c.weight_info[0]->matrices(c.ranks) / how.groups;
  std::vector<float> leaves(static_cast<size_t>(how.groups * how.segments));
  for (int64_t row = 0; row < c.rows; ++row) {
    const float* routing = c.in[1] + row * 2 * how.top_k;
    for (int64_t output = 0; output < c.width; ++output) {
      std::fill(leaves.begin(), leaves.end(), 0.0f);
      for (int64_t slot = 0; slot < how.top_k; ++slot) {
        const int64_t expert = own_expert(c, routing[slot]);
        for (int64_t segment = 0; segment < how.segments && expert >= 0; ++segment) {
          const float* w = c.weights[0] + (expert * c.width + output) * inputs + segment * length;
          const float* x = c.in[0] + row * c.in_width[0] + slot * inputs + segment * length;
          float& leaf = leaves[static_cast<size_t>(expert / per_group * how.segments + segment)];
          leaf = std::fma(routing[how.top_k + slot], chain(w, x, length), leaf);
        }
      }
      c.out[row * c.width + output] = tree_sum(leaves.data(), how.groups * how.segments);
    }
  }
}

void add(const Call& c) {
  for (int64_t i = 0; i < c.rows * c.width; ++i) c.out[i] = c.in[0][i] + c.in[1][i];
}

void all_reduce(const Call& c) {
  std::vector<float> parts(static_cast<size_t>(c.ranks));
  for (int64_t i = 0; i < c.rows * c.width; ++i) {
    for (size_t rank = 0; rank < parts.size(); ++rank) parts[rank] = c.in_of_ranks[rank][i];
    c.out[i] = tree_sum(parts.data(), c.ranks);
  }
}

void choose_rows(const Call& c) {
  for (int64_t i = 0; i < c.rows; ++i) {
    const float* x = c.in[0] + c.step.chosen[static_cast<size_t>(i)] * c.width;
    std::copy(x, x + c.width, c.out + i * c.width);
  }
}

void all_gather(const Call& c) {
  const int64_t part = c.width / c.ranks;
  for (int64_t row = 0; row < c.rows; ++row) {
    for (int64_t i = 0; i < c.width; ++i) {
      c.out[row * c.width + i] = c.in_of_ranks[static_cast<size_t>(i / part)][row * part + i % part];
    }
  }
}

}  // namespace megalith::reference
