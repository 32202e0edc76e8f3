#pragma once

#include <array>
#include <bit>
#include <cstdint>
#include <limits>

namespace megalith {

// Number formats of checkpoints. All of them expand exactly to f32.
//   mxfp4: E2M1 codes, in groups of kMxGroup along a row that share an E8M0 scale (OCP Microscaling Formats, 2023).
enum class DType : uint8_t { f32, bf16, f16, i32, i64, u8, mxfp4 };

inline constexpr int64_t kMxGroup = 32;

// Bytes of `elements` elements; of mxfp4, whole groups.
constexpr int64_t dtype_bytes(DType t, int64_t elements = 1) {
  switch (t) {
    case DType::f32:
    case DType::i32: return elements * 4;
    case DType::i64: return elements * 8;
    case DType::bf16:
    case DType::f16: return elements * 2;
    case DType::u8: return elements;
    case DType::mxfp4: return elements / kMxGroup * (kMxGroup / 2 + 1);
  }
  return 0;
}
const char* dtype_name(DType t);

// bf16 is the upper half of an f32.
constexpr float bf16_to_f32(uint16_t bits) { return std::bit_cast<float>(uint32_t{bits} << 16); }

// Rounds to nearest, ties to even; a NaN stays a NaN.
constexpr uint16_t f32_to_bf16(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  if ((bits & 0x7fffffff) > 0x7f800000) return static_cast<uint16_t>((bits >> 16) | 0x40);
  return static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

// IEEE half precision, subnormals included. Infinities and NaNs keep their sign and payload.
constexpr float f16_to_f32(uint16_t bits) {
  const uint32_t sign = (bits & 0x8000u) << 16;
  const uint32_t exponent = (bits >> 10) & 0x1f;
  const uint32_t mantissa = bits & 0x3ff;
  const auto subnormal = std::bit_cast<uint32_t>(static_cast<float>(static_cast<int32_t>(mantissa)) * 0x1p-24f);
  const uint32_t normal = ((exponent == 0x1f ? 0xff : exponent + 112) << 23) | (mantissa << 13);
  return std::bit_cast<float>(sign | (exponent == 0 ? subnormal : normal));
}

// Four bits: a sign (bit 3) and an index into the magnitudes.
constexpr float e2m1_to_f32(uint32_t code) {
  constexpr std::array<float, 8> kMagnitudes = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
  const float magnitude = kMagnitudes[code & 7];
  return (code & 8) != 0 ? -magnitude : magnitude;
}

// A power of two: 2^(byte - 127); 255 is NaN. 2^-127 is subnormal.
constexpr float e8m0_to_f32(uint8_t byte) {
  if (byte == 255) return std::numeric_limits<float>::quiet_NaN();
  return std::bit_cast<float>(byte == 0 ? uint32_t{1} << 22 : uint32_t{byte} << 23);
}

}  // namespace megalith
