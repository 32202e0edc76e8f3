// Weights that are not one whole tensor: experts in MXFP4, parts of each head of a tensor, vectors before a tail of
// zeros.

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/weights/tensor_files.h"
#include "weights/tape.h"

namespace megalith {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

constexpr int64_t kExperts = 16, kOutputs = 128, kInputs = 256;

struct Bytes {
  std::string dtype;
  std::vector<int64_t> shape;
  std::vector<std::byte> data;
};
using Tensors = std::map<std::string, Bytes>;

Bytes random_bytes(std::string dtype, std::vector<int64_t> shape, int64_t element, unsigned seed, int least,
                   int values) {
  std::mt19937 random(seed);
  size_t size = static_cast<size_t>(element);
  for (const int64_t n : shape) size *= static_cast<size_t>(n);
  std::vector<std::byte> data(size);
  for (std::byte& b : data)
    b = static_cast<std::byte>(least + static_cast<int>(random() % static_cast<unsigned>(values)));
  return {std::move(dtype), std::move(shape), std::move(data)};
}

// Each expert's matrix: codes and scales of its own.
Tensors expert_tensors() {
  Tensors tensors;
  for (int64_t e = 0; e < kExperts; ++e) {
    const auto seed = static_cast<unsigned>(e);
    tensors[expert_tensor("experts.*.w", e, ".weight_packed")] =
        random_bytes("U8", {kOutputs, kInputs / 2}, 1, seed, 0, 256);
    tensors[expert_tensor("experts.*.w", e, ".weight_scale")] =
        random_bytes("U8", {kOutputs, kInputs / 32}, 1, seed, 1, 254);
  }
  return tensors;
}

Checkpoint written(const Scratch& scratch, const Tensors& tensors) {
  std::vector<TensorToWrite> list;
  for (const auto& [name, t] : tensors) list.push_back({name, t.dtype, t.shape, t.data});
  write_safetensors(scratch / "model.safetensors", list);
  return Checkpoint(scratch.path());
}

// Of 8 groups in 4 parts each.
Weight experts_weight(Split::Axis axis) {
  const int64_t dealt = axis == Split::Axis::outputs ? kOutputs : kInputs;
  Weight w = {"experts.*.w",        {kOutputs, kInputs},  DType::mxfp4,
              WeightLayout::panels, {axis, {{dealt, 4}}}, DType::mxfp4};
  w.experts = {kExperts, 8};
  return w;
}

std::vector<std::byte> panels_of(const Checkpoint& checkpoint, const Weight& w, int rank, int ranks) {
  std::vector<std::byte> panels(static_cast<size_t>(w.panels(ranks) * w.panel_bytes(ranks)));
  // In two calls, of which one begins within an expert's matrix.
  const int64_t first = w.panels(ranks) / 2 + 1;
  const CheckpointTape tape(checkpoint);
  tape.read_panels(w, rank, ranks, 0, first, panels.data());
  tape.read_panels(w, rank, ranks, first, w.panels(ranks) - first, panels.data() + first * w.panel_bytes(ranks));
  return panels;
}

// The code and the scale of an element of a panel, as one number.
int in_panel(const std::byte* panel, int64_t output, int64_t input) {
  const std::byte* group = panel + input / 32 * 544;
  const int pair = static_cast<int>(group[32 + input % 32 * 16 + output % 16]);
  return static_cast<int>(group[output]) * 16 + (output < 16 ? pair & 15 : pair >> 4);
}

// The same of a tensor's codes and scales.
int in_checkpoint(const Bytes& codes, const Bytes& scales, int64_t output, int64_t input) {
  const int64_t at = output * kInputs + input;
  const int pair = static_cast<int>(codes.data[static_cast<size_t>(at / 2)]);
  return static_cast<int>(scales.data[static_cast<size_t>(at / 32)]) * 16 + (at % 2 == 0 ? pair & 15 : pair >> 4);
}

void expect_experts(const Tensors& tensors, const Checkpoint& checkpoint, Split::Axis axis, int rank, int ranks) {
  const auto panels = panels_of(checkpoint, experts_weight(axis), rank, ranks);
  const int64_t parts = std::max(ranks / 8, 1), experts = kExperts * parts / ranks, part = rank % parts;
  const int64_t outputs = axis == Split::Axis::outputs ? kOutputs / parts : kOutputs;
  const int64_t inputs = axis == Split::Axis::inputs ? kInputs / parts : kInputs;
  const int64_t first_output = axis == Split::Axis::outputs ? part * outputs : 0;
  const int64_t first_input = axis == Split::Axis::inputs ? part * inputs : 0;
  ASSERT_EQ(std::ssize(panels), experts * outputs * inputs / 32 * 17);
  for (int64_t e = 0; e < experts; ++e) {
    const int64_t expert = rank / parts * experts + e;
    const Bytes& codes = tensors.at(expert_tensor("experts.*.w", expert, ".weight_packed"));
    const Bytes& scales = tensors.at(expert_tensor("experts.*.w", expert, ".weight_scale"));
    for (int64_t i = 0; i < outputs * inputs; ++i) {
      const int64_t output = i / inputs, input = i % inputs;
      const std::byte* panel = panels.data() + (e * outputs + output) / 32 * inputs * 17;
      ASSERT_EQ(in_panel(panel, output % 32, input),
                in_checkpoint(codes, scales, first_output + output, first_input + input))
          << "rank " << rank << " of " << ranks << ", expert " << expert << " [" << output << ", " << input << "]";
    }
  }
}

TEST(TapeExperts, EveryRankHasItsExpertsAndItsPartOfEach) {
  const Tensors tensors = expert_tensors();
  const Scratch scratch;
  const Checkpoint checkpoint = written(scratch, tensors);
  for (const auto axis : {Split::Axis::outputs, Split::Axis::inputs}) {
    for (const int ranks : {1, 2, 8, 16, 32}) {
      for (int rank = 0; rank < ranks; ++rank) expect_experts(tensors, checkpoint, axis, rank, ranks);
    }
  }
}

TEST(TapeExperts, BadScaleIsRefusedByTensorOffsetAndByte) {
  for (const int bad : {0, 255}) {
    Tensors tensors = expert_tensors();
    tensors.at("experts.5.w.weight_scale").data[1000] = static_cast<std::byte>(bad);
    const Scratch scratch;
    const Checkpoint checkpoint = written(scratch, tensors);
    const Weight w = experts_weight(Split::Axis::inputs);
    // Byte 1000 is of row 125, columns 0 to 31: expert 5 is of group 2, and the first part has the columns.
    for (const auto& [rank, ranks] : {std::pair{0, 1}, {2, 8}, {8, 32}}) {
      EXPECT_THAT(cause_of([&, rank = rank, ranks = ranks] { panels_of(checkpoint, w, rank, ranks); }),
                  AllOf(HasSubstr("experts.5.w.weight_scale"), HasSubstr("found " + std::to_string(bad)),
                        HasSubstr("offset 1000")));
    }
    panels_of(checkpoint, w, 9, 32);  // the next part of the same experts is whole
  }
}

// What check_tensors says of a checkpoint for a set of experts.
std::string refusal(const Tensors& tensors) {
  const Scratch scratch;
  const Checkpoint checkpoint = written(scratch, tensors);
  return cause_of([&] {
    check_tensors(checkpoint, {experts_weight(Split::Axis::outputs)}, [](const std::string&) { return false; });
  });
}

TEST(ExpertTensors, MissingScalesOrCodesAreRefusedByName) {
  Tensors tensors = expert_tensors();
  tensors.erase("experts.3.w.weight_scale");
  tensors.erase("experts.11.w.weight_packed");
  EXPECT_THAT(refusal(tensors),
              AllOf(HasSubstr("2 missing"), HasSubstr("experts.3.w.weight_scale"),
                    HasSubstr("experts.11.w.weight_packed"), Not(HasSubstr("experts.3.w.weight_packed"))));
}

TEST(ExpertTensors, ScalesOfAnotherShapeAreRefusedWithBothShapes) {
  Tensors tensors = expert_tensors();
  tensors["experts.3.w.weight_scale"] = random_bytes("U8", {kOutputs, kInputs / 16}, 1, 1, 1, 254);
  EXPECT_THAT(refusal(tensors),
              HasSubstr("1 of another shape: experts.3.w.weight_scale: expected [128, 8], found [128, 16]"));
}

TEST(ExpertTensors, CodesOrScalesThatAreNoBytesAreRefused) {
  Tensors tensors = expert_tensors();
  tensors["experts.3.w.weight_scale"] = random_bytes("BF16", {kOutputs, kInputs / 32}, 2, 1, 1, 254);
  tensors["experts.4.w.weight_packed"] = random_bytes("F32", {kOutputs, kInputs / 2}, 4, 1, 1, 254);
  EXPECT_THAT(refusal(tensors), AllOf(HasSubstr("experts.3.w.weight_scale: BF16 in place of U8"),
                                      HasSubstr("experts.4.w.weight_packed: F32 in place of U8")));
}

TEST(ExpertTensors, ExpertsBeyondTheLastAreUnknown) {
  Tensors tensors = expert_tensors();
  tensors["experts.16.w.weight_scale"] = tensors["experts.15.w.weight_scale"];
  EXPECT_THAT(refusal(tensors), HasSubstr("1 unknown: experts.16.w.weight_scale"));
}

TEST(ExpertTensors, BytesAreNoNumbersForOtherWeights) {
  const Scratch scratch;
  const Checkpoint checkpoint = written(scratch, {{"norm", random_bytes("U8", {4}, 1, 1, 0, 256)}});
  const Weight norm = {"norm", {4}, DType::f32, WeightLayout::plain, {}, DType::u8};
  EXPECT_THAT(cause_of([&] { check_tensors(checkpoint, {norm}, [](const std::string&) { return false; }); }),
              HasSubstr("norm: U8"));
}

// A vector of four numbers, in a tensor with more.
std::vector<float> read_with_tail(std::vector<float> stored, int rank, int ranks) {
  const Scratch scratch;
  const auto size = static_cast<int64_t>(stored.size());
  std::vector<std::byte> data(stored.size() * 4);
  std::memcpy(data.data(), stored.data(), data.size());
  const Checkpoint checkpoint = written(scratch, {{"A_log", {"F32", {size}, data}}});
  Weight w = {"A_log", {size}, DType::f32, WeightLayout::plain, {Split::Axis::outputs, {{4, 4}}}, DType::f32};
  w.zero_tail = size - 4;
  std::vector<float> out(static_cast<size_t>(w.outputs(ranks)));
  CheckpointTape(checkpoint).read_plain(w, rank, ranks, out.data());
  return out;
}

TEST(TapeTail, ZerosAfterAVectorAreDropped) {
  EXPECT_EQ(read_with_tail({1, 2, 3, 4, 0, -0.0f, 0}, 0, 1), (std::vector<float>{1, 2, 3, 4}));
  EXPECT_EQ(read_with_tail({1, 2, 3, 4, 0, 0, 0}, 1, 2), (std::vector<float>{3, 4}));
  EXPECT_EQ(read_with_tail({1, 2, 3, 4}, 1, 2), (std::vector<float>{3, 4}));
}

TEST(TapeTail, NumbersWhereZerosShouldBeAreRefusedOnEveryRank) {
  for (const int rank : {0, 1}) {
    EXPECT_THAT(cause_of([&] {
                  read_with_tail({1, 2, 3, 4, 0, 1e-40f, 0}, rank, 2);
                }),
                AllOf(HasSubstr("A_log"), HasSubstr("4 numbers, and zeros after them"), HasSubstr("at index 5")));
  }
  EXPECT_THAT(cause_of([&] { read_with_tail({1, 2, 3, 4, NAN}, 0, 1); }), HasSubstr("at index 4"));
}

// kv_b_proj as attention reads it: of each head, rows that make keys and rows that make values.
constexpr int64_t kHeads = 4, kKeyRows = 21, kValueRows = 32, kLatent = 64;

uint16_t half_in_panels(const std::vector<std::byte>& panels, int64_t inputs, int64_t output, int64_t input) {
  uint16_t half = 0;
  const int64_t line = output / 32 * inputs + input;
  std::memcpy(&half, panels.data() + (line * 32 + panel_slot(DType::bf16, output % 32)) * 2, 2);
  return half;
}

void expect_heads(const Checkpoint& checkpoint, const Bytes& tensor, HeadRows rows, int rank, int ranks) {
  const Split split = {Split::Axis::outputs, {{tensor.shape[0], kHeads}}};
  Weight w = {"kv_b", tensor.shape, DType::bf16, WeightLayout::panels, split};
  w.head_rows = rows;
  std::vector<std::byte> panels(static_cast<size_t>(w.panels(ranks) * w.panel_bytes(ranks)));
  CheckpointTape(checkpoint).read_panels(w, rank, ranks, 0, 1, panels.data());
  CheckpointTape(checkpoint).read_panels(w, rank, ranks, 1, w.panels(ranks) - 1, panels.data() + w.panel_bytes(ranks));
  const int64_t each = rows.transposed ? kLatent : rows.count;
  ASSERT_EQ(w.outputs(ranks), kHeads / ranks * each);
  for (int64_t output = 0; output < w.outputs(ranks); ++output) {
    for (int64_t input = 0; input < w.inputs(ranks); ++input) {
      const int64_t head = rank * kHeads / ranks + output / each;
      const int64_t row = head * (kKeyRows + kValueRows) + rows.first + (rows.transposed ? input : output % each);
      const int64_t column = rows.transposed ? output % each : input;
      uint16_t want = 0;
      std::memcpy(&want, tensor.data.data() + (row * kLatent + column) * 2, 2);
      ASSERT_EQ(half_in_panels(panels, w.inputs(ranks), output, input), want)
          << "rank " << rank << " of " << ranks << ", " << output << ", " << input;
    }
  }
}

TEST(TapeHeads, PartsOfEachHeadAreMatricesOfTheirOwnAlsoTurnedRound) {
  const Bytes tensor = random_bytes("BF16", {kHeads * (kKeyRows + kValueRows), kLatent}, 2, 3, 0, 256);
  const Scratch scratch;
  const Checkpoint checkpoint = written(scratch, {{"kv_b", tensor}});
  for (const int ranks : {1, 2, 4}) {
    for (int rank = 0; rank < ranks; ++rank) {
      expect_heads(checkpoint, tensor, {kHeads, 0, kKeyRows, true}, rank, ranks);
      expect_heads(checkpoint, tensor, {kHeads, kKeyRows, kValueRows, false}, rank, ranks);
    }
  }
}

}  // namespace
}  // namespace megalith
