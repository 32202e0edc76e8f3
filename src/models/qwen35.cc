// Qwen3.5 / 3.6 / 3.8, dense: a hybrid decoder. Three of four layers mix tokens by a gated delta net (Yang, Kautz,
// Hatamizadeh: Gated Delta Networks, 2024), the fourth by gated attention; every layer has a SwiGLU MLP. The residual
// stream is f32. Tensor names are the checkpoint's.

#include "models/qwen35.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "models/fields.h"

namespace megalith {

namespace {

struct Config {
  int64_t hidden = 0, intermediate = 0, vocabulary = 0, max_positions = 0;
  std::vector<bool> full_attention;  // of each layer; else a gated delta net
  int64_t heads = 0, kv_heads = 0, head_dim = 0, rotary = 0;
  int64_t key_heads = 0, value_heads = 0, key_dim = 0, value_dim = 0, conv_taps = 0;
  double rope_theta = 0;
  float eps = 0;
  std::optional<bool> tied;  // absent: tied where the checkpoint has no head
};


void read_attention(const Fields& text, Config& c) {
  c.heads = text.integer("num_attention_heads", 1, 4096);
  c.kv_heads = text.integer("num_key_value_heads", 1, c.heads);
  c.head_dim = text.integer("head_dim", 16, 1024, c.hidden / c.heads);
  if (c.heads % c.kv_heads != 0) throw text.error("num_key_value_heads", fmt::format("a divisor of {}", c.heads));
  if (c.head_dim % 16 != 0) throw text.error("head_dim", "a multiple of 16");
  if (!text.flag("attn_output_gate", true)) throw text.error("attn_output_gate", "true");
  if (text.flag("attention_bias", false)) throw text.error("attention_bias", "false");
}

void read_rope(const Fields& text, Config& c) {
  const bool nested = text.has("rope_parameters");
  const Fields rope = nested ? text.object("rope_parameters") : text;
  const std::string type = rope.text("rope_type", "default");
  if (nested && type != "default") {
    throw rope.error("rope_type", "default", "Scaled rotary embeddings are not supported for this family.");
  }
  c.rope_theta = rope.has("rope_theta") ? rope.number("rope_theta") : text.number("rope_theta", 1e7);
  const double partial = rope.number("partial_rotary_factor", text.number("partial_rotary_factor", 0.25));
  if (!(c.rope_theta > 1)) throw rope.error("rope_theta", "a number above 1");
  c.rotary = partial > 0 && partial <= 1 ? static_cast<int64_t>(static_cast<double>(c.head_dim) * partial) : 0;
  if (c.rotary < 2 || c.rotary % 2 != 0) {
    throw rope.error("partial_rotary_factor", "a share of head_dim that gives an even number of dimensions");
  }
}

void read_delta_net(const Fields& text, Config& c) {
  c.key_heads = text.integer("linear_num_key_heads", 1, 4096);
  c.value_heads = text.integer("linear_num_value_heads", 1, 4096);
  c.key_dim = text.integer("linear_key_head_dim", 16, 1024);
  c.value_dim = text.integer("linear_value_head_dim", 16, 1024);
  c.conv_taps = text.integer("linear_conv_kernel_dim", 2, kMaxTaps);
  if (c.value_heads % c.key_heads != 0) {
    throw text.error("linear_num_value_heads", fmt::format("a multiple of linear_num_key_heads ({})", c.key_heads));
  }
  if (c.key_dim % 16 != 0) throw text.error("linear_key_head_dim", "a multiple of 16");
  if (c.value_dim % 16 != 0) throw text.error("linear_value_head_dim", "a multiple of 16");
  const std::string gate = text.text("output_gate_type", "swish");
  if (gate != "swish" && gate != "silu") throw text.error("output_gate_type", "swish or silu");
}

void read_layers(const Fields& text, Config& c) {
  const int64_t layers = text.integer("num_hidden_layers", 1, 4096);
  if (!text.has("layer_types")) {
    const int64_t interval = text.integer("full_attention_interval", 1, 4096, 4);
    for (int64_t i = 0; i < layers; ++i) c.full_attention.push_back((i + 1) % interval == 0);
    return;
  }
  for (const std::string& type : read_layer_types(text, layers, "linear_attention", "full_attention")) {
    c.full_attention.push_back(type == "full_attention");
  }
}

Config read_config(const nlohmann::json& json, const std::string& file) {
  const Fields root(json, file);
  const Fields text = root.has("text_config") ? root.object("text_config") : root;
  Config c;
  c.hidden = text.integer("hidden_size", 16, kMaxWidth);
  c.intermediate = text.integer("intermediate_size", 1, kMaxWidth);
  c.vocabulary = text.integer("vocab_size", 1, kMaxVocabulary);
  c.max_positions = text.integer("max_position_embeddings", 1, int64_t{1} << 30, 32768);
  c.eps = text.epsilon("rms_norm_eps", 1e-6);
  if (const std::string act = text.text("hidden_act", "silu"); act != "silu") throw text.error("hidden_act", "silu");
  read_attention(text, c);
  read_rope(text, c);
  read_delta_net(text, c);
  read_layers(text, c);
  // The outer flag rules: the root describes the whole model.
  if (root.has("tie_word_embeddings")) {
    c.tied = root.flag("tie_word_embeddings", false);
  } else if (text.has("tie_word_embeddings")) {
    c.tied = text.flag("tie_word_embeddings", false);
  }
  return c;
}

// A whole sum has this many input segments, so this many ranks are possible: the greatest power of two up to 8 that
// divides every head count and the width of the MLP. KV heads are shared by neighbours where there are fewer of them.
int segments_of(const Config& c) {
  int segments = 8;
  const auto fits = [&](int64_t n) { return n % segments == 0; };
  while (segments > 1 && !(fits(c.heads) && fits(c.key_heads) && fits(c.value_heads) && fits(c.intermediate) &&
                           fits(c.vocabulary) && (fits(c.kv_heads) || segments % c.kv_heads == 0))) {
    segments /= 2;
  }
  return segments;
}

class Qwen35 : public Model {
 public:
  Qwen35(Config config, std::string file) : c(std::move(config)), file_(std::move(file)) {}

  Program build(const BuildOptions& options) const override;
  bool ignores(const std::string& tensor) const override;

  std::string family() const override { return "qwen3_5"; }
  int64_t layers() const override { return static_cast<int64_t>(c.full_attention.size()); }
  int64_t hidden() const override { return c.hidden; }
  int64_t vocabulary() const override { return c.vocabulary; }
  int64_t max_positions() const override { return c.max_positions; }
  int segments() const override { return segments_of(c); }

 private:
  Value mixer(Builder& b, const std::string& layer, size_t index, Value x) const;
  Value attention(Builder& b, const std::string& p, size_t index, Value x) const;
  Value delta_net(Builder& b, const std::string& p, size_t index, Value x) const;
  Value mlp(Builder& b, const std::string& p, Value x) const;
  Value norm(Builder& b, const std::string& name, Value x) const {
    return b.rms_norm(x, b.vector(name + ".weight", {c.hidden}), Heads::compact(1, c.hidden), c.eps, true);
  }
  bool tied(const TensorCatalog& catalog) const;

  const Config c;
  const std::string file_;
};

// Conditional-generation checkpoints, text-only exports, and some converters name the language model differently.
std::string prefix_of(const TensorCatalog& catalog) {
  for (const char* prefix : {"model.language_model.", "model.", "language_model.model."}) {
    if (catalog && catalog(std::string(prefix) + "embed_tokens.weight")) return prefix;
  }
  return "model.language_model.";
}

std::string head_name(const std::string& prefix) {
  return prefix == "language_model.model." ? "language_model.lm_head.weight" : "lm_head.weight";
}

bool Qwen35::tied(const TensorCatalog& catalog) const {
  return c.tied.value_or(catalog ? !catalog(head_name(prefix_of(catalog))).has_value() : false);
}

bool Qwen35::ignores(const std::string& tensor) const {
  const auto starts = [&](const char* prefix) { return tensor.starts_with(prefix); };
  if (starts("model.visual.") || starts("visual.") || starts("vision_tower.") || starts("mtp.")) return true;
  return c.tied.value_or(false) && tensor.ends_with("lm_head.weight");
}

Program Qwen35::build(const BuildOptions& options) const {
  require_ranks(options.ranks, file_);
  Builder b(options, segments_of(c));
  const std::string p = prefix_of(options.catalog);
  const Split by_token = Builder::split_outputs({{c.vocabulary, c.vocabulary}});
  const WeightRef embedding = b.matrix(p + "embed_tokens.weight", c.vocabulary, c.hidden, by_token);

  b.at("");
  Value x = b.embed(embedding);
  std::vector<Value> streams = {x};
  for (size_t i = 0; i < c.full_attention.size(); ++i) {
    b.at(fmt::format("L{}", i));
    const std::string layer = fmt::format("{}layers.{}.", p, i);
    x = b.add(x, mixer(b, layer, i, norm(b, layer + "input_layernorm", x)));
    x = b.add(x, mlp(b, layer + "mlp.", norm(b, layer + "post_attention_layernorm", x)));
    streams.push_back(x);
  }

  b.at("");
  const WeightRef head =
      tied(options.catalog) ? embedding : b.matrix(head_name(p), c.vocabulary, c.hidden, by_token);
  const Value logits = b.all_gather(b.matmul(norm(b, p + "norm", b.choose_rows(x)), head));
  finish(b, options, {std::move(streams), embedding, head, b.sample(logits)}, logits);
  return std::move(b).build();
}

Value Qwen35::mixer(Builder& b, const std::string& layer, size_t index, Value x) const {
  return c.full_attention[index] ? attention(b, layer + "self_attn.", index, x)
                                 : delta_net(b, layer + "linear_attn.", index, x);
}

// Grouped-query attention with a sigmoid gate on its output. q_proj gives query and gate, [heads, 2 · head_dim].
Value Qwen35::attention(Builder& b, const std::string& p, size_t index, Value x) const {
  const int64_t dim = c.head_dim;
  const Split query_heads = Builder::split_outputs({{2 * c.heads * dim, c.heads}});
  const Split kv_heads = Builder::split_outputs({{c.kv_heads * dim, c.kv_heads}});
  const int64_t heads = c.heads / b.ranks();
  const int64_t kv = std::max<int64_t>(c.kv_heads / b.ranks(), 1);

  const Value qg = b.matmul(x, b.matrix(p + "q_proj.weight", 2 * c.heads * dim, c.hidden, query_heads));
  Value k = b.matmul(x, b.matrix(p + "k_proj.weight", c.kv_heads * dim, c.hidden, kv_heads));
  const Value v = b.matmul(x, b.matrix(p + "v_proj.weight", c.kv_heads * dim, c.hidden, kv_heads));

  Value q = b.rms_norm(qg, b.vector(p + "q_norm.weight", {dim}), {heads, dim, 2 * dim, 0}, c.eps, true);
  k = b.rms_norm(k, b.vector(p + "k_norm.weight", {dim}), Heads::compact(kv, dim), c.eps, true);
  q = b.rope(q, {heads, dim, c.rotary, c.rope_theta});
  k = b.rope(k, {kv, dim, c.rotary, c.rope_theta});

  const int k_state = b.per_position(fmt::format("L{}.k", index), kv, dim);
  const int v_state = b.per_position(fmt::format("L{}.v", index), kv, dim);
  b.append_kv(k, v, k_state, v_state);
  const float scale = 1.0f / std::sqrt(static_cast<float>(dim));
  const Value o = b.attend(q, k_state, v_state, {heads, kv, dim, dim, scale});
  const Value gated = b.sigmoid_gate(o, qg, {heads, dim, 2 * dim, dim});
  return b.matmul(gated, b.matrix(p + "o_proj.weight", c.hidden, c.heads * dim,
                                  Builder::split_inputs({c.heads * dim, c.heads})));
}

// in_proj_qkv gives q and k [key_heads, key_dim] and v [value_heads, value_dim], which pass a short convolution; z gates
// the output, b and a give each head's β and decay.
Value Qwen35::delta_net(Builder& b, const std::string& p, size_t index, Value x) const {
  const int64_t keys = c.key_heads * c.key_dim;
  const int64_t values = c.value_heads * c.value_dim;
  const Split channels = Builder::split_outputs({{keys, c.key_heads}, {keys, c.key_heads}, {values, c.value_heads}});
  const Split value_heads = Builder::split_outputs({{values, c.value_heads}});
  const Split per_head = Builder::split_outputs({{c.value_heads, c.value_heads}});
  const GatedDelta heads = {c.key_heads / b.ranks(), c.value_heads / b.ranks(), c.key_dim, c.value_dim};

  const Value u = b.matmul(x, b.matrix(p + "in_proj_qkv.weight", 2 * keys + values, c.hidden, channels));
  const Value z = b.matmul(x, b.matrix(p + "in_proj_z.weight", values, c.hidden, value_heads));
  const Value beta = b.matmul(x, b.matrix(p + "in_proj_b.weight", c.value_heads, c.hidden, per_head));
  const Value a = b.matmul(x, b.matrix(p + "in_proj_a.weight", c.value_heads, c.hidden, per_head));

  const int conv_state = b.per_sequence(fmt::format("L{}.conv", index), {c.conv_taps - 1, (2 * keys + values) / b.ranks()});
  const Value qkv = b.short_conv(
      u, b.vector(p + "conv1d.weight", {2 * keys + values, 1, c.conv_taps}, channels), conv_state);
  const int state = b.per_sequence(fmt::format("L{}.rec", index), {heads.value_heads, c.key_dim, c.value_dim});
  const Value o = b.gated_delta(qkv, beta, a, b.vector(p + "A_log", {c.value_heads}, per_head),
                                b.vector(p + "dt_bias", {c.value_heads}, per_head), state, heads);
  const Value gated = b.gated_norm(o, z, b.vector(p + "norm.weight", {c.value_dim}),
                                   {heads.value_heads, c.value_dim, c.eps, Gate::silu});
  return b.matmul(gated, b.matrix(p + "out_proj.weight", c.hidden, values, Builder::split_inputs({values, c.value_heads})));
}

Value Qwen35::mlp(Builder& b, const std::string& p, Value x) const {
  const Block width = {c.intermediate, segments_of(c)};
  const Value gate = b.matmul(x, b.matrix(p + "gate_proj.weight", c.intermediate, c.hidden, Builder::split_outputs({width})));
  const Value up = b.matmul(x, b.matrix(p + "up_proj.weight", c.intermediate, c.hidden, Builder::split_outputs({width})));
  return b.matmul(b.silu_gate(gate, up), b.matrix(p + "down_proj.weight", c.hidden, c.intermediate, Builder::split_inputs(width)));
}

}  // namespace

bool recognises_qwen35(const nlohmann::json& config) {
  if (!config.is_object()) return false;
  const auto type = config.find("model_type");
  return type != config.end() && type->is_string() && (*type == "qwen3_5" || *type == "qwen3_5_text");
}

std::unique_ptr<Model> make_qwen35(const nlohmann::json& config, const std::string& file) {
  return std::make_unique<Qwen35>(read_config(config, file), file);
}

}  // namespace megalith
