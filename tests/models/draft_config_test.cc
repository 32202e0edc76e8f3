// Configurations of drafts: those that cannot be used are refused by the field's name, and the others give the program that
// they describe.

#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "models/draft.h"
#include "models/model.h"
#include "program/rope.h"
#include "tests/support/errors.h"
#include "tests/support/golden.h"

namespace megalith {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

// A target and its draft, as the configurations of a directory (or of a real size) describe them.
struct Pair {
  json target, draft;
};

Pair small_dflash() {
  return {read_json(test_data("qwen-a/target/config.json")), read_json(test_data("qwen-a/draft/config.json"))};
}
Pair small_dspark() {
  return {read_json(test_data("kimi-a/target/config.json")), read_json(test_data("kimi-a/draft/config.json"))};
}
Pair real_dflash() {
  return {read_json(test_data("configs/qwen3.8-27b.json")), read_json(test_data("configs/qwen3.8-27b-dflash2.json"))};
}
Pair real_dspark() {
  return {read_json(test_data("configs/kimi-k3.json")), read_json(test_data("configs/kimi-k3-dspark.json"))};
}

Program build(const Pair& pair, int ranks = 1) {
  const auto target = make_model(pair.target, "config.json");
  const auto draft = make_draft(pair.draft, "draft.json");
  draft->require_target(*target);
  return target->build({ranks, false, {}, draft->most_rows(), draft->builder()});
}

// Of the attributes of the draft's ops of one kind.
template <class Attribute>
std::vector<Attribute> of_draft(const Program& program, OpKind kind) {
  std::vector<Attribute> all;
  for (size_t i = static_cast<size_t>(program.draft_begin); i < program.ops.size(); ++i) {
    if (program.ops[i].kind == kind) all.push_back(program.ops[i].get<Attribute>());
  }
  return all;
}

struct Change {
  std::string field;  // with dots: in objects
  json value;
};

json changed(json config, const Change& change) {
  std::string pointer = "/" + change.field;
  std::replace(pointer.begin(), pointer.end(), '.', '/');
  config[json::json_pointer(pointer)] = change.value;
  return config;
}

void expect_refused_by_name(const Pair& pair, const std::vector<Change>& changes) {
  EXPECT_GT(build(pair).draft_block, 0);
  for (const Change& change : changes) {
    const std::string cause = cause_of([&] { build({pair.target, changed(pair.draft, change)}); });
    EXPECT_THAT(cause, HasSubstr("draft.json: " + change.field + ":")) << change.value;
  }
}

TEST(DFlashConfig, FieldsThatCannotBeUsedAreRefusedByName) {
  expect_refused_by_name(small_dflash(), {{"hidden_size", 0},
                                          {"num_key_value_heads", 3},
                                          {"head_dim", 20},
                                          {"hidden_act", "gelu"},
                                          {"attention_bias", true},
                                          {"rms_norm_eps", -1},
                                          {"vocab_size", nullptr},
                                          {"layer_types", {"sliding_attention"}},
                                          {"layer_types", {"sliding_attention", "linear_attention"}},
                                          {"sliding_window", 0},
                                          {"rope_parameters.rope_type", "llama3"},
                                          {"rope_parameters.rope_theta", 0},
                                          {"is_causal", 1},
                                          {"dflash_config.block_size", 0},
                                          {"dflash_config.block_size", 1},
                                          {"dflash_config.block_size", 17},
                                          {"dflash_config.mask_token_id", -1},
                                          {"dflash_config.selector_top_k", 0},
                                          {"dflash_config.selector_top_k", 65},
                                          {"dflash_config.selector_rank", 0},
                                          {"dflash_config.conv_group_size", 24},
                                          {"dflash_config.conv_group_size", 0},
                                          {"dflash_config.conv_kernel_size", 17},
                                          {"dflash_config.target_layer_ids", {1, -1, 6}},
                                          {"dflash_config.target_layer_ids", 6},
                                          {"dflash_config.input_embedding_scale", 2},
                                          {"dflash_config.output_multiplier", 0},
                                          {"dflash_config.final_logit_softcapping", -1}});
}

TEST(DSparkConfig, FieldsThatCannotBeUsedAreRefusedByName) {
  const std::string layers = "transformer_layer_config.";
  expect_refused_by_name(small_dspark(), {{"block_size", 0},
                                          {"block_size", 16},
                                          {"mask_token_id", -1},
                                          {"markov_rank", 0},
                                          {"markov_head_type", "gated"},
                                          {"sample_from_anchor", false},
                                          {"draft_vocab_size", 513},
                                          {"aux_hidden_state_layer_ids", json::array()},
                                          {"aux_hidden_state_layer_ids", "3"},
                                          {"transformer_layer_config", nullptr},
                                          {layers + "hidden_size", 8},
                                          {layers + "layer_types", {"sliding_attention"}},
                                          {layers + "sliding_window", 0},
                                          {layers + "rope_parameters.rope_type", "linear"}});
}

// What a draft says that was made for another target; the fields are named as its configuration has them.
void expect_of_another_target(const Pair& pair, const std::vector<Change>& changes) {
  const auto target = make_model(pair.target, "config.json");
  for (const Change& change : changes) {
    const auto draft = make_draft(changed(pair.draft, change), "draft.json");
    const std::string field = change.field.substr(change.field.rfind('.') + 1);
    EXPECT_THAT(cause_of([&] { draft->require_target(*target); }), HasSubstr("draft.json: " + field + ":")) << change.value;
  }
}

TEST(DFlashConfig, ADraftOfAnotherTargetIsRefusedByTheFieldThatDiffers) {
  expect_of_another_target(small_dflash(), {{"hidden_size", 144},
                                            {"vocab_size", 1025},
                                            {"num_target_layers", 9},
                                            {"dflash_config.mask_token_id", 1024},
                                            {"dflash_config.target_layer_ids", {1, 3, 8}}});
}

TEST(DSparkConfig, ADraftOfAnotherTargetIsRefusedByTheFieldThatDiffers) {
  expect_of_another_target(small_dspark(), {{"transformer_layer_config.hidden_size", 272},
                                            {"transformer_layer_config.vocab_size", 513},
                                            {"mask_token_id", 512},
                                            {"aux_hidden_state_layer_ids", {3, 5, 9}},
                                            {"aux_hidden_state_layer_ids", {-1, 5, 7}}});
}

// The layer that leaves the last one is the last that can be read.
TEST(DraftConfig, TheLastLayersOutputCanBeRead) {
  const Pair dflash = small_dflash(), dspark = small_dspark();
  EXPECT_GT(build({dflash.target, changed(dflash.draft, {"dflash_config.target_layer_ids", {0, 3, 7}})}).draft_block, 0);
  EXPECT_GT(build({dspark.target, changed(dspark.draft, {"aux_hidden_state_layer_ids", {0, 5, 8}})}).draft_block, 0);
}

TEST(DraftConfig, OtherArchitecturesAreRefusedByTheirName) {
  for (const char* name : {"DSparkDraftModel", "Eagle3DraftModel"}) {
    const json config = changed(small_dflash().draft, {"architectures", {name}});
    EXPECT_THAT(cause_of([&] { make_draft(config, "draft.json"); }), AllOf(HasSubstr("draft.json: architectures:"), HasSubstr(name)));
  }
  const json other = changed(small_dspark().draft, {"speculators_model_type", "eagle3"});
  EXPECT_THAT(cause_of([&] { make_draft(other, "draft.json"); }), HasSubstr("architectures"));
  EXPECT_THAT(cause_of([&] { make_draft(json::array(), "draft.json"); }), HasSubstr("draft.json"));
  EXPECT_THAT(cause_of([&] { make_draft(small_dflash().target, "config.json"); }), HasSubstr("Qwen3_5"));
}

// Every op of a program, with what its attributes say where drafts have them from their configuration.
std::vector<std::string> described(const Program& program) {
  std::vector<std::string> lines;
  for (const Op& op : program.ops) {
    std::string line = fmt::format("{} {} {}", op_info(op.kind).name, op.label, fmt::join(op.weights, ","));
    if (const auto* a = std::get_if<AttendBlock>(&op.attributes)) line += fmt::format(" {} {}", a->causal, a->window);
    if (const auto* a = std::get_if<BlockConv>(&op.attributes)) line += fmt::format(" {} {}", a->taps, a->group);
    if (const auto* a = std::get_if<Candidates>(&op.attributes)) line += fmt::format(" {} {} {}", a->top_k, a->multiplier, a->cap);
    if (const auto* a = std::get_if<Accept>(&op.attributes)) line += fmt::format(" {} {}", a->block, a->mask);
    lines.push_back(std::move(line));
  }
  for (const Weight& w : program.weights) lines.push_back(fmt::format("{} {}", w.name, fmt::join(w.shape, ",")));
  return lines;
}

TEST(DFlashConfig, FieldsOfDflashConfigMayStandAtTheRoot) {
  Pair pair = small_dflash();
  pair.draft["dflash_config"].update({{"output_multiplier", 0.5}, {"final_logit_softcapping", 30}, {"causal", true}});
  pair.draft.erase("is_causal");
  Pair flat = pair;
  flat.draft.erase("dflash_config");
  flat.draft.update(pair.draft["dflash_config"]);
  EXPECT_EQ(described(build(flat)), described(build(pair)));
  EXPECT_NE(described(build(pair)), described(build(small_dflash())));
}

TEST(DFlashConfig, LayersThatAreNotNamedAreSpreadEvenly) {
  Pair pair = small_dflash(), named = pair;
  pair.draft["dflash_config"].erase("target_layer_ids");
  named.draft["dflash_config"]["target_layer_ids"] = {1, 5};
  EXPECT_EQ(described(build(pair)), described(build(named)));
  pair.draft.erase("num_target_layers");
  EXPECT_THAT(cause_of([&] { build(pair); }), HasSubstr("target_layer_ids"));
}

// A draft of DFlash's first version: no convolutions, no selector, blocks of 16.
Pair first_version() {
  Pair pair = small_dflash();
  pair.draft.update({{"architectures", {"DFlashDraftModel"}}, {"block_size", 16}});
  pair.draft["dflash_config"] = {{"mask_token_id", 1000}, {"target_layer_ids", {1, 3, 6}}};
  pair.draft["layer_types"] = {"sliding_attention", "full_attention"};
  pair.draft.erase("is_causal");
  return pair;
}

TEST(FirstDFlash, HasNoConvolutionsAndNoSelectorAndGuessesFifteen) {
  const Pair pair = first_version();
  const Program program = build(pair);
  EXPECT_EQ(program.draft_block, 16);
  EXPECT_EQ(make_draft(pair.draft, "draft.json")->family(), "dflash");
  EXPECT_EQ(make_draft(small_dflash().draft, "draft.json")->family(), "dflash2");
  EXPECT_TRUE(of_draft<BlockConv>(program, OpKind::block_conv).empty());
  EXPECT_EQ(of_draft<SelectPath>(program, OpKind::select_path).at(0).rank, 0);
  const auto of_draft_checkpoint = [](const Weight& w) { return w.name.starts_with(kDraftPrefix); };
  EXPECT_EQ(std::count_if(program.weights.begin(), program.weights.end(), of_draft_checkpoint), 2 * 11 + 3);
}

std::vector<bool> causal(const json& draft) {
  std::vector<bool> of_layers;
  for (const auto& a : of_draft<AttendBlock>(build({first_version().target, draft}), OpKind::attend_block)) {
    of_layers.push_back(a.causal);
  }
  return of_layers;
}

TEST(FirstDFlash, IsCausalByTheRootThenByDflashConfigThenWhereALayerSlides) {
  json draft = first_version().draft;
  EXPECT_THAT(causal(draft), ElementsAre(true, false));
  draft["dflash_config"]["causal"] = false;
  EXPECT_THAT(causal(draft), ElementsAre(false, false));
  draft["dflash_config"]["causal"] = true;
  EXPECT_THAT(causal(draft), ElementsAre(true, true));
  draft["is_causal"] = false;
  EXPECT_THAT(causal(draft), ElementsAre(false, false));
  draft["is_causal"] = true;
  draft["dflash_config"]["causal"] = false;
  EXPECT_THAT(causal(draft), ElementsAre(true, true));
  draft = first_version().draft;
  draft.erase("layer_types");
  EXPECT_THAT(causal(draft), ElementsAre(false, false));
}

std::vector<int64_t> windows(const json& draft) {
  std::vector<int64_t> of_layers;
  for (const auto& a : of_draft<AttendBlock>(build({first_version().target, draft}), OpKind::attend_block)) {
    of_layers.push_back(a.window);
  }
  return of_layers;
}

TEST(FirstDFlash, HasAWindowWhereALayerSlidesOrUseSwaSaysSo) {
  json draft = first_version().draft;
  EXPECT_THAT(windows(draft), ElementsAre(20, 0));
  draft["use_sliding_window"] = false;
  EXPECT_THAT(windows(draft), ElementsAre(0, 0));
  draft["dflash_config"].update({{"use_swa", true}, {"swa_window_size", 7}});
  EXPECT_THAT(windows(draft), ElementsAre(7, 7));
  draft["dflash_config"].erase("swa_window_size");
  EXPECT_THAT(cause_of([&] { windows(draft); }), HasSubstr("dflash_config.swa_window_size"));
}

TEST(DSparkConfig, BlocksAreCausalUnlessASlidingLayerSaysOtherwise) {
  const Pair pair = small_dspark();
  const auto layers = [&](const json& draft) {
    return of_draft<AttendBlock>(build({pair.target, draft}), OpKind::attend_block);
  };
  for (const AttendBlock& a : layers(pair.draft)) {
    EXPECT_TRUE(a.causal && a.from_anchor);
    EXPECT_EQ(a.window, 32);
  }
  for (const AttendBlock& a : layers(changed(pair.draft, {"sliding_window_non_causal", true}))) EXPECT_FALSE(a.causal);
}

// Of a head of 32 numbers, by transformers 5.23.0 (_compute_yarn_parameters).
struct YarnCase {
  json rope;
  std::vector<float> frequencies;
  float amplitude;
};

const std::vector<YarnCase> kYarn = {
    {{{"rope_theta", 1e7}, {"factor", 4}, {"original_max_position_embeddings", 1024}},
     {1.000000000e+00f, 3.651741445e-01f, 1.133493260e-01f, 3.408772871e-02f, 9.780536406e-03f, 2.597526647e-03f,
      5.928434548e-04f, 2.164910838e-04f, 7.905694656e-05f, 2.886954826e-05f, 1.054241329e-05f, 3.849816039e-06f,
      1.405853368e-06f, 5.133812238e-07f, 1.874735602e-07f, 6.846049416e-08f},
     1.138629436f},
    {{{"rope_theta", 1e4}, {"factor", 8}, {"original_max_position_embeddings", 512}, {"beta_fast", 16}, {"beta_slow", 2},
      {"mscale", 1}, {"mscale_all_dim", 0.5}},
     {1.000000000e+00f, 5.623413324e-01f, 3.162277639e-01f, 1.467080563e-01f, 6.500000507e-02f, 2.671120875e-02f,
      9.486833587e-03f, 2.222849289e-03f, 1.249999972e-03f, 7.029266562e-04f, 3.952847328e-04f, 2.222849289e-04f,
      1.250000059e-04f, 7.029266271e-05f, 3.952847328e-05f, 2.222849253e-05f},
     1.094179988f},
    {{{"rope_theta", 1e4}, {"factor", 8}, {"original_max_position_embeddings", 512}, {"attention_factor", 1.25}},
     {1.000000000e+00f, 5.623413324e-01f, 2.766992748e-01f, 1.333709508e-01f, 6.249999627e-02f, 2.811706252e-02f,
      1.185854152e-02f, 4.445698578e-03f, 1.249999972e-03f, 7.029266562e-04f, 3.952847328e-04f, 2.222849289e-04f,
      1.250000059e-04f, 7.029266271e-05f, 3.952847328e-05f, 2.222849253e-05f},
     1.25f}};

void expect_yarn(const json& rope_parameters, const char* name, const YarnCase& want) {
  Pair pair = small_dflash();
  pair.draft.erase("rope_parameters");
  pair.draft[name] = rope_parameters;
  for (const Rope& rope : of_draft<Rope>(build(pair), OpKind::rope)) {
    const auto frequencies = rope_frequencies(rope);
    ASSERT_EQ(frequencies.size(), want.frequencies.size());
    for (size_t j = 0; j < frequencies.size(); ++j) {
      EXPECT_NEAR(frequencies[j], want.frequencies[j], 2e-6 * want.frequencies[j]) << "pair " << j;
    }
    EXPECT_FLOAT_EQ(rope.amplitude, want.amplitude);
  }
}

TEST(DraftConfig, YarnGivesTheFrequenciesAndTheAmplitudeOfTransformers) {
  for (const YarnCase& one : kYarn) {
    json rope = one.rope;
    rope["rope_type"] = "yarn";
    expect_yarn(rope, "rope_parameters", one);
    rope.erase("rope_type");
    rope["type"] = "yarn";
    expect_yarn(rope, "rope_scaling", one);
  }
}

TEST(DraftConfig, YarnWithoutAFactorStretchesToTheMostPositions) {
  json rope = kYarn[0].rope;
  rope.erase("factor");
  rope["rope_type"] = "yarn";
  expect_yarn(rope, "rope_parameters", kYarn[0]);  // max_position_embeddings is 4096
}

TEST(DraftConfig, WithoutYarnAHeadTurnsWholeAtItsOwnBase) {
  for (const Rope& rope : of_draft<Rope>(build(small_dflash()), OpKind::rope)) {
    EXPECT_EQ(rope.rotary, 32);
    EXPECT_EQ(rope.theta, 1e7);
    EXPECT_EQ(rope.yarn.factor, 1);
    EXPECT_EQ(rope.amplitude, 1);
  }
  for (const Rope& rope : of_draft<Rope>(build(small_dspark()), OpKind::rope)) EXPECT_EQ(rope.theta, 1e4);
}

TEST(DraftConfig, NormsHaveTheEpsilonOfTheDraft) {
  const Pair dflash = small_dflash(), dspark = small_dspark();
  for (const auto& [pair, field] : {std::pair{dflash, "rms_norm_eps"}, {dspark, "transformer_layer_config.rms_norm_eps"}}) {
    const Program program = build({pair.target, changed(pair.draft, {field, 0.125})});
    const auto norms = of_draft<RmsNorm>(program, OpKind::rms_norm);
    EXPECT_EQ(norms.size(), 2u + 2 * 5);  // of a layer: two, one of queries, and of keys of context and block
    for (const RmsNorm& norm : norms) EXPECT_EQ(norm.eps, 0.125f);
  }
}

int64_t draft_parameters(const Program& program) {
  int64_t sum = 0;
  for (const Weight& w : program.weights) {
    if (!w.name.starts_with(kDraftPrefix)) continue;
    int64_t elements = 1;
    for (const int64_t size : w.shape) elements *= size;
    sum += elements;
  }
  return sum;
}

TEST(RealDraft, OfQwen27BHasItsPublishedParametersOnEveryRankCount) {
  const Pair pair = real_dflash();
  for (const int ranks : {1, 2, 4, 8}) {
    const Program program = build(pair, ranks);
    EXPECT_EQ(program.ranks, ranks);
    EXPECT_EQ(program.draft_block, 8);
    EXPECT_EQ(draft_parameters(program), 1'924'404'480) << ranks;
  }
}

// The confidence head is not read.
TEST(RealDraft, OfKimiK3HasItsPublishedParametersOnEveryRankCount) {
  const Pair pair = real_dspark();
  for (const int ranks : {1, 2, 4, 8, 16, 32}) {
    const Program program = build(pair, ranks);
    EXPECT_EQ(program.ranks, ranks);
    EXPECT_EQ(program.draft_block, 8);
    EXPECT_EQ(draft_parameters(program), 4'744'900'481 - 7'425) << ranks;
  }
}

TEST(RealDraft, IgnoresOnlyTheTensorsThatAreNotNeeded) {
  const auto dspark = make_draft(real_dspark().draft, "draft.json");
  for (const char* name : {"confidence_head.proj.weight", "confidence_head.proj.bias"}) EXPECT_TRUE(dspark->ignores(name));
  for (const char* name : {"layers.5.mlp.up_proj.weight", "markov_head.bias"}) EXPECT_FALSE(dspark->ignores(name));
  EXPECT_FALSE(make_draft(real_dflash().draft, "draft.json")->ignores("mask_embedding"));
}

}  // namespace
}  // namespace megalith
