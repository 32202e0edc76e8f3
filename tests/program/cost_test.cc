// The cost of the real sizes, byte for byte.

#include "program/cost.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <utility>

#include <gtest/gtest.h>

#include "program/builder.h"
#include "program/print.h"
#include "tests/program/small_model.h"

namespace megalith {
namespace {

constexpr int kRanks = 8;

// Weight bytes that all ranks stream in a step, for ops whose first weight's name has `part` in it.
int64_t streamed(const Program& program, OpKind kind, const std::string& part) {
  int64_t bytes = 0;
  for (const Op& op : program.ops) {
    if (op.kind != kind || op.weights.empty()) continue;
    if (program.weights[static_cast<size_t>(op.weights[0])].name.find(part) == std::string::npos) continue;
    bytes += op_cost(program, op, {}).weight_bytes * program.ranks;
  }
  return bytes;
}

class Cost27B : public ::testing::Test {
 protected:
  const Program program = program_of("configs/qwen3.8-27b.json", kRanks);
  int64_t matrices(const std::string& part) const { return streamed(program, OpKind::matmul, part); }
};

TEST_F(Cost27B, MatricesAddUpToThePublishedBytes) {
  // MLP: 64 layers of gate, up and down, 17408 x 5120 in bf16: 34.226 GB.
  EXPECT_EQ(matrices(".mlp."), int64_t{64} * 3 * 17408 * 5120 * 2);
  EXPECT_EQ(matrices(".mlp."), 34'225'520'640);
  // Delta net: 48 layers of qkv (10240), z (6144), b and a (48 each), out (6144 inputs): 11.120 GB.
  EXPECT_EQ(matrices(".linear_attn."), int64_t{48} * (10240 + 6144 + 48 + 48 + 6144) * 5120 * 2);
  EXPECT_EQ(matrices(".linear_attn."), 11'120'148'480);
  // Head: 2.543 GB.
  EXPECT_EQ(matrices("lm_head"), 2'542'796'800);
}

TEST_F(Cost27B, ConvolutionTapsMakeUpTheRestOfTheDeltaNet) {
  // 48 layers of 10240 filters of 4 taps, counted as the checkpoint has them: 11.124 GB with the matrices.
  const int64_t taps = streamed(program, OpKind::short_conv, "conv1d");
  EXPECT_EQ(taps, int64_t{48} * 10240 * 4 * 2);
  EXPECT_EQ(matrices(".linear_attn.") + taps, 11'124'080'640);
}

TEST_F(Cost27B, KeyAndValueHeadsAreHeldTwiceOverEightRanks) {
  const int64_t once = int64_t{16} * (2 * 24 * 256 + 2 * 4 * 256 + 24 * 256) * 5120 * 2;
  EXPECT_EQ(once, 3'355'443'200);  // the published 3.355 GB
  const int64_t kv = int64_t{16} * 2 * 4 * 256 * 5120 * 2;
  EXPECT_EQ(matrices(".self_attn."), once + kv);  // 4 heads over 8 ranks: neighbours share
  const Program four = program_of("configs/qwen3.8-27b.json", 4);
  EXPECT_EQ(streamed(four, OpKind::matmul, ".self_attn."), once);
}

TEST_F(Cost27B, StreamedBytesCountEachWeightOnceAtEveryRankCount) {
  const int64_t published = 34'225'520'640 + 11'124'080'640 + 3'355'443'200 + 2'542'796'800;
  const int64_t streamed = streamed_bytes(program);
  EXPECT_EQ(streamed, streamed_bytes(program_of("configs/qwen3.8-27b.json", 1)));
  // 129 norms of 5120, q and k norms of 16 layers, output norm, A_log and dt_bias of 48.
  EXPECT_EQ(streamed, published + int64_t{2} * (129 * 5120 + 16 * 2 * 256 + 48 * (128 + 48 + 48)));
}

TEST_F(Cost27B, StatesOfASequence) {
  const Cost cost = program_cost(program, {.sequences = 1, .rows_each = 1, .context = 2048});
  const int64_t recurrent = int64_t{48} * 48 * 128 * 128 * 4 * 2;  // read and written: 0.302 GB
  const int64_t conv = int64_t{48} * 10240 * 3 * 4 * 2;
  const int64_t cache = int64_t{16} * 2 * kRanks * 256 * 4;  // a position, f32, a head for each rank
  EXPECT_EQ(cost.state_bytes * kRanks, recurrent + conv + cache * (2048 + 1));
}

TEST_F(Cost27B, EmbeddingIsARowAndNotATable) {
  EXPECT_EQ(streamed(program, OpKind::embed, "embed_tokens"), 5120 * 2);
}

TEST_F(Cost27B, IsBuiltWithinASecond) {
  const auto start = std::chrono::steady_clock::now();
  program_of("configs/qwen3.8-27b.json", kRanks);
  EXPECT_LT(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count(), 1.0);
}

TEST(Cost, EveryRealSizeBuildsAtEveryRankCount) {
  for (const char* size : {"qwen3.5-0.8b", "qwen3.5-2b", "qwen3.5-4b", "qwen3.5-9b", "qwen3.8-27b", "kimi-k3"}) {
    const auto path = test_data(std::string("configs/") + size + ".json");
    const auto model = make_model(read_json(path), path.string());
    for (const int ranks : model->allowed_ranks()) {
      const Program program = model->build({.ranks = ranks});
      EXPECT_GT(program_cost(program, {}).weight_bytes, 0) << size;
      EXPECT_GT(tape_layout(program).bytes, program_cost(program, {}).weight_bytes) << size;
    }
  }
}

TEST(Cost, WeightsAreReadOnceForAllRowsAndStatesForEachSequence) {
  const Program program = two_layers(1);
  const Cost one = program_cost(program, {.sequences = 1, .rows_each = 1, .context = 100});
  const Cost many = program_cost(program, {.sequences = 4, .rows_each = 1, .context = 100});
  EXPECT_EQ(many.state_bytes, 4 * one.state_bytes);
  const int64_t row = 128 * 2;  // of the embedding
  EXPECT_EQ(many.weight_bytes - 4 * row, one.weight_bytes - row);
  EXPECT_EQ(one.wire_bytes, 0);
  EXPECT_GT(program_cost(two_layers(2), {}).wire_bytes, 0);
}

// One layer of experts: 64 of them, of which a row chooses 4.
Program with_experts(int ranks) {
  Builder b({.ranks = ranks}, 8);
  const ExpertSet set = {64, 8};
  const Value x = b.embed(b.matrix("table", 10, 96, {}));
  const Value routing = b.route(b.matmul(x, b.matrix("gate", 64, 96, {})), b.vector("bias", {64}), {64, 4});
  const Value a =
      b.expert_gate(x, routing, b.experts("*.w1", 128, 96, set, {}), b.experts("*.w3", 128, 96, set, {}), {4, {4, 25}});
  b.output("y", b.expert_down(a, routing, b.experts("*.w2", 96, 128, set, {})));
  return std::move(b).build();
}

const Op& op_of(const Program& program, OpKind kind) {
  return *std::find_if(program.ops.begin(), program.ops.end(), [&](const Op& op) { return op.kind == kind; });
}

constexpr int64_t kExpertBytes = 128 * 96 / 32 * 17;  // of one matrix

TEST(Cost, ExpertsCountAsFarAsTheyAreChosen) {
  for (const int ranks : {1, 8}) {
    const Program program = with_experts(ranks);
    const Op &gate = op_of(program, OpKind::expert_gate), &down = op_of(program, OpKind::expert_down);
    // One row chooses 4 of 64; of two rows, each leaves 60/64 of what the other chose.
    EXPECT_EQ(op_cost(program, gate, {}).weight_bytes, 2 * 4 * kExpertBytes / ranks);
    EXPECT_EQ(op_cost(program, down, {}).weight_bytes, 4 * kExpertBytes / ranks);
    EXPECT_EQ(op_cost(program, down, {.sequences = 2}).weight_bytes,
              std::llround((4 + 4 * 60 / 64.0) * kExpertBytes / ranks));
    EXPECT_EQ(op_cost(program, down, {.rows_each = 2}).weight_bytes,
              op_cost(program, down, {.sequences = 2}).weight_bytes);
    EXPECT_NEAR(chosen_experts(program, {.sequences = 10'000}), 64, 1e-9);
  }
}

TEST(Cost, CountOfExpertsCanBeGiven) {
  const Program program = with_experts(8);
  const Op& down = op_of(program, OpKind::expert_down);
  const CostArgs sixteen = {.sequences = 8, .experts = 16}, too_many = {.sequences = 8, .experts = 1000};
  EXPECT_EQ(chosen_experts(program, sixteen), 16);
  EXPECT_EQ(op_cost(program, down, sixteen).weight_bytes, 16 * kExpertBytes / 8);
  EXPECT_EQ(op_cost(program, down, too_many).weight_bytes, 64 * kExpertBytes / 8);
  const int64_t others = streamed_bytes(program, sixteen) - 3 * 16 * kExpertBytes;
  EXPECT_EQ(others, (64 * 96 + 64) * 2);  // the gate, and the bias
}

TEST(Cost, ExpertsOfAllRanksComputeWhatTheRowsChose) {
  for (const int ranks : {1, 2, 8}) {
    const Program program = with_experts(ranks);
    const CostArgs args = {.sequences = 3, .rows_each = 5};
    EXPECT_EQ(op_cost(program, op_of(program, OpKind::expert_gate), args).flops * ranks, 15.0 * 4 * 2 * 2 * 128 * 96);
    EXPECT_EQ(op_cost(program, op_of(program, OpKind::expert_down), args).flops * ranks, 15.0 * 4 * 2 * 128 * 96);
  }
}

TEST(Cost, ProgramsWithoutExpertsChooseNone) {
  EXPECT_EQ(chosen_experts(two_layers(1), {}), 0);
}

TEST(Print, HasALineForEachOp) {
  const Program program = two_layers(2);
  const std::string text = print_program(program, {}, 1e11);
  size_t at = text.find('\n');
  for (const Op& op : program.ops) {
    const size_t end = text.find('\n', at + 1);
    const std::string line = text.substr(at + 1, end - at - 1);
    EXPECT_TRUE(line.starts_with(op_info(op.kind).name)) << line;
    EXPECT_NE(line.find(op.label), std::string::npos) << line;
    at = end;
  }
  EXPECT_NE(text.find("floor"), std::string::npos);
  EXPECT_EQ(print_program(program, {}, 0).find("floor"), std::string::npos);
}

}  // namespace
}  // namespace megalith
