// The draft ops of the reference against results by hand.

#include <array>
#include <cmath>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "reference/ops.h"
#include "reference/sample.h"

namespace megalith::reference {
namespace {

using ::testing::ElementsAre;
using ::testing::FloatEq;
using ::testing::Pointwise;

// The rows of blocks that begin at given anchors.
DraftSteps drafts_of(const std::vector<Row>& anchors, int block, const Sampling& how = {}) {
  StepArgs step;
  std::vector<float> tokens, accepted(anchors.size());
  for (const Row& anchor : anchors) {
    step.choose(step.add_run(anchor.sequence, anchor.position - 1, {0}), how);
    step.runs.back().draft = true;
    tokens.push_back(static_cast<float>(anchor.token));
  }
  DraftSteps drafts;
  drafts.prepare(step, block);
  drafts.begin(step, tokens.data(), 99, accepted.data());
  return drafts;
}

// What row i of a block of three sees of the context 0 … 9 and of the block, anchor at 10.
struct Seen {
  AttendBlock how;
  int64_t row;
  std::vector<float> positions, rows;
};

// With queries of zero, attention is the mean of the values that are seen.
TEST(ReferenceDraft, AttendBlockIsTheMeanOfWhatIsSeen) {
  const auto how = [](bool causal, int64_t window, bool from_anchor) {
    return AttendBlock{1, 1, 1, 1, causal, window, from_anchor};
  };
  const std::vector<float> all = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9};
  for (const Seen& seen : {Seen{how(false, 0, false), 0, all, {0, 1, 2}},
                           {how(true, 0, false), 0, all, {0}},
                           {how(true, 0, true), 1, all, {0, 1}},
                           {how(false, 4, false), 0, {7, 8, 9}, {0, 1, 2}},
                           {how(false, 4, false), 2, {9}, {0, 1, 2}},
                           {how(true, 4, false), 1, {8, 9}, {0, 1}},
                           {how(false, 2, false), 0, {9}, {0, 1}},
                           {how(false, 2, false), 1, {}, {0, 1, 2}},
                           {how(false, 2, false), 2, {}, {1, 2}},
                           {how(true, 2, false), 2, {}, {1, 2}},
                           {how(false, 1, false), 1, {}, {1}},
                           {how(false, 2, true), 2, {8, 9}, {0, 1, 2}},
                           {how(true, 2, true), 1, {8, 9}, {0, 1}},
                           {how(false, 50, true), 1, all, {0, 1, 2}}}) {
    DraftSteps drafts = drafts_of({{0, 10, 5}}, 3);
    std::vector<float> keys(10, 1), values = all, out(3);
    const std::vector<float> q = {0, 0, 0}, k = {1, 2, 3}, v = {1000, 2000, 3000};
    Op op;
    op.attributes = seen.how;
    Call c{.op = op, .step = drafts.rows, .rows = 3, .width = 1, .drafts = &drafts, .out = out.data()};
    c.in = {q.data(), k.data(), v.data()};
    c.in_width = {1, 1, 1};
    c.states = {keys.data(), values.data()};
    c.state_size = {10, 10};
    c.slots = 10;
    attend_block(c);
    double sum = 0;
    for (const float position : seen.positions) sum += position;
    for (const float row : seen.rows) sum += 1000 * (row + 1);
    EXPECT_FLOAT_EQ(out[static_cast<size_t>(seen.row)],
                    static_cast<float>(sum / static_cast<double>(seen.positions.size() + seen.rows.size())))
        << "row " << seen.row << ", window " << seen.how.window;
  }
}

TEST(ReferenceDraft, AppendWindowGoesRoundItsSlots) {
  std::vector<float> keys(4, -1), values(4, -1);
  const auto append = [&](int32_t position, const std::vector<float>& x) {
    StepArgs step;
    step.add_run(0, position, std::vector<int32_t>(x.size(), 0));
    Op op;
    Call c{.op = op, .step = step, .in = {x.data(), x.data()}, .in_width = {1, 1}};
    c.states = {keys.data(), values.data()};
    c.state_size = {4, 4};
    c.slots = 4;
    c.head_dim = 1;
    append_window(c);
  };
  append(0, {10, 11});
  EXPECT_THAT(keys, ElementsAre(10, 11, -1, -1));
  append(2, {12, 13, 14});
  EXPECT_THAT(keys, ElementsAre(14, 11, 12, 13));
  append(5, {15, 16, 17, 18, 19, 20});
  EXPECT_THAT(keys, ElementsAre(18, 19, 20, 17));
  EXPECT_THAT(values, ElementsAre(18, 19, 20, 17));
}

TEST(ReferenceDraft, BlockConvAddsTheRowsBeforeByTheirOwnWeights) {
  DraftSteps drafts = drafts_of({{0, 10, 5}, {1, 3, 5}}, 2);
  // Two sides, two taps, four channels in two groups.
  const std::vector<float> base = {0, 0, 0, 0, 0, 0, 0, 0, /* side 1 */ 1, 2, 3, 4, /* tap 1 */ 10, 20, 30, 40};
  const std::vector<float> x = {1, 1, 1, 1, 2, 2, 2, 2, /* block 1 */ 3, 3, 3, 3, 4, 4, 4, 4};
  std::vector<float> dynamic(4 * 8), out(16);
  for (size_t row = 0; row < 4; ++row) {
    const std::array<float, 4> side = {100, 200, 1000, 2000};  // tap 0 of each group, tap 1 of each group
    for (size_t i = 0; i < 4; ++i) dynamic[row * 8 + 4 + i] = side[i] * static_cast<float>(row + 1);
  }
  Op op;
  op.attributes = BlockConv{4, 2, 2, 1};
  Call c{.op = op, .step = drafts.rows, .rows = 4, .width = 4, .out = out.data()};
  c.in = {x.data(), dynamic.data()};
  c.in_width = {4, 8};
  c.weights = {base.data()};
  block_conv(c);
  const std::vector<float> want = {101,
                                   102,
                                   203,
                                   204,  // (1..4 + 1·100 or 200) · 1
                                   2 * 201 + 2010,
                                   2 * 202 + 2020,
                                   2 * 403 + 4030,
                                   2 * 404 + 4040,
                                   903,
                                   906,
                                   1809,
                                   1812,  // nothing of block 0
                                   4 * 401 + 3 * 4010,
                                   4 * 402 + 3 * 4020,
                                   4 * 803 + 3 * 8030,
                                   4 * 804 + 3 * 8040};
  EXPECT_THAT(out, Pointwise(FloatEq(), want));
}

TEST(ReferenceDraft, CandidatesAreSortedAndTheAnchorIsItsOwn) {
  DraftSteps drafts = drafts_of({{0, 10, 5}}, 3);
  const std::vector<float> logits = {9, 9, 9, 9, 1, 3, 2, 3, -1, NAN, -8, -HUGE_VALF};
  std::vector<float> out(3 * 4);
  Op op;
  op.attributes = Candidates{2, 0.5f, 0};
  Call c{
      .op = op, .step = drafts.rows, .rows = 3, .width = 4, .in = {logits.data()}, .in_width = {4}, .out = out.data()};
  candidates(c);
  EXPECT_THAT(out, ElementsAre(5, 5, 0, 0, /**/ 1, 3, 1.5f, 1.5f, /**/ 0, 2, -0.5f, -4));
  op.attributes = Candidates{2, 10, 20};
  candidates(c);
  EXPECT_FLOAT_EQ(out[6], 20 * std::tanh(1.5f));
}

// A path through three rows of two candidates; the values alone would take tokens 10 and 20.
struct Path {
  std::vector<float> candidates = {5, 5, 0, 0, /**/ 10, 11, 1, 0, /**/ 20, 21, 1, 0};
  std::vector<float> successor = {0, 0, /**/ 0, 1, /**/ 0, 1};
  std::vector<float> predecessor = {2, 2, /**/ 0, 1, /**/ 0, 0};
  std::vector<float> g = {1, 1, 1};

  std::vector<float> take(const Sampling& how = {}) {
    DraftSteps drafts = drafts_of({{0, 10, 5}}, 3, how);
    std::vector<float> out(2);
    Op op;
    op.attributes = SelectPath{2, 1};
    Call c{.op = op, .step = drafts.blocks, .rows = 1, .width = 2, .drafts = &drafts, .out = out.data()};
    c.in = {candidates.data(), successor.data(), predecessor.data(), g.data()};
    c.in_width = {4, 2, 2, 1};
    select_path(c);
    return out;
  }
};

TEST(ReferenceDraft, SelectPathGoesOnFromWhatItTook) {
  Path path;
  // Row 1: 1 or 0 + 1 · 2 · 1: token 11. Row 2, after 11: 1 or 0 + 1 · 1 · 1, a tie: the lower id.
  EXPECT_THAT(path.take(), ElementsAre(11, 20));
  path.g[2] = 1.5f;
  EXPECT_THAT(path.take(), ElementsAre(11, 21));
  path.g[1] = 0.25f;  // row 1 takes token 10, after which row 2 has no more than its values
  EXPECT_THAT(path.take(), ElementsAre(10, 20));
  EXPECT_THAT(path.take({.temperature = 1, .top_k = 1}), ElementsAre(10, 20));
}

// The noise is that of the position and the token; over many seeds it draws from the softmax.
TEST(ReferenceDraft, SelectPathDrawsFromTheSoftmaxOfTheScores) {
  Path path;
  path.g[1] = 1;  // row 1 has the scores 1 and 2
  int upper = 0;
  constexpr int kDraws = 4000;
  for (uint64_t seed = 0; seed < kDraws; ++seed) upper += path.take({.temperature = 2, .seed = seed})[0] == 11 ? 1 : 0;
  const double p = 1 / (1 + std::exp(-0.5));
  EXPECT_NEAR(upper, kDraws * p, 4 * std::sqrt(kDraws * p * (1 - p)));
  const std::vector<float> row_1 = {1, 2};
  for (uint64_t seed = 0; seed < 100; ++seed) {
    const Sampling how = {.temperature = 2, .seed = seed};
    EXPECT_EQ(path.take(how)[0], static_cast<float>(pick_token({{10, row_1[0]}, {11, row_1[1]}}, how, 11)));
  }
}

// Some tokens with logits are a vocabulary in which the others have none.
TEST(ReferenceSample, AChoiceAmongSomeTokensIsThatOfAVocabularyWithoutTheOthers) {
  const std::vector<Choice> choices = {{30, 1.5f}, {2, 1.5f}, {17, 0.5f}, {5, -1}, {6, 2}};
  std::vector<float> logits(40, -HUGE_VALF);
  for (const Choice& c : choices) logits[static_cast<size_t>(c.token)] = c.logit;
  for (const Sampling& how : {Sampling{},
                              {.temperature = 1},
                              {.temperature = 2, .top_k = 3},
                              {.temperature = 2, .top_p = 0.7f},
                              {.temperature = 2, .min_p = 0.3f},
                              {.temperature = 3, .top_k = 4, .top_p = 0.9f, .min_p = 0.1f}}) {
    for (uint64_t seed = 0; seed < 50; ++seed) {
      Sampling seeded = how;
      seeded.seed = seed;
      EXPECT_EQ(pick_token(choices, seeded, 9), sample_token(logits.data(), 40, seeded, 9));
    }
  }
}

}  // namespace
}  // namespace megalith::reference
