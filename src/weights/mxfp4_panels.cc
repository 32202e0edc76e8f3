#include "weights/mxfp4_panels.h"

#include <cstring>

namespace megalith {

namespace {

using Bytes16 = uint8_t __attribute__((vector_size(16)));
constexpr uint8_t kScaleOfOne = 127;

Bytes16 load16(const std::byte* p) {
  Bytes16 v = {};
  if (p) std::memcpy(&v, p, sizeof v);
  return v;
}

// Bytes of a matrix of 16 x 16 across the diagonal: four rounds of a perfect shuffle.
void transpose(std::array<Bytes16, 16>& rows) {
  for (int round = 0; round < 4; ++round) {
    std::array<Bytes16, 16> next;
    for (size_t i = 0; i < 8; ++i) {
      const Bytes16 a = rows[i], b = rows[i + 8];
      next[2 * i] = __builtin_shufflevector(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
      next[2 * i + 1] = __builtin_shufflevector(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
    }
    rows = next;
  }
}

// The 32 lines of a group: inputs 2i and 2i + 1 of a row are the halves of its byte i.
void pack_codes(const MxRows& rows, int64_t at, std::byte* out) {
  std::array<Bytes16, 16> even, odd;
  for (size_t j = 0; j < 16; ++j) {
    const auto codes = [&](size_t output) { return rows.codes[output] ? rows.codes[output] + at : nullptr; };
    const Bytes16 low = load16(codes(j)), high = load16(codes(16 + j));
    even[j] = (low & 15) | (high << 4);
    odd[j] = (low >> 4) | (high & 0xf0);
  }
  transpose(even);
  transpose(odd);
  for (size_t i = 0; i < 16; ++i) {
    std::memcpy(out + 32 * i, &even[i], 16);
    std::memcpy(out + 32 * i + 16, &odd[i], 16);
  }
}

}  // namespace

BadScale pack_mxfp4(const MxRows& rows, int64_t first, int64_t inputs, std::byte* out) {
  for (int64_t group = first / kMxGroup; group < (first + inputs) / kMxGroup; ++group, out += kMxGroupBytes) {
    for (int64_t j = 0; j < kPanelOutputs; ++j) {
      const std::byte* scales = rows.scales[static_cast<size_t>(j)];
      const auto scale = scales ? static_cast<uint8_t>(scales[group]) : kScaleOfOne;
      if (scale == 0 || scale == 255) return {j, group};
      out[j] = std::byte{scale};
    }
    pack_codes(rows, group * kMxGroup / 2, out + kPanelOutputs);
  }
  return {};
}

}  // namespace megalith
