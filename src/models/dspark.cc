// DSpark: a draft whose layers (Qwen3's, causal within the block) see the context by a projection of some of the target's
// layers, and whose Markov head then picks the guesses from left to right: each row's logits get a bias that depends on
// the token before. Embedding and head are its own. Tensor names are the checkpoint's.

#include "models/dspark.h"

#include <utility>

#include <fmt/format.h>

#include "base/error.h"
#include "models/draft_layers.h"
#include "models/fields.h"

namespace megalith {

namespace {

struct Config {
  DraftShape shape;
  int64_t rank = 0;              // of the Markov head
  int64_t draft_vocabulary = 0;  // rows of its head
};

void read_attention(const Fields& root, const Fields& layers, DraftShape& s) {
  const auto types = read_layer_types(layers, s.layers, "full_attention", "sliding_attention");
  const bool causal = !root.flag("sliding_window_non_causal", false);
  for (int64_t i = 0; i < s.layers; ++i) {
    const bool slides = !types.empty() ? types[static_cast<size_t>(i)] == "sliding_attention" : layers.has("sliding_window");
    AttendBlock how;
    how.causal = causal || !slides;
    how.from_anchor = true;
    if (slides && layers.flag("use_sliding_window", true)) how.window = layers.integer("sliding_window", 1, int64_t{1} << 30);
    s.attention.push_back(how);
  }
}

Config read_config(const nlohmann::json& json, const std::string& file) {
  const Fields root(json, file);
  const Fields layers = root.object("transformer_layer_config");
  Config c;
  c.shape = read_draft_shape(layers);
  c.shape.block = root.integer("block_size", 1, kMaxBlock - 1);
  c.shape.mask = root.integer("mask_token_id", 0, kMaxVocabulary);
  c.shape.taps = root.integers("aux_hidden_state_layer_ids");
  if (c.shape.taps.empty() || c.shape.taps.size() > 64) {
    throw root.error("aux_hidden_state_layer_ids", "the layers of the target that the draft reads");
  }
  c.rank = root.integer("markov_rank", 1, 1 << 16);
  c.draft_vocabulary = root.integer("draft_vocab_size", 1, c.shape.vocabulary, c.shape.vocabulary);
  if (root.text("markov_head_type", "vanilla") != "vanilla") throw root.error("markov_head_type", "vanilla");
  if (!root.flag("sample_from_anchor", true)) throw root.error("sample_from_anchor", "true");
  read_attention(root, layers, c.shape);
  return c;
}

class DSpark : public Draft {
 public:
  DSpark(Config config, std::string file) : c(std::move(config)), file_(std::move(file)) {}

  void build(Builder& b, const DraftInputs& target) const override;
  // Whether a guess is worth verifying is measured, not predicted.
  bool ignores(const std::string& tensor) const override { return tensor.starts_with("confidence_head.") || tensor == "t2d"; }
  void require_target(const Model& target) const override {
    require_same_target(c.shape, target, file_, "aux_hidden_state_layer_ids");
  }
  std::string family() const override { return "dspark"; }
  int guesses() const override { return static_cast<int>(c.shape.block); }

 private:
  Value markov_chain(Builder& b, DraftLayers& layers, Value logits, Value accepted) const;

  const Config c;
  const std::string file_;
};

void DSpark::build(Builder& b, const DraftInputs& target) const {
  DraftLayers layers(b, c.shape);
  layers.see(target);
  const Value accepted = b.accept(target.tokens, {c.shape.block, static_cast<int32_t>(c.shape.mask)});
  Value x = b.embed(layers.by_token("embed_tokens.weight", c.shape.vocabulary, c.shape.hidden), Rows::draft, accepted);
  for (int64_t i = 0; i < c.shape.layers; ++i) {
    layers.at(i);
    const std::string p = fmt::format("layers.{}.", i);
    x = b.add(x, layers.attention(i, layers.norm(p + "input_layernorm", x)));
    x = b.add(x, layers.mlp(i, layers.norm(p + "post_attention_layernorm", x)));
  }
  b.at("draft");
  const Value hidden = layers.norm("norm", x);
  const Value logits = b.matmul(hidden, layers.by_token("lm_head.weight", c.draft_vocabulary, c.shape.hidden));
  b.output("accepted", accepted);
  b.output("guesses", markov_chain(b, layers, logits, accepted));
  if (b.hidden()) b.output("draft.hidden", hidden);
}

// Slot k's logits are the k-th row's, and w2 of each token times w1 of the token before. w1 knows the target's tokens, w2 and
// the head those of the draft.
Value DSpark::markov_chain(Builder& b, DraftLayers& layers, Value logits, Value accepted) const {
  const WeightRef before = layers.by_token("markov_head.markov_w1.weight", c.shape.vocabulary, c.rank);
  const WeightRef bias = layers.by_token("markov_head.markov_w2.weight", c.draft_vocabulary, c.rank);
  std::optional<WeightRef> map;
  if (c.draft_vocabulary < c.shape.vocabulary) map = b.integers(fmt::format("{}d2t", kDraftPrefix), c.draft_vocabulary);
  std::vector<Value> guesses;
  Value known = accepted;  // after which the token before is known
  for (int64_t slot = 0; slot < c.shape.block; ++slot) {
    const Value w1 = b.embed(before, Rows::blocks, known);
    const Value own = b.pick_row(logits, slot);
    Value scores = b.add(own, b.matmul(w1, bias));
    if (b.width(scores) < c.draft_vocabulary) scores = b.all_gather(scores);
    known = b.advance(b.sample(scores), w1, map);
    guesses.push_back(known);
  }
  return b.concat(std::move(guesses));
}

}  // namespace

bool recognises_dspark(const nlohmann::json& config) {
  if (!config.is_object()) return false;
  const auto type = config.find("speculators_model_type");
  return type != config.end() && *type == "dspark";
}

std::unique_ptr<Draft> make_dspark(const nlohmann::json& config, const std::string& file) {
  return std::make_unique<DSpark>(read_config(config, file), file);
}

}  // namespace megalith
