// The kernels' own functions against libm in double precision, and the same bits on every instruction set.

#include <bit>
#include <cmath>
#include <vector>

#include <gtest/gtest.h>

#include "machines/cpu/instruction_set.h"
#include "tests/machines/harness.h"
#include "tests/machines/kernel_math.h"

namespace megalith {
namespace {

constexpr float kInf = HUGE_VALF;

std::vector<float> apply(KernelFunction f, const std::vector<float>& x) {
  std::vector<float> padded = x;
  padded.resize((x.size() + 15) / 16 * 16, 1.0f);
  std::vector<float> y(padded.size());
  kernel_function(f, padded.data(), y.data(), y.size());
  y.resize(x.size());
  return y;
}

// Every step-th float of [low, high], by bits, of both signs where low is negative.
std::vector<float> sweep(float low, float high, uint32_t step) {
  std::vector<float> x;
  for (uint32_t bits = std::bit_cast<uint32_t>(1e-30f); std::bit_cast<float>(bits) <= std::max(high, -low);
       bits += step) {
    const float value = std::bit_cast<float>(bits);
    if (value >= low && value <= high) x.push_back(value);
    if (-value >= low && -value <= high) x.push_back(-value);
  }
  return x;
}

// The largest error in units of the last place of the exact result.
double worst_ulp(KernelFunction f, const std::vector<float>& x, double (*exact)(double)) {
  const std::vector<float> y = apply(f, x);
  double worst = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    const double want = exact(double{x[i]});
    int exponent = 0;
    std::frexp(want, &exponent);
    const double error = std::abs(y[i] - want) / std::ldexp(1.0, std::max(exponent, -125) - 24);
    if (!(error <= worst)) worst = error;
  }
  return worst;
}

TEST(KernelMath, ExpIsWithinTwoUlp) {
  EXPECT_LE(worst_ulp(KernelFunction::exp, sweep(-87.3f, 88.72f, 997), [](double x) { return std::exp(x); }), 2.0);
}

TEST(KernelMath, ExpAtItsEnds) {
  const auto y = apply(KernelFunction::exp, {-kInf, -1000, -87.4f, 0, 88.73f, 1000, kInf, NAN, -0.0f});
  EXPECT_EQ(y[0], 0);
  EXPECT_EQ(y[1], 0);
  EXPECT_EQ(y[2], 0);
  EXPECT_EQ(y[3], 1);
  EXPECT_EQ(y[4], kInf);
  EXPECT_EQ(y[5], kInf);
  EXPECT_EQ(y[6], kInf);
  EXPECT_TRUE(std::isnan(y[7]));
  EXPECT_EQ(y[8], 1);
}

TEST(KernelMath, LogIsWithinTwoUlp) {
  const auto exact = [](double x) { return std::log(x); };
  EXPECT_LE(worst_ulp(KernelFunction::log, sweep(1e-30f, 1e30f, 1999), exact), 2.0);
  EXPECT_LE(worst_ulp(KernelFunction::log, sweep(0.5f, 2.0f, 37), exact), 2.0);
}

TEST(KernelMath, LogAtItsEnds) {
  const auto y = apply(KernelFunction::log, {0, 1, kInf, -1, NAN, 1.17549435e-38f, -kInf});
  EXPECT_EQ(y[0], -kInf);
  EXPECT_EQ(y[1], 0);
  EXPECT_EQ(y[2], kInf);
  EXPECT_TRUE(std::isnan(y[3]));
  EXPECT_TRUE(std::isnan(y[4]));
  EXPECT_NEAR(y[5], std::log(1.17549435e-38), 1e-5);
  EXPECT_TRUE(std::isnan(y[6]));
}

TEST(KernelMath, SigmoidIsWithinFourUlp) {
  EXPECT_LE(worst_ulp(KernelFunction::sigmoid, sweep(-87, 100, 997), [](double x) { return 1 / (1 + std::exp(-x)); }),
            4.0);
  const auto y = apply(KernelFunction::sigmoid, {-kInf, kInf, 0, NAN});
  EXPECT_EQ(y[0], 0);
  EXPECT_EQ(y[1], 1);
  EXPECT_EQ(y[2], 0.5f);
  EXPECT_TRUE(std::isnan(y[3]));
}

TEST(KernelMath, SoftplusKeepsTheDigitsOfSmallResults) {
  EXPECT_LE(worst_ulp(KernelFunction::softplus, sweep(-87, 20, 997), [](double x) { return std::log1p(std::exp(x)); }),
            5.0);
  const auto y = apply(KernelFunction::softplus, {20.5f, 1e30f, -kInf, NAN});
  EXPECT_EQ(y[0], 20.5f);
  EXPECT_EQ(y[1], 1e30f);
  EXPECT_EQ(y[2], 0);
  EXPECT_TRUE(std::isnan(y[3]));
}

TEST(KernelMath, TanhIsWithinThreeUlp) {
  const auto exact = [](double x) { return std::tanh(x); };
  EXPECT_LE(worst_ulp(KernelFunction::tanh, sweep(-20, 20, 499), exact), 3.0);
  EXPECT_LE(worst_ulp(KernelFunction::tanh, sweep(0.4f, 0.5f, 3), exact), 3.0);  // where two formulas meet
}

TEST(KernelMath, TanhAtItsEnds) {
  const auto y = apply(KernelFunction::tanh, {-kInf, -1e30f, -20, 0, -0.0f, 20, 1e30f, kInf, NAN});
  EXPECT_EQ(y[0], -1);
  EXPECT_EQ(y[1], -1);
  EXPECT_EQ(y[2], -1);
  EXPECT_EQ(y[3], 0);
  EXPECT_EQ(y[4], 0);
  EXPECT_EQ(y[5], 1);
  EXPECT_EQ(y[6], 1);
  EXPECT_EQ(y[7], 1);
  EXPECT_TRUE(std::isnan(y[8]));
}

TEST(KernelMath, TanhOfTheSmallestNumbersIsTheNumber) {
  const std::vector<float> x = {1e-45f, -1e-45f, 1e-40f, -1.17549421e-38f, 1.17549435e-38f, -1e-20f};
  EXPECT_EQ(apply(KernelFunction::tanh, x), x);
}

TEST(KernelMath, SameBitsOnEveryInstructionSet) {
  const std::vector<float> x = sweep(-100, 100, 4999);
  for (const KernelFunction f : {KernelFunction::exp, KernelFunction::log, KernelFunction::sigmoid,
                                 KernelFunction::softplus, KernelFunction::tanh}) {
    if (!use_instruction_set(InstructionSet::avx512)) GTEST_SKIP() << "no AVX-512 here";
    const std::vector<float> wide = apply(f, x);
    ASSERT_TRUE(use_instruction_set(InstructionSet::avx2));
    const std::vector<float> narrow = apply(f, x);
    use_instruction_set(InstructionSet::best);
    EXPECT_TRUE(same_bits(wide, narrow)) << static_cast<int>(f);
  }
}

// The cosine and sine of a position's angle, read through rope: of (1, 0) it gives (cos, sin).
TEST(KernelMath, RopeAnglesAreRightToTheLastBit) {
  constexpr int64_t kDim = 64;
  constexpr double kTheta = 1e4;
  Builder b({.catalog = all_of(DType::f32)}, 1);
  const Value y = b.rope(b.embed(b.matrix("x", 1, kDim, {})), {1, kDim, kDim, kTheta});
  b.output("y", y);
  RandomWeights weights;
  std::vector<float> x(kDim);
  std::fill(x.begin(), x.begin() + kDim / 2, 1.0f);
  weights.set("x", x);
  const auto machine = make_cpu_machine(std::move(b).build(), {.threads = 1, .max_rows = 256, .context = 1 << 20});
  machine->load(weights, nullptr);
  for (const int first : {0, 4000, 32'768, 262'000, (1 << 20) - 256}) {
    StepArgs step;
    add_tokens(step, 0, first, 256, 0, 1);
    machine->run(step);
    const auto read = machine->read(y);
    for (int64_t row = 0; row < 256; ++row) {
      for (int64_t j = 0; j < kDim / 2; ++j) {
        const auto power = static_cast<float>(std::pow(kTheta, 2.0 * static_cast<double>(j) / kDim));
        const float angle = static_cast<float>(first + row) * (1.0f / power);
        const float cosine = read[static_cast<size_t>(row * kDim + j)];
        const float sine = read[static_cast<size_t>(row * kDim + j + kDim / 2)];
        ASSERT_EQ(cosine, static_cast<float>(std::cos(double{angle}))) << first + row << ", " << j;
        ASSERT_EQ(sine, static_cast<float>(std::sin(double{angle}))) << first + row << ", " << j;
      }
    }
  }
}

}  // namespace
}  // namespace megalith
