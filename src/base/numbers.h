#pragma once

#include <bit>
#include <cstdint>

namespace megalith {

// Number formats of checkpoints. All of them expand exactly to f32.
enum class DType : uint8_t { f32, bf16, f16, i32 };

constexpr int64_t dtype_bytes(DType t) { return t == DType::f32 || t == DType::i32 ? 4 : 2; }
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

}  // namespace megalith
