#include "weights/mxfp4_panels.h"

#include <algorithm>
#include <cstdint>
#include <random>
#include <vector>

#include <gtest/gtest.h>

namespace megalith {
namespace {

// A matrix as a checkpoint has it: a row of codes, two a byte, and a row of scales for each output.
struct Matrix {
  Matrix(int64_t outputs, int64_t inputs) : outputs(outputs), inputs(inputs) {
    std::mt19937 random(7);
    for (int64_t i = 0; i < outputs * inputs / 2; ++i) codes.push_back(static_cast<std::byte>(random()));
    for (int64_t i = 0; i < outputs * inputs / kMxGroup; ++i)
      scales.push_back(static_cast<std::byte>(1 + random() % 254));
  }

  MxRows rows() const {
    MxRows rows;
    for (int64_t j = 0; j < outputs; ++j) {
      rows.codes[static_cast<size_t>(j)] = codes.data() + j * inputs / 2;
      rows.scales[static_cast<size_t>(j)] = scales.data() + j * inputs / kMxGroup;
    }
    return rows;
  }
  int code(int64_t output, int64_t input) const {
    const int pair = static_cast<int>(codes[static_cast<size_t>((output * inputs + input) / 2)]);
    return input % 2 == 0 ? pair & 15 : pair >> 4;
  }
  std::byte& scale(int64_t output, int64_t group) {
    return scales[static_cast<size_t>(output * inputs / kMxGroup + group)];
  }

  int64_t outputs, inputs;
  std::vector<std::byte> codes, scales;
};

std::vector<std::byte> pack(const MxRows& rows, int64_t first, int64_t inputs) {
  const int64_t size = dtype_bytes(DType::mxfp4, inputs * kPanelOutputs);
  std::vector<std::byte> panel(static_cast<size_t>(size) + 64, std::byte{0xee});
  EXPECT_EQ(pack_mxfp4(rows, first, inputs, panel.data()).output, -1);
  EXPECT_EQ(std::count(panel.begin() + size, panel.end(), std::byte{0xee}), 64) << "written beyond the panel";
  return panel;
}

// An element of a panel, as weight.h describes the layout.
int code_at(const std::vector<std::byte>& panel, int64_t output, int64_t input) {
  const int64_t line = input / 32 * 544 + 32 + input % 32 * 16;
  const int pair = static_cast<int>(panel[static_cast<size_t>(line + output % 16)]);
  return output < 16 ? pair & 15 : pair >> 4;
}
int scale_at(const std::vector<std::byte>& panel, int64_t output, int64_t group) {
  return static_cast<int>(panel[static_cast<size_t>(group * 544 + output)]);
}

TEST(Mxfp4Panels, LowHalvesOfBytesAreTheFirstOfTwoInputs) {
  Matrix matrix(32, 32);
  std::fill(matrix.codes.begin(), matrix.codes.end(), std::byte{0xa3});
  const auto panel = pack(matrix.rows(), 0, 32);
  for (int64_t output = 0; output < 32; ++output) {
    for (int64_t k = 0; k < 32; ++k) ASSERT_EQ(code_at(panel, output, k), k % 2 == 0 ? 3 : 10) << output << ", " << k;
  }
}

TEST(Mxfp4Panels, EveryCodeAndScaleIsInItsPlace) {
  for (const int64_t inputs : {32, 64, 224}) {
    Matrix matrix(32, inputs);
    const auto panel = pack(matrix.rows(), 0, inputs);
    for (int64_t output = 0; output < 32; ++output) {
      for (int64_t k = 0; k < inputs; ++k) {
        ASSERT_EQ(code_at(panel, output, k), matrix.code(output, k)) << output << ", " << k;
        ASSERT_EQ(scale_at(panel, output, k / 32), static_cast<int>(matrix.scale(output, k / 32)))
            << output << ", " << k;
      }
    }
  }
}

TEST(Mxfp4Panels, PartOfTheInputsHasItsOwnScales) {
  Matrix matrix(32, 256);
  const auto part = pack(matrix.rows(), 96, 64);
  for (int64_t output = 0; output < 32; ++output) {
    for (int64_t k = 0; k < 64; ++k) {
      ASSERT_EQ(code_at(part, output, k), matrix.code(output, 96 + k)) << output << ", " << k;
      ASSERT_EQ(scale_at(part, output, k / 32), static_cast<int>(matrix.scale(output, 3 + k / 32)))
          << output << ", " << k;
    }
  }
}

TEST(Mxfp4Panels, OutputsBeyondTheLastAreZerosAtAScaleOfOne) {
  for (const int64_t outputs : {1, 15, 16, 17, 31}) {
    Matrix matrix(outputs, 64);
    const auto panel = pack(matrix.rows(), 0, 64);
    for (int64_t output = 0; output < 32; ++output) {
      for (int64_t k = 0; k < 64; ++k) {
        const bool real = output < outputs;
        ASSERT_EQ(code_at(panel, output, k), real ? matrix.code(output, k) : 0) << output << ", " << k;
        ASSERT_EQ(scale_at(panel, output, k / 32), real ? static_cast<int>(matrix.scale(output, k / 32)) : 127)
            << output;
      }
    }
  }
}

TEST(Mxfp4Panels, ScalesThatTheModelMayNotHaveAreFound) {
  for (const std::byte bad : {std::byte{0}, std::byte{255}}) {
    for (const int64_t output : {0, 13, 31}) {
      for (const int64_t group : {2, 3, 4}) {
        Matrix matrix(32, 256);
        matrix.scale(output, group) = bad;
        std::vector<std::byte> panel(static_cast<size_t>(3 * kMxGroupBytes));
        const BadScale found = pack_mxfp4(matrix.rows(), 64, 96, panel.data());
        EXPECT_EQ(found.output, output);
        EXPECT_EQ(found.group, group);
        // Another rank's part is whole.
        EXPECT_EQ(pack_mxfp4(matrix.rows(), 160, 96, panel.data()).output, -1);
      }
    }
  }
}

TEST(Mxfp4Panels, LeastAndGreatestScalesOfTheModelAreTaken) {
  Matrix matrix(32, 64);
  for (int64_t output = 0; output < 32; ++output) {
    matrix.scale(output, 0) = std::byte{1};
    matrix.scale(output, 1) = std::byte{254};
  }
  const auto panel = pack(matrix.rows(), 0, 64);
  EXPECT_EQ(scale_at(panel, 31, 0), 1);
  EXPECT_EQ(scale_at(panel, 31, 1), 254);
}

}  // namespace
}  // namespace megalith
