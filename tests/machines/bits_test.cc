// The contract on bits: what a row gives depends on its model, its sequence's tokens and its sampling only. All
// comparisons are of equal bits, on all logits and hidden states of the small checkpoints.

#include <algorithm>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "machines/cpu/instruction_set.h"
#include "tests/machines/harness.h"
#include "tests/support/golden.h"
#include "tests/support/loaded.h"

namespace megalith {
namespace {

constexpr int kTokens = 72;

// The checkpoints: what mixes tokens, and how their weights are dealt to ranks, differs.
struct Small {
  std::string name;
  std::vector<int> ranks;  // beside 1
};

class Bits : public ::testing::TestWithParam<Small> {
 protected:
  static Loaded load(int ranks, int threads, int max_sequences = 3, int context = 304) {
    const MachineOptions options = {
        .threads = threads, .max_rows = 320, .max_sequences = max_sequences, .context = context};
    return load_model(test_data(GetParam().name + "-a/target"), ranks, options, true);
  }
};

INSTANTIATE_TEST_SUITE_P(Checkpoints, Bits, ::testing::Values(Small{"qwen", {2, 4, 8}}, Small{"kimi", {2}}),
                         [](const auto& info) { return info.param.name; });

// A token that all of the checkpoints' vocabularies have.
int32_t token(int sequence, int position) {
  constexpr int kVocabulary = 512;
  const float x = random_number(static_cast<uint64_t>(77 + sequence), static_cast<uint64_t>(position));
  return static_cast<int32_t>((x + 1) / 2 * kVocabulary) % kVocabulary;
}

void add(StepArgs& step, int slot, int text, int position, int rows) {
  std::vector<int32_t> ids;
  for (int i = 0; i < rows; ++i) ids.push_back(token(text, position + i));
  step.add_run(slot, position, ids);
}

// Appends every output of rows [first, first + count) of the last step, all of which were chosen.
void collect(const Machine& machine, int first, int count, std::vector<float>& out) {
  for (const auto& [name, value] : machine.program().outputs) {
    const auto read = machine.read(value);
    const int64_t width = machine.program().info(value).width;
    out.insert(out.end(), read.begin() + first * width, read.begin() + (first + count) * width);
  }
}

// One text, token by token: a vector for each row. The measure of all other ways.
std::vector<std::vector<float>> token_by_token(Machine& machine, int text, int tokens) {
  std::vector<std::vector<float>> rows;
  for (int position = 0; position < tokens; ++position) {
    StepArgs step;
    add(step, 0, text, position, 1);
    step.choose(0, {.temperature = 0.9f, .seed = 4});
    machine.run(step);
    collect(machine, 0, 1, rows.emplace_back());
  }
  return rows;
}

// The same text in steps of `cut` rows.
std::vector<std::vector<float>> in_cuts(Machine& machine, int text, int tokens, int cut) {
  std::vector<std::vector<float>> rows;
  for (int position = 0; position < tokens; position += cut) {
    const int count = std::min(cut, tokens - position);
    StepArgs step;
    add(step, 0, text, position, count);
    for (int row = 0; row < count; ++row) step.choose(row, {.temperature = 0.9f, .seed = 4});
    machine.run(step);
    for (int row = 0; row < count; ++row) collect(machine, row, 1, rows.emplace_back());
  }
  return rows;
}

void expect_same(const std::vector<std::vector<float>>& got, const std::vector<std::vector<float>>& want,
                 const std::string& what) {
  ASSERT_EQ(got.size(), want.size()) << what;
  for (size_t row = 0; row < got.size(); ++row) ASSERT_TRUE(same_bits(got[row], want[row])) << what << ", row " << row;
}

TEST_P(Bits, ThePromptsCutDoesNotMatter) {
  const Loaded loaded = load(1, 2);
  const auto want = token_by_token(*loaded.machine, 0, kTokens);
  for (const int cut : {2, 3, 7, 8, 16, 33, kTokens}) {
    expect_same(in_cuts(*loaded.machine, 0, kTokens, cut), want, "cuts of " + std::to_string(cut));
  }
}

TEST_P(Bits, TheCutDoesNotMatterBeyondAChunkOfPositions) {
  const Loaded loaded = load(2, 2);
  const auto want = in_cuts(*loaded.machine, 1, 300, 300);
  for (const int cut : {1, 9, 128}) {
    expect_same(in_cuts(*loaded.machine, 1, 300, cut), want, "cuts of " + std::to_string(cut));
  }
}

// Rows far from the beginning of their text: every span of positions has chunks.
std::vector<std::vector<float>> far_rows(Machine& machine, int cut) {
  StepArgs begin;
  add(begin, 0, 0, 0, 200);
  machine.run(begin);
  std::vector<std::vector<float>> rows;
  for (int done = 0; done < 6; done += cut) {
    StepArgs step;
    add(step, 0, 0, 3900 + done, cut);
    for (int row = 0; row < cut; ++row) step.choose(row, {.temperature = 0.9f, .seed = 4});
    machine.run(step);
    for (int row = 0; row < cut; ++row) collect(machine, row, 1, rows.emplace_back());
  }
  return rows;
}

TEST_P(Bits, NothingMattersFarIntoAContextWhereWorkersShareARow) {
  const auto want = far_rows(*load(1, 1, 1, 4096).machine, 1);
  for (const int threads : {2, 5, 16}) {
    expect_same(far_rows(*load(1, threads, 1, 4096).machine, 3), want, std::to_string(threads) + " threads");
  }
  expect_same(far_rows(*load(2, 3, 1, 4096).machine, 6), want, "2 ranks");
  use_instruction_set(InstructionSet::avx2);
  expect_same(far_rows(*load(1, 3, 1, 4096).machine, 2), want, "AVX2");
  use_instruction_set(InstructionSet::best);
}

TEST_P(Bits, TheThreadsDoNotMatter) {
  const auto want = in_cuts(*load(1, 1).machine, 0, kTokens, 13);
  for (const int threads : {2, 3, 4}) {
    expect_same(in_cuts(*load(1, threads).machine, 0, kTokens, 13), want, std::to_string(threads) + " threads");
    expect_same(in_cuts(*load(2, threads).machine, 0, kTokens, 13), want,
                std::to_string(threads) + " threads, 2 ranks");
  }
}

TEST_P(Bits, TheRanksDoNotMatter) {
  const auto want = in_cuts(*load(1, 2).machine, 0, kTokens, 13);
  for (const int ranks : GetParam().ranks) {
    expect_same(in_cuts(*load(ranks, 2).machine, 0, kTokens, 13), want, std::to_string(ranks) + " ranks");
    expect_same(token_by_token(*load(ranks, 3).machine, 0, kTokens / 3), {want.begin(), want.begin() + kTokens / 3},
                std::to_string(ranks) + " ranks, token by token");
  }
}

TEST_P(Bits, TheOtherRowsOfAStepDoNotMatter) {
  const Loaded loaded = load(2, 2);
  Machine& machine = *loaded.machine;
  std::vector<std::vector<std::vector<float>>> want;
  for (int text = 0; text < 3; ++text) want.push_back(token_by_token(machine, text, 40));

  // Three texts side by side, in other slots, at other paces; which comes first changes from step to step.
  int at[3] = {0, 0, 0};
  for (int s = 0; at[0] < 40 || at[1] < 40 || at[2] < 40; ++s) {
    StepArgs step;
    std::vector<std::pair<int, int>> rows;  // text, position
    for (int i = 0; i < 3; ++i) {
      const int text = (i + s) % 3;
      const int count = std::min(1 + (s + text * 2) % 5, 40 - at[text]);
      if (count <= 0) continue;
      add(step, 2 - text, text, at[text], count);
      for (int row = 0; row < count; ++row) rows.emplace_back(text, at[text]++);
    }
    for (size_t row = 0; row < rows.size(); ++row)
      step.choose(static_cast<int32_t>(row), {.temperature = 0.9f, .seed = 4});
    machine.run(step);
    for (size_t row = 0; row < rows.size(); ++row) {
      std::vector<float> got;
      collect(machine, static_cast<int>(row), 1, got);
      const auto [text, position] = rows[row];
      ASSERT_TRUE(same_bits(got, want[static_cast<size_t>(text)][static_cast<size_t>(position)]))
          << text << " at " << position;
    }
  }
}

TEST_P(Bits, TheStatesDoNotDependOnTheCut) {
  const Loaded a = load(2, 1);
  const Loaded b = load(2, 4);
  in_cuts(*a.machine, 0, 50, 1);
  in_cuts(*b.machine, 0, 50, 17);
  for (int state = 0; state < static_cast<int>(a.machine->program().states.size()); ++state) {
    for (const int rank : {0, 1}) {
      EXPECT_TRUE(same_bits(a.machine->read_state(state, rank, 0, 50), b.machine->read_state(state, rank, 0, 50)))
          << state;
    }
  }
}

TEST_P(Bits, TheInstructionSetDoesNotMatter) {
  if (!use_instruction_set(InstructionSet::avx512)) GTEST_SKIP() << "no AVX-512 here";
  const auto wide = in_cuts(*load(1, 2).machine, 0, kTokens, 13);
  const auto wide_row = token_by_token(*load(2, 2).machine, 0, 20);
  ASSERT_TRUE(use_instruction_set(InstructionSet::avx2));
  const auto narrow = in_cuts(*load(1, 2).machine, 0, kTokens, 13);
  const auto narrow_row = token_by_token(*load(2, 2).machine, 0, 20);
  use_instruction_set(InstructionSet::best);
  expect_same(narrow, wide, "AVX2");
  expect_same(narrow_row, wide_row, "AVX2, token by token");
}

}  // namespace
}  // namespace megalith
