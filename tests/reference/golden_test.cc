// The reference against data made by an independent implementation (tests/data/qwen-a), and the CPU machine against the
// reference on the same checkpoint.

#include "tests/support/golden.h"

#include <algorithm>

#include <gtest/gtest.h>

#include "reference/reference.h"
#include "tests/support/loaded.h"

namespace megalith {
namespace {

constexpr double kTolerance = 1e-4;

struct Small {
  Checkpoint checkpoint{test_data("qwen-a/target")};
  std::unique_ptr<Model> model =
      make_model(read_json(test_data("qwen-a/target/config.json")), test_data("qwen-a/target/config.json").string());
  std::vector<int32_t> prompt = read_json(test_data("qwen-a/golden.json"))["prompt"].get<std::vector<int32_t>>();

  Reference reference(int ranks) const {
    Reference r(model->build({ranks, true, checkpoint.catalog()}), 1, 256);
    r.load(CheckpointTape(checkpoint));
    return r;
  }
};

StepArgs rows_of(const std::vector<int32_t>& tokens, size_t first, size_t count) {
  StepArgs step;
  step.add_run(0, static_cast<int32_t>(first),
               {tokens.begin() + static_cast<int64_t>(first), tokens.begin() + static_cast<int64_t>(first + count)});
  for (size_t row = 0; row < count; ++row) step.choose(static_cast<int32_t>(row), {});
  return step;
}

TEST(ReferenceGolden, LogitsOfThePromptsFirstRows) {
  const Small small;
  const SafetensorsFile golden(test_data("qwen-a/golden.safetensors"));
  const auto want = golden_tensor(golden, "f32.prompt_logits");
  const size_t rows = std::min<size_t>(small.prompt.size(), 12);
  Reference reference = small.reference(1);
  reference.run(rows_of(small.prompt, 0, rows));
  const auto& logits = reference.read(reference.program().output("logits"));
  ASSERT_EQ(logits.size(), rows * 1024);
  EXPECT_LT(relative_error(logits.data(), want.data(), logits.size()), kTolerance);
}

TEST(ReferenceGolden, LogitsOfTheLastRowAndTheGreedyToken) {
  const Small small;
  const SafetensorsFile golden(test_data("qwen-a/golden.safetensors"));
  const auto want = golden_tensor(golden, "f32.prompt_logits");
  const auto greedy = read_json(test_data("qwen-a/golden.json"))["runs"]["f32"]["greedy"].get<std::vector<int32_t>>();
  Reference reference = small.reference(2);
  const size_t cut = small.prompt.size() / 2;
  reference.run(rows_of(small.prompt, 0, cut));
  reference.run(rows_of(small.prompt, cut, small.prompt.size() - cut));
  const auto& logits = reference.read(reference.program().output("logits"));
  EXPECT_LT(relative_error(logits.data() + logits.size() - 1024, want.data() + want.size() - 1024, 1024), kTolerance);
  EXPECT_EQ(static_cast<int32_t>(reference.read(reference.program().output("tokens")).back()), greedy[0]);
}

TEST(ReferenceGolden, TheCpuMachineAgreesInEveryLayer) {
  const Small small;
  for (const int ranks : {1, 4}) {
    const Loaded loaded =
        load_model(test_data("qwen-a/target"), ranks, {.threads = 2, .max_rows = 64, .context = 256}, true);
    Reference reference = small.reference(ranks);
    for (const auto& [first, count] : {std::pair<size_t, size_t>{0, 9}, {9, 1}, {10, 6}}) {
      const StepArgs step = rows_of(small.prompt, first, count);
      reference.run(step);
      loaded.machine->run(step);
      for (const auto& [name, value] : reference.program().outputs) {
        const auto got = loaded.machine->read(value);
        const auto& want = reference.read(value);
        ASSERT_EQ(got.size(), want.size()) << name;
        EXPECT_LT(relative_error(got.data(), want.data(), want.size()), 1e-5) << name << ", " << ranks << " ranks";
      }
    }
  }
}

TEST(Reference, KeepsEveryValueOfEveryRank) {
  const Small small;
  Reference reference = small.reference(2);
  reference.run(rows_of(small.prompt, 0, 2));
  const Program& program = reference.program();
  for (const Op& op : program.ops) {
    if (!op.output.valid()) continue;
    const auto size = static_cast<size_t>(2 * program.info(op.output).width);
    EXPECT_EQ(reference.read(op.output, 0).size(), size) << op.label;
    EXPECT_EQ(reference.read(op.output, 1).size(), op.once() ? 0 : size) << op.label;
  }
}

}  // namespace
}  // namespace megalith
