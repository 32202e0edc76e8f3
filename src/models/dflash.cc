// DFlash2: a draft that fills in a block of masks at once. Its layers are Qwen3's, bidirectional within the block; they see
// the context by a projection of some of the target's layers. A grouped dynamic convolution stands before and after each
// sublayer, and a selector walks through the best candidates of each row. Embedding and head are the target's. DFlash, its
// predecessor, has neither convolutions nor selector. Tensor names are the checkpoint's.

#include "models/dflash.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "base/error.h"
#include "models/draft_layers.h"
#include "models/fields.h"

namespace megalith {

namespace {

// Of a row's logits, those that may become a guess where no selector says how many.
constexpr int64_t kPlainCandidates = 16;

struct Config {
  DraftShape shape;
  int64_t conv_group = 0, conv_taps = 0;  // 0: no convolutions
  int64_t rank = 0;                       // of the codebooks; 0: no selector
  Candidates candidates;
};

// A field that may stand in dflash_config, or else at the root.
const Fields& place_of(const Fields& inner, const Fields& root, const char* name) { return inner.has(name) ? inner : root; }

// Which layers see how far, and whether their rows see those behind them.
void read_attention(const Fields& inner, const Fields& root, DraftShape& s) {
  const auto types = read_layer_types(root, s.layers, "full_attention", "sliding_attention");
  const bool all_slide = inner.flag("use_swa", false);
  for (int64_t i = 0; i < s.layers; ++i) {
    const bool slides = !types.empty() && types[static_cast<size_t>(i)] == "sliding_attention";
    AttendBlock how;
    how.causal = root.has("is_causal") ? root.flag("is_causal", false) : inner.flag("causal", slides);
    if (all_slide) {
      how.window = inner.integer("swa_window_size", 1, int64_t{1} << 30);
    } else if (slides && root.flag("use_sliding_window", true)) {
      how.window = root.integer("sliding_window", 1, int64_t{1} << 30);
    }
    s.attention.push_back(how);
  }
}

// The layers whose outputs the draft reads; without a list, spread evenly.
void read_taps(const Fields& inner, const Fields& root, Config& c) {
  const Fields& place = place_of(inner, root, "target_layer_ids");
  std::vector<int64_t> layers = place.integers("target_layer_ids");
  if (layers.empty()) {
    if (!c.shape.target_layers) throw place.error("target_layer_ids", "the layers of the target that the draft reads");
    const int64_t last = *c.shape.target_layers - 3;
    for (int64_t i = 0; i < c.shape.layers; ++i) {
      layers.push_back(c.shape.layers == 1 ? *c.shape.target_layers / 2 : 1 + i * (last - 1) / (c.shape.layers - 1));
    }
  }
  if (layers.size() > 64) throw place.error("target_layer_ids", "at most 64 layers");
  for (const int64_t layer : layers) {
    if (layer < 0 || layer >= (1 << 20)) throw place.error("target_layer_ids", "indices of layers");
    c.shape.taps.push_back(layer + 1);  // streams are those that enter layers
    c.shape.tap_offset = 1;
  }
}

void read_candidates(const Fields& inner, const Fields& root, Config& c) {
  const auto number = [&](const char* name, double otherwise) { return place_of(inner, root, name).number(name, otherwise); };
  c.candidates.multiplier = static_cast<float>(number("output_multiplier", 1));
  c.candidates.cap = static_cast<float>(number("final_logit_softcapping", 0));
  if (!(c.candidates.multiplier > 0)) throw place_of(inner, root, "output_multiplier").error("output_multiplier", "a number above 0");
  if (!(c.candidates.cap >= 0)) {
    throw place_of(inner, root, "final_logit_softcapping").error("final_logit_softcapping", "a number of 0 or more");
  }
  if (number("input_embedding_scale", 1) != 1) {
    throw place_of(inner, root, "input_embedding_scale").error("input_embedding_scale", "1");
  }
  const int64_t most = std::min<int64_t>(c.shape.vocabulary, 64);
  c.candidates.top_k = std::min(kPlainCandidates, most);
  if (!place_of(inner, root, "selector_rank").has("selector_rank")) return;
  c.rank = place_of(inner, root, "selector_rank").integer("selector_rank", 1, 1 << 16);
  c.candidates.top_k = place_of(inner, root, "selector_top_k").integer("selector_top_k", 1, most);
}

Config read_config(const nlohmann::json& json, const std::string& file) {
  const Fields root(json, file);
  const Fields inner = root.has("dflash_config") ? root.object("dflash_config") : root;
  Config c;
  c.shape = read_draft_shape(root);
  if (root.has("num_target_layers")) c.shape.target_layers = root.integer("num_target_layers", 1, 4096);
  c.shape.block = place_of(inner, root, "block_size").integer("block_size", 2, kMaxBlock);
  c.shape.mask = place_of(inner, root, "mask_token_id").integer("mask_token_id", 0, kMaxVocabulary);
  read_attention(inner, root, c.shape);
  read_taps(inner, root, c);
  read_candidates(inner, root, c);
  if (const Fields& conv = place_of(inner, root, "conv_kernel_size"); conv.has("conv_kernel_size")) {
    c.conv_taps = conv.integer("conv_kernel_size", 1, kMaxTaps);
    const Fields& group = place_of(inner, root, "conv_group_size");
    c.conv_group = group.integer("conv_group_size", 1, c.shape.hidden);
    if (c.shape.hidden % c.conv_group != 0) {
      throw group.error("conv_group_size", fmt::format("a divisor of hidden_size ({})", c.shape.hidden));
    }
  }
  return c;
}

class DFlash : public Draft {
 public:
  DFlash(Config config, std::string file) : c(std::move(config)), file_(std::move(file)) {}

  void build(Builder& b, const DraftInputs& target) const override;
  bool ignores(const std::string&) const override { return false; }
  void require_target(const Model& target) const override {
    require_same_target(c.shape, target, file_, "target_layer_ids");
  }
  std::string family() const override { return c.rank > 0 || c.conv_taps > 0 ? "dflash2" : "dflash"; }
  int guesses() const override { return static_cast<int>(c.shape.block) - 1; }

 private:
  // A sublayer between its two convolutions, which are formed from the same normed rows.
  template <class Sublayer>
  Value convolved(Builder& b, DraftLayers& layers, const std::string& name, Value x, Sublayer sublayer) const;
  Value path(Builder& b, DraftLayers& layers, Value hidden, Value logits) const;

  const Config c;
  const std::string file_;
};

void DFlash::build(Builder& b, const DraftInputs& target) const {
  DraftLayers layers(b, c.shape);
  layers.see(target);
  const Value accepted = b.accept(target.tokens, {c.shape.block, static_cast<int32_t>(c.shape.mask)});
  Value x = b.embed(target.embedding, Rows::draft, accepted);
  for (int64_t i = 0; i < c.shape.layers; ++i) {
    layers.at(i);
    const std::string p = fmt::format("layers.{}.", i);
    x = b.add(x, convolved(b, layers, p + "attention_conv", layers.norm(p + "input_layernorm", x),
                           [&](Value n) { return layers.attention(i, n); }));
    x = b.add(x, convolved(b, layers, p + "mlp_conv", layers.norm(p + "post_attention_layernorm", x),
                           [&](Value n) { return layers.mlp(i, n); }));
  }
  b.at("draft");
  const Value hidden = layers.norm("norm", x);
  const Value logits = b.all_gather(b.matmul(hidden, target.head));
  b.output("accepted", accepted);
  b.output("guesses", path(b, layers, hidden, logits));
  if (!b.hidden()) return;
  b.output("draft.hidden", hidden);
  b.output("draft.logits", logits);
}

template <class Sublayer>
Value DFlash::convolved(Builder& b, DraftLayers& layers, const std::string& name, Value x, Sublayer sublayer) const {
  if (c.conv_taps == 0) return sublayer(x);
  const int64_t hidden = c.shape.hidden;
  const Value dynamic = layers.gathered(x, name + ".kernel_projection.weight", 2 * c.conv_taps * hidden / c.conv_group, hidden);
  const WeightRef base = layers.vector(name + ".base_kernel", {2, c.conv_taps, hidden});
  const Value y = sublayer(b.block_conv(x, dynamic, base, {hidden, c.conv_taps, c.conv_group, 0}));
  return b.block_conv(y, dynamic, base, {hidden, c.conv_taps, c.conv_group, 1});
}

Value DFlash::path(Builder& b, DraftLayers& layers, Value hidden, Value logits) const {
  const Value candidates = b.candidates(logits, c.candidates);
  const SelectPath how = {c.candidates.top_k, c.rank};
  if (c.rank == 0) return b.select_path(candidates, {}, how);
  const auto rows_of = [&](const char* book) {
    return b.lookup(candidates, layers.by_token(fmt::format("candidate_selector.{}_codebook", book), c.shape.vocabulary, c.rank),
                    how.top_k);
  };
  const Value g = b.matmul(hidden, layers.whole("candidate_selector.hidden_projection.weight", c.rank, c.shape.hidden));
  return b.select_path(candidates, {rows_of("successor"), rows_of("predecessor"), g}, how);
}

}  // namespace

bool recognises_dflash(const nlohmann::json& config) {
  if (!config.is_object()) return false;
  const auto names = config.find("architectures");
  const auto is = [&](const char* name) {
    return names != config.end() && names->is_array() && std::find(names->begin(), names->end(), name) != names->end();
  };
  return is("DFlash2DraftModel") || is("DFlashDraftModel");
}

std::unique_ptr<Draft> make_dflash(const nlohmann::json& config, const std::string& file) {
  return std::make_unique<DFlash>(read_config(config, file), file);
}

}  // namespace megalith
