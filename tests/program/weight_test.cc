#include "program/weight.h"

#include <map>
#include <set>
#include <utility>

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

Weight experts(int64_t count, int64_t groups, Split split) {
  Weight w = {"e.*.w1", {128, 64}, DType::mxfp4, WeightLayout::panels, std::move(split), DType::mxfp4};
  w.experts = {count, groups};
  return w;
}

TEST(Weight, RanksHaveEveryPartOfEveryExpertOnce) {
  const Block parts = {128, 4};
  const Weight w = experts(64, 8, {Split::Axis::outputs, {parts}});
  for (const int ranks : {1, 2, 4, 8, 16, 32}) {
    std::map<std::pair<int64_t, int64_t>, int> times;  // of each expert and output
    for (int rank = 0; rank < ranks; ++rank) {
      EXPECT_EQ(w.first_matrix(rank, ranks) % (64 / std::min(ranks, 8)), 0);
      for (int64_t e = 0; e < w.matrices(ranks); ++e) {
        const int64_t first = parts.begin(w.part_rank(rank, ranks), w.part_ranks(ranks));
        for (int64_t i = 0; i < w.outputs(ranks); ++i) ++times[{w.first_matrix(rank, ranks) + e, first + i}];
      }
    }
    EXPECT_EQ(times.size(), 64u * 128u) << ranks << " ranks";
    for (const auto& [place, n] : times) ASSERT_EQ(n, 1) << ranks << " ranks, expert " << place.first;
  }
}

TEST(Weight, GroupsOfExpertsAreDealtBeforeTheirParts) {
  const Weight w = experts(64, 8, {Split::Axis::inputs, {{64, 2}}});
  EXPECT_EQ(w.matrices(4), 16);
  EXPECT_EQ(w.first_matrix(3, 4), 48);
  EXPECT_EQ(w.part_ranks(8), 1);
  EXPECT_EQ(w.part_ranks(16), 2);
  EXPECT_EQ(w.matrices(16), 8);
  EXPECT_EQ(w.first_matrix(5, 16), 16);
  EXPECT_EQ(w.part_rank(5, 16), 1);
  EXPECT_EQ(w.inputs(8), 64);
  EXPECT_EQ(w.inputs(16), 32);
}

TEST(Weight, ExpertsCountTheirCodesAndScales) {
  const Weight w = experts(64, 8, {Split::Axis::outputs, {{128, 4}}});
  EXPECT_EQ(w.matrix_bytes(1), 128 * (64 / 2 + 64 / 32));
  EXPECT_EQ(w.whole_bytes(), 64 * w.matrix_bytes(1));
  EXPECT_EQ(w.bytes(32) * 32, w.whole_bytes());
  EXPECT_EQ(w.panel_bytes(1), 2 * kMxGroupBytes);
  EXPECT_EQ(w.tape_bytes(32), 8 * w.panel_bytes(32));
  // Parts that are no whole panels are padded for each expert.
  Weight odd = w;
  odd.shape[0] = odd.split.blocks[0].size = 160;
  EXPECT_EQ(odd.panels(32), 8 * 2);
  EXPECT_EQ(odd.bytes(32) * 32, odd.whole_bytes());
}

TEST(Weight, TensorsOfExpertsAreCodesAndScalesOfEach) {
  const auto tensors = stored_tensors(experts(12, 4, {}));
  ASSERT_EQ(tensors.size(), 24u);
  EXPECT_EQ(tensors[22].name, "e.11.w1.weight_packed");
  EXPECT_EQ(tensors[22].shape, (std::vector<int64_t>{128, 32}));
  EXPECT_EQ(tensors[23].name, "e.11.w1.weight_scale");
  EXPECT_EQ(tensors[23].shape, (std::vector<int64_t>{128, 2}));
  EXPECT_TRUE(tensors[22].packed && tensors[23].packed);
  const auto one = stored_tensors(matrix(10, 5, DType::bf16, {}));
  ASSERT_EQ(one.size(), 1u);
  EXPECT_EQ(one[0].name, "w");
  EXPECT_FALSE(one[0].packed);
}

TEST(Weight, PartsOfHeadsAreMatricesOfTheirOwnSize) {
  // 8 heads of 20 + 32 rows, 96 inputs.
  Weight keys = matrix(8 * 52, 96, DType::bf16, {Split::Axis::outputs, {{8 * 52, 8}}});
  Weight values = keys;
  keys.head_rows = {8, 0, 20, true};
  values.head_rows = {8, 20, 32, false};
  EXPECT_EQ(keys.outputs(1), 8 * 96);
  EXPECT_EQ(keys.inputs(1), 20);
  EXPECT_EQ(values.outputs(1), 8 * 32);
  EXPECT_EQ(values.inputs(1), 96);
  EXPECT_EQ(keys.outputs(4), 2 * 96);
  EXPECT_EQ(keys.inputs(4), 20);
  EXPECT_EQ(values.outputs(4), 2 * 32);
  EXPECT_EQ(keys.whole_bytes() + values.whole_bytes(), 8 * 52 * 96 * 2);  // together the whole tensor
}

TEST(Weight, TailOfZerosIsNoPartOfAVector) {
  Weight w = {"A_log", {128}, DType::f32, WeightLayout::plain, {}, DType::f32};
  w.zero_tail = 32;
  EXPECT_EQ(w.outputs(1), 96);
  EXPECT_EQ(w.whole_bytes(), 96 * 4);
  EXPECT_EQ(stored_tensors(w)[0].shape, std::vector<int64_t>{128});
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
