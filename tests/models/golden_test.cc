#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "tests/support/golden.h"
#include "tests/support/loaded.h"

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

// All logits of a prompt, cut into steps of `rows`, and then of the greedy continuation, row by row.
struct Transcript {
  std::vector<float> prompt_logits, greedy_logits;
  std::vector<int32_t> greedy;
};

void run_rows(Machine& machine, StepArgs& step, std::vector<float>& logits) {
  machine.run(step);
  const auto read = machine.read(machine.program().output("logits"));
  logits.insert(logits.end(), read.begin(), read.end());
}

int32_t last_token(const Machine& machine) {
  return static_cast<int32_t>(machine.read(machine.program().output("tokens")).back());
}

Transcript transcribe(Machine& machine, const std::vector<int32_t>& prompt, size_t rows_per_step, size_t n_greedy) {
  Transcript t;
  StepArgs step;
  for (size_t at = 0; at < prompt.size(); at += rows_per_step) {
    step.clear();
    const size_t end = std::min(prompt.size(), at + rows_per_step);
    step.add_run(0, static_cast<int32_t>(at), {prompt.begin() + static_cast<int64_t>(at), prompt.begin() + static_cast<int64_t>(end)});
    for (size_t row = 0; row < end - at; ++row) step.choose(static_cast<int32_t>(row), {});
    run_rows(machine, step, t.prompt_logits);
  }
  const size_t vocabulary = t.prompt_logits.size() / prompt.size();
  t.greedy_logits.assign(t.prompt_logits.end() - static_cast<int64_t>(vocabulary), t.prompt_logits.end());
  t.greedy.push_back(last_token(machine));
  while (t.greedy.size() < n_greedy) {
    step.clear();
    step.add_run(0, static_cast<int32_t>(prompt.size() + t.greedy.size() - 1), {t.greedy.back()});
    step.choose(0, {});
    run_rows(machine, step, t.greedy_logits);
    t.greedy.push_back(last_token(machine));
  }
  return t;
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * 4) == 0;
}

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

}  // namespace
}  // namespace megalith
