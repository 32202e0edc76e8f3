#include "program/noise.h"

#include <cmath>

#include <gtest/gtest.h>

namespace megalith {
namespace {

using Block4 = std::array<uint32_t, 4>;

// The vectors that come with Random123 (kat_vectors, philox4x32, 10 rounds).
TEST(Philox, KnownAnswers) {
  EXPECT_EQ(philox({0, 0, 0, 0}, {0, 0}), (Block4{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  constexpr uint32_t kOnes = 0xffffffff;
  EXPECT_EQ(philox({kOnes, kOnes, kOnes, kOnes}, {kOnes, kOnes}),
            (Block4{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (Block4{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Uniform, LiesInsideTheOpenIntervalAndTheNoiseWithinItsBounds) {
  double sum = 0;
  for (int32_t token = 0; token < 100'000; ++token) {
    const float u = uniform(7, 3, token);
    ASSERT_GT(u, 0);
    ASSERT_LT(u, 1);
    const double noise = -std::log(-std::log(double{u}));
    ASSERT_GT(noise, kNoiseMin);
    ASSERT_LT(noise, kNoiseMax);
    sum += u;
  }
  EXPECT_NEAR(sum / 100'000, 0.5, 0.005);
  EXPECT_GT(-std::log(-std::log(0x1p-24)), kNoiseMin);
  EXPECT_LT(-std::log(-std::log1p(-0x1p-24)), kNoiseMax);
}

TEST(Uniform, DependsOnSeedPositionAndToken) {
  EXPECT_NE(uniform(1, 2, 3), uniform(2, 2, 3));
  EXPECT_NE(uniform(1, 2, 3), uniform(uint64_t{1} << 32 | 1, 2, 3));
  EXPECT_NE(uniform(1, 2, 3), uniform(1, 3, 3));
  EXPECT_NE(uniform(1, 2, 3), uniform(1, 2, 4));
  EXPECT_EQ(uniform(1, 2, 3), uniform(1, 2, 3));
}

}  // namespace
}  // namespace megalith
