#include "program/weight.h"

#include <set>

#include <gtest/gtest.h>

namespace megalith {
namespace {

TEST(Block, RanksShareGroupsWhole) {
  const Block heads = {96, 8};
  EXPECT_EQ(heads.rank_size(1), 96);
  EXPECT_EQ(heads.rank_size(4), 24);
  EXPECT_EQ(heads.begin(3, 4), 72);
  for (const int ranks : {1, 2, 4, 8}) {
    for (int rank = 0; rank < ranks; ++rank) EXPECT_EQ(heads.begin(rank, ranks), rank * 96 / ranks);
  }
}

TEST(Block, NeighboursShareAGroupWhereThereAreFewerGroupsThanRanks) {
  const Block kv = {2 * 16, 2};
  EXPECT_EQ(kv.rank_size(8), 16);
  for (int rank = 0; rank < 8; ++rank) EXPECT_EQ(kv.begin(rank, 8), rank / 4 * 16);
}

TEST(Block, DividesWhatCanBeDealtWhole) {
  const Block six = {6, 6};
  EXPECT_TRUE(six.divides(1));
  EXPECT_TRUE(six.divides(3));
  EXPECT_FALSE(six.divides(4));
  EXPECT_TRUE(six.divides(12));
}

Weight matrix(int64_t outputs, int64_t inputs, DType dtype, Split split) {
  return {"w", {outputs, inputs}, dtype, WeightLayout::panels, std::move(split)};
}

TEST(Weight, PanelsArePaddedInTheTapeOnly) {
  const Weight w = matrix(65, 10, DType::bf16, {});
  EXPECT_EQ(w.panels(1), 3);
  EXPECT_EQ(w.panel_bytes(1), 32 * 10 * 2);
  EXPECT_EQ(w.tape_bytes(1), 3 * 640);
  EXPECT_EQ(w.bytes(1), 65 * 10 * 2);
  EXPECT_EQ(matrix(1, 1, DType::f32, {}).tape_bytes(1), 128);
}

TEST(Weight, SplitByOutputsJoinsTheRanksPartsOfEachBlock) {
  const Weight w = matrix(48 + 16, 5, DType::f32, {Split::Axis::outputs, {{48, 4}, {16, 2}}});
  EXPECT_EQ(w.outputs(1), 64);
  EXPECT_EQ(w.outputs(2), 24 + 8);
  EXPECT_EQ(w.outputs(4), 12 + 8);  // the second block's groups are shared
  EXPECT_EQ(w.inputs(4), 5);
}

TEST(Weight, SplitByInputsKeepsOutputsWhole) {
  const Weight w = matrix(10, 64, DType::bf16, {Split::Axis::inputs, {{64, 8}}});
  EXPECT_EQ(w.outputs(8), 10);
  EXPECT_EQ(w.inputs(8), 8);
  EXPECT_EQ(w.tape_bytes(8), 32 * 8 * 2);
}

TEST(Weight, PlainWeightsOfAnyShapeEndOnACacheLine) {
  const Weight taps = {"conv", {6, 1, 4}, DType::f32, WeightLayout::plain, {}};
  EXPECT_EQ(taps.outputs(1), 6);
  EXPECT_EQ(taps.inputs(1), 4);
  EXPECT_EQ(taps.tape_bytes(1), 128);
  const Weight scalar = {"w", {1}, DType::f32, WeightLayout::plain, {}};
  EXPECT_EQ(scalar.inputs(1), 1);
  EXPECT_EQ(scalar.tape_bytes(1), 64);
}

TEST(Weight, PanelSlotsAreAPermutation) {
  for (const DType dtype : {DType::bf16, DType::f32}) {
    std::set<int64_t> slots;
    for (int64_t output = 0; output < 32; ++output) slots.insert(panel_slot(dtype, output));
    EXPECT_EQ(slots.size(), 32u);
    EXPECT_EQ(*slots.rbegin(), 31);
  }
  EXPECT_EQ(panel_slot(DType::bf16, 16), 1);
  EXPECT_EQ(panel_slot(DType::bf16, 15), 30);
}

}  // namespace
}  // namespace megalith
