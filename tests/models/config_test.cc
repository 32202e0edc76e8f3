#include <algorithm>
#include <chrono>
#include <functional>
#include <map>
#include <optional>

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

// The real configuration of Kimi K3, and what its checkpoint holds beside BF16.
nlohmann::json kimi_config() {
  return config_of("kimi-k3.json");
}

std::optional<TensorInfo> kimi_tensor(const std::string& name) {
  if (name.ends_with(".A_log")) return TensorInfo{DType::f32, {128}};
  for (const char* end : {"_conv1d.weight", ".dt_bias", ".o_norm.weight", ".e_score_correction_bias"}) {
    if (name.ends_with(end)) return TensorInfo{DType::f32, {}};
  }
  if (name == "model.embed_tokens.weight") return std::nullopt;
  return TensorInfo{DType::bf16, {}};
}

// Bytes of all tensors that hold a program's weights, by name.
std::map<std::string, int64_t> bytes_by_tensor(const Program& program) {
  std::map<std::string, int64_t> bytes;
  for (const Weight& w : program.weights) {
    for (const StoredTensorName& tensor : stored_tensors(w)) {
      int64_t elements = 1;
      for (const int64_t size : tensor.shape) elements *= size;
      bytes[tensor.name] = tensor.packed ? elements : dtype_bytes(w.stored, elements);
    }
  }
  return bytes;
}

// The two tensors that no token passes through: [7168] and [1, 7168] in BF16.
constexpr int64_t kKimiIdleTensors = 2, kKimiIdleBytes = 2 * 7168 * 2;
constexpr int64_t kKimiBytes = 1'559'965'606'912;

TEST(Kimi, TensorsAndBytesAreThoseOfTheCheckpoint) {
  const auto model = make(kimi_config());
  const auto tensors = bytes_by_tensor(model->build({1, false, kimi_tensor}));
  EXPECT_EQ(std::ssize(tensors) + kKimiIdleTensors, 497'052);
  int64_t bytes = kKimiIdleBytes;
  for (const auto& [name, size] : tensors) bytes += size;
  EXPECT_EQ(bytes, kKimiBytes);
  for (const char* name : {"self_attention_res_norm.weight", "self_attention_res_proj.weight"}) {
    const std::string idle = std::string("language_model.model.layers.0.") + name;
    EXPECT_FALSE(tensors.contains(idle));
    EXPECT_TRUE(model->ignores(idle));
  }
}

TEST(Kimi, EveryRankCountIsBuiltWithinASecond) {
  const auto model = make(kimi_config());
  EXPECT_EQ(model->allowed_ranks(), (std::vector<int>{1, 2, 4, 8, 16, 32}));
  for (const int ranks : model->allowed_ranks()) {
    const auto start = std::chrono::steady_clock::now();
    EXPECT_EQ(model->build({ranks, false, kimi_tensor}).ranks, ranks);
    EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(1)) << ranks;
  }
}

TEST(Kimi, RowStreamsAllWeightsButTheEmbeddingAndTheExpertsThatItDidNotChoose) {
  constexpr int64_t kExpert = 3 * (3072 * 3584 / 32 * 17);
  EXPECT_EQ(kExpert, 17'547'264);  // published
  const int64_t tails = int64_t{69} * 32 * 4;
  const int64_t want = kKimiBytes - int64_t{163'840} * 7168 * 2 - 92 * (896 - 16) * kExpert - kKimiIdleBytes - tails;
  for (const int ranks : {1, 8, 32}) {
    EXPECT_EQ(streamed_bytes(make(kimi_config())->build({ranks, false, kimi_tensor})), want) << ranks;
  }
}

TEST(Kimi, RankCountsThatDoNotDealOutHeadsAndExpertsAreRefusedWithTheAllowedOnes) {
  for (const int ranks : {3, 6, 64}) {
    EXPECT_THAT(refusal(kimi_config(), ranks),
                HasSubstr("--ranks: expected one of 1, 2, 4, 8, 16, 32 for config.json"));
  }
  auto config = kimi_config();
  config["text_config"]["num_attention_heads"] = 12;
  EXPECT_THAT(refusal(config, 8), HasSubstr("--ranks: expected one of 1, 2, 4 for config.json"));
}

TEST(Kimi, VisionAndOtherTensorsWithoutUseAreIgnoredAndNoOthers) {
  const auto model = make(kimi_config());
  for (const char* name : {"vision_tower.encoder.blocks.0.wqkv.weight", "mm_projector.linear_1.weight"}) {
    EXPECT_TRUE(model->ignores(name)) << name;
  }
  for (const char* name : {"language_model.model.layers.1.self_attention_res_norm.weight",
                           "language_model.model.layers.0.mlp_res_norm.weight", "language_model.lm_head.bias",
                           "language_model.model.layers.3.block_sparse_moe.experts.896.w1.weight_packed"}) {
    EXPECT_FALSE(model->ignores(name)) << name;
  }
}

TEST(Kimi, NamesOfTextOnlyExportsHaveNoOuterPrefix) {
  const auto flat = kimi_config()["text_config"];
  const auto program = make(flat)->build({1, false, [](const std::string&) { return TensorInfo{DType::bf16, {}}; }});
  for (const Weight& w : program.weights) {
    EXPECT_TRUE(w.name.starts_with("model.") || w.name == "lm_head.weight") << w.name;
  }
}

// What is not what the one known model has, and would give other numbers without a word.
TEST(Kimi, FieldsThatCannotBeUsedAreRefusedByName) {
  using nlohmann::json;
  const std::vector<std::pair<std::string, json>> bad = {{"mla_use_nope", false},
                                                         {"mla_use_output_gate", false},
                                                         {"latent_moe_use_norm", false},
                                                         {"moe_renormalize", false},
                                                         {"linear_attn_config.use_full_rank_gate", false},
                                                         {"mla_use_nope", 1},
                                                         {"tie_word_embeddings", true},
                                                         {"hidden_act", "silu"},
                                                         {"hidden_act", nullptr},
                                                         {"activation_situ_beta", 0},
                                                         {"activation_situ_linear_beta", nullptr},
                                                         {"moe_router_activation_func", "softmax"},
                                                         {"routed_scaling_factor", 2.5},
                                                         {"first_k_dense_replace", 0},
                                                         {"first_k_dense_replace", 3},
                                                         {"moe_layer_freq", 2},
                                                         {"num_expert_group", 8},
                                                         {"num_experts_per_token", 897},
                                                         {"num_experts", 0},
                                                         {"kv_lora_rank", 500},
                                                         {"v_head_dim", 40},
                                                         {"moe_intermediate_size", 3080},
                                                         {"routed_expert_hidden_size", 3600},
                                                         {"attn_res_block_size", 0},
                                                         {"linear_attn_config.head_dim", 120},
                                                         {"linear_attn_config.gate_lower_bound", 0},
                                                         {"linear_attn_config.short_conv_kernel_size", 1},
                                                         {"linear_attn_config", nullptr},
                                                         {"quantization_config.format", "nvfp4-pack-quantized"},
                                                         {"quantization_config.format", nullptr},
                                                         {"quantization_config", nullptr}};
  EXPECT_EQ(refusal(kimi_config()), "");
  for (const auto& [field, value] : bad) {
    auto config = kimi_config();
    std::string pointer = "/text_config/" + field;
    std::replace(pointer.begin(), pointer.end(), '.', '/');
    config[json::json_pointer(pointer)] = value;
    EXPECT_THAT(refusal(config), HasSubstr("config.json: text_config." + field + ":")) << value;
  }
}

TEST(Kimi, FlagsThatAreAbsentAreTakenForThoseOfTheKnownModel) {
  auto config = kimi_config();
  for (const char* flag : {"mla_use_nope", "mla_use_output_gate", "latent_moe_use_norm", "moe_renormalize"}) {
    EXPECT_EQ(config["text_config"].erase(flag), 1U) << flag;
  }
  EXPECT_EQ(refusal(config), "");
}

// The lists of layers, with one change.
std::string refusal_of_layers(const std::function<void(nlohmann::json& full, nlohmann::json& delta)>& change) {
  auto config = kimi_config();
  nlohmann::json& lists = config["text_config"]["linear_attn_config"];
  change(lists["full_attn_layers"], lists["kda_layers"]);
  return refusal(config);
}

TEST(Kimi, ListsOfLayersMustNameEveryLayerOnce) {
  using nlohmann::json;
  const auto in_lists = [](const char* list) {
    return HasSubstr(std::string("text_config.linear_attn_config.") + list);
  };
  EXPECT_THAT(refusal_of_layers([](json&, json& delta) { delta.erase(5); }), in_lists("kda_layers"));
  EXPECT_THAT(refusal_of_layers([](json& full, json&) { full.erase(0); }), in_lists("kda_layers"));
  EXPECT_THAT(refusal_of_layers([](json&, json& delta) { delta.push_back(4); }), in_lists("kda_layers"));
  EXPECT_THAT(refusal_of_layers([](json& full, json&) { full.push_back(93); }), in_lists("full_attn_layers"));
  EXPECT_THAT(refusal_of_layers([](json& full, json&) { full.push_back(94); }), in_lists("full_attn_layers"));
  EXPECT_THAT(refusal_of_layers([](json&, json& delta) { delta.push_back(0); }), in_lists("kda_layers"));
  EXPECT_THAT(refusal_of_layers([](json& full, json&) { full[0] = "4"; }), in_lists("full_attn_layers"));
  EXPECT_THAT(refusal_of_layers([](json&, json& delta) { delta = nullptr; }), in_lists("kda_layers"));
}

// A stride would make the last layer one of delta attention.
TEST(Kimi, LayersFollowTheListsAndNoStride) {
  const auto program = make(kimi_config())->build({1, false, kimi_tensor});
  std::vector<std::string> latent;
  for (const Op& op : program.ops) {
    if (op.kind == OpKind::append_latent) latent.push_back(op.label.substr(0, op.label.find(' ')));
  }
  ASSERT_EQ(latent.size(), 24u);
  EXPECT_EQ(latent.front(), "L3");
  EXPECT_EQ(latent[22], "L91");
  EXPECT_EQ(latent[23], "L92");
}

}  // namespace
}  // namespace megalith
