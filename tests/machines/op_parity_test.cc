// Each op on the CPU against the reference, over shapes that are no multiple of anything. What moves numbers, adds them
// or multiplies matrices has equal bits; what needs exp, sqrt, sin or a softmax is within a relative 1e-5 of the
// largest element (the reference forms those in double precision).

#include <set>

#include <gtest/gtest.h>

#include "tests/machines/harness.h"

namespace megalith {
namespace {

constexpr double kEqual = 0;
constexpr double kClose = 1e-5;
constexpr int kTokens = 37;

// Values that differ row by row: a table's rows, chosen by token.
Value source(Builder& b, const std::string& name, int64_t width) {
  return b.embed(b.matrix(name, kTokens, width, {}));
}

StepArgs one_step(int rows) {
  StepArgs step;
  add_tokens(step, 0, 0, rows, rows, kTokens);
  choose_all(step);
  return step;
}

std::vector<StepArgs> steps_of_rows(std::initializer_list<int> counts) {
  std::vector<StepArgs> steps;
  for (const int rows : counts) steps.push_back(one_step(rows));
  return steps;
}

TEST(OpParity, EmbedReadsTheRowOfTheToken) {
  for (const DType dtype : {DType::bf16, DType::f32}) {
    for (const int64_t width : {1, 15, 16, 17, 65, 130}) {
      Builder b({.catalog = all_of(dtype)}, 1);
      b.output("x", source(b, "table", width));
      Parity(std::move(b).build(), kEqual).run(steps_of_rows({1, 2, 7, 40}), {1, 2, 5});
    }
  }
}

TEST(OpParity, EmbedOverRanksAddsNothingToTheRow) {
  for (const int ranks : {1, 2, 4, 8}) {
    Builder b({.ranks = ranks}, 8);
    b.output("x", b.embed(b.matrix("table", 40, 33, Builder::split_outputs({{40, 40}}))));
    Parity(std::move(b).build(), kEqual).run(steps_of_rows({1, 9}));
  }
}

TEST(OpParity, MatmulHasTheReferenceBitsAtEveryShape) {
  for (const DType dtype : {DType::bf16, DType::f32}) {
    for (const int64_t outputs : {1, 31, 32, 33, 65, 130, 200}) {
      for (const int64_t inputs : {1, 16, 31, 257}) {
        Builder b({.catalog = all_of(dtype)}, 1);
        b.output("y", b.matmul(source(b, "table", inputs), b.matrix("w", outputs, inputs, {})));
        Parity(std::move(b).build(), kEqual).run(steps_of_rows({1, 2, 3, 5}));
      }
    }
  }
}

TEST(OpParity, MatmulHasTheReferenceBitsAtEveryRowCount) {
  Builder b({}, 8);
  const Split split = Builder::split_inputs({520, 8});
  b.output("y", b.matmul(source(b, "table", 520), b.matrix("w", 70, 520, split)));
  b.output("z", b.matmul(source(b, "table", 520), b.matrix("v", 70, 520, {})));
  std::vector<StepArgs> steps;
  for (int rows = 1; rows <= 20; ++rows) steps.push_back(one_step(rows));
  for (const int rows : {95, 96, 97, 200}) steps.push_back(one_step(rows));
  Parity(std::move(b).build(), kEqual).run(steps);
}

TEST(OpParity, MatmulAndAllReduceHaveTheReferenceBitsAtEveryRankCount) {
  std::vector<float> whole;
  for (const int ranks : {1, 2, 4, 8}) {
    Builder b({.ranks = ranks}, 8);
    const Value x = source(b, "table", 48);
    const Value h = b.matmul(x, b.matrix("up", 8 * 33, 48, Builder::split_outputs({{8 * 33, 8}})));
    const Value y = b.matmul(h, b.matrix("down", 50, 8 * 33, Builder::split_inputs({8 * 33, 8})));
    b.output("y", y);
    const Program program = std::move(b).build();
    Parity parity(program, kEqual);
    parity.run(steps_of_rows({1, 6}), {1, 2, 3, 9});
    Reference reference(program, 1, 64);
    reference.load(parity.weights);
    reference.run(one_step(6));
    if (ranks == 1) whole = reference.read(y);
    EXPECT_TRUE(same_bits(reference.read(y), whole)) << ranks << " ranks";
  }
}

TEST(OpParity, RmsNormOfRowsAndOfStridedHeads) {
  for (const int64_t dim : {1, 15, 16, 48, 100}) {
    for (const bool zero_centred : {false, true}) {
      Builder b({}, 1);
      const Value x = source(b, "table", 3 * 2 * dim);
      const WeightRef w = b.vector("w", {dim});
      b.output("heads", b.rms_norm(x, w, {3, dim, 2 * dim, 0}, 1e-6f, zero_centred));
      b.output("offset", b.rms_norm(x, w, {3, dim, 2 * dim, dim}, 1e-6f, zero_centred));
      b.output("row", b.rms_norm(x, b.vector("v", {6 * dim}), Heads::compact(1, 6 * dim), 1e-5f, zero_centred));
      Parity(std::move(b).build(), kClose).run(steps_of_rows({1, 4, 19}));
    }
  }
}

TEST(OpParity, RopeTurnsTheFirstDimensionsByThePosition) {
  for (const int64_t dim : {16, 32, 48}) {
    for (const int64_t rotary : {int64_t{2}, dim / 4 / 2 * 2, dim}) {
      Builder b({}, 1);
      b.output("y", b.rope(source(b, "table", 3 * dim), 3, dim, rotary, 1e7));
      Parity(std::move(b).build(), kClose).run(mixed_steps(kTokens));
    }
  }
}

TEST(OpParity, RopeAtFarPositions) {
  Builder b({}, 1);
  b.output("y", b.rope(source(b, "table", 64), 1, 64, 64, 1e4));
  std::vector<StepArgs> steps(3);
  add_tokens(steps[0], 0, 32'765, 5, 0, kTokens);
  add_tokens(steps[1], 0, 262'140, 4, 0, kTokens);
  add_tokens(steps[2], 0, (1 << 20) - 3, 3, 0, kTokens);
  Parity(std::move(b).build(), kClose, 1, 1 << 20).run(steps);
}

TEST(OpParity, AppendAndAttendReadEveryVisiblePosition) {
  for (const int64_t dim : {16, 32, 48}) {
    for (const auto& [heads, kv_heads] : {std::pair{1, 1}, {4, 2}, {6, 1}, {3, 3}}) {
      Builder b({}, 1);
      const Value q = source(b, "q", heads * dim);
      const int k_state = b.per_position("k", kv_heads, dim);
      const int v_state = b.per_position("v", kv_heads, dim);
      b.append_kv(source(b, "k", kv_heads * dim), source(b, "v", kv_heads * dim), k_state, v_state);
      // A steep softmax: large scores show a max that is taken wrongly.
      b.output("y", b.attend(q, k_state, v_state, {heads, kv_heads, dim, dim, 8.0f}));
      const Program program = std::move(b).build();
      Parity(program, kClose).run(mixed_steps(kTokens));
      Parity(program, kClose).run(long_steps(kTokens));
    }
  }
}

// Positions far apart, with zeros between: every span has chunks, whole and begun.
TEST(OpParity, AttendOverManySpans) {
  Builder b({}, 1);
  const Value q = source(b, "q", 4 * 16);
  const int k_state = b.per_position("k", 2, 16);
  const int v_state = b.per_position("v", 2, 16);
  b.append_kv(source(b, "k", 2 * 16), source(b, "v", 2 * 16), k_state, v_state);
  b.output("y", b.attend(q, k_state, v_state, {4, 2, 16, 16, 8.0f}));
  std::vector<StepArgs> steps(7);
  add_tokens(steps[0], 0, 0, 300, 0, kTokens);
  add_tokens(steps[1], 0, 1020, 9, 3, kTokens);
  add_tokens(steps[2], 0, 2040, 20, 5, kTokens);
  add_tokens(steps[3], 0, 2047, 1, 5, kTokens);
  add_tokens(steps[4], 0, 2048, 1, 6, kTokens);
  add_tokens(steps[5], 0, 4600, 2, 1, kTokens);
  add_tokens(steps[6], 0, 5119, 1, 2, kTokens);
  Parity(std::move(b).build(), kClose, 1, 5120).run(steps, {1, 2, 5});
}

TEST(OpParity, SigmoidGateOfStridedHeads) {
  for (const int64_t dim : {1, 16, 31, 48}) {
    Builder b({}, 1);
    const Value x = source(b, "x", 3 * dim);
    b.output("heads", b.sigmoid_gate(x, source(b, "gate", 6 * dim), {3, dim, 2 * dim, dim}));
    b.output("row", b.sigmoid_gate(x, source(b, "flat", 3 * dim), Heads::compact(1, 3 * dim)));
    Parity(std::move(b).build(), kClose).run(steps_of_rows({1, 2, 20}));
  }
}

TEST(OpParity, ShortConvSeesTheRowsBeforeTheRun) {
  for (const int64_t channels : {1, 15, 16, 17, 65}) {
    for (const int64_t taps : {2, 4, 7}) {
      Builder b({}, 1);
      const int state = b.per_sequence("conv", {taps - 1, channels});
      b.output("y", b.short_conv(source(b, "u", channels), b.vector("taps", {channels, 1, taps}), state));
      Parity(std::move(b).build(), kClose).run(mixed_steps(kTokens));
    }
  }
}

TEST(OpParity, GatedDeltaFollowsTheRecurrence) {
  for (const auto& [key_dim, value_dim] : {std::pair{16, 16}, {32, 48}, {48, 32}}) {
    for (const auto& [key_heads, value_heads] : {std::pair{1, 1}, {2, 6}, {3, 3}}) {
      Builder b({}, 1);
      const GatedDelta how = {key_heads, value_heads, key_dim, value_dim};
      const Value qkv = source(b, "qkv", 2 * key_heads * key_dim + value_heads * value_dim);
      const int state = b.per_sequence("state", {value_heads, key_dim, value_dim});
      b.output("y", b.gated_delta(qkv, source(b, "b", value_heads), source(b, "a", value_heads),
                                  b.vector("A_log", {value_heads}), b.vector("dt_bias", {value_heads}), state, how));
      Parity(std::move(b).build(), kClose).run(mixed_steps(kTokens));
    }
  }
}

TEST(OpParity, GatedDeltaWithExtremeGates) {
  Builder b({}, 1);
  const GatedDelta how = {1, 4, 16, 16};
  const int state = b.per_sequence("state", {4, 16, 16});
  b.output("y", b.gated_delta(source(b, "qkv", 96), source(b, "b", 4), source(b, "a", 4), b.vector("A_log", {4}),
                              b.vector("dt_bias", {4}), state, how));
  Parity parity(std::move(b).build(), kClose);
  parity.weights.set("A_log", {-20, 5, 0, 2});         // no decay; all forgotten at once
  parity.weights.set("dt_bias", {0, 30, -90, 19.9f});  // both ends of softplus
  parity.run(mixed_steps(kTokens));
}

TEST(OpParity, GatedNormOfHeads) {
  for (const int64_t dim : {1, 16, 31, 48}) {
    Builder b({}, 1);
    b.output("y", b.gated_norm(source(b, "x", 3 * dim), source(b, "z", 3 * dim), b.vector("w", {dim}), {3, dim, 1e-6f, Gate::silu}));
    Parity(std::move(b).build(), kClose).run(steps_of_rows({1, 5, 20}));
  }
}

TEST(OpParity, SiluGate) {
  for (const int64_t width : {1, 15, 16, 17, 129}) {
    Builder b({}, 1);
    b.output("y", b.silu_gate(source(b, "gate", width), source(b, "up", width)));
    Parity parity(std::move(b).build(), kClose);
    std::vector<float> gates;
    for (int64_t i = 0; i < kTokens * width; ++i) gates.push_back(100 * random_number(5, static_cast<uint64_t>(i)));
    parity.weights.set("gate", gates);
    parity.run(steps_of_rows({1, 2, 20}), {1, 2, 4});
  }
}

TEST(OpParity, AddAndChooseRowsHaveEqualBits) {
  for (const int64_t width : {1, 15, 16, 17, 129}) {
    Builder b({}, 1);
    const Value sum = b.add(source(b, "x", width), source(b, "y", width));
    b.output("sum", sum);
    b.output("chosen", b.choose_rows(sum));
    std::vector<StepArgs> steps(3);
    add_tokens(steps[0], 0, 0, 20, 0, kTokens);
    for (const int row : {3, 4, 19}) steps[0].choose(row, {});
    add_tokens(steps[1], 0, 20, 5, 1, kTokens);  // no row is chosen: an empty batch
    add_tokens(steps[2], 0, 25, 1, 2, kTokens);
    steps[2].choose(0, {});
    Parity(std::move(b).build(), kEqual).run(steps, {1, 2, 4});
  }
}

TEST(OpParity, AllGatherJoinsRanksInOrder) {
  for (const int ranks : {2, 4, 8}) {
    Builder b({.ranks = ranks}, 8);
    const Value x = b.choose_rows(source(b, "table", 48));
    b.output("y", b.all_gather(b.matmul(x, b.matrix("head", 8 * 5, 48, Builder::split_outputs({{40, 40}})))));
    Parity(std::move(b).build(), kEqual).run(steps_of_rows({1, 3}), {1, 2, 3, 8});
  }
}

TEST(OpParity, SampleTakesTheSameTokens) {
  Builder b({.catalog = all_of(DType::f32)}, 1);
  b.output("tokens", b.sample(b.choose_rows(source(b, "logits", 65))));
  StepArgs step;
  add_tokens(step, 0, 0, 20, 0, kTokens);
  for (int row = 0; row < 20; ++row) step.choose(row, {.temperature = row % 2 == 0 ? 0.0f : 0.7f, .seed = 9});
  Parity(std::move(b).build(), kEqual).run({step}, {1, 2, 4});
}

TEST(OpParity, EveryOpOfTheTableHasATest) {
  // A new op must be added here and above.
  std::set<std::string_view> tested = {
      "embed",       "rms_norm",   "matmul",    "rope", "append_kv",  "attend", "join_spans", "sigmoid_gate", "short_conv",
      "gated_delta", "gated_norm", "silu_gate", "add",  "all_reduce", "choose_rows", "all_gather",   "sample"};
  for (const OpInfo& info : op_table()) EXPECT_TRUE(tested.contains(info.name)) << info.name;
  EXPECT_EQ(tested.size(), op_table().size());
}

}  // namespace
}  // namespace megalith
