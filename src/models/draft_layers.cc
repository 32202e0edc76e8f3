#include "models/draft_layers.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include <fmt/format.h>

#include "base/error.h"

namespace megalith {

namespace {

double positive(const Fields& fields, const std::string& name, double otherwise) {
  const double value = fields.number(name, otherwise);
  if (!(value > 0 && value < 1e9)) throw fields.error(name, "a number above 0");
  return value;
}

// How much longer the text is scaled to than the model was trained for grows attention's sharpness.
double sharpness(double factor, double scale) { return factor <= 1 ? 1 : 0.1 * scale * std::log(factor) + 1; }

void read_yarn(const Fields& rope, int64_t max_positions, Rope& how) {
  how.yarn.original = positive(rope, "original_max_position_embeddings", static_cast<double>(max_positions));
  how.yarn.factor = positive(rope, "factor", static_cast<double>(max_positions) / how.yarn.original);
  how.yarn.beta_fast = positive(rope, "beta_fast", 32);
  how.yarn.beta_slow = positive(rope, "beta_slow", 1);
  if (!rope.flag("truncate", true)) throw rope.error("truncate", "true");
  const double both = rope.has("mscale") && rope.has("mscale_all_dim")
                          ? sharpness(how.yarn.factor, rope.number("mscale")) /
                                sharpness(how.yarn.factor, rope.number("mscale_all_dim"))
                          : sharpness(how.yarn.factor, 1);
  how.amplitude = static_cast<float>(positive(rope, "attention_factor", both));
}

void read_rope(const Fields& fields, DraftShape& s) {
  const char* name = fields.has("rope_parameters") ? "rope_parameters" : "rope_scaling";
  const Fields rope = fields.has(name) ? fields.object(name) : fields;
  s.rope = {1, s.head_dim, s.head_dim, rope.number("rope_theta", fields.number("rope_theta", 10000))};
  if (!(s.rope.theta > 1)) throw rope.error("rope_theta", "a number above 1");
  if (rope.number("partial_rotary_factor", 1) != 1) throw rope.error("partial_rotary_factor", "1");
  const std::string type = fields.has(name) ? rope.text("rope_type", rope.text("type", "default")) : "default";
  if (type == "yarn") {
    read_yarn(rope, fields.integer("max_position_embeddings", 1, int64_t{1} << 30, 32768), s.rope);
  } else if (type != "default") {
    throw rope.error("rope_type", "default or yarn");
  }
}

// A name of the checkpoint, as the program has it.
std::string stored(const std::string& name) { return fmt::format("{}{}", kDraftPrefix, name); }

}  // namespace

DraftShape read_draft_shape(const Fields& fields) {
  DraftShape s;
  s.hidden = fields.integer("hidden_size", 16, kMaxWidth);
  s.intermediate = fields.integer("intermediate_size", 1, kMaxWidth);
  s.layers = fields.integer("num_hidden_layers", 1, 256);
  s.vocabulary = fields.integer("vocab_size", 1, kMaxVocabulary);
  s.heads = fields.integer("num_attention_heads", 1, 4096);
  s.kv_heads = fields.integer("num_key_value_heads", 1, s.heads);
  s.head_dim = fields.integer("head_dim", 16, 1024, s.hidden / s.heads);
  if (s.heads % s.kv_heads != 0) throw fields.error("num_key_value_heads", fmt::format("a divisor of {}", s.heads));
  if (s.head_dim % 16 != 0) throw fields.error("head_dim", "a multiple of 16");
  if (fields.text("hidden_act", "silu") != "silu") throw fields.error("hidden_act", "silu");
  if (fields.flag("attention_bias", false)) throw fields.error("attention_bias", "false");
  s.eps = fields.epsilon("rms_norm_eps", 1e-6);
  read_rope(fields, s);
  return s;
}

void require_same_target(const DraftShape& shape, const Model& target, const std::string& file, const std::string& taps_field) {
  const auto require = [&](bool right, const std::string& field, const std::string& expected, int64_t found) {
    if (right) return;
    throw Error({.where = file + ": " + field,
                 .expected = expected,
                 .found = std::to_string(found),
                 .next = "The draft is of another target: give the one that was made for this model, or --no-draft."});
  };
  const int64_t layers = shape.target_layers.value_or(target.layers());
  require(layers == target.layers(), "num_target_layers",
          fmt::format("{}, the target's num_hidden_layers", target.layers()), layers);
  require(shape.hidden == target.hidden(), "hidden_size", fmt::format("{}, the target's", target.hidden()), shape.hidden);
  require(shape.vocabulary == target.vocabulary(), "vocab_size", fmt::format("{}, the target's", target.vocabulary()),
          shape.vocabulary);
  require(shape.mask >= 0 && shape.mask < shape.vocabulary, "mask_token_id", fmt::format("an id below {}", shape.vocabulary),
          shape.mask);
  for (const int64_t tap : shape.taps) {
    require(tap >= 0 && tap <= target.layers(), taps_field, fmt::format("layers of the target, which has {}", target.layers()),
            tap - shape.tap_offset);
  }
}

DraftLayers::DraftLayers(Builder& b, const DraftShape& shape)
    : b_(b),
      s_(shape),
      by_heads_(deals(shape.heads) && (deals(shape.kv_heads) || b.segments() % shape.kv_heads == 0)),
      by_width_(deals(shape.intermediate)) {
  const int ranks = by_heads_ ? b.ranks() : 1;
  heads_ = shape.heads / ranks;
  kv_heads_ = std::max<int64_t>(shape.kv_heads / ranks, 1);
}

std::string DraftLayers::layer_name(int64_t layer) const { return fmt::format("layers.{}.", layer); }

Split DraftLayers::heads(int64_t outputs, int64_t groups) const {
  return by_heads_ ? Builder::split_outputs({{outputs, groups}}) : Split{};
}

WeightRef DraftLayers::vector(const std::string& name, std::vector<int64_t> shape) {
  return b_.vector(stored(name), std::move(shape));
}

WeightRef DraftLayers::whole(const std::string& name, int64_t outputs, int64_t inputs) {
  return b_.matrix(stored(name), outputs, inputs, {});
}

WeightRef DraftLayers::by_token(const std::string& name, int64_t tokens, int64_t inputs) {
  const Split split = deals(tokens) ? Builder::split_outputs({{tokens, tokens}}) : Split{};
  return b_.matrix(stored(name), tokens, inputs, split);
}

Value DraftLayers::gathered(Value x, const std::string& name, int64_t outputs, int64_t inputs) {
  if (!deals(outputs)) return b_.matmul(x, whole(name, outputs, inputs));
  const Split split = Builder::split_outputs({{outputs, b_.segments()}});
  return b_.all_gather_everywhere(b_.matmul(x, b_.matrix(stored(name), outputs, inputs, split)));
}

Value DraftLayers::norm(const std::string& name, Value x) {
  return b_.rms_norm(x, vector(name + ".weight", {s_.hidden}), Heads::compact(1, s_.hidden), s_.eps, false);
}

void DraftLayers::at(int64_t layer) { b_.at(fmt::format("draft L{}", layer)); }

void DraftLayers::see(const DraftInputs& target) {
  b_.at("draft");
  const Value rows = context(target);
  for (int64_t layer = 0; layer < s_.layers; ++layer) {
    at(layer);
    see_context(layer, rows);
  }
  b_.at("draft");
}

Value DraftLayers::context(const DraftInputs& target) {
  std::vector<Value> taps;
  for (const int64_t tap : s_.taps) taps.push_back(target.streams[static_cast<size_t>(tap)]);
  const auto width = static_cast<int64_t>(taps.size()) * s_.hidden;
  return norm("hidden_norm", gathered(b_.concat(std::move(taps)), "fc.weight", s_.hidden, width));
}

Value DraftLayers::keys(const std::string& layer, Value x) {
  const int64_t size = s_.kv_heads * s_.head_dim;
  const std::string name = stored(layer + "self_attn.k_proj.weight");
  const Value k = b_.matmul(x, b_.matrix(name, size, s_.hidden, heads(size, s_.kv_heads)));
  const Value normed = b_.rms_norm(k, vector(layer + "self_attn.k_norm.weight", {s_.head_dim}),
                                   Heads::compact(kv_heads_, s_.head_dim), s_.eps, false);
  Rope rope = s_.rope;
  rope.heads = kv_heads_;
  return b_.rope(normed, rope);
}

Value DraftLayers::values(const std::string& layer, Value x) {
  const int64_t size = s_.kv_heads * s_.head_dim;
  const std::string name = stored(layer + "self_attn.v_proj.weight");
  return b_.matmul(x, b_.matrix(name, size, s_.hidden, heads(size, s_.kv_heads)));
}

// The same projections as of the block's rows, without the layer's norm.
void DraftLayers::see_context(int64_t layer, Value context) {
  const std::string name = layer_name(layer);
  const int64_t window = s_.attention[static_cast<size_t>(layer)].window;
  const auto state = [&](const char* which) {
    return b_.per_position(fmt::format("draft.L{}.{}", layer, which), kv_heads_, s_.head_dim, window);
  };
  const int k_state = state("k"), v_state = state("v");
  caches_.push_back({k_state, v_state});
  const Value k = keys(name, context), v = values(name, context);
  b_.append_window(k, v, k_state, v_state);
}

Value DraftLayers::attention(int64_t layer, Value x) {
  const std::string name = layer_name(layer), p = stored(name + "self_attn.");
  const int64_t size = s_.heads * s_.head_dim;
  const Value q = b_.matmul(x, b_.matrix(p + "q_proj.weight", size, s_.hidden, heads(size, s_.heads)));
  const Value normed = b_.rms_norm(q, vector(name + "self_attn.q_norm.weight", {s_.head_dim}),
                                   Heads::compact(heads_, s_.head_dim), s_.eps, false);
  Rope rope = s_.rope;
  rope.heads = heads_;
  AttendBlock how = s_.attention[static_cast<size_t>(layer)];
  how.heads = heads_;
  how.kv_heads = kv_heads_;
  how.dim = s_.head_dim;
  how.scale = 1.0f / std::sqrt(static_cast<float>(s_.head_dim));
  const Cache& cache = caches_[static_cast<size_t>(layer)];
  const Value turned = b_.rope(normed, rope), k = keys(name, x), v = values(name, x);
  const Value y = b_.attend_block(turned, k, v, cache.keys, cache.values, how);
  const Split by_inputs = by_heads_ ? Builder::split_inputs({size, s_.heads}) : Split{};
  return b_.matmul(y, b_.matrix(p + "o_proj.weight", s_.hidden, size, by_inputs));
}

Value DraftLayers::mlp(int64_t layer, Value x) {
  const std::string p = stored(layer_name(layer) + "mlp.");
  const Block width = {s_.intermediate, by_width_ ? b_.segments() : 1};
  const Split outputs = by_width_ ? Builder::split_outputs({width}) : Split{};
  const Split inputs = by_width_ ? Builder::split_inputs(width) : Split{};
  const Value gate = b_.matmul(x, b_.matrix(p + "gate_proj.weight", s_.intermediate, s_.hidden, outputs));
  const Value up = b_.matmul(x, b_.matrix(p + "up_proj.weight", s_.intermediate, s_.hidden, outputs));
  return b_.matmul(b_.silu_gate(gate, up), b_.matrix(p + "down_proj.weight", s_.hidden, s_.intermediate, inputs));
}

}  // namespace megalith
