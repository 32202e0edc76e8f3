#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "program/weight.h"

namespace megalith {

// 32 outputs of a matrix in MXFP4 as the checkpoint has them: of each, its row of packed codes (a byte holds two inputs,
// the first in its lower half) and its row of scales. Null beyond the last output.
struct MxRows {
  std::array<const std::byte*, kPanelOutputs> codes = {};
  std::array<const std::byte*, kPanelOutputs> scales = {};
};

// Writes a panel (weight.h) of inputs [first, first + inputs), whole groups. Returns the first (output, group) whose
// scale stands for no power of two that the model may use (byte 0 or 255), or {-1, -1}; the panel is then not whole.
struct BadScale {
  int64_t output = -1, group = -1;
};
BadScale pack_mxfp4(const MxRows& rows, int64_t first, int64_t inputs, std::byte* out);

}  // namespace megalith
