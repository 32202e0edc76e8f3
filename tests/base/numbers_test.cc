#include "base/numbers.h"

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>

#include <gtest/gtest.h>

namespace megalith {
namespace {

uint32_t bits_of(float x) {
  return std::bit_cast<uint32_t>(x);
}

float float_of(uint32_t bits) {
  return std::bit_cast<float>(bits);
}

TEST(DType, NamesAndSizesAreThoseOfTheElements) {
  EXPECT_EQ(dtype_bytes(DType::f32), 4);
  EXPECT_EQ(dtype_bytes(DType::i32), 4);
  EXPECT_EQ(dtype_bytes(DType::bf16), 2);
  EXPECT_EQ(dtype_bytes(DType::f16), 2);
  EXPECT_EQ(dtype_bytes(DType::u8), 1);
  EXPECT_STREQ(dtype_name(DType::f32), "f32");
  EXPECT_STREQ(dtype_name(DType::i32), "i32");
  EXPECT_STREQ(dtype_name(DType::bf16), "bf16");
  EXPECT_STREQ(dtype_name(DType::f16), "f16");
  EXPECT_STREQ(dtype_name(DType::u8), "u8");
  EXPECT_STREQ(dtype_name(DType::mxfp4), "mxfp4");
}

TEST(DType, GroupsOfMxfp4AreSixteenBytesOfCodesAndOneOfScale) {
  EXPECT_EQ(dtype_bytes(DType::mxfp4, 32), 17);
  EXPECT_EQ(dtype_bytes(DType::mxfp4, 3072 * 3584), 3072 * (3584 / 2 + 3584 / 32));
}

TEST(Bf16, ExpandsToTheUpperHalfOfAnF32) {
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    EXPECT_EQ(bits_of(bf16_to_f32(static_cast<uint16_t>(bits))), bits << 16);
  }
}

TEST(Bf16, EveryValueSurvivesTheWayThereAndBack) {
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const float value = bf16_to_f32(static_cast<uint16_t>(bits));
    const uint16_t back = f32_to_bf16(value);
    if (std::isnan(value)) {
      EXPECT_TRUE(std::isnan(bf16_to_f32(back))) << bits;
    } else {
      EXPECT_EQ(back, bits);
    }
  }
}

TEST(Bf16, TiesGoToTheEvenNeighbour) {
  EXPECT_EQ(f32_to_bf16(float_of(0x3f808000)), 0x3f80);
  EXPECT_EQ(f32_to_bf16(float_of(0x3f818000)), 0x3f82);
  EXPECT_EQ(f32_to_bf16(float_of(0xbf808000)), 0xbf80);
  EXPECT_EQ(f32_to_bf16(float_of(0xbf818000)), 0xbf82);
}

TEST(Bf16, BesideATieTheNearerNeighbourWins) {
  EXPECT_EQ(f32_to_bf16(float_of(0x3f807fff)), 0x3f80);
  EXPECT_EQ(f32_to_bf16(float_of(0x3f808001)), 0x3f81);
  EXPECT_EQ(f32_to_bf16(float_of(0x3f817fff)), 0x3f81);
  EXPECT_EQ(f32_to_bf16(float_of(0x3f818001)), 0x3f82);
}

TEST(Bf16, RoundingCarriesIntoTheExponentAndUpToInfinity) {
  EXPECT_EQ(f32_to_bf16(float_of(0x3fffffff)), 0x4000);
  EXPECT_EQ(f32_to_bf16(std::numeric_limits<float>::max()), 0x7f80);
  EXPECT_EQ(f32_to_bf16(-std::numeric_limits<float>::max()), 0xff80);
  EXPECT_EQ(f32_to_bf16(std::numeric_limits<float>::infinity()), 0x7f80);
}

TEST(Bf16, SubnormalsAndZerosKeepTheirSign) {
  EXPECT_EQ(f32_to_bf16(0.0f), 0x0000);
  EXPECT_EQ(f32_to_bf16(-0.0f), 0x8000);
  EXPECT_EQ(f32_to_bf16(float_of(0x00018000)), 0x0002);
  EXPECT_EQ(f32_to_bf16(float_of(0x80010001)), 0x8001);
}

TEST(Bf16, NoNaNTurnsIntoInfinity) {
  const uint32_t nans[] = {0x7f800001, 0x7f80ffff, 0x7fc00000, 0x7fffffff, 0xff800001, 0xffff8000, 0xffffffff};
  for (const uint32_t nan : nans) {
    const uint16_t rounded = f32_to_bf16(float_of(nan));
    EXPECT_TRUE(std::isnan(bf16_to_f32(rounded))) << std::hex << nan;
    EXPECT_EQ(rounded >> 15, nan >> 31) << std::hex << nan;
  }
}

TEST(Bf16, RandomValuesRoundToTheNearest) {
  std::mt19937 random(1);
  for (int i = 0; i < 100'000; ++i) {
    const float value = float_of(static_cast<uint32_t>(random()));
    if (!std::isfinite(value)) continue;
    const auto below = static_cast<uint16_t>(bits_of(value) >> 16);
    const uint16_t rounded = f32_to_bf16(value);
    ASSERT_TRUE(rounded == below || rounded == below + 1) << value;
    const uint32_t lost = bits_of(value) & 0xffff;
    const bool up = lost > 0x8000 || (lost == 0x8000 && below % 2 == 1);
    ASSERT_EQ(rounded, below + (up ? 1 : 0)) << value;
  }
}

TEST(F16, EveryFiniteValueIsItsFormula) {
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const int exponent = static_cast<int>(bits >> 10 & 31);
    if (exponent == 31) continue;
    const int mantissa = static_cast<int>(bits & 1023);
    const double magnitude = exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(1024 + mantissa, exponent - 25);
    const double expected = bits >> 15 ? -magnitude : magnitude;
    const float value = f16_to_f32(static_cast<uint16_t>(bits));
    ASSERT_EQ(static_cast<double>(value), expected) << bits;
    ASSERT_EQ(std::signbit(value), bits >> 15 != 0) << bits;
  }
}

TEST(F16, InfinitiesAndNaNsKeepSignAndPayload) {
  for (uint32_t sign = 0; sign < 2; ++sign) {
    const float infinity = f16_to_f32(static_cast<uint16_t>(sign << 15 | 0x7c00));
    EXPECT_TRUE(std::isinf(infinity));
    EXPECT_EQ(std::signbit(infinity), sign != 0);
    for (uint32_t payload = 1; payload < 1024; ++payload) {
      const float nan = f16_to_f32(static_cast<uint16_t>(sign << 15 | 0x7c00 | payload));
      ASSERT_EQ(bits_of(nan), sign << 31 | 0x7f800000 | payload << 13);
    }
  }
}

// In double precision the formula has no rounding.
TEST(Mxfp4, EveryCodeAtEveryScaleIsItsFormula) {
  constexpr double kMagnitudes[] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
  for (int byte = 0; byte < 255; ++byte) {
    for (uint32_t code = 0; code < 16; ++code) {
      const double magnitude = std::ldexp(kMagnitudes[code & 7], byte - 127);
      const float value = e2m1_to_f32(code) * e8m0_to_f32(static_cast<uint8_t>(byte));
      // The greatest products are beyond an f32.
      const double expected = magnitude < 0x1p128 ? magnitude : HUGE_VAL;
      ASSERT_EQ(static_cast<double>(value), code >> 3 ? -expected : expected) << byte << ", " << code;
      ASSERT_EQ(std::signbit(value), code >> 3 != 0) << byte << ", " << code;
    }
  }
}

TEST(Mxfp4, ScalesAreBiasedBy127AndTheLastByteIsNoNumber) {
  EXPECT_EQ(e8m0_to_f32(0), 0x1p-127f);
  EXPECT_EQ(e8m0_to_f32(1), 0x1p-126f);
  EXPECT_EQ(e8m0_to_f32(126), 0.5f);
  EXPECT_EQ(e8m0_to_f32(127), 1.0f);
  EXPECT_EQ(e8m0_to_f32(128), 2.0f);
  EXPECT_EQ(e8m0_to_f32(254), 0x1p127f);
  for (uint32_t code = 0; code < 16; ++code) EXPECT_TRUE(std::isnan(e2m1_to_f32(code) * e8m0_to_f32(255))) << code;
}

TEST(Mxfp4, ProductsOfUsualScalesFitIntoBf16) {
  for (int byte = 1; byte < 253; ++byte) {
    for (uint32_t code = 0; code < 16; ++code) {
      const float value = e2m1_to_f32(code) * e8m0_to_f32(static_cast<uint8_t>(byte));
      ASSERT_EQ(bits_of(bf16_to_f32(f32_to_bf16(value))), bits_of(value)) << byte << ", " << code;
    }
  }
}

}  // namespace
}  // namespace megalith
