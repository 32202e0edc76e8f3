#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>

#include "base/error.h"
#include "program/cost.h"
#include "tests/support/golden.h"
#include "models/model.h"

namespace megalith {
namespace {

nlohmann::json config_of(const std::string& name) { return read_json(test_data("configs/" + name)); }

std::unique_ptr<Model> make(const nlohmann::json& config) { return make_model(config, "config.json"); }

// The Error's text for a configuration that is not usable.
std::string refusal(const nlohmann::json& config, int ranks = 1) {
  try {
    make(config)->build({ranks, false, {}});
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

int64_t parameters(const Program& program) {
  int64_t n = 0;
  for (const Weight& w : program.weights) {
    int64_t elements = 1;
    for (const int64_t size : w.shape) elements *= size;
    n += elements;
  }
  return n;
}


// The text parameters of the family, in thousands of millions, to three digits: published.
TEST(Family, EveryMemberHasItsPublishedNumberOfParameters) {
  for (const auto& [file, millions] : {std::pair{"qwen3.5-0.8b.json", 752}, {"qwen3.5-2b.json", 1882},
                                       {"qwen3.5-4b.json", 4206}, {"qwen3.5-9b.json", 8954}, {"qwen3.8-27b.json", 26896}}) {
    const auto program = make(config_of(file))->build({1, false, {}});
    EXPECT_EQ((parameters(program) + 500'000) / 1'000'000, millions) << file;
  }
  EXPECT_EQ(parameters(make(config_of("qwen3.8-27b.json"))->build({1, false, {}})), 26'895'998'464);
}

TEST(Family, TheLargestMemberStreamsItsKnownBytesOnEightRanksAndIsBuiltAtOnce) {
  const auto start = std::chrono::steady_clock::now();
  const auto program = make(config_of("qwen3.8-27b.json"))->build({8, false, {}});
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(1));
  // 64 MLPs, 48 delta nets, 16 attentions, the head (with norms): 51.249 GB, the embedding not counted.
  EXPECT_NEAR(static_cast<double>(streamed_bytes(program)) / 1e9, 51.249, 0.0005);
}

TEST(Family, AllRankCountsThatDivideTheHeadsAreAllowed) {
  for (const char* file : {"qwen3.5-0.8b.json", "qwen3.5-4b.json", "qwen3.8-27b.json"}) {
    const auto model = make(config_of(file));
    EXPECT_EQ(model->allowed_ranks(), (std::vector<int>{1, 2, 4, 8})) << file;
    for (const int ranks : model->allowed_ranks()) EXPECT_EQ(model->build({ranks, false, {}}).ranks, ranks);
  }
}

TEST(Family, RankCountsThatDoNotDivideTheHeadsAreRefusedWithTheAllowedOnes) {
  for (const int ranks : {3, 5, 16}) {
    const std::string text = refusal(config_of("qwen3.5-0.8b.json"), ranks);
    EXPECT_NE(text.find("--ranks: expected one of 1, 2, 4, 8"), std::string::npos) << text;
  }
}

TEST(Config, FlatTextOnlyConfigurationsAreRead) {
  const auto nested = config_of("qwen3.5-0.8b.json");
  nlohmann::json flat = nested["text_config"];
  EXPECT_EQ(flat["model_type"], "qwen3_5_text");
  EXPECT_EQ(parameters(make(flat)->build({1, false, {}})), parameters(make(nested)->build({1, false, {}})));
}

TEST(Config, LayerTypesFollowFromTheIntervalWhereTheyAreAbsent) {
  auto config = config_of("qwen3.5-0.8b.json");
  const auto with = make(config)->build({1, false, {}});
  config["text_config"].erase("layer_types");
  const auto without = make(config)->build({1, false, {}});
  ASSERT_EQ(with.ops.size(), without.ops.size());
  for (size_t i = 0; i < with.ops.size(); ++i) EXPECT_EQ(with.ops[i].label, without.ops[i].label);
}

TEST(Config, FieldsThatCannotBeUsedAreRefusedByName) {
  const std::vector<std::pair<std::string, nlohmann::json>> bad = {
      {"hidden_size", 0},           {"hidden_size", "1024"},       {"num_hidden_layers", -1},
      {"num_attention_heads", 7.5}, {"num_key_value_heads", 3},    {"head_dim", 20},
      {"hidden_act", "gelu"},       {"attn_output_gate", false},   {"attention_bias", true},
      {"output_gate_type", "sigmoid"}, {"linear_num_value_heads", 7}, {"linear_conv_kernel_dim", 1},
      {"layer_types", {"full_attention"}}, {"vocab_size", nullptr}, {"linear_key_head_dim", 24}};
  for (const auto& [field, value] : bad) {
    auto config = config_of("qwen3.5-0.8b.json");
    config["text_config"][field] = value;
    EXPECT_NE(refusal(config).find("config.json: text_config." + field), std::string::npos) << field << ": " << refusal(config);
  }
  auto yarn = config_of("qwen3.5-0.8b.json");
  yarn["text_config"]["rope_parameters"]["rope_type"] = "yarn";
  EXPECT_NE(refusal(yarn).find("text_config.rope_parameters.rope_type"), std::string::npos);
}

TEST(Config, OtherArchitecturesAreRefusedByTheirName) {
  for (const char* type : {"qwen4_exp", "qwen3_5_moe", "llama"}) {
    EXPECT_NE(refusal({{"model_type", type}}).find(type), std::string::npos);
  }
  EXPECT_NE(refusal(nlohmann::json::array()), "");
  EXPECT_NE(refusal({{"hidden_size", 5}}), "");
}

// A catalog that has lm_head or not, and otherwise says nothing.
TensorCatalog catalog(bool head) {
  return [head](const std::string& name) -> std::optional<TensorInfo> {
    if (name == "lm_head.weight" && !head) return std::nullopt;
    return TensorInfo{DType::bf16, {}};
  };
}

bool wants_head(std::optional<bool> root, std::optional<bool> text, bool head) {
  auto config = config_of("qwen3.5-0.8b.json");
  config.erase("tie_word_embeddings");
  config["text_config"].erase("tie_word_embeddings");
  if (root) config["tie_word_embeddings"] = *root;
  if (text) config["text_config"]["tie_word_embeddings"] = *text;
  const auto program = make(config)->build({1, false, catalog(head)});
  return std::any_of(program.weights.begin(), program.weights.end(), [](const Weight& w) { return w.name == "lm_head.weight"; });
}

// The outer flag rules; where there is none, the checkpoint says by having a head. An untied model whose head is missing
// still wants it, so that loading refuses it by name.
TEST(TiedHead, IsReadFromBothPlacesAndFromTheCheckpoint) {
  for (const bool head : {false, true}) {
    EXPECT_FALSE(wants_head(true, {}, head));
    EXPECT_TRUE(wants_head(false, {}, head));
    EXPECT_FALSE(wants_head({}, true, head));
    EXPECT_TRUE(wants_head({}, false, head));
    EXPECT_FALSE(wants_head(true, false, head));
    EXPECT_TRUE(wants_head(false, true, head));
    EXPECT_EQ(wants_head({}, {}, head), head);
  }
}

TEST(Tensors, VisionAndNextTokenPredictionAreIgnoredAndOthersAreNot) {
  const auto model = make(config_of("qwen3.8-27b.json"));
  for (const char* name : {"model.visual.blocks.0.attn.qkv.weight", "mtp.fc.weight", "mtp.layers.0.mlp.up_proj.weight"}) {
    EXPECT_TRUE(model->ignores(name)) << name;
  }
  for (const char* name : {"model.language_model.layers.0.foo.weight", "lm_head.bias", "model.layers.0.mlp.up_proj.weight"}) {
    EXPECT_FALSE(model->ignores(name)) << name;
  }
}

}  // namespace
}  // namespace megalith
