// The ops of the draft that follows a step. Draft rows lie block after block: the anchor, then masks.

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <vector>

#include "reference/ops.h"
#include "reference/sample.h"

namespace megalith::reference {

void accept(const Call& c) {
  c.drafts->begin(c.step, c.in[0], c.op.get<Accept>().mask, c.out);
}

void advance(const Call& c) {
  for (int64_t j = 0; j < c.rows; ++j) {
    const float token = c.in[0][j];
    c.out[j] = !c.weights.empty() && token >= 0 ? token + c.weights[0][static_cast<int64_t>(token)] : token;
  }
  c.drafts->advance(c.out);
}

void concat(const Call& c) {
  for (int64_t row = 0; row < c.rows; ++row) {
    float* out = c.out + row * c.width;
    for (size_t i = 0; i < c.in.size(); ++i) out = std::copy_n(c.in[i] + row * c.in_width[i], c.in_width[i], out);
  }
}

void pick_row(const Call& c) {
  for (int64_t j = 0; j < c.rows; ++j) {
    const int64_t row = c.drafts->rows.runs[static_cast<size_t>(j)].first_row + c.op.get<PickRow>().row;
    std::copy_n(c.in[0] + row * c.width, c.width, c.out + j * c.width);
  }
}

void lookup(const Call& c) {
  const int64_t count = c.op.get<Lookup>().count, width = c.width / count;
  for (int64_t row = 0; row < c.rows; ++row) {
    for (int64_t i = 0; i < count; ++i) {
      const auto id = static_cast<int64_t>(c.in[0][row * c.in_width[0] + i]);
      copy_table_row(c, id, width, c.out + row * c.width + i * width);
    }
  }
}

// A cache is [head, slot, dim]. Of the rows of a run that share a slot, the last stays.
void append_window(const Call& c) {
  for (const Run& run : c.step.runs) {
    const int64_t last = run.first_position + run.rows - 1;
    for (int64_t i = 0; i < run.rows; ++i) {
      const int64_t position = run.first_position + i;
      if (position + c.slots <= last) continue;
      for (size_t which = 0; which < 2; ++which) {
        const float* x = c.in[which] + (run.first_row + i) * c.in_width[which];
        float* cache = c.states[which] + run.sequence * c.state_size[which];
        for (int64_t head = 0; head < c.in_width[which] / c.head_dim; ++head) {
          std::copy_n(x + head * c.head_dim, c.head_dim, cache + (head * c.slots + position % c.slots) * c.head_dim);
        }
      }
    }
  }
}

namespace {

// What an attention head looks at: a position of the context, or a row of its block.
struct Entry {
  const float *key, *value;
};

// The first position of the context that row i of a block sees; the last is that before the anchor.
int64_t first_seen(const AttendBlock& how, int64_t anchor, int64_t i) {
  if (how.window == 0) return 0;
  return std::max<int64_t>(how.from_anchor ? anchor - how.window : anchor + i - how.window + 1, 0);
}

// Whether row i of a block sees its row j.
bool sees(const AttendBlock& how, int64_t i, int64_t j) {
  if (how.causal && j > i) return false;
  return how.window == 0 || how.from_anchor || std::abs(i - j) < how.window;
}

// All that row i of a block sees, of one head.
std::vector<Entry> seen_by(const Call& c, const AttendBlock& how, const Run& run, int64_t i, int64_t kv_head) {
  const int64_t anchor = run.first_position;
  std::vector<Entry> seen;
  const auto cache = [&](size_t which, int64_t position) {
    const float* states = c.states[which] + run.sequence * c.state_size[which];
    return states + (kv_head * c.slots + position % c.slots) * how.dim;
  };
  for (int64_t p = first_seen(how, anchor, i); p < anchor; ++p) seen.push_back({cache(0, p), cache(1, p)});
  const auto row = [&](size_t input, int64_t j) {
    return c.in[input] + (run.first_row + j) * c.in_width[input] + kv_head * how.dim;
  };
  for (int64_t j = 0; j < run.rows; ++j) {
    if (sees(how, i, j)) seen.push_back({row(1, j), row(2, j)});
  }
  return seen;
}

// softmax(q · keys · scale) values.
void attend_to(const AttendBlock& how, const float* q, const std::vector<Entry>& seen, float* out) {
  std::vector<double> weights;
  for (const Entry& entry : seen) {
    double score = 0;
    for (int64_t k = 0; k < how.dim; ++k) score += double{q[k]} * entry.key[k];
    weights.push_back(score * how.scale);
  }
  const double top = *std::max_element(weights.begin(), weights.end());
  double total = 0;
  for (double& weight : weights) total += weight = std::exp(weight - top);
  for (int64_t k = 0; k < how.dim; ++k) {
    double sum = 0;
    for (size_t e = 0; e < seen.size(); ++e) sum += weights[e] * seen[e].value[k];
    out[k] = static_cast<float>(sum / total);
  }
}

}  // namespace

void attend_block(const Call& c) {
  const auto& how = c.op.get<AttendBlock>();
  for (const Run& run : c.step.runs) {
    for (int64_t i = 0; i < run.rows; ++i) {
      for (int64_t head = 0; head < how.heads; ++head) {
        const int64_t at = (run.first_row + i) * c.width + head * how.dim;
        attend_to(how, c.in[0] + at, seen_by(c, how, run, i, head / (how.heads / how.kv_heads)), c.out + at);
      }
    }
  }
}

void block_conv(const Call& c) {
  const auto& how = c.op.get<BlockConv>();
  const int64_t groups = how.channels / how.group;
  for (const Run& run : c.step.runs) {
    for (int64_t t = 0; t < run.rows; ++t) {
      const int64_t row = run.first_row + t;
      for (int64_t channel = 0; channel < how.channels; ++channel) {
        double sum = 0;
        for (int64_t tap = 0; tap < how.taps && tap <= t; ++tap) {
          const int64_t which = how.side * how.taps + tap;
          const double base = c.weights[0][which * how.channels + channel];
          const double dynamic = c.in[1][row * c.in_width[1] + which * groups + channel / how.group];
          sum += (base + dynamic) * c.in[0][(row - tap) * c.width + channel];
        }
        c.out[row * c.width + channel] = static_cast<float>(sum);
      }
    }
  }
}

namespace {

// The `count` largest logits, ties to the lower id. Those that are not finite are none; where too few are left, token 0
// with the least number there is.
std::vector<Choice> largest_logits(const float* logits, int64_t vocabulary, int64_t count) {
  std::vector<Choice> choices;
  for (int64_t i = 0; i < vocabulary; ++i) {
    if (std::isfinite(logits[i])) choices.push_back({static_cast<int32_t>(i), logits[i]});
  }
  std::stable_sort(choices.begin(), choices.end(), [](const Choice& a, const Choice& b) { return a.logit > b.logit; });
  choices.resize(static_cast<size_t>(count), {0, std::numeric_limits<float>::lowest()});
  return choices;
}

// cap · tanh(multiplier · logit / cap).
float bounded(const Candidates& how, float logit) {
  const float value = how.multiplier * logit;
  return how.cap > 0 ? static_cast<float>(how.cap * std::tanh(double{value} / how.cap)) : value;
}

}  // namespace

void candidates(const Call& c) {
  const auto& how = c.op.get<Candidates>();
  for (const Run& run : c.step.runs) {
    for (int64_t row = run.first_row; row < run.first_row + run.rows; ++row) {
      const int32_t anchor = c.step.rows[static_cast<size_t>(row)].token;
      std::vector<Choice> choices(static_cast<size_t>(how.top_k), {anchor, 0});
      if (row != run.first_row) choices = largest_logits(c.in[0] + row * c.in_width[0], c.in_width[0], how.top_k);
      float* out = c.out + row * c.width;
      for (size_t k = 0; k < choices.size(); ++k) {
        out[k] = static_cast<float>(choices[k].token);
        out[choices.size() + k] = bounded(how, choices[k].logit);
      }
    }
  }
}

namespace {

// The candidates of a draft row after candidate `previous` of the row before, with their scores; one that is not finite
// counts as the least number.
std::vector<Choice> scored(const Call& c, const SelectPath& how, int64_t row, int64_t previous) {
  const float* ids = c.in[0] + row * c.in_width[0];
  std::vector<Choice> choices;
  for (int64_t k = 0; k < how.top_k; ++k) {
    double score = ids[how.top_k + k];
    for (int64_t r = 0; r < how.rank; ++r) {
      const double successor = c.in[1][row * c.in_width[1] + k * how.rank + r];
      const double predecessor = c.in[2][(row - 1) * c.in_width[2] + previous * how.rank + r];
      score += successor * predecessor * c.in[3][row * how.rank + r];
    }
    const bool finite = std::abs(score) <= std::numeric_limits<float>::max();
    choices.push_back(
        {static_cast<int32_t>(ids[k]), finite ? static_cast<float>(score) : std::numeric_limits<float>::lowest()});
  }
  return choices;
}

}  // namespace

void select_path(const Call& c) {
  const auto& how = c.op.get<SelectPath>();
  for (size_t j = 0; j < c.step.rows.size(); ++j) {
    const Run& run = c.drafts->rows.runs[j];
    int64_t previous = 0;
    for (int32_t t = 1; t < run.rows; ++t) {
      const std::vector<Choice> choices = scored(c, how, run.first_row + t, previous);
      const int32_t token = pick_token(choices, c.step.sampling[j], run.first_position + t);
      const auto is_picked = [&](const Choice& choice) { return choice.token == token; };
      previous = std::find_if(choices.begin(), choices.end(), is_picked) - choices.begin();
      c.out[static_cast<int64_t>(j) * c.width + t - 1] = static_cast<float>(token);
    }
  }
}

}  // namespace megalith::reference
