#include "weights/tape.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/weights/tensor_files.h"

namespace megalith {
namespace {

const char* stored_name(DType dtype) {
  return dtype == DType::f32 ? "F32" : dtype == DType::f16 ? "F16" : "BF16";
}

// A matrix of random bits, in a checkpoint where it begins at an odd byte.
struct Matrix {
  Matrix(std::vector<int64_t> shape, DType dtype, unsigned seed = 1) : shape(std::move(shape)), dtype(dtype) {
    columns = 1;
    for (size_t i = 1; i < this->shape.size(); ++i) columns *= this->shape[i];
    std::mt19937 random(seed);
    bytes.resize(static_cast<size_t>(this->shape[0] * columns * dtype_bytes(dtype)));
    for (std::byte& b : bytes) b = static_cast<std::byte>(random());
    const std::byte odd{};
    write_safetensors(scratch / "model.safetensors",
                      {{"odd", "U8", {1}, {&odd, 1}}, {"w", stored_name(dtype), this->shape, bytes}});
  }

  // The f32 bits of an element.
  uint32_t at(int64_t row, int64_t column) const {
    const std::byte* p = bytes.data() + (row * columns + column) * dtype_bytes(dtype);
    uint32_t word = 0;
    std::memcpy(&word, p, static_cast<size_t>(dtype_bytes(dtype)));
    if (dtype == DType::bf16) return word << 16;
    return dtype == DType::f16 ? std::bit_cast<uint32_t>(f16_to_f32(static_cast<uint16_t>(word))) : word;
  }

  Scratch scratch;
  std::vector<int64_t> shape;
  DType dtype;
  int64_t columns = 0;
  std::vector<std::byte> bytes;
};

// A rank's indices of a dimension, group by group.
std::vector<int64_t> indices(const Split& split, Split::Axis axis, int64_t whole, int rank, int ranks) {
  std::vector<int64_t> result;
  if (split.axis != axis) {
    for (int64_t i = 0; i < whole; ++i) result.push_back(i);
    return result;
  }
  int64_t start = 0;
  for (const Block& block : split.blocks) {
    for (int64_t group = 0; group < block.groups; ++group) {
      const bool mine =
          block.groups >= ranks ? group / (block.groups / ranks) == rank : group == rank / (ranks / block.groups);
      for (int64_t i = 0; mine && i < block.size / block.groups; ++i) {
        result.push_back(start + group * (block.size / block.groups) + i);
      }
    }
    start += block.size;
  }
  return result;
}

// Compares a rank's panels, read in two parts, with what the layout says of each element.
void expect_panels(const Matrix& matrix, DType panel, const Split& split, int rank, int ranks) {
  const Weight weight{"w", matrix.shape, panel, WeightLayout::panels, split};
  const auto rows = indices(split, Split::Axis::outputs, matrix.shape[0], rank, ranks);
  const auto columns = indices(split, Split::Axis::inputs, matrix.columns, rank, ranks);
  ASSERT_EQ(weight.outputs(ranks), std::ssize(rows));
  ASSERT_EQ(weight.inputs(ranks), std::ssize(columns));
  const int64_t panels = weight.panels(ranks);
  const int64_t size = panels * weight.panel_bytes(ranks);
  std::vector<std::byte> tape(static_cast<size_t>(size) + 64, std::byte{0xee});
  const Checkpoint checkpoint(matrix.scratch.path());
  const CheckpointTape source(checkpoint);
  source.read_panels(weight, rank, ranks, 0, panels / 2, tape.data());
  source.read_panels(weight, rank, ranks, panels / 2, panels - panels / 2,
                     tape.data() + panels / 2 * weight.panel_bytes(ranks));
  const int64_t element = dtype_bytes(panel);
  for (int64_t output = 0; output < panels * kPanelOutputs; ++output) {
    for (int64_t k = 0; k < std::ssize(columns); ++k) {
      const int64_t line = output / kPanelOutputs * std::ssize(columns) + k;
      const int64_t place = line * kPanelOutputs + panel_slot(panel, output % kPanelOutputs);
      uint32_t word = 0;
      std::memcpy(&word, tape.data() + place * element, static_cast<size_t>(element));
      if (panel == DType::bf16) word <<= 16;
      const uint32_t expected = output < std::ssize(rows) ? matrix.at(rows[output], columns[k]) : 0;
      ASSERT_EQ(word, expected) << "rank " << rank << "/" << ranks << " output " << output << " input " << k;
    }
  }
  EXPECT_TRUE(std::all_of(tape.begin() + size, tape.end(), [](std::byte b) { return b == std::byte{0xee}; }))
      << "written beyond the panels";
}

struct Formats {
  DType stored, panel;
};
constexpr Formats kFormats[] = {
    {DType::bf16, DType::bf16}, {DType::bf16, DType::f32}, {DType::f16, DType::f32}, {DType::f32, DType::f32}};

TEST(TapePanels, OddShapesAreInTheirPlacesAndPaddedWithZeros) {
  for (const auto& [stored, panel] : kFormats) {
    for (const int64_t outputs : {1, 7, 31, 32, 33, 64, 100}) {
      for (const int64_t inputs : {1, 2, 3, 4, 7, 64, 100, 255, 256, 257, 515}) {
        SCOPED_TRACE(std::to_string(outputs) + " x " + std::to_string(inputs));
        expect_panels(Matrix({outputs, inputs}, stored), panel, {}, 0, 1);
      }
    }
  }
}

TEST(TapePanels, OutputsAreDealtInGroupsAndSharedWhereTheyAreFewer) {
  const Split split{Split::Axis::outputs, {{16 * 5, 16}, {2 * 5, 2}, {2 * 3, 2}, {7, 1}}};
  for (const auto& [stored, panel] : kFormats) {
    const Matrix matrix({80 + 10 + 6 + 7, 37}, stored);
    for (const int ranks : {1, 2, 4, 8}) {
      for (int rank = 0; rank < ranks; ++rank) expect_panels(matrix, panel, split, rank, ranks);
    }
  }
}

TEST(TapePanels, InputsAreDealtInGroupsAndJoinedInOrder) {
  const Split split{Split::Axis::inputs, {{8 * 9, 8}, {2 * 301, 2}, {3, 1}}};
  for (const auto& [stored, panel] : kFormats) {
    const Matrix matrix({35, 72 + 602 + 3}, stored);
    for (const int ranks : {1, 2, 4, 8}) {
      for (int rank = 0; rank < ranks; ++rank) expect_panels(matrix, panel, split, rank, ranks);
    }
  }
}

TEST(TapePanels, DimensionsAfterTheFirstAreInputs) {
  expect_panels(Matrix({40, 3, 5}, DType::bf16), DType::bf16, {}, 0, 1);
}

TEST(TapePanels, WeightsThatHaveLeftMemoryReadTheSameAgain) {
  const Matrix matrix({64, 4096}, DType::bf16);
  const Weight weight{"w", matrix.shape, DType::bf16, WeightLayout::panels, {}};
  const Checkpoint checkpoint(matrix.scratch.path());
  const CheckpointTape source(checkpoint);
  std::vector<std::byte> first(static_cast<size_t>(weight.tape_bytes(1))), second(first.size());
  source.read_panels(weight, 0, 1, 0, 2, first.data());
  source.read_panels(weight, 0, 1, 0, 2, second.data());
  EXPECT_EQ(first, second);
}

void expect_plain(const Matrix& matrix, const Split& split, int rank, int ranks) {
  const Weight weight{"w", matrix.shape, DType::f32, WeightLayout::plain, split};
  const auto rows = indices(split, Split::Axis::outputs, matrix.shape[0], rank, ranks);
  const auto columns = indices(split, Split::Axis::inputs, matrix.columns, rank, ranks);
  std::vector<float> out(rows.size() * columns.size() + 1, 42.0f);
  const Checkpoint checkpoint(matrix.scratch.path());
  CheckpointTape(checkpoint).read_plain(weight, rank, ranks, out.data());
  size_t at = 0;
  for (const int64_t row : rows) {
    for (const int64_t column : columns) ASSERT_EQ(std::bit_cast<uint32_t>(out[at++]), matrix.at(row, column));
  }
  EXPECT_EQ(out.back(), 42.0f) << "written beyond the weight";
}

TEST(TapePlain, IsF32InTheOrderOfTheCheckpoint) {
  for (const DType stored : {DType::f32, DType::f16, DType::bf16}) {
    expect_plain(Matrix({1}, stored), {}, 0, 1);
    expect_plain(Matrix({33}, stored), {}, 0, 1);
    expect_plain(Matrix({6, 1, 4}, stored), {}, 0, 1);
  }
}

TEST(TapePlain, IsDealtLikeAMatrix) {
  for (const int ranks : {1, 2, 4, 8}) {
    for (int rank = 0; rank < ranks; ++rank) {
      expect_plain(Matrix({32 + 6 + 5, 4}, DType::bf16), {Split::Axis::outputs, {{32, 16}, {6, 2}, {5, 1}}}, rank,
                   ranks);
      expect_plain(Matrix({3, 16 + 6}, DType::f16), {Split::Axis::inputs, {{16, 8}, {6, 2}}}, rank, ranks);
      expect_plain(Matrix({16}, DType::f32), {Split::Axis::outputs, {{16, 8}}}, rank, ranks);
    }
  }
}

TEST(TapeDeathTest, WeightsThatDoNotFitTheCheckpointAreOurMistake) {
  const Matrix matrix({4, 4}, DType::f32);
  const Checkpoint checkpoint(matrix.scratch.path());
  const CheckpointTape source(checkpoint);
  std::vector<std::byte> out(4096);
  EXPECT_DEATH(source.read_panels({"w", {4, 4}, DType::bf16, WeightLayout::panels, {}}, 0, 1, 0, 1, out.data()),
               "w: f32 does not fit into bf16 panels");
  EXPECT_DEATH(source.read_panels({"w", {4, 5}, DType::f32, WeightLayout::panels, {}}, 0, 1, 0, 1, out.data()),
               "in the checkpoint");
}

}  // namespace
}  // namespace megalith
