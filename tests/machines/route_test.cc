// The router against a sort in double precision: which experts a row chooses, and with what weights.

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include <gtest/gtest.h>

#include "machines/cpu/instruction_set.h"
#include "tests/machines/harness.h"

namespace megalith {
namespace {

struct Chosen {
  std::vector<int> ids;
  std::vector<float> weights;
};

using Rows = std::vector<std::vector<float>>;

// What the machine chooses for rows of logits.
std::vector<Chosen> route(const Rows& logits, const std::vector<float>& bias, int64_t top_k, int threads = 2) {
  constexpr size_t kRowsPerStep = 250;
  const auto experts = static_cast<int64_t>(bias.size());
  const auto count = static_cast<int64_t>(logits.size());
  Builder b({.catalog = all_of(DType::f32)}, 1);
  const Value x = b.embed(b.matrix("logits", count, experts, {}));
  const Value y = b.route(x, b.vector("bias", {experts}), {experts, top_k});
  b.output("y", y);
  RandomWeights weights;
  std::vector<float> table;
  for (const auto& row : logits) table.insert(table.end(), row.begin(), row.end());
  weights.set("logits", table);
  weights.set("bias", bias);
  const auto machine = make_cpu_machine(std::move(b).build(), {.threads = threads, .max_rows = kRowsPerStep});
  machine->load(weights, nullptr);

  std::vector<Chosen> chosen;
  for (size_t first = 0; first < logits.size(); first += kRowsPerStep) {
    StepArgs step;
    const auto rows = static_cast<int>(std::min(kRowsPerStep, logits.size() - first));
    add_tokens(step, 0, 0, rows, static_cast<int>(first), static_cast<int>(count));
    machine->run(step);
    const auto read = machine->read(y);
    for (auto row = read.begin(); row != read.end(); row += 2 * top_k) {
      chosen.push_back({{row, row + top_k}, {row + top_k, row + 2 * top_k}});
    }
  }
  return chosen;
}

double score(float logit) {
  return 1 / (1 + std::exp(-double{logit}));
}

// The same by a sort in double precision; equal ones by id.
std::vector<int> sorted_choice(const std::vector<float>& logits, const std::vector<float>& bias, int64_t top_k) {
  std::vector<int> ids(logits.size());
  std::iota(ids.begin(), ids.end(), 0);
  const auto biased = [&](int e) { return score(logits[static_cast<size_t>(e)]) + bias[static_cast<size_t>(e)]; };
  std::stable_sort(ids.begin(), ids.end(), [&](int a, int b) { return biased(a) > biased(b); });
  ids.resize(static_cast<size_t>(top_k));
  std::sort(ids.begin(), ids.end());
  return ids;
}

// Weights are the chosen experts' scores without the bias, and sum to 1.
void expect_weights(const Chosen& chosen, const std::vector<float>& logits) {
  double total = 0;
  for (const int e : chosen.ids) total += score(logits[static_cast<size_t>(e)]);
  for (size_t slot = 0; slot < chosen.ids.size(); ++slot) {
    const double want = score(logits[static_cast<size_t>(chosen.ids[slot])]) / total;
    ASSERT_NEAR(chosen.weights[slot], want, 1e-6) << "expert " << chosen.ids[slot];
  }
  ASSERT_NEAR(std::accumulate(chosen.weights.begin(), chosen.weights.end(), 0.0), 1.0, 1e-6);
}

std::vector<int> first_ids(int count) {
  std::vector<int> ids(static_cast<size_t>(count));
  std::iota(ids.begin(), ids.end(), 0);
  return ids;
}

TEST(Route, EqualExpertsAreChosenInTheOrderOfTheirIds) {
  for (const int experts : {16, 63, 896}) {
    const std::vector<float> row(static_cast<size_t>(experts), 0.3f);
    const Chosen chosen = route({row}, std::vector<float>(row.size(), 0.1f), 16)[0];
    EXPECT_EQ(chosen.ids, first_ids(16));
    expect_weights(chosen, row);
  }
}

TEST(Route, OfTwoEqualExpertsAtTheBorderOfTheChoiceTheLowerIdIsTaken) {
  const std::vector<float> bias(896, 0.0f);
  std::vector<float> row(896, -4.0f);
  for (size_t i = 0; i < 15; ++i) row[100 + 50 * i] = 2.0f + static_cast<float>(i);
  row[7] = row[890] = 1.0f;  // which of them is the sixteenth
  const Chosen chosen = route({row}, bias, 16)[0];
  EXPECT_EQ(chosen.ids, sorted_choice(row, bias, 16));
  EXPECT_EQ(chosen.ids.front(), 7);
  EXPECT_NE(chosen.ids.back(), 890);
}

// A bias of 8 bits, or logits of 8 bits, would make the two equal, and the lower id would be taken.
TEST(Route, SmallDifferencesOfBiasesAndOfLogitsCount) {
  constexpr float kSmall = 0x1p-12f;
  std::vector<float> row(64, 0.0f), bias(64, 0.0f);
  bias[20] = 1.0f;
  bias[40] = 1.0f + kSmall;
  EXPECT_EQ(route({row}, bias, 1)[0].ids, std::vector<int>{40});
  bias[20] = bias[40] = 0.0f;
  row[20] = 1.0f;
  row[40] = 1.0f + kSmall;
  EXPECT_EQ(route({row}, bias, 1)[0].ids, std::vector<int>{40});
}

TEST(Route, ExpertsAreChosenWhereAllAreFarBelowZeroAfterTheBias) {
  std::vector<float> row, bias;
  for (int e = 0; e < 64; ++e) {
    row.push_back(static_cast<float>(e * 29 % 64) / 16 - 2);
    bias.push_back(-3.0f - static_cast<float>(e % 3));
  }
  const Chosen chosen = route({row}, bias, 8)[0];
  EXPECT_EQ(chosen.ids, sorted_choice(row, bias, 8));
  expect_weights(chosen, row);
}

TEST(Route, TheBiasChoosesAndDoesNotWeigh) {
  const std::vector<float> row = {3, 2, 1, 0, -1, -2, -3, -4};
  const std::vector<float> bias = {0, 0, 0, 0, 0, 0, 0, 10};
  const Chosen chosen = route({row}, bias, 2)[0];
  EXPECT_EQ(chosen.ids, (std::vector<int>{0, 7}));
  expect_weights(chosen, row);
}

TEST(Route, SaturatedScoresAreEqual) {
  std::vector<float> row(64, -1000.0f);
  row[50] = 40;
  row[30] = 1000;
  row[63] = HUGE_VALF;
  row[9] = -HUGE_VALF;
  const std::vector<float> bias(64, 0.0f);
  EXPECT_EQ(route({row}, bias, 2)[0].ids, (std::vector<int>{30, 50}));
  const Chosen five = route({row}, bias, 5)[0];
  EXPECT_EQ(five.ids, (std::vector<int>{0, 1, 30, 50, 63}));
  expect_weights(five, row);
}

TEST(Route, RowsWhoseScoresAreAllZeroHaveWeightsOfZero) {
  const Chosen chosen = route({std::vector<float>(64, -1000.0f)}, std::vector<float>(64, 0.0f), 4)[0];
  EXPECT_EQ(chosen.ids, first_ids(4));
  EXPECT_EQ(chosen.weights, std::vector<float>(4, 0.0f));
}

// Logits and biases of a few values each: many experts of a row are equal, and those that are not differ by far more
// than a rounding.
Rows rows_with_duplicates(size_t count, size_t experts) {
  Rows rows(count);
  for (size_t row = 0; row < count; ++row) {
    for (size_t e = 0; e < experts; ++e) rows[row].push_back(std::round(24 * random_number(row, e)) / 8);
  }
  return rows;
}

std::vector<float> few_biases(size_t experts) {
  std::vector<float> bias;
  for (size_t e = 0; e < experts; ++e) bias.push_back(std::round(3 * random_number(1234567, e)) / 16);
  return bias;
}

TEST(Route, TenThousandRowsChooseAsASortInDoublePrecision) {
  const Rows rows = rows_with_duplicates(10'000, 64);
  const std::vector<float> bias = few_biases(64);
  const auto chosen = route(rows, bias, 8);
  ASSERT_EQ(chosen.size(), rows.size());
  for (size_t row = 0; row < rows.size(); ++row) {
    ASSERT_EQ(chosen[row].ids, sorted_choice(rows[row], bias, 8)) << row;
    expect_weights(chosen[row], rows[row]);
  }
}

TEST(Route, ThreadsAndInstructionSetsChooseTheSameBits) {
  const Rows rows = rows_with_duplicates(300, 100);
  const std::vector<float> bias = few_biases(100);
  const auto expect_same = [&](const std::vector<Chosen>& got, const std::vector<Chosen>& want) {
    for (size_t row = 0; row < rows.size(); ++row) {
      ASSERT_EQ(got[row].ids, want[row].ids) << row;
      ASSERT_TRUE(same_bits(got[row].weights, want[row].weights)) << row;
    }
  };
  const auto want = route(rows, bias, 16, 1);
  expect_same(route(rows, bias, 16, 3), want);
  ASSERT_TRUE(use_instruction_set(InstructionSet::avx2));
  const auto narrow = route(rows, bias, 16, 1);
  use_instruction_set(InstructionSet::best);
  expect_same(narrow, want);
}

// What is not a number is not chosen while there are others; a row of nothing else has different ids all the same.
TEST(Route, NotANumberRanksBelowAllNumbers) {
  const std::vector<float> bias(64, -5.0f);
  std::vector<float> row(64, NAN);
  EXPECT_EQ(route({row}, bias, 16)[0].ids, first_ids(16));
  for (const size_t e : {3, 30, 60}) row[e] = -1.0f;
  EXPECT_EQ(route({row}, bias, 3)[0].ids, (std::vector<int>{3, 30, 60}));
  EXPECT_EQ(route({row}, bias, 5)[0].ids, (std::vector<int>{0, 1, 3, 30, 60}));
  expect_weights(route({row}, bias, 3)[0], row);
}

// A row's own numbers that are not numbers must be seen later, and do no harm to other rows.
TEST(Route, ChoosingWhatIsNotANumberGivesWeightsThatAreNotNumbers) {
  Rows rows = rows_with_duplicates(3, 64);
  const std::vector<float> bias = few_biases(64);
  rows[1].assign(64, NAN);
  const auto chosen = route(rows, bias, 8);
  for (const float weight : chosen[1].weights) EXPECT_TRUE(std::isnan(weight));
  for (const size_t row : {0, 2}) {
    EXPECT_EQ(chosen[row].ids, sorted_choice(rows[row], bias, 8));
    expect_weights(chosen[row], rows[row]);
  }
}

}  // namespace
}  // namespace megalith
