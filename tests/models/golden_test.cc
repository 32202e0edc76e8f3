#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "tests/support/golden.h"
#include "tests/support/loaded.h"
#include "tests/support/sanitized.h"
#include "tests/support/transcript.h"

namespace megalith {
namespace {

constexpr double kTolerance = 1e-4;

struct Golden {
  SafetensorsFile file{test_data("qwen-a/golden.safetensors")};
  nlohmann::json json = read_json(test_data("qwen-a/golden.json"));
  std::vector<int32_t> prompt = json["prompt"].get<std::vector<int32_t>>();
  std::vector<int32_t> greedy = json["runs"]["f32"]["greedy"].get<std::vector<int32_t>>();
  std::vector<float> tensor(const std::string& name) const { return golden_tensor(file, "f32." + name); }
};

TEST(QwenGolden, LogitsAndGreedyTextEqualTheReferenceImplementation) {
  const Golden golden;
  const Loaded loaded = load_model(test_data("qwen-a/target"), 1, {.threads = 2, .max_rows = 64, .context = 256});
  const Transcript t = transcribe(*loaded.machine, golden.prompt, 64, golden.greedy.size());
  const auto prompt_logits = golden.tensor("prompt_logits");
  const auto greedy_logits = golden.tensor("greedy_logits");
  ASSERT_EQ(t.prompt_logits.size(), prompt_logits.size());
  ASSERT_EQ(t.greedy_logits.size(), greedy_logits.size());
  EXPECT_LT(relative_error(t.prompt_logits.data(), prompt_logits.data(), prompt_logits.size()), kTolerance);
  EXPECT_LT(relative_error(t.greedy_logits.data(), greedy_logits.data(), greedy_logits.size()), kTolerance);
  EXPECT_EQ(t.greedy, golden.greedy);
}

TEST(QwenGolden, StatesAfterThePromptEqualTheReferenceImplementation) {
  const Golden golden;
  const Loaded loaded = load_model(test_data("qwen-a/target"), 2, {.threads = 2, .max_rows = 64, .context = 64});
  prefill(*loaded.machine, golden.prompt);
  const auto positions = static_cast<int>(golden.prompt.size());
  for (const int layer : {0, 1, 2, 4, 5, 6}) {
    const auto expected = golden.tensor(fmt::format("layer{}.rec_state", layer));
    const auto found = joined_state(*loaded.machine, fmt::format("L{}.rec", layer), positions);
    ASSERT_EQ(found.size(), expected.size());
    EXPECT_LT(relative_error(found.data(), expected.data(), found.size()), kTolerance) << "layer " << layer;
  }
  for (const int layer : {3, 7}) {
    for (const char* part : {"k", "v"}) {
      const auto expected = golden.tensor(fmt::format("layer{}.{}", layer, part));
      const auto found = joined_state(*loaded.machine, fmt::format("L{}.{}", layer, part), positions);
      ASSERT_EQ(found.size(), expected.size());
      EXPECT_LT(relative_error(found.data(), expected.data(), found.size()), kTolerance) << layer << part;
    }
  }
}

// The reference keeps [channels, 4] with the newest last; a step needs the last three, which are kept as [3, channels].
TEST(QwenGolden, ConvolutionHistoryEqualsTheReferenceImplementation) {
  const Golden golden;
  const Loaded loaded = load_model(test_data("qwen-a/target"), 1, {.threads = 1, .max_rows = 64, .context = 64});
  prefill(*loaded.machine, golden.prompt);
  for (const int layer : {0, 1, 2, 4, 5, 6}) {
    const auto expected = golden.tensor(fmt::format("layer{}.conv_state", layer));
    const auto found = joined_state(*loaded.machine, fmt::format("L{}.conv", layer), 0);
    const size_t channels = expected.size() / 4;
    ASSERT_EQ(found.size(), 3 * channels);
    std::vector<float> turned(found.size());
    for (size_t c = 0; c < channels; ++c) {
      for (size_t t = 0; t < 3; ++t) turned[t * channels + c] = expected[c * 4 + t + 1];
    }
    EXPECT_LT(relative_error(found.data(), turned.data(), found.size()), kTolerance) << "layer " << layer;
  }
}

TEST(QwenGolden, HiddenStatesOfEveryLayerEqualTheReferenceImplementation) {
  const Golden golden;
  const Loaded loaded = load_model(test_data("qwen-a/target"), 1, {.threads = 2, .max_rows = 64, .context = 64}, true);
  prefill(*loaded.machine, golden.prompt);
  const auto expected = golden.tensor("hidden_prompt_last");  // the last entry is after the final norm
  const auto layers = static_cast<size_t>(loaded.model->layers());
  const size_t size = expected.size() / (layers + 1);
  for (size_t i = 0; i < layers; ++i) {
    const auto rows = loaded.machine->read(loaded.machine->program().output(fmt::format("hidden.{}", i)));
    EXPECT_LT(relative_error(rows.data() + rows.size() - size, expected.data() + i * size, size), kTolerance) << i;
  }
}

TEST(QwenGolden, LongPromptEqualsTheReferenceImplementation) {
  const SafetensorsFile file(test_data("qwen-a/long.safetensors"));
  const auto prompt = read_json(test_data("qwen-a/long.json"))["prompt"].get<std::vector<int32_t>>();
  const Loaded loaded = load_model(test_data("qwen-a/target"), 1, {.threads = 2, .max_rows = 200, .context = 256});
  const Transcript t = transcribe(*loaded.machine, prompt, 200, 1);
  const auto last = golden_tensor(file, "f32.logits_last16");
  EXPECT_LT(relative_error(t.prompt_logits.data() + t.prompt_logits.size() - last.size(), last.data(), last.size()), kTolerance);
  const auto& argmax = file.tensors().at("f32.argmax");
  const size_t vocabulary = t.prompt_logits.size() / prompt.size();
  for (size_t row = 0; row < prompt.size(); ++row) {
    const float* logits = t.prompt_logits.data() + row * vocabulary;
    int32_t expected = 0;
    std::memcpy(&expected, file.data(argmax).data() + row * 4, 4);
    EXPECT_EQ(std::max_element(logits, logits + vocabulary) - logits, expected) << "row " << row;
  }
}

TEST(Contract, RanksThreadsAndRowsPerStepGiveTheSameBits) {
  const auto prompt = read_json(test_data("qwen-a/long.json"))["prompt"].get<std::vector<int32_t>>();
  const MachineOptions options = {.threads = 1, .max_rows = 160, .context = 256};
  const Loaded first = load_model(test_data("qwen-a/target"), 1, options);
  const Transcript expected = transcribe(*first.machine, prompt, 160, 8);
  for (const int ranks : {1, 2, 4, 8}) {
    for (const int threads : {1, 2, 3}) {
      const Loaded loaded = load_model(test_data("qwen-a/target"), ranks, {.threads = threads, .max_rows = 160, .context = 256});
      for (const size_t rows : {160, 1, 7, 64}) {
        if (rows == 1 && threads != 2) continue;
        if (kSanitized && rows != (threads == 1 ? 160 : threads == 2 ? 7 : 64)) continue;
        const Transcript t = transcribe(*loaded.machine, prompt, rows, 8);
        EXPECT_TRUE(same_bits(t.prompt_logits, expected.prompt_logits)) << ranks << " ranks, " << threads << " threads, " << rows << " rows";
        EXPECT_TRUE(same_bits(t.greedy_logits, expected.greedy_logits)) << ranks << " ranks, " << threads << " threads, " << rows << " rows";
        EXPECT_EQ(t.greedy, expected.greedy);
      }
    }
  }
}

}  // namespace
}  // namespace megalith
