#include "program/builder.h"

#include <gtest/gtest.h>

#include "tests/program/small_model.h"

namespace megalith {
namespace {

int count(const Program& program, OpKind kind) {
  int n = 0;
  for (const Op& op : program.ops) n += op.kind == kind ? 1 : 0;
  return n;
}

TEST(Builder, AWholeTableIsNotSummedOverRanks) {
  Builder b({.ranks = 4}, 4);
  b.output("x", b.embed(b.matrix("table", 8, 16, {})));
  b.output("y", b.embed(b.matrix("split", 8, 16, Builder::split_outputs({{8, 8}}))));
  EXPECT_EQ(count(std::move(b).build(), OpKind::all_reduce), 1);
}

TEST(Builder, OneRankHasNoCollectives) {
  const Program program = two_layers(1);
  EXPECT_EQ(count(program, OpKind::all_reduce), 0);
  EXPECT_EQ(count(program, OpKind::all_gather), 0);
}

TEST(Builder, EveryRankCountHasACollectiveAfterEachSum) {
  for (const int ranks : {2, 4, 8}) {
    const Program program = two_layers(ranks);
    EXPECT_EQ(count(program, OpKind::all_reduce), 1 + 2 * 2);  // embedding, mixer and MLP of each layer
    EXPECT_EQ(count(program, OpKind::all_gather), 1);
    for (const Op& op : program.ops) {
      if (op.kind != OpKind::matmul) continue;
      const Weight& w = program.weights[static_cast<size_t>(op.weights[0])];
      EXPECT_EQ(op.get<Matmul>().segments, w.split.axis == Split::Axis::inputs ? 8 / ranks : 1) << op.label;
    }
  }
}

TEST(Builder, TheSameNameIsTheSameWeight) {
  Builder b({}, 1);
  EXPECT_EQ(b.matrix("w", 4, 4, {}).id, b.matrix("w", 4, 4, {}).id);
  EXPECT_NE(b.matrix("v", 4, 4, {}).id, b.matrix("w", 4, 4, {}).id);
}

TEST(Builder, TheCatalogGivesTheDtype) {
  Builder b({.catalog = [](const std::string& name) -> std::optional<TensorInfo> {
              if (name == "half") return TensorInfo{DType::f16, {4, 4}};
              if (name == "bf") return TensorInfo{DType::bf16, {4, 4}};
              return std::nullopt;
            }},
            1);
  b.matrix("half", 4, 4, {});
  b.matrix("bf", 4, 4, {});
  b.matrix("unknown", 4, 4, {});
  const Program program = std::move(b).build();
  EXPECT_EQ(program.weights[0].dtype, DType::f32);
  EXPECT_EQ(program.weights[1].dtype, DType::bf16);
  EXPECT_EQ(program.weights[2].dtype, DType::bf16);
}

TEST(BuilderDeathTest, WrongShapesAbortAtOnce) {
  Builder b({}, 1);
  const Value x = b.embed(b.matrix("table", 8, 16, {}));
  EXPECT_DEATH(b.matmul(x, b.matrix("w", 4, 17, {})), "inputs 17, row 16");
  EXPECT_DEATH(b.add(x, b.choose_rows(x)), "add");
  EXPECT_DEATH(b.matrix("table", 8, 17, {}), "declared twice");
}

TEST(TapeLayout, FollowsTheOrderOfUseAndPutsTablesLast) {
  for (const int ranks : {1, 8}) {
    const Program program = two_layers(ranks);
    const TapeLayout layout = tape_layout(program);
    ASSERT_EQ(layout.order.size(), program.weights.size());
    std::vector<int> want;
    for (const Op& op : program.ops) {
      if (op.kind == OpKind::embed) continue;
      for (const int w : op.weights) {
        if (std::find(want.begin(), want.end(), w) == want.end()) want.push_back(w);
      }
    }
    want.push_back(program.ops.front().weights[0]);  // the embedding
    EXPECT_EQ(layout.order, want);
    int64_t at = 0;
    for (const int w : layout.order) {
      EXPECT_EQ(layout.offset[static_cast<size_t>(w)], at);
      EXPECT_EQ(at % 64, 0);
      at += program.weights[static_cast<size_t>(w)].tape_bytes(ranks);
    }
    EXPECT_EQ(layout.bytes, at);
  }
}

TEST(TapeLayout, ATableThatIsAlsoTheHeadLiesWhereTheHeadIsRead) {
  Builder b({}, 1);
  const WeightRef table = b.matrix("table", 32, 16, {});
  const Value x = b.embed(table);
  const Value h = b.matmul(x, b.matrix("w", 16, 16, {}));
  b.output("logits", b.matmul(h, table));
  EXPECT_EQ(tape_layout(std::move(b).build()).order, (std::vector<int>{1, 0}));
}

}  // namespace
}  // namespace megalith
