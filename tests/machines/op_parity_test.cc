// Each op on the CPU against the reference, over shapes that are no multiple of anything. What moves numbers, adds them
// or multiplies matrices has equal bits; what needs exp, sqrt, sin or a softmax is within a relative 1e-5 of the
// largest element (the reference forms those in double precision).

#include <algorithm>
#include <numeric>
#include <set>

#include <gtest/gtest.h>

#include "machines/cpu/instruction_set.h"
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

// Positions far apart, with zeros between: every span has chunks, whole and begun.
constexpr int kFarContext = 5120;
std::vector<StepArgs> far_steps() {
  std::vector<StepArgs> steps(7);
  add_tokens(steps[0], 0, 0, 300, 0, kTokens);
  add_tokens(steps[1], 0, 1020, 9, 3, kTokens);
  add_tokens(steps[2], 0, 2040, 20, 5, kTokens);
  add_tokens(steps[3], 0, 2047, 1, 5, kTokens);
  add_tokens(steps[4], 0, 2048, 1, 6, kTokens);
  add_tokens(steps[5], 0, 4600, 2, 1, kTokens);
  add_tokens(steps[6], 0, kFarContext - 1, 1, 2, kTokens);
  return steps;
}

// A table of numbers from -100 to 100.
std::vector<float> large_numbers(int64_t width) {
  std::vector<float> numbers;
  for (int64_t i = 0; i < kTokens * width; ++i) numbers.push_back(100 * random_number(5, static_cast<uint64_t>(i)));
  return numbers;
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

// Each head's part of a row by its own part of a tensor: its first rows turned round, then its other rows as they are.
Program two_head_views(int ranks, DType dtype) {
  constexpr int64_t kHeads = 4, kFirst = 17, kOther = 64, kQuery = 25, kLatent = 96;
  Builder b({.ranks = ranks, .catalog = all_of(dtype)}, 4);
  const Split by_heads = Builder::split_outputs({{kHeads * kQuery, kHeads}});
  const Value q = b.matmul(source(b, "table", 40), b.matrix("q", kHeads * kQuery, 40, by_heads));
  const int64_t heads = kHeads / ranks, outputs = kHeads * (kFirst + kOther);
  const WeightRef keys = b.head_matrix("kv_b", outputs, kLatent, {kHeads, 0, kFirst, true});
  const WeightRef values = b.head_matrix("kv_b", outputs, kLatent, {kHeads, kFirst, kOther, false});
  const Value latent = b.matmul_heads(q, keys, {heads, kFirst, kQuery, 3});
  b.output("latent", b.all_gather_everywhere(latent));
  b.output("y", b.all_gather_everywhere(b.matmul_heads(latent, values, Heads::compact(heads, kLatent))));
  return std::move(b).build();
}

TEST(OpParity, MatmulOfHeadsHasTheReferenceBitsAtEveryRankCount) {
  for (const DType dtype : {DType::bf16, DType::f32}) {
    std::vector<float> whole;
    for (const int ranks : {1, 2, 4}) {
      const Program program = two_head_views(ranks, dtype);
      Parity parity(program, kEqual);
      parity.run(steps_of_rows({1, 2, 3, 13, 20, 100}), {1, 3});
      Reference reference(program, 1, 64);
      reference.load(parity.weights);
      reference.run(one_step(6));
      const std::vector<float>& y = reference.read(program.output("y"));
      if (ranks == 1) whole = y;
      EXPECT_TRUE(same_bits(y, whole)) << ranks << " ranks";
    }
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
      b.output("y", b.rope(source(b, "table", 3 * dim), {3, dim, rotary, 1e7}));
      Parity(std::move(b).build(), kClose).run(mixed_steps(kTokens));
    }
  }
}

TEST(OpParity, RopeAtFarPositions) {
  Builder b({}, 1);
  b.output("y", b.rope(source(b, "table", 64), {1, 64, 64, 1e4}));
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

TEST(OpParity, AttendOverManySpans) {
  Builder b({}, 1);
  const Value q = source(b, "q", 4 * 16);
  const int k_state = b.per_position("k", 2, 16);
  const int v_state = b.per_position("v", 2, 16);
  b.append_kv(source(b, "k", 2 * 16), source(b, "v", 2 * 16), k_state, v_state);
  b.output("y", b.attend(q, k_state, v_state, {4, 2, 16, 16, 8.0f}));
  Parity(std::move(b).build(), kClose, 1, kFarContext).run(far_steps(), {1, 2, 5});
}

struct LatentShape {
  int64_t heads, key_dim, value_dim, tail;
};

// Attention over latent rows. A head's part of the second input holds more than its tail, which comes last.
Program latent_attention(const LatentShape& shape) {
  const auto& [heads, key_dim, value_dim, tail] = shape;
  const int64_t stride = tail + 7;
  Builder b({}, 1);
  const int state = b.per_position("latent", 1, key_dim);
  b.append_latent(source(b, "c", value_dim), source(b, "kv", key_dim), state);
  b.output("y", b.attend_latent(source(b, "q", heads * (key_dim - tail)), source(b, "q_tail", heads * stride), state,
                                {.heads = heads,
                                 .kv_heads = 1,
                                 .key_dim = key_dim,
                                 .value_dim = value_dim,
                                 .scale = 8.0f,
                                 .latent = true,
                                 .tail = {heads, tail, stride, 7}}));
  return std::move(b).build();
}

TEST(OpParity, AppendAndAttendLatentReadKeysAndValuesOfOneRow) {
  for (const LatentShape& shape : {LatentShape{1, 48, 32, 16}, {3, 48, 32, 16}, {4, 37, 32, 5}, {6, 144, 96, 48}}) {
    const Program program = latent_attention(shape);
    Parity(program, kClose).run(mixed_steps(kTokens));
    Parity(program, kClose).run(long_steps(kTokens));
  }
}

TEST(OpParity, AttendLatentOverManySpans) {
  Parity(latent_attention({5, 48, 32, 16}), kClose, 1, kFarContext).run(far_steps(), {1, 2, 5});
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

Program kda_program(const Kda& how) {
  const int64_t size = how.heads * how.dim;
  Builder b({}, 1);
  const int state = b.per_sequence("state", {how.heads, how.dim, how.dim});
  const Value f = source(b, "f", size), beta = source(b, "b", how.heads);
  b.output("y", b.kda(source(b, "q", size), source(b, "k", size), source(b, "v", size), f, beta,
                      b.vector_with_tail("A_log", how.heads, {}), b.vector("dt_bias", {size}), state, how));
  return std::move(b).build();
}

TEST(OpParity, KdaFollowsTheRecurrence) {
  for (const int64_t dim : {16, 32, 48, 80}) {
    for (const int64_t heads : {1, 3}) {
      Parity(kda_program({heads, dim, -5.0f}), kClose).run(mixed_steps(kTokens));
    }
  }
}

TEST(OpParity, KdaWithExtremeGates) {
  for (const float lower_bound : {-5.0f, -80.0f}) {
    Parity parity(kda_program({4, 16, lower_bound}), kClose);
    parity.weights.set("A_log", {-20, 5, 0, 2});
    std::vector<float> dt_bias;  // of every head, some channels keep all and some decay by the whole bound
    for (size_t i = 0; i < 64; ++i) dt_bias.push_back(std::vector<float>{0, 30, -90, 2}[i % 4]);
    parity.weights.set("dt_bias", dt_bias);
    parity.run(mixed_steps(kTokens));
  }
}

// Runs of two sequences whose rows are partly refused: all, none or some of a block become permanent, also of one that
// began a text; then rows that are permanent at once.
std::vector<StepArgs> speculative_steps() {
  std::vector<StepArgs> steps(7);
  const auto add = [](StepArgs& step, int sequence, int position, int rows, int first_token, int replay, bool speculative) {
    std::vector<int32_t> ids;
    for (int i = 0; i < rows; ++i) ids.push_back((first_token + i) % kTokens);
    step.add_run(sequence, position, ids, replay, speculative);
  };
  add(steps[0], 0, 0, 20, 0, 0, false);
  add(steps[1], 0, 20, 8, 3, 0, true);
  add(steps[2], 0, 25, 6, 9, 5, true);   // some
  add(steps[2], 1, 0, 7, 1, 0, true);    // a text that begins with a block
  add(steps[3], 0, 25, 3, 11, 0, true);  // none
  add(steps[3], 1, 2, 1, 4, 2, true);
  add(steps[4], 1, 3, 0, 0, 1, false);   // no rows of its own
  add(steps[5], 0, 28, 19, 2, 3, false);  // all, and then more than are prepared at once
  add(steps[5], 1, 3, 2, 2, 0, false);
  add(steps[6], 0, 0, 1, 5, 0, true);  // another text in a used slot
  for (StepArgs& step : steps) choose_all(step);
  return steps;
}

TEST(OpParity, RecurrencesKeepRefusedRowsOutOfTheirStates) {
  for (const int64_t dim : {16, 80}) {
    Builder b({.block = 8}, 1);
    const Value u = source(b, "u", 33);
    b.output("conv", b.short_conv(u, b.vector("taps", {33, 1, 4}), b.per_sequence("conv", {3, 33})));
    const GatedDelta delta = {1, 2, dim, 48};
    const Value qkv = source(b, "qkv", 2 * dim + 2 * 48);
    b.output("delta", b.gated_delta(qkv, source(b, "b", 2), source(b, "a", 2), b.vector("A", {2}), b.vector("dt", {2}),
                                    b.per_sequence("delta", {2, dim, 48}), delta));
    const Kda kda = {2, dim, -5.0f};
    const Value q = source(b, "q", 2 * dim), k = source(b, "k", 2 * dim), v = source(b, "v", 2 * dim);
    b.output("kda", b.kda(q, k, v, source(b, "f", 2 * dim), source(b, "beta", 2), b.vector("A_log", {2}),
                          b.vector("dt_bias", {2 * dim}), b.per_sequence("kda", {2, dim, dim}), kda));
    Parity(std::move(b).build(), kClose).run(speculative_steps());
  }
}

TEST(OpParity, GatedNormOfHeads) {
  for (const Gate gate : {Gate::silu, Gate::sigmoid}) {
    for (const int64_t dim : {1, 16, 31, 48}) {
      Builder b({}, 1);
      const Value x = source(b, "x", 3 * dim), z = source(b, "z", 3 * dim);
      b.output("y", b.gated_norm(x, z, b.vector("w", {dim}), {3, dim, 1e-6f, gate}));
      Parity(std::move(b).build(), kClose).run(steps_of_rows({1, 5, 20}));
    }
  }
}

TEST(OpParity, SiluGate) {
  for (const int64_t width : {1, 15, 16, 17, 129}) {
    Builder b({}, 1);
    b.output("y", b.silu_gate(source(b, "gate", width), source(b, "up", width)));
    Parity parity(std::move(b).build(), kClose);
    parity.weights.set("gate", large_numbers(width));
    parity.run(steps_of_rows({1, 2, 20}), {1, 2, 4});
  }
}

TEST(OpParity, SituGateOfSmallAndLargeNumbers) {
  for (const int64_t width : {1, 15, 16, 17, 129}) {
    Builder b({}, 1);
    const Value gate = source(b, "gate", width), up = source(b, "up", width);
    const Value large = source(b, "large", width);
    b.output("small", b.situ_gate(gate, up, {4, 25}));
    b.output("large gate", b.situ_gate(large, up, {4, 25}));
    b.output("large up", b.situ_gate(gate, large, {4, 25}));
    b.output("both", b.situ_gate(large, large, {0.5f, 3}));
    Parity parity(std::move(b).build(), kClose);
    parity.weights.set("large", large_numbers(width));
    parity.run(steps_of_rows({1, 2, 20}), {1, 2, 4});
  }
}

TEST(OpParity, ResidualMixOfAnyNumberOfRows) {
  for (const int64_t width : {1, 15, 16, 65}) {
    for (const int inputs : {1, 2, 5, 9}) {
      Builder b({}, 1);
      std::vector<Value> rows;
      for (int i = 0; i < inputs; ++i) rows.push_back(source(b, "row" + std::to_string(i), width));
      b.output("y", b.residual_mix(rows, b.vector("norm", {width}), b.vector("proj", {1, width}), 1e-5f));
      Parity(std::move(b).build(), kClose).run(steps_of_rows({1, 2, 20}), {1, 2, 4});
    }
  }
}

TEST(OpParity, RouteChoosesTheExpertsOfTheReference) {
  for (const auto& [experts, top_k] : {std::pair{1, 1}, {7, 3}, {16, 16}, {65, 4}, {300, 16}}) {
    Builder b({.catalog = all_of(DType::f32)}, 1);
    b.output("y", b.route(source(b, "logits", experts), b.vector("bias", {experts}), {experts, top_k}));
    Parity(std::move(b).build(), kClose).run(steps_of_rows({1, 2, 20}), {1, 2, 4});
  }
}

// What rows chose, given rather than computed: of each token, different experts in order, and their weights.
std::vector<float> given_routing(int64_t experts, int64_t top_k) {
  std::vector<float> routing;
  for (uint64_t token = 0; token < kTokens; ++token) {
    std::vector<int64_t> ids(static_cast<size_t>(experts));
    std::iota(ids.begin(), ids.end(), 0);
    const auto lot = [&](int64_t e) { return random_number(token, static_cast<uint64_t>(e)); };
    std::sort(ids.begin(), ids.end(), [&](int64_t a, int64_t b) { return lot(a) < lot(b); });
    std::sort(ids.begin(), ids.begin() + top_k);
    routing.insert(routing.end(), ids.begin(), ids.begin() + top_k);
    for (int64_t slot = 0; slot < top_k; ++slot) routing.push_back(0.1f + std::abs(lot(1000 + slot)));
  }
  return routing;
}

// Experts of 8 groups in up to 4 parts each, as a program of 32 segments has them.
constexpr int kSegments = 32, kGroups = 8, kParts = 4;
struct ExpertShape {
  int64_t experts, top_k, inputs, width, outputs;
};

Value gate_of(Builder& b, const ExpertShape& s) {
  const Split split = Builder::split_outputs({{s.width, kParts}});
  const ExpertSet set = {s.experts, kGroups};
  return b.expert_gate(source(b, "x", s.inputs), source(b, "routing", 2 * s.top_k),
                       b.experts("w1.*", s.width, s.inputs, set, split),
                       b.experts("w3.*", s.width, s.inputs, set, split), {s.top_k, {4, 25}});
}

Value down_of(Builder& b, const ExpertShape& s, Value x) {
  const WeightRef w2 =
      b.experts("w2.*", s.outputs, s.width, {s.experts, kGroups}, Builder::split_inputs({s.width, kParts}));
  return b.expert_down(x, source(b, "routing", 2 * s.top_k), w2);
}

const std::initializer_list<int> kExpertRows = {1, 2, 3, 5, 13, 40};

// At 32 ranks a rank's part of an expert is no whole panel.
TEST(OpParity, ExpertGateIsThatOfTheChosenExpertsOfEachRank) {
  for (const int ranks : {1, 2, 8, 16, 32}) {
    for (const auto& [experts, top_k] : {std::pair{8, 1}, {8, 4}, {64, 1}, {64, 4}}) {
      Builder b({.ranks = ranks, .catalog = all_of(DType::f32)}, kSegments);
      b.output("y", b.all_gather_everywhere(gate_of(b, {experts, top_k, 64, 160, 0})));
      Parity parity(std::move(b).build(), kClose);
      parity.weights.set("routing", given_routing(experts, top_k));
      parity.run(steps_of_rows(kExpertRows));
    }
  }
}

TEST(OpParity, ExpertDownHasTheReferenceBits) {
  for (const int ranks : {1, 2, 4, 8}) {
    for (const ExpertShape& shape :
         {ExpertShape{8, 1, 0, 128, 96}, {8, 4, 0, 256, 64}, {64, 1, 0, 256, 33}, {64, 4, 0, 128, 200}}) {
      Builder b({.ranks = ranks, .catalog = all_of(DType::f32)}, kSegments);
      b.output("y", down_of(b, shape, source(b, "x", shape.top_k * shape.width)));
      Parity parity(std::move(b).build(), kEqual);
      parity.weights.set("routing", given_routing(shape.experts, shape.top_k));
      parity.run(steps_of_rows(kExpertRows));
    }
  }
}

TEST(OpParity, ExpertsOfMoreRowsThanAreSummedAtOnce) {
  for (const auto& [experts, top_k] : {std::pair{8, 1}, {8, 4}, {64, 4}}) {
    const ExpertShape shape = {experts, top_k, 64, 128, 96};
    for (const bool gate : {true, false}) {
      Builder b({.catalog = all_of(DType::f32)}, kSegments);
      b.output("y", gate ? gate_of(b, shape) : down_of(b, shape, source(b, "x", top_k * shape.width)));
      Parity parity(std::move(b).build(), gate ? kClose : kEqual);
      parity.weights.set("routing", given_routing(experts, top_k));
      parity.run(steps_of_rows({300}));
    }
  }
}

// Weights of one row that differ by many powers of two: a group's products may be far below the sum before it, or
// above.
void expect_reference_bits_with_scales(const std::vector<uint8_t>& scales) {
  Builder b({.catalog = all_of(DType::f32)}, kSegments);
  b.output("y", down_of(b, {8, 4, 0, 256, 64}, source(b, "x", 4 * 256)));
  Parity parity(std::move(b).build(), kEqual);
  parity.weights.set("routing", given_routing(8, 4));
  parity.weights.set_scales(scales);
  parity.run(steps_of_rows({1, 2, 13, 40}));
}

TEST(OpParity, ExpertDownHasTheReferenceBitsWhereScalesAreFarApart) {
  expect_reference_bits_with_scales({100, 126, 127, 128, 150});
}

TEST(OpParity, ExpertDownHasTheReferenceBitsWhereSomeScalesAreTheLeast) {
  expect_reference_bits_with_scales({1, 127, 140});
}

// All outputs of some steps on the CPU machine.
std::vector<float> outputs_of(const Program& program, const RandomWeights& weights, const std::vector<StepArgs>& steps,
                              int threads) {
  const auto machine =
      make_cpu_machine(program, {.threads = threads, .max_rows = 64, .max_sequences = 4, .context = 64});
  machine->load(weights, nullptr);
  std::vector<float> all;
  for (const StepArgs& step : steps) {
    machine->run(step);
    for (const auto& [name, value] : program.outputs) {
      const auto read = machine->read(value);
      all.insert(all.end(), read.begin(), read.end());
    }
  }
  return all;
}

TEST(OpParity, TheSumOfAllExpertsHasTheSameBitsAtEveryRankCount) {
  const ExpertShape shape = {64, 4, 96, 128, 96};
  RandomWeights weights;
  weights.set("routing", given_routing(shape.experts, shape.top_k));
  std::vector<float> whole;
  for (const int ranks : {1, 2, 4, 8, 16, 32}) {
    Builder b({.ranks = ranks, .catalog = all_of(DType::f32)}, kSegments);
    b.output("y", down_of(b, shape, gate_of(b, shape)));
    const Program program = std::move(b).build();
    for (const int threads : {1, 3}) {
      const std::vector<float> got = outputs_of(program, weights, steps_of_rows({1, 3, 40}), threads);
      if (whole.empty()) whole = got;
      EXPECT_TRUE(same_bits(got, whole)) << ranks << " ranks, " << threads << " threads";
    }
  }
}

// Widths that end in short vectors, at either length of vectors.
TEST(OpParity, OddShapesHaveTheSameBitsOnEveryInstructionSet) {
  Builder b({.catalog = all_of(DType::f32)}, kSegments);
  const ExpertShape shape = {64, 4, 64, 256, 33};
  b.output("experts", down_of(b, shape, gate_of(b, shape)));
  b.output("situ", b.situ_gate(source(b, "gate", 43), source(b, "up", 43), {4, 25}));
  b.output("mix", b.residual_mix({source(b, "v0", 43), source(b, "v1", 43), source(b, "v2", 43)},
                                 b.vector("norm", {43}), b.vector("proj", {1, 43}), 1e-5f));
  const Program mixed = std::move(b).build();
  RandomWeights weights;
  weights.set("routing", given_routing(shape.experts, shape.top_k));
  for (const Program& program : {mixed, latent_attention({5, 37, 32, 5}), kda_program({3, 48, -5.0f})}) {
    if (!use_instruction_set(InstructionSet::avx512)) GTEST_SKIP() << "no AVX-512 here";
    const auto wide = outputs_of(program, weights, mixed_steps(kTokens), 3);
    ASSERT_TRUE(use_instruction_set(InstructionSet::avx2));
    const auto narrow = outputs_of(program, weights, mixed_steps(kTokens), 3);
    use_instruction_set(InstructionSet::best);
    EXPECT_TRUE(same_bits(narrow, wide)) << program.outputs[0].first;
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

// What a rank makes of its gathered row is gathered again: it shows whether every rank had all of it.
TEST(OpParity, AllGatherEverywhereGivesEveryRankTheWholeRow) {
  for (const int ranks : {1, 2, 4, 8}) {
    Builder b({.ranks = ranks}, 8);
    const auto gathered = [&](const std::string& name, Value x, int64_t inputs) {
      return b.all_gather_everywhere(b.matmul(x, b.matrix(name, 40, inputs, Builder::split_outputs({{40, 8}}))));
    };
    const Value x = gathered("first", source(b, "table", 48), 48);
    b.output("x", x);
    b.output("y", gathered("second", x, 40));
    Parity(std::move(b).build(), kEqual).run(steps_of_rows({1, 3, 20}), {1, 2, 3, 8});
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
  // A new op must be added here, and above or in draft_parity_test.cc.
  std::set<std::string_view> tested = {
      "embed",       "rms_norm",     "matmul",     "rope",        "append_kv",   "append_latent", "attend",
      "join_spans",  "sigmoid_gate", "short_conv", "gated_delta", "kda",         "gated_norm",    "silu_gate",
      "situ_gate",   "residual_mix", "route",      "expert_gate", "expert_down", "add",           "all_reduce",
      "choose_rows", "all_gather",   "sample",     "accept",      "concat",      "append_window", "attend_block",
      "block_conv",  "candidates",   "lookup",     "select_path", "pick_row",    "advance"};
  for (const OpInfo& info : op_table()) EXPECT_TRUE(tested.contains(info.name)) << info.name;
  EXPECT_EQ(tested.size(), op_table().size());
}

}  // namespace
}  // namespace megalith
