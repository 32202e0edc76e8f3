#include "machines/limits.h"

#include <numeric>
#include <vector>

#include <gtest/gtest.h>

#include "machines/cpu/instruction_set.h"
#include "machines/cpu/kernels/limits.h"

namespace megalith {
namespace {

TEST(Limits, ReadingLooksAtEveryByte) {
  for (const InstructionSet set : {InstructionSet::avx2, InstructionSet::avx512}) {
    if (!use_instruction_set(set)) continue;
    std::vector<std::byte> bytes(4096 + 4096);  // what lies behind is prefetched, not read
    const uint64_t before = read_bytes(bytes.data(), 4096);
    for (size_t i = 0; i < 4096; ++i) {
      bytes[i] = std::byte{1};
      EXPECT_NE(read_bytes(bytes.data(), 4096), before) << i;
      bytes[i] = std::byte{0};
    }
  }
  use_instruction_set(InstructionSet::best);
}

TEST(Limits, OperationsAreCountedByVectorLength) {
  EXPECT_EQ(multiply_add(1000) / 1000, multiply_add(1));
  EXPECT_GE(multiply_add(1), 2.0 * 12 * 8);
}

TEST(Limits, RatesArePlausible) {
  CpuLimits limits(2, int64_t{64} << 20);
  EXPECT_GT(limits.read_rate(2), 1e8);
  EXPECT_LT(limits.read_rate(2), 1e13);
  EXPECT_GT(limits.fma_rate(1), 1e8);
}

}  // namespace
}  // namespace megalith
