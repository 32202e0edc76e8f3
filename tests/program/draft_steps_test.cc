// Where the blocks of a draft begin: after the guesses that are right, at the choice that follows them.

#include "program/draft_steps.h"

#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace megalith {
namespace {

using ::testing::ElementsAre;
using ::testing::ElementsAreArray;
using ::testing::IsEmpty;

constexpr int kBlock = 4;
constexpr int32_t kMask = 99;

// A run whose rows are all chosen where it is speculative, else its last one.
void add(StepArgs& step, int sequence, int position, const std::vector<int32_t>& tokens, bool speculative,
         bool draft = true, float temperature = 0) {
  const int32_t first = step.add_run(sequence, position, tokens, 0, speculative);
  const auto rows = static_cast<int32_t>(tokens.size());
  for (int32_t i = speculative ? 0 : rows - 1; i < rows; ++i) step.choose(first + i, {.temperature = temperature});
  step.runs.back().draft = draft;
}

// What a step leads to, given the choices of its chosen rows.
struct Begun {
  DraftSteps drafts;
  std::vector<float> accepted;

  Begun(const StepArgs& step, const std::vector<float>& choices, int block = kBlock) {
    drafts.prepare(step, block);
    accepted.resize(drafts.blocks.rows.size(), -1);
    drafts.begin(step, choices.data(), kMask, accepted.data());
  }

  std::vector<int32_t> tokens() const {
    std::vector<int32_t> tokens;
    for (const Row& row : drafts.rows.rows) tokens.push_back(row.token);
    return tokens;
  }
  std::vector<int32_t> positions() const {
    std::vector<int32_t> positions;
    for (const Row& row : drafts.rows.rows) positions.push_back(row.position);
    return positions;
  }
};

TEST(DraftSteps, ABlockFollowsTheLastRowOfAPlainRun) {
  StepArgs step;
  add(step, 2, 10, {5, 6, 7}, false);
  const Begun begun(step, {8});
  EXPECT_THAT(begun.accepted, ElementsAre(0));
  EXPECT_THAT(begun.tokens(), ElementsAre(8, kMask, kMask, kMask));
  EXPECT_THAT(begun.positions(), ElementsAre(13, 14, 15, 16));
  const auto& run = begun.drafts.rows.runs[0];
  EXPECT_THAT((std::vector<int>{run.sequence, run.first_row, run.rows, run.first_position}),
              ElementsAre(2, 0, kBlock, 13));
  const Row& block = begun.drafts.blocks.rows[0];
  EXPECT_THAT((std::vector<int>{block.sequence, block.token, block.position}), ElementsAre(2, 8, 13));
}

TEST(DraftSteps, OfAPlainRunOnlyTheLastChoiceCounts) {
  StepArgs step;
  const int32_t first = step.add_run(0, 0, {5, 6, 7, 8});
  for (const int32_t row : {0, 2, 3}) step.choose(first + row, {});
  step.runs.back().draft = true;
  const Begun begun(step, {6, 8, 9});  // the first two are what follows, as if guessed
  EXPECT_THAT(begun.accepted, ElementsAre(0));
  EXPECT_EQ(begun.drafts.rows.rows[0].token, 9);
  EXPECT_EQ(begun.drafts.rows.rows[0].position, 4);
}

TEST(DraftSteps, GuessesAreRightUpToTheFirstThatIsNotTheChoice) {
  struct Case {
    std::vector<float> choices;
    int right;
    int32_t anchor;
  };
  for (const Case& c : {Case{{1, 7, 8, 9}, 0, 1},
                        {{6, 1, 8, 9}, 1, 1},
                        {{6, 7, 1, 9}, 2, 1},
                        {{6, 7, 8, 9}, 3, 9},
                        {{1, 1, 1, 1}, 0, 1},
                        {{6, 1, 1, 9}, 1, 1}}) {
    StepArgs step;
    add(step, 0, 20, {5, 6, 7, 8}, true);
    const Begun begun(step, c.choices);
    EXPECT_THAT(begun.accepted, ElementsAre(c.right));
    EXPECT_EQ(begun.drafts.rows.rows[0].token, c.anchor);
    EXPECT_EQ(begun.drafts.rows.rows[0].position, 21 + c.right);
    EXPECT_EQ(begun.drafts.rows.runs[0].first_position, 21 + c.right);
    EXPECT_EQ(begun.drafts.blocks.rows[0].position, 21 + c.right);
  }
}

TEST(DraftSteps, ARunOfTheAnchorAloneHasNoGuesses) {
  StepArgs step;
  add(step, 0, 3, {5}, true);
  const Begun begun(step, {6});
  EXPECT_THAT(begun.accepted, ElementsAre(0));
  EXPECT_THAT(begun.tokens(), ElementsAre(6, kMask, kMask, kMask));
  EXPECT_THAT(begun.positions(), ElementsAre(4, 5, 6, 7));
}

TEST(DraftSteps, ForcedGuessesAreRightWhateverWasChosen) {
  for (const auto& [forced, right] : {std::pair{0, 0}, {1, 1}, {3, 3}, {4, 3}, {99, 3}}) {
    for (const std::vector<float>& choices : {std::vector<float>{6, 7, 8, 9}, {1, 2, 3, 4}}) {
      StepArgs step;
      add(step, 0, 20, {5, 6, 7, 8}, true);
      step.runs.back().forced = forced;
      const Begun begun(step, choices);
      EXPECT_THAT(begun.accepted, ElementsAre(right));
      EXPECT_EQ(begun.drafts.rows.rows[0].position, 21 + right);
      EXPECT_EQ(static_cast<float>(begun.drafts.rows.rows[0].token), choices[static_cast<size_t>(right)]);
    }
  }
}

TEST(DraftSteps, RunsWithoutADraftHaveNoBlock) {
  StepArgs step;
  add(step, 3, 7, {1, 2}, false, false);
  add(step, 1, 40, {5, 6, 7}, true);
  add(step, 0, 9, {5, 6}, true, false);
  step.add_run(4, 0, {1, 1, 1});  // no row is chosen
  add(step, 2, 0, {4}, false);
  const Begun begun(step, {50, /**/ 6, 51, 52, /**/ 6, 53, /**/ 54});
  EXPECT_THAT(begun.accepted, ElementsAre(1, 0));
  EXPECT_THAT(begun.tokens(), ElementsAre(51, kMask, kMask, kMask, 54, kMask, kMask, kMask));
  EXPECT_THAT(begun.positions(), ElementsAre(42, 43, 44, 45, 1, 2, 3, 4));
  EXPECT_EQ(begun.drafts.blocks.runs[1].first_row, 1);
  EXPECT_EQ(begun.drafts.rows.runs[1].first_row, kBlock);
  EXPECT_EQ(begun.drafts.rows.runs[1].sequence, 2);
}

TEST(DraftSteps, AStepWithoutADraftHasNoRows) {
  StepArgs step;
  add(step, 0, 0, {1, 2}, false);
  DraftSteps drafts;
  drafts.prepare(step, kBlock);
  EXPECT_EQ(drafts.rows.rows.size(), 4u);
  step.runs.back().draft = false;
  drafts.prepare(step, kBlock);
  EXPECT_THAT(drafts.rows.rows, IsEmpty());
  EXPECT_THAT(drafts.rows.runs, IsEmpty());
  EXPECT_THAT(drafts.blocks.rows, IsEmpty());
  EXPECT_THAT(drafts.blocks.chosen, IsEmpty());
  drafts.begin(step, nullptr, kMask, nullptr);
}

TEST(DraftSteps, ABlockIsSampledAsTheLastChosenRowOfItsRun) {
  StepArgs step;
  add(step, 0, 0, {1, 2}, false, true, 0.5f);
  add(step, 1, 5, {1, 2, 3}, true, true, 0.7f);
  step.sampling[1].temperature = step.sampling[2].temperature = 2;
  const Begun begun(step, {1, 2, 3, 4});
  EXPECT_THAT(begun.drafts.blocks.chosen, ElementsAre(0, 1));
  EXPECT_EQ(begun.drafts.blocks.sampling[0].temperature, 0.5f);
  EXPECT_EQ(begun.drafts.blocks.sampling[1].temperature, 0.7f);
}

// Logits that are not finite have the choice -1: no table has a row for it.
TEST(DraftSteps, AChoiceOfMinusOneIsNeverAToken) {
  StepArgs step;
  add(step, 0, 20, {5, 6, 7, 8}, true);
  add(step, 1, 3, {5}, false);
  Begun begun(step, {6, -1, 8, 9, -1});
  EXPECT_THAT(begun.accepted, ElementsAre(1, 0));
  EXPECT_THAT(begun.tokens(), ElementsAre(0, kMask, kMask, kMask, 0, kMask, kMask, kMask));
  EXPECT_EQ(begun.drafts.rows.rows[0].position, 22);
  const std::vector<float> next = {-1, 7};
  begun.drafts.advance(next.data());
  EXPECT_EQ(begun.drafts.blocks.rows[0].token, 0);
  EXPECT_EQ(begun.drafts.blocks.rows[1].token, 7);
}

TEST(DraftSteps, AdvanceMovesEveryBlockByOneToken) {
  StepArgs step;
  add(step, 0, 0, {1, 2}, false);
  add(step, 1, 5, {1}, false);
  Begun begun(step, {8, 9});
  const std::vector<int32_t> rows = begun.tokens(), positions = begun.positions();
  for (const float next : {10.0f, 20.0f}) {
    const std::vector<float> tokens = {next, next + 1};
    begun.drafts.advance(tokens.data());
  }
  const StepArgs& blocks = begun.drafts.blocks;
  EXPECT_THAT((std::vector<int>{blocks.rows[0].token, blocks.rows[1].token}), ElementsAre(20, 21));
  EXPECT_THAT((std::vector<int>{blocks.rows[0].position, blocks.rows[1].position}), ElementsAre(4, 8));
  EXPECT_THAT(begun.tokens(), ElementsAreArray(rows));
  EXPECT_THAT(begun.positions(), ElementsAreArray(positions));
}

TEST(DraftSteps, ABlockOfOneRowIsTheAnchor) {
  StepArgs step;
  add(step, 0, 0, {1, 2}, false);
  const Begun begun(step, {8}, 1);
  EXPECT_THAT(begun.tokens(), ElementsAre(8));
}

TEST(DraftSteps, ADraftNeedsTheChoicesThatItFollows) {
  DraftSteps drafts;
  StepArgs none, not_last, not_all;
  none.add_run(0, 0, {1, 2});
  none.runs.back().draft = true;
  not_last.add_run(0, 0, {1, 2});
  not_last.choose(0, {});
  not_last.runs.back().draft = true;
  not_all.add_run(0, 0, {1, 2, 3}, 0, true);
  not_all.choose(0, {});
  not_all.choose(2, {});
  not_all.runs.back().draft = true;
  for (const StepArgs& step : {none, not_last, not_all}) EXPECT_DEATH(drafts.prepare(step, kBlock), "a draft after");
}

}  // namespace
}  // namespace megalith
