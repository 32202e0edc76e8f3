#include "reference/ops.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "program/attention.h"

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

// What a span of positions gives for one query head: Σ e^(s - max) V, the max, Σ e^(s - max); zeros for no positions.
void attend_span(const Attend& how, const float* q, const float* keys, const float* values, Range positions, float* out) {
  std::vector<double> scores;
  for (int64_t p = positions.begin; p < positions.end; ++p) {
    double score = 0;
    for (int64_t i = 0; i < how.dim; ++i) score += double{q[i]} * keys[p * how.dim + i];
    scores.push_back(score * how.scale);
  }
  const double top = scores.empty() ? -HUGE_VAL : *std::max_element(scores.begin(), scores.end());
  double total = 0;
  std::vector<double> sum(static_cast<size_t>(how.dim));
  for (int64_t p = positions.begin; p < positions.end; ++p) {
    const double weight = std::exp(scores[static_cast<size_t>(p - positions.begin)] - top);
    total += weight;
    for (int64_t i = 0; i < how.dim; ++i) sum[static_cast<size_t>(i)] += weight * values[p * how.dim + i];
  }
  std::copy(sum.begin(), sum.end(), out);
  out[how.dim] = static_cast<float>(top);
  out[how.dim + 1] = static_cast<float>(total);
}

}  // namespace

void embed(const Call& c) {
  const Weight& table = *c.weight_info[0];
  const int64_t first = table.split.axis == Split::Axis::outputs ? table.split.blocks[0].begin(c.rank, c.ranks) : 0;
  for (int64_t row = 0; row < c.rows; ++row) {
    const int64_t token = c.step.rows[static_cast<size_t>(row)].token - first;
    const bool ours = token >= 0 && token < table.outputs(c.ranks);
    for (int64_t i = 0; i < c.width; ++i) {
      // + 0 turns -0 into 0, which is what adding the other ranks' zeros does.
      c.out[row * c.width + i] = ours ? c.weights[0][token * c.width + i] + 0.0f : 0.0f;
    }
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

// Each segment of the inputs is one chain from zero; the tree joins segments. These are the contract's bits.
void matmul(const Call& c) {
  const int64_t segments = c.op.get<Matmul>().segments;
  const int64_t inputs = c.in_width[0];
  const int64_t length = inputs / segments;
  std::vector<float> sums(static_cast<size_t>(segments));
  for (int64_t row = 0; row < c.rows; ++row) {
    const float* x = c.in[0] + row * inputs;
    for (int64_t output = 0; output < c.width; ++output) {
      const float* w = c.weights[0] + output * inputs;
      for (int64_t segment = 0; segment < segments; ++segment) {
        float sum = 0;
        for (int64_t k = segment * length; k < (segment + 1) * length; ++k) sum = std::fma(w[k], x[k], sum);
        sums[static_cast<size_t>(segment)] = sum;
      }
      c.out[row * c.width + output] = tree_sum(sums.data(), segments);
    }
  }
}

void rope(const Call& c) {
  const auto& how = c.op.get<Rope>();
  const int64_t half = how.rotary / 2;
  for (int64_t row = 0; row < c.rows; ++row) {
    const double position = c.step.rows[static_cast<size_t>(row)].position;
    for (int64_t head = 0; head < how.heads; ++head) {
      const float* x = c.in[0] + row * c.width + head * how.dim;
      float* y = c.out + row * c.width + head * how.dim;
      std::copy(x, x + how.dim, y);
      for (int64_t j = 0; j < half; ++j) {
        // Frequency and angle are f32 in the models' own code, so their rounding is part of the model.
        const double power = std::pow(how.theta, 2.0 * static_cast<double>(j) / static_cast<double>(how.rotary));
        const float frequency = 1.0f / static_cast<float>(power);
        const double angle = static_cast<float>(position) * frequency;
        y[j] = static_cast<float>(x[j] * std::cos(angle) - x[j + half] * std::sin(angle));
        y[j + half] = static_cast<float>(x[j + half] * std::cos(angle) + x[j] * std::sin(angle));
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
        cache[(head * c.context + r.position) * c.head_dim + i % c.head_dim] =
            c.in[which][static_cast<int64_t>(row) * width + i];
      }
    }
  }
}

void attend(const Call& c) {
  const auto& how = c.op.get<Attend>();
  for (int64_t row = 0; row < c.rows; ++row) {
    const Row& r = c.step.rows[static_cast<size_t>(row)];
    for (int64_t head = 0; head < how.heads; ++head) {
      const int64_t kv_head = head / (how.heads / how.kv_heads);
      const float* q = c.in[0] + row * how.heads * how.dim + head * how.dim;
      const float* keys = c.states[0] + r.sequence * c.state_size[0] + kv_head * c.context * how.dim;
      const float* values = c.states[1] + r.sequence * c.state_size[1] + kv_head * c.context * how.dim;
      for (int64_t span = 0; span < kAttentionSpans; ++span) {
        float* out = c.out + row * c.width + (span * how.heads + head) * (how.dim + 2);
        attend_span(how, q, keys, values, attention_span(r.position + 1, span), out);
      }
    }
  }
}

void join_spans(const Call& c) {
  const auto& how = c.op.get<Attend>();
  const int64_t partial = how.dim + 2;
  for (int64_t row = 0; row < c.rows; ++row) {
    for (int64_t head = 0; head < how.heads; ++head) {
      const auto span = [&](int64_t s) { return c.in[0] + row * kAttentionSpans * how.heads * partial + (s * how.heads + head) * partial; };
      double top = -HUGE_VAL, total = 0;
      std::vector<double> sum(static_cast<size_t>(how.dim));
      for (int64_t s = 0; s < kAttentionSpans; ++s) top = std::max(top, double{span(s)[how.dim]});
      for (int64_t s = 0; s < kAttentionSpans; ++s) {
        const double scale = std::exp(span(s)[how.dim] - top);
        total += scale * span(s)[how.dim + 1];
        for (int64_t i = 0; i < how.dim; ++i) sum[static_cast<size_t>(i)] += scale * span(s)[i];
      }
      for (int64_t i = 0; i < how.dim; ++i) {
        c.out[row * c.width + head * how.dim + i] = static_cast<float>(sum[static_cast<size_t>(i)] / total);
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

// The state is the last T - 1 inputs, [T - 1, channels], oldest first.
void short_conv(const Call& c) {
  const auto& how = c.op.get<ShortConv>();
  const int64_t kept = how.taps - 1;
  for (const Run& run : c.step.runs) {
    float* state = c.states[0] + run.sequence * c.state_size[0];
    for (int64_t channel = 0; channel < how.channels; ++channel) {
      std::vector<float> u;  // the channel's inputs: those of the state, then the run's
      for (int64_t i = 0; i < kept; ++i)
        u.push_back(run.first_position == 0 ? 0.0f : state[i * how.channels + channel]);
      for (int64_t t = 0; t < run.rows; ++t) u.push_back(c.in[0][(run.first_row + t) * c.width + channel]);
      for (int64_t t = 0; t < run.rows; ++t) {
        double sum = 0;
        for (int64_t tap = 0; tap < how.taps; ++tap) {
          sum += double{c.weights[0][channel * how.taps + tap]} * u[static_cast<size_t>(t + tap)];
        }
        c.out[(run.first_row + t) * c.width + channel] = static_cast<float>(silu(sum));
      }
      for (int64_t i = 0; i < kept; ++i) state[i * how.channels + channel] = u[static_cast<size_t>(run.rows + i)];
    }
  }
}

namespace {

// One row through one value head: S ← e^g S, S ← S + k (β (v - S^T k))^T, y = S^T q. S is [key_dim, value_dim].
void delta_row(const Call& c, const GatedDelta& how, int64_t row, int64_t head, float* s) {
  const int64_t keys = how.key_heads * how.key_dim;
  const int64_t key_head = head * how.key_heads / how.value_heads;
  const float* x = c.in[0] + row * c.in_width[0];
  const auto q =
      l2_normalised(x + key_head * how.key_dim, how.key_dim, 1 / std::sqrt(static_cast<double>(how.key_dim)));
  const auto k = l2_normalised(x + keys + key_head * how.key_dim, how.key_dim, 1);
  const float* v = x + 2 * keys + head * how.value_dim;
  const double beta = sigmoid(c.in[1][row * how.value_heads + head]);
  const double a = double{c.in[2][row * how.value_heads + head]} + c.weights[1][head];
  const double decay = std::exp(-std::exp(double{c.weights[0][head]}) * softplus(a));
  for (int64_t j = 0; j < how.value_dim; ++j) {
    double read = 0;
    for (int64_t i = 0; i < how.key_dim; ++i) read += k[static_cast<size_t>(i)] * decay * s[i * how.value_dim + j];
    double y = 0;
    for (int64_t i = 0; i < how.key_dim; ++i) {
      float& cell = s[i * how.value_dim + j];
      cell = static_cast<float>(decay * cell + k[static_cast<size_t>(i)] * beta * (v[j] - read));
      y += q[static_cast<size_t>(i)] * cell;
    }
    c.out[row * c.width + head * how.value_dim + j] = static_cast<float>(y);
  }
}

}  // namespace

void gated_delta(const Call& c) {
  const auto& how = c.op.get<GatedDelta>();
  const int64_t cells = how.key_dim * how.value_dim;
  for (const Run& run : c.step.runs) {
    float* state = c.states[0] + run.sequence * c.state_size[0];
    if (run.first_position == 0) std::fill(state, state + how.value_heads * cells, 0.0f);
    for (int64_t row = run.first_row; row < run.first_row + run.rows; ++row) {
      for (int64_t head = 0; head < how.value_heads; ++head) delta_row(c, how, row, head, state + head * cells);
    }
  }
}

void gated_norm(const Call& c) {
  const auto& how = c.op.get<GatedNorm>();
  for (int64_t i = 0; i < c.rows * how.heads; ++i) {
    const float* x = c.in[0] + i * how.dim;
    const double scale = 1 / std::sqrt(mean_square(x, how.dim) + how.eps);
    for (int64_t j = 0; j < how.dim; ++j) {
      c.out[i * how.dim + j] = static_cast<float>(x[j] * scale * c.weights[0][j] * silu(c.in[1][i * how.dim + j]));
    }
  }
}

void silu_gate(const Call& c) {
  for (int64_t i = 0; i < c.rows * c.width; ++i) c.out[i] = static_cast<float>(silu(c.in[0][i]) * c.in[1][i]);
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
