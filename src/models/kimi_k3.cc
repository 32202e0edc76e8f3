// Kimi K3: a hybrid decoder. Most layers mix tokens by Kimi delta attention (Kimi Linear, 2025), a delta rule whose state
// decays by channel; the others by latent attention without positions (DeepSeek-V2, 2024), in its absorbed form: the
// cache holds one latent row a token. All but the first layer have a mixture of experts in a narrow latent space, in
// MXFP4. Instead of one residual stream, each sublayer reads a learnt mix of the sums of earlier blocks of layers
// (attention residuals). Tensor names are the checkpoint's.

#include "models/kimi_k3.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include <fmt/format.h>

#include "base/error.h"
#include "models/fields.h"

namespace megalith {

namespace {

// The norms inside latent attention have this, whatever rms_norm_eps says: the model's own code makes them without one.
constexpr float kLoraEps = 1e-6f;
constexpr int kMostRanks = 32;
constexpr int64_t kMostExpertGroups = 8;

constexpr int64_t kMaxExperts = 1 << 16;

struct Config {
  int64_t hidden = 0, intermediate = 0, vocabulary = 0, max_positions = 0, residual_block = 0;
  float eps = 0;
  Situ situ;
  std::vector<bool> latent_attention;  // of each layer; else Kimi delta attention
  int64_t kda_heads = 0, kda_dim = 0, taps = 0;
  float gate_lower_bound = 0;
  int64_t heads = 0, q_rank = 0, kv_rank = 0, nope = 0, rope = 0, value_dim = 0;
  int64_t experts = 0, top_k = 0, expert_width = 0, latent = 0, shared_width = 0;
};

// What every known checkpoint of the family has; where the configuration does not say so, the tensors do.
void require(const Fields& fields, const std::string& name) {
  if (!fields.flag(name, true)) throw fields.error(name, "true");
}

void require_number(const Fields& fields, const std::string& name, double value, double otherwise) {
  if (fields.number(name, otherwise) != value) throw fields.error(name, fmt::format("{}", value));
}

float positive(const Fields& fields, const std::string& name) {
  const double value = fields.number(name);
  if (!(value > 0 && value < 1e6)) throw fields.error(name, "a number above 0");
  return static_cast<float>(value);
}

int64_t multiple(const Fields& fields, const std::string& name, int64_t of, int64_t most) {
  const int64_t value = fields.integer(name, 1, most);
  if (value % of != 0) throw fields.error(name, fmt::format("a multiple of {}", of));
  return value;
}

void read_delta_attention(const Fields& text, Config& c) {
  const Fields linear = text.object("linear_attn_config");
  c.kda_heads = linear.integer("num_heads", 1, 4096);
  c.kda_dim = multiple(linear, "head_dim", 16, 1024);
  c.taps = linear.integer("short_conv_kernel_size", 2, kMaxTaps);
  require(linear, "use_full_rank_gate");
  const double bound = linear.number("gate_lower_bound");
  if (!(bound < 0 && bound >= -80)) throw linear.error("gate_lower_bound", "a number from -80 to below 0");
  c.gate_lower_bound = static_cast<float>(bound);
}

// Both lists count layers from 1; together they must name every layer once.
void read_layers(const Fields& text, Config& c) {
  const int64_t layers = text.integer("num_hidden_layers", 1, 4096);
  const Fields linear = text.object("linear_attn_config");
  c.latent_attention.assign(static_cast<size_t>(layers), false);
  std::vector<int> named(static_cast<size_t>(layers));
  for (const char* list : {"full_attn_layers", "kda_layers"}) {
    for (const int64_t layer : linear.integers(list)) {
      if (layer < 1 || layer > layers || named[static_cast<size_t>(layer - 1)]++ > 0) {
        throw linear.error(list, fmt::format("layers from 1 to {}, each in one of full_attn_layers and kda_layers", layers));
      }
      c.latent_attention[static_cast<size_t>(layer - 1)] = std::string_view(list) == "full_attn_layers";
    }
  }
  if (std::count(named.begin(), named.end(), 0) > 0) {
    throw linear.error("kda_layers", fmt::format("with full_attn_layers, all layers from 1 to {}", layers));
  }
}

void read_latent_attention(const Fields& text, Config& c) {
  c.heads = text.integer("num_attention_heads", 1, 4096);
  c.q_rank = text.integer("q_lora_rank", 1, kMaxWidth);
  c.kv_rank = multiple(text, "kv_lora_rank", kPanelOutputs, kMaxWidth);
  c.nope = text.integer("qk_nope_head_dim", 1, 1024);
  c.rope = text.integer("qk_rope_head_dim", 1, 1024);
  c.value_dim = multiple(text, "v_head_dim", kPanelOutputs, 1024);
  require(text, "mla_use_nope");
  require(text, "mla_use_output_gate");
}

void read_experts(const Fields& text, Config& c) {
  c.experts = text.integer("num_experts", 1, kMaxExperts);
  c.top_k = text.integer("num_experts_per_token", 1, std::min<int64_t>(c.experts, 256));
  c.expert_width = multiple(text, "moe_intermediate_size", kMxGroup, kMaxWidth);
  c.latent = multiple(text, "routed_expert_hidden_size", kMxGroup, kMaxWidth);
  c.shared_width = text.integer("num_shared_experts", 1, 64) * c.expert_width;
  require(text, "latent_moe_use_norm");
  require(text, "moe_renormalize");
  require_number(text, "first_k_dense_replace", 1, 0);
  require_number(text, "moe_layer_freq", 1, 1);
  require_number(text, "num_expert_group", 1, 1);
  require_number(text, "routed_scaling_factor", 1, 1);
  if (text.text("moe_router_activation_func", "") != "sigmoid") throw text.error("moe_router_activation_func", "sigmoid");
}

// Experts must be packed in the one way that is known.
void check_quantization(const Fields& text) {
  const Fields quantization = text.object("quantization_config");
  const std::string format = quantization.text("format", "");
  if (format != "mxfp4-pack-quantized") throw quantization.error("format", "mxfp4-pack-quantized");
}

Config read_config(const nlohmann::json& json, const std::string& file) {
  const Fields root(json, file);
  const Fields text = root.has("text_config") ? root.object("text_config") : root;
  Config c;
  c.hidden = text.integer("hidden_size", 16, kMaxWidth);
  c.intermediate = text.integer("intermediate_size", 1, kMaxWidth);
  c.vocabulary = text.integer("vocab_size", 1, kMaxVocabulary);
  c.max_positions = text.integer("max_position_embeddings", 1, int64_t{1} << 30, 32768);
  c.residual_block = text.integer("attn_res_block_size", 1, 4096);
  c.eps = text.epsilon("rms_norm_eps", 1e-5);
  if (const std::string act = text.text("hidden_act", ""); act != "situ") throw text.error("hidden_act", "situ");
  c.situ = {positive(text, "activation_situ_beta"), positive(text, "activation_situ_linear_beta")};
  if (text.flag("tie_word_embeddings", false)) throw text.error("tie_word_embeddings", "false");
  read_delta_attention(text, c);
  read_layers(text, c);
  read_latent_attention(text, c);
  read_experts(text, c);
  check_quantization(text);
  return c;
}

// Groups of experts that ranks are dealt, and the parts of an expert within a group: 8 and 4 where there are 32 segments.
int64_t expert_groups(int64_t segments) { return std::min(segments, kMostExpertGroups); }

// A whole sum has this many input segments, so this many ranks are possible: the greatest power of two up to 32 that
// deals out every head, channel and expert whole.
int segments_of(const Config& c) {
  int segments = kMostRanks;
  const auto fits = [&] {
    const int64_t groups = expert_groups(segments), parts = segments / groups;
    for (const int64_t n : {c.heads, c.kda_heads, c.intermediate, c.shared_width, c.vocabulary, c.hidden, c.latent, c.experts}) {
      if (n % segments != 0) return false;
    }
    return c.expert_width % (parts * kMxGroup) == 0;
  };
  while (segments > 1 && !fits()) segments /= 2;
  return segments;
}

class KimiK3 : public Model {
 public:
  KimiK3(Config config, std::string file) : c(std::move(config)), file_(std::move(file)) {}

  Program build(const BuildOptions& options) const override;
  bool ignores(const std::string& tensor) const override;

  std::string family() const override { return "kimi_k3"; }
  int64_t layers() const override { return static_cast<int64_t>(c.latent_attention.size()); }
  int64_t hidden() const override { return c.hidden; }
  int64_t vocabulary() const override { return c.vocabulary; }
  int64_t max_positions() const override { return c.max_positions; }
  int segments() const override { return segments_of(c); }

 private:
  struct Stream {
    Value open;                 // the sum of the block of layers that is being formed
    std::vector<Value> closed;  // the token's embedding, and the sums of the blocks before
  };

  void layer(Builder& b, const std::string& p, size_t index, Stream& x) const;
  Value mix(Builder& b, const std::string& name, const Stream& x) const;
  Value delta_attention(Builder& b, const std::string& p, size_t index, Value x) const;
  Value convolved(Builder& b, const std::string& p, const std::string& which, size_t index, Value x) const;
  Value latent_attention(Builder& b, const std::string& p, size_t index, Value x) const;
  Value mlp(Builder& b, const std::string& p, int64_t width, Value x) const;
  Value experts(Builder& b, const std::string& p, size_t index, Value x) const;
  Value norm(Builder& b, const std::string& name, Value x, int64_t size, float eps) const {
    return b.rms_norm(x, b.vector(name + ".weight", {size}), Heads::compact(1, size), eps, false);
  }
  // The same product on every rank; or each rank's outputs, then joined.
  Value everywhere(Builder& b, Value x, const std::string& name, int64_t outputs, int64_t inputs) const {
    return b.matmul(x, b.matrix(name + ".weight", outputs, inputs, {}));
  }
  Value gathered(Builder& b, Value x, const std::string& name, int64_t outputs, int64_t inputs) const {
    const Split split = Builder::split_outputs({{outputs, segments_of(c)}});
    return b.all_gather_everywhere(b.matmul(x, b.matrix(name + ".weight", outputs, inputs, split)));
  }
  // A product whose outputs are the rank's heads.
  Value by_heads(Builder& b, Value x, const std::string& name, int64_t heads, int64_t dim, int64_t inputs) const {
    return b.matmul(x, b.matrix(name + ".weight", heads * dim, inputs, Builder::split_outputs({{heads * dim, heads}})));
  }
  Value from_heads(Builder& b, Value x, const std::string& name, int64_t heads, int64_t dim) const {
    return b.matmul(x, b.matrix(name + ".weight", c.hidden, heads * dim, Builder::split_inputs({heads * dim, heads})));
  }

  const Config c;
  const std::string file_;
};

// Text-only exports lack the outer prefix.
std::string prefix_of(const TensorCatalog& catalog) {
  return catalog && catalog("model.embed_tokens.weight") ? "" : "language_model.";
}

// The first layer reads the embedding alone: there is nothing to mix.
bool KimiK3::ignores(const std::string& tensor) const {
  return tensor.starts_with("vision_tower.") || tensor.starts_with("mm_projector.") ||
         tensor.find("model.layers.0.self_attention_res_") != tensor.npos;
}

Program KimiK3::build(const BuildOptions& options) const {
  require_ranks(options.ranks, file_);
  Builder b(options, segments_of(c));
  const std::string prefix = prefix_of(options.catalog), p = prefix + "model.";
  const Split by_token = Builder::split_outputs({{c.vocabulary, c.vocabulary}});

  b.at("");
  const WeightRef embedding = b.matrix(p + "embed_tokens.weight", c.vocabulary, c.hidden, by_token);
  Stream x = {b.embed(embedding), {}};
  std::vector<Value> streams;
  for (size_t i = 0; i < c.latent_attention.size(); ++i) {
    streams.push_back(x.open);
    b.at(fmt::format("L{}", i));
    layer(b, fmt::format("{}layers.{}.", p, i), i, x);
  }
  streams.push_back(x.open);

  b.at("");
  const Value last = norm(b, p + "norm", b.choose_rows(mix(b, p + "output_attn_res", x)), c.hidden, c.eps);
  const WeightRef head = b.matrix(prefix + "lm_head.weight", c.vocabulary, c.hidden, by_token);
  const Value logits = b.all_gather(b.matmul(last, head));
  finish(b, options, {std::move(streams), embedding, head, b.sample(logits)}, logits);
  return std::move(b).build();
}

// Attention residuals: a softmax over the closed blocks and the open one.
Value KimiK3::mix(Builder& b, const std::string& name, const Stream& x) const {
  if (x.closed.empty()) return x.open;
  std::vector<Value> rows = x.closed;
  rows.push_back(x.open);
  return b.residual_mix(std::move(rows), b.vector(name + "_norm.weight", {c.hidden}),
                        b.vector(name + "_proj.weight", {1, c.hidden}), c.eps);
}

void KimiK3::layer(Builder& b, const std::string& p, size_t index, Stream& x) const {
  const Value h = norm(b, p + "input_layernorm", mix(b, p + "self_attention_res", x), c.hidden, c.eps);
  const Value y = c.latent_attention[index] ? latent_attention(b, p + "self_attn.", index, h)
                                            : delta_attention(b, p + "self_attn.", index, h);
  if (static_cast<int64_t>(index) % c.residual_block == 0) {
    x.closed.push_back(x.open);
    x.open = y;
  } else {
    x.open = b.add(x.open, y);
  }
  const Value m = norm(b, p + "post_attention_layernorm", mix(b, p + "mlp_res", x), c.hidden, c.eps);
  x.open = b.add(x.open, index == 0 ? mlp(b, p + "mlp.", c.intermediate, m) : experts(b, p + "block_sparse_moe.", index, m));
}

// q, k and v pass a short convolution each.
Value KimiK3::convolved(Builder& b, const std::string& p, const std::string& which, size_t index, Value x) const {
  const int64_t size = c.kda_heads * c.kda_dim;
  const Split heads = Builder::split_outputs({{size, c.kda_heads}});
  const int state = b.per_sequence(fmt::format("L{}.conv_{}", index, which), {c.taps - 1, size / b.ranks()});
  return b.short_conv(x, b.vector(p + which + "_conv1d.weight", {size, 1, c.taps}, heads), state);
}

// Kimi delta attention. f gives the decay of each channel, b each head's β; g gates the normed output.
Value KimiK3::delta_attention(Builder& b, const std::string& p, size_t index, Value x) const {
  const int64_t size = c.kda_heads * c.kda_dim, heads = c.kda_heads / b.ranks();
  const auto project = [&](const char* name) { return by_heads(b, x, p + name, c.kda_heads, c.kda_dim, c.hidden); };
  const Value q = project("q_proj"), k = project("k_proj"), v = project("v_proj"), g = project("g_proj");
  const Value low = everywhere(b, x, p + "f_a_proj", c.kda_dim, c.hidden);
  const Value f = by_heads(b, low, p + "f_b_proj", c.kda_heads, c.kda_dim, c.kda_dim);
  const Value beta = by_heads(b, x, p + "b_proj", c.kda_heads, 1, c.hidden);

  const Value mixed_q = convolved(b, p, "q", index, q);
  const Value mixed_k = convolved(b, p, "k", index, k);
  const Value mixed_v = convolved(b, p, "v", index, v);
  const Split per_head = Builder::split_outputs({{c.kda_heads, c.kda_heads}});
  const Split per_channel = Builder::split_outputs({{size, c.kda_heads}});
  const int state = b.per_sequence(fmt::format("L{}.rec", index), {heads, c.kda_dim, c.kda_dim});
  const Value o = b.kda(mixed_q, mixed_k, mixed_v, f, beta, b.vector_with_tail(p + "A_log", c.kda_heads, per_head),
                        b.vector(p + "dt_bias", {size}, per_channel), state, {heads, c.kda_dim, c.gate_lower_bound});
  const Value gated =
      b.gated_norm(o, g, b.vector(p + "o_norm.weight", {c.kda_dim}), {heads, c.kda_dim, c.eps, Gate::sigmoid});
  return from_heads(b, gated, p + "o_proj", c.kda_heads, c.kda_dim);
}

// Latent attention. kv_b_proj has, for each head, the rows that make keys of a latent row and those that make values.
// Keys are not made: the query is taken into the latent space instead, and so is the output taken out of it.
Value KimiK3::latent_attention(Builder& b, const std::string& p, size_t index, Value x) const {
  const int64_t heads = c.heads / b.ranks(), query = c.nope + c.rope, row = c.kv_rank + c.rope;
  const Value low = norm(b, p + "q_a_layernorm", everywhere(b, x, p + "q_a_proj", c.q_rank, c.hidden), c.q_rank, kLoraEps);
  const Value q = by_heads(b, low, p + "q_b_proj", c.heads, query, c.q_rank);
  const Value kv = everywhere(b, x, p + "kv_a_proj_with_mqa", row, c.hidden);
  const Value latent = norm(b, p + "kv_a_layernorm", kv, c.kv_rank, kLoraEps);
  const Value g = by_heads(b, x, p + "g_proj", c.heads, c.value_dim, c.hidden);
  const int state = b.per_position(fmt::format("L{}.latent", index), 1, row);
  b.append_latent(latent, kv, state);

  const std::string kv_b = p + "kv_b_proj.weight";
  const int64_t each = c.nope + c.value_dim;
  const WeightRef keys = b.head_matrix(kv_b, c.heads * each, c.kv_rank, {c.heads, 0, c.nope, true});
  const WeightRef values = b.head_matrix(kv_b, c.heads * each, c.kv_rank, {c.heads, c.nope, c.value_dim, false});
  const Value absorbed = b.matmul_heads(q, keys, {heads, c.nope, query, 0});
  const float scale = 1.0f / std::sqrt(static_cast<float>(query));
  const Value seen = b.attend_latent(absorbed, q, state,
                                     {.heads = heads, .kv_heads = 1, .key_dim = row, .value_dim = c.kv_rank, .scale = scale,
                                      .latent = true, .tail = {heads, c.rope, query, c.nope}});
  const Value o = b.matmul_heads(seen, values, Heads::compact(heads, c.kv_rank));
  return from_heads(b, b.sigmoid_gate(o, g, Heads::compact(1, heads * c.value_dim)), p + "o_proj", c.heads, c.value_dim);
}

Value KimiK3::mlp(Builder& b, const std::string& p, int64_t width, Value x) const {
  const Block block = {width, segments_of(c)};
  const Value gate = b.matmul(x, b.matrix(p + "gate_proj.weight", width, c.hidden, Builder::split_outputs({block})));
  const Value up = b.matmul(x, b.matrix(p + "up_proj.weight", width, c.hidden, Builder::split_outputs({block})));
  return b.matmul(b.situ_gate(gate, up, c.situ), b.matrix(p + "down_proj.weight", c.hidden, width, Builder::split_inputs(block)));
}

// Routed experts work in a latent space, of which they give a weighted sum; w1 is the gate, w3 up and w2 down. The shared
// experts are one MLP beside them.
Value KimiK3::experts(Builder& b, const std::string& p, size_t index, Value x) const {
  const Value logits = gathered(b, x, p + "gate", c.experts, c.hidden);
  const Value z = gathered(b, x, p + "routed_expert_down_proj", c.latent, c.hidden);
  const Value routing = b.route(logits, b.vector(p + "gate.e_score_correction_bias", {c.experts}), {c.experts, c.top_k});
  b.output(fmt::format("experts.{}", index), routing);

  const int64_t segments = segments_of(c), groups = expert_groups(segments);
  const ExpertSet set = {c.experts, groups};
  const Block parts = {c.expert_width, segments / groups};
  const std::string e = p + "experts.*.";
  const Split by_outputs = Builder::split_outputs({parts});
  const Value a = b.expert_gate(z, routing, b.experts(e + "w1", c.expert_width, c.latent, set, by_outputs),
                                b.experts(e + "w3", c.expert_width, c.latent, set, by_outputs), {c.top_k, c.situ});
  const Value sum = b.expert_down(a, routing, b.experts(e + "w2", c.latent, c.expert_width, set, Builder::split_inputs(parts)));
  const Value routed = gathered(b, norm(b, p + "routed_expert_norm", sum, c.latent, c.eps), p + "routed_expert_up_proj",
                                c.hidden, c.latent);
  return b.add(routed, mlp(b, p + "shared_experts.", c.shared_width, x));
}

}  // namespace

bool recognises_kimi_k3(const nlohmann::json& config) {
  if (!config.is_object()) return false;
  const auto type = config.find("model_type");
  if (type == config.end() || !type->is_string()) return false;
  return *type == "kimi_k3" || (*type == "kimi_linear" && config.contains("attn_res_block_size"));
}

std::unique_ptr<Model> make_kimi_k3(const nlohmann::json& config, const std::string& file) {
  return std::make_unique<KimiK3>(read_config(config, file), file);
}

}  // namespace megalith
