// Kimi K3 against data made by an independent implementation (tests/data/kimi-a), and the contract on bits for all rank
// counts of the family.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "reference/reference.h"
#include "tests/support/golden.h"
#include "tests/support/loaded.h"
#include "tests/support/random_weights.h"
#include "tests/support/sanitized.h"
#include "tests/support/transcript.h"

namespace megalith {
namespace {

constexpr double kTolerance = 1e-4;
const std::filesystem::path kTarget = test_data("kimi-a/target");

struct Golden {
  SafetensorsFile file{test_data("kimi-a/golden.safetensors")};
  nlohmann::json json = read_json(test_data("kimi-a/golden.json"));
  std::vector<int32_t> prompt = json["prompt_ids"].get<std::vector<int32_t>>();
  std::vector<int32_t> greedy = json["greedy_ids"].get<std::vector<int32_t>>();
  std::vector<float> tensor(const std::string& name) const { return golden_tensor(file, name); }
};

void expect_close(const std::vector<float>& got, const std::vector<float>& want, const std::string& what) {
  ASSERT_EQ(got.size(), want.size()) << what;
  EXPECT_LT(relative_error(got.data(), want.data(), want.size()), kTolerance) << what;
}

std::vector<float> last_row(const Machine& machine, const std::string& output) {
  const Value value = machine.program().output(output);
  const auto rows = machine.read(value);
  return {rows.end() - machine.program().info(value).width, rows.end()};
}

TEST(KimiGolden, LogitsAndGreedyTextEqualTheReferenceImplementation) {
  const Golden golden;
  const Loaded loaded = load_model(kTarget, 1, {.threads = 2, .max_rows = 64, .context = 256});
  const Transcript t = transcribe(*loaded.machine, golden.prompt, 64, golden.greedy.size());
  expect_close(t.prompt_logits, golden.tensor("prompt_logits_f32"), "prompt");
  expect_close(t.greedy_logits, golden.tensor("greedy_logits_f32"), "greedy");
  EXPECT_EQ(t.greedy, golden.greedy);
}

TEST(KimiGolden, TheStreamEnteringEveryLayerEqualsTheReferenceImplementation) {
  const Golden golden;
  const Loaded loaded = load_model(kTarget, 1, {.threads = 2, .max_rows = 64, .context = 64}, true);
  prefill(*loaded.machine, golden.prompt);
  expect_close(last_row(*loaded.machine, "hidden.0"), golden.tensor("embed_last"), "embedding");
  for (int layer = 0; layer < 8; ++layer) {
    const auto got = last_row(*loaded.machine, fmt::format("hidden.{}", layer + 1));
    expect_close(got, golden.tensor(fmt::format("layer{}.out", layer)), fmt::format("layer {}", layer));
  }
}

TEST(KimiGolden, EveryRowChoosesTheExpertsOfTheReferenceImplementation) {
  const Golden golden;
  const Loaded loaded = load_model(kTarget, 1, {.threads = 2, .max_rows = 64, .context = 64});
  prefill(*loaded.machine, golden.prompt);
  for (int layer = 1; layer < 8; ++layer) {
    const auto routing = last_row(*loaded.machine, fmt::format("experts.{}", layer));
    const auto& stored = golden.file.tensors().at(fmt::format("layer{}.topk_ids", layer));
    std::vector<int32_t> ids(4);
    std::memcpy(ids.data(), golden.file.data(stored).data(), 16);
    const auto weights = golden.tensor(fmt::format("layer{}.topk_w", layer));
    for (size_t slot = 0; slot < 4; ++slot) {
      const auto id = static_cast<int32_t>(routing[slot]);
      const auto found = std::find(ids.begin(), ids.end(), id);
      ASSERT_NE(found, ids.end()) << "layer " << layer << ", expert " << id;
      EXPECT_NEAR(routing[4 + slot], weights[static_cast<size_t>(found - ids.begin())], kTolerance);
    }
  }
}

// The reference keeps [3, (q, k, v), heads, dim]; here each of the three has its own state [3, heads · dim].
std::vector<float> conv_history(const std::vector<float>& all, size_t which) {
  const size_t width = all.size() / 9;
  std::vector<float> one;
  for (size_t t = 0; t < 3; ++t) {
    const auto at = all.begin() + static_cast<int64_t>((t * 3 + which) * width);
    one.insert(one.end(), at, at + static_cast<int64_t>(width));
  }
  return one;
}

TEST(KimiGolden, StatesAfterThePromptEqualTheReferenceImplementation) {
  const Golden golden;
  const auto positions = static_cast<int>(golden.prompt.size());
  const Loaded two = load_model(kTarget, 2, {.threads = 2, .max_rows = 64, .context = 64});
  const Loaded one = load_model(kTarget, 1, {.threads = 1, .max_rows = 64, .context = 64});
  prefill(*two.machine, golden.prompt);
  prefill(*one.machine, golden.prompt);
  for (const int layer : {0, 1, 2, 4, 5}) {
    expect_close(joined_state(*two.machine, fmt::format("L{}.rec", layer), positions),
                 golden.tensor(fmt::format("cache{}.state", layer)), fmt::format("state of layer {}", layer));
    for (size_t which = 0; which < 3; ++which) {
      expect_close(joined_state(*one.machine, fmt::format("L{}.conv_{}", layer, "qkv"[which]), positions),
                   conv_history(golden.tensor(fmt::format("cache{}.conv", layer)), which),
                   fmt::format("convolution {} of layer {}", which, layer));
    }
  }
  for (const int layer : {3, 6, 7}) {
    expect_close(joined_state(*one.machine, fmt::format("L{}.latent", layer), positions),
                 golden.tensor(fmt::format("cache{}.latent", layer)), fmt::format("latent rows of layer {}", layer));
  }
}

TEST(KimiGolden, TheReferenceFormsGiveTheSameLogits) {
  const Golden golden;
  const Checkpoint checkpoint(kTarget);
  const auto model = make_model(read_json(kTarget / "config.json"), "config.json");
  const Loaded loaded = load_model(kTarget, 2, {.threads = 2, .max_rows = 64, .context = 64}, true);
  Reference reference(model->build({2, true, checkpoint.catalog()}), 1, 64);
  reference.load(CheckpointTape(checkpoint));
  StepArgs step;
  step.add_run(0, 0, golden.prompt);
  for (int32_t row = 0; row < static_cast<int32_t>(golden.prompt.size()); ++row) step.choose(row, {});
  reference.run(step);
  loaded.machine->run(step);
  expect_close(reference.read(reference.program().output("logits")), golden.tensor("prompt_logits_f32"), "reference");
  for (const auto& [name, value] : reference.program().outputs) {
    const auto got = loaded.machine->read(value);
    const auto& want = reference.read(value);
    ASSERT_EQ(got.size(), want.size()) << name;
    EXPECT_LT(relative_error(got.data(), want.data(), want.size()), 1e-5) << name;
  }
}

TEST(KimiContract, RanksThreadsAndRowsPerStepGiveTheSameBits) {
  const Golden golden;
  std::vector<int32_t> prompt = golden.prompt;
  for (int i = 0; i < 70; ++i) prompt.push_back((i * 37 + 5) % 500);
  const MachineOptions options = {.threads = 1, .max_rows = 96, .context = 256};
  const Transcript expected = transcribe(*load_model(kTarget, 1, options).machine, prompt, 96, 8);
  for (const int ranks : {1, 2}) {
    for (const int threads : {1, 3}) {
      const Loaded loaded = load_model(kTarget, ranks, {.threads = threads, .max_rows = 96, .context = 256});
      for (const size_t rows : {96, 1, 7, 40}) {
        if (rows == 1 && threads == 1) continue;
        if (kSanitized && rows != (threads == 1 ? 40 : 7)) continue;
        const Transcript t = transcribe(*loaded.machine, prompt, rows, 8);
        const std::string how = fmt::format("{} ranks, {} threads, {} rows", ranks, threads, rows);
        EXPECT_TRUE(same_bits(t.prompt_logits, expected.prompt_logits)) << how;
        EXPECT_TRUE(same_bits(t.greedy_logits, expected.greedy_logits)) << how;
        EXPECT_EQ(t.greedy, expected.greedy) << how;
      }
    }
  }
}

// A model with 32 small heads and 64 experts, so that 32 ranks are possible: 8 groups of experts, in 4 parts each.
nlohmann::json many_heads() {
  nlohmann::json config = read_json(kTarget / "config.json");
  nlohmann::json& text = config.contains("text_config") ? config["text_config"] : config;
  text["num_hidden_layers"] = 3;
  text["linear_attn_config"]["full_attn_layers"] = {2};
  text["linear_attn_config"]["kda_layers"] = {1, 3};
  text["linear_attn_config"]["num_heads"] = 32;
  text["linear_attn_config"]["head_dim"] = 16;
  text["num_attention_heads"] = 32;
  text["num_key_value_heads"] = 32;
  text["kv_lora_rank"] = 32;
  text["moe_intermediate_size"] = 128;
  text["num_experts"] = 64;
  text["num_experts_per_token"] = 6;
  text["attn_res_block_size"] = 2;
  return config;
}

TEST(KimiContract, ThirtyTwoRanksGiveTheBitsOfOne) {
  const auto model = make_model(many_heads(), "config.json");
  ASSERT_EQ(model->allowed_ranks(), (std::vector<int>{1, 2, 4, 8, 16, 32}));
  const RandomWeights weights;
  std::vector<int32_t> prompt;
  for (int i = 0; i < 15; ++i) prompt.push_back((i * 91 + 3) % 512);
  Transcript expected;
  for (const int ranks : {1, 2, 4, 8, 16, 32}) {
    if (kSanitized && ranks != 1 && ranks != 8 && ranks != 32) continue;
    const auto machine = make_cpu_machine(model->build({ranks, false, {}}), {.threads = 3, .max_rows = 15, .context = 64});
    machine->load(weights, nullptr);
    for (const size_t rows : {15, 4}) {
      if (rows == 4 && ranks != 1 && ranks != 32) continue;
      const Transcript t = transcribe(*machine, prompt, rows, 4);
      if (expected.greedy.empty()) expected = t;
      EXPECT_TRUE(same_bits(t.prompt_logits, expected.prompt_logits)) << ranks << " ranks, " << rows << " rows";
      EXPECT_TRUE(same_bits(t.greedy_logits, expected.greedy_logits)) << ranks << " ranks, " << rows << " rows";
    }
  }
  const auto [least, most] = std::minmax_element(expected.prompt_logits.begin(), expected.prompt_logits.end());
  EXPECT_GT(*most - *least, 0.1f);  // it does compute something
}

}  // namespace
}  // namespace megalith
