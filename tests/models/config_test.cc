#include <algorithm>
#include <chrono>
#include <map>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "models/model.h"
#include "program/cost.h"
#include "tests/support/golden.h"
#include "tests/support/scratch.h"
#include "tests/weights/log.h"
#include "weights/checkpoint.h"

namespace megalith {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

nlohmann::json config_of(const std::string& name) {
  return read_json(test_data("configs/" + name));
}

std::unique_ptr<Model> make(const nlohmann::json& config) {
  return make_model(config, "config.json");
}

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
  for (const auto& [file, millions] : {std::pair{"qwen3.5-0.8b.json", 752},
                                       {"qwen3.5-2b.json", 1882},
                                       {"qwen3.5-4b.json", 4206},
                                       {"qwen3.5-9b.json", 8954},
                                       {"qwen3.8-27b.json", 26896}}) {
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
  const std::vector<std::pair<std::string, nlohmann::json>> bad = {{"hidden_size", 0},
                                                                   {"hidden_size", "1024"},
                                                                   {"num_hidden_layers", -1},
                                                                   {"num_attention_heads", 7.5},
                                                                   {"num_key_value_heads", 3},
                                                                   {"head_dim", 20},
                                                                   {"hidden_act", "gelu"},
                                                                   {"attn_output_gate", false},
                                                                   {"attention_bias", true},
                                                                   {"output_gate_type", "sigmoid"},
                                                                   {"linear_num_value_heads", 7},
                                                                   {"linear_conv_kernel_dim", 1},
                                                                   {"layer_types", {"full_attention"}},
                                                                   {"vocab_size", nullptr},
                                                                   {"linear_key_head_dim", 24}};
  for (const auto& [field, value] : bad) {
    auto config = config_of("qwen3.5-0.8b.json");
    config["text_config"][field] = value;
    EXPECT_NE(refusal(config).find("config.json: text_config." + field), std::string::npos)
        << field << ": " << refusal(config);
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
  return std::any_of(program.weights.begin(), program.weights.end(),
                     [](const Weight& w) { return w.name == "lm_head.weight"; });
}

// The outer flag rules; where there is none, the checkpoint says by having a head. An untied model whose head is
// missing still wants it, so that loading refuses it by name.
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

// A configuration small enough for checkpoints that are written on the spot.
nlohmann::json small_config(std::optional<bool> root, std::optional<bool> text) {
  auto config = config_of("qwen3.5-0.8b.json");
  config.erase("tie_word_embeddings");
  auto& c = config["text_config"];
  c.erase("tie_word_embeddings");
  c.erase("layer_types");
  c.update({{"hidden_size", 16},
            {"intermediate_size", 16},
            {"vocab_size", 32},
            {"num_hidden_layers", 4},
            {"num_attention_heads", 2},
            {"num_key_value_heads", 1},
            {"head_dim", 16},
            {"linear_num_key_heads", 1},
            {"linear_num_value_heads", 1},
            {"linear_key_head_dim", 16},
            {"linear_value_head_dim", 16}});
  c["rope_parameters"]["partial_rotary_factor"] = 0.25;
  if (root) config["tie_word_embeddings"] = *root;
  if (text) c["tie_word_embeddings"] = *text;
  return config;
}

// Names and shapes of all tensors of a small model that has a head, with this prefix.
std::map<std::string, std::vector<int64_t>> small_tensors(const std::string& prefix) {
  const std::string embedding = "embed_tokens.weight";
  const auto catalog = [&](const std::string& name) -> std::optional<TensorInfo> {
    if (name.ends_with(embedding) && name != prefix + embedding) return std::nullopt;
    return TensorInfo{DType::bf16, {}};
  };
  const auto program = make(small_config(false, {}))->build({1, false, catalog});
  std::map<std::string, std::vector<int64_t>> tensors;
  for (const Weight& w : program.weights) tensors[w.name] = w.shape;
  return tensors;
}

void write_checkpoint(const Scratch& scratch, const std::map<std::string, std::vector<int64_t>>& tensors) {
  std::vector<TensorToWrite> written;
  std::vector<std::vector<std::byte>> bytes;
  for (const auto& [name, shape] : tensors) {
    size_t size = 2;
    for (const int64_t n : shape) size *= static_cast<size_t>(n);
    // Each tensor has a content of its own.
    bytes.emplace_back(size, static_cast<std::byte>(bytes.size()));
  }
  size_t i = 0;
  for (const auto& [name, shape] : tensors) written.push_back({name, "BF16", shape, bytes[i++]});
  write_safetensors(scratch / "model.safetensors", written);
}

// What loading a checkpoint of these tensors comes to: the matrix that the head reads, or what the refusal says.
struct Outcome {
  std::string head;
  std::string refusal;
  Ignored ignored;
  std::vector<std::string> log;
};

Outcome load(const nlohmann::json& config, const std::map<std::string, std::vector<int64_t>>& tensors) {
  const Scratch scratch;
  write_checkpoint(scratch, tensors);
  const Checkpoint checkpoint(scratch.path());
  const auto model = make(config);
  const Log log;
  Outcome outcome;
  try {
    const auto program = model->build({1, false, checkpoint.catalog()});
    outcome.ignored =
        check_tensors(checkpoint, program.weights, [&](const std::string& name) { return model->ignores(name); });
    const auto head = std::find_if(program.weights.begin(), program.weights.end(),
                                   [](const Weight& w) { return w.name.ends_with("lm_head.weight"); });
    outcome.head = head == program.weights.end() ? "embedding" : head->name;
  } catch (const Error& error) {
    outcome.refusal = error.cause();
  }
  outcome.log = log.lines();
  return outcome;
}

TEST(TiedHead, EightCombinationsOfFlagPlaceAndHeadLoadOrAreRefusedByName) {
  const auto with_head = small_tensors("model.language_model.");
  auto without_head = with_head;
  ASSERT_EQ(without_head.erase("lm_head.weight"), 1U);
  for (const bool in_root : {true, false}) {
    const auto config = [&](bool tie) { return in_root ? small_config(tie, {}) : small_config({}, tie); };
    EXPECT_EQ(load(config(false), with_head).head, "lm_head.weight") << in_root;
    EXPECT_EQ(load(config(true), without_head).head, "embedding") << in_root;
    EXPECT_THAT(load(config(false), without_head).refusal, HasSubstr("1 missing: lm_head.weight")) << in_root;
    EXPECT_EQ(load(config(true), with_head).head, "embedding") << in_root;
  }
}

TEST(TiedHead, OuterFlagRulesWhereTheTwoDisagree) {
  const auto with_head = small_tensors("model.language_model.");
  EXPECT_EQ(load(small_config(true, false), with_head).head, "embedding");
  EXPECT_EQ(load(small_config(false, true), with_head).head, "lm_head.weight");
  EXPECT_EQ(load(small_config({}, {}), with_head).head, "lm_head.weight");
}

TEST(TiedHead, HeadThatIsPassedOverAndDiffersFromTheEmbeddingIsWarnedOf) {
  EXPECT_THAT(load(small_config(true, {}), small_tensors("model.language_model.")).log,
              ElementsAre(AllOf(HasSubstr("lm_head.weight is not read"), HasSubstr("tie_word_embeddings"))));
}

TEST(Tensors, PrefixesOfAllExportsAreFound) {
  for (const char* prefix : {"model.language_model.", "model.", "language_model.model."}) {
    const auto tensors = small_tensors(prefix);
    ASSERT_TRUE(tensors.contains(std::string(prefix) + "layers.3.mlp.up_proj.weight")) << prefix;
    const Outcome outcome = load(small_config(false, {}), tensors);
    EXPECT_EQ(outcome.refusal, "") << prefix;
    EXPECT_TRUE(outcome.head.ends_with("lm_head.weight")) << prefix;
  }
}

TEST(Tensors, KnownExtraGroupsAreCountedAndChangeNothing) {
  auto tensors = small_tensors("model.language_model.");
  for (const char* name :
       {"model.visual.blocks.0.attn.qkv.weight", "mtp.fc.weight", "mtp.layers.0.mlp.up_proj.weight"}) {
    tensors[name] = {10};
  }
  const Outcome outcome = load(small_config(false, {}), tensors);
  EXPECT_EQ(outcome.refusal, "");
  EXPECT_EQ(outcome.ignored.tensors, 3U);
  EXPECT_EQ(outcome.ignored.bytes, 60U);
  EXPECT_EQ(outcome.head, load(small_config(false, {}), small_tensors("model.language_model.")).head);
}

TEST(Tensors, UnknownTensorInsideTheLanguageModelIsRefusedByName) {
  for (const char* name : {"model.language_model.layers.0.foo.weight", "model.layers.0.foo.weight", "adapter.weight"}) {
    auto tensors = small_tensors("model.language_model.");
    tensors[name] = {4};
    EXPECT_THAT(load(small_config(false, {}), tensors).refusal, HasSubstr("1 unknown: " + std::string(name)));
  }
}

TEST(Tensors, AllMissingTensorsAreRefusedByNameAtOnce) {
  auto tensors = small_tensors("model.language_model.");
  for (const char* name : {"layers.3.mlp.up_proj.weight", "layers.0.linear_attn.A_log", "norm.weight"}) {
    ASSERT_EQ(tensors.erase("model.language_model." + std::string(name)), 1U) << name;
  }
  EXPECT_THAT(load(small_config(false, {}), tensors).refusal,
              AllOf(HasSubstr("3 missing"), HasSubstr("model.language_model.layers.3.mlp.up_proj.weight"),
                    HasSubstr("model.language_model.layers.0.linear_attn.A_log"),
                    HasSubstr("model.language_model.norm.weight")));
}

TEST(Tensors, VisionAndNextTokenPredictionAreIgnoredAndOthersAreNot) {
  const auto model = make(config_of("qwen3.8-27b.json"));
  for (const char* name :
       {"model.visual.blocks.0.attn.qkv.weight", "mtp.fc.weight", "mtp.layers.0.mlp.up_proj.weight"}) {
    EXPECT_TRUE(model->ignores(name)) << name;
  }
  for (const char* name :
       {"model.language_model.layers.0.foo.weight", "lm_head.bias", "model.layers.0.mlp.up_proj.weight"}) {
    EXPECT_FALSE(model->ignores(name)) << name;
  }
}

}  // namespace
}  // namespace megalith
