#include "base/large_vector.h"

#include <cstdint>
#include <limits>
#include <utility>

#include <gtest/gtest.h>

namespace megalith {
namespace {

TEST(LargeVector, GrowsFromSmallToLargeAndKeepsItsElements) {
  LargeVector<int32_t> numbers;
  for (int32_t i = 0; i < 3'000'000; ++i) numbers.push_back(i);
  for (int32_t i = 0; i < 3'000'000; ++i) ASSERT_EQ(numbers[static_cast<size_t>(i)], i);
  const LargeVector<int32_t> moved = std::move(numbers);
  EXPECT_EQ(moved.back(), 2'999'999);
}

TEST(LargeVector, LargeOnesBeginAtAHugePage) {
  for (size_t bytes : {size_t{2} << 20, (size_t{2} << 20) + 1, size_t{9'000'001}}) {
    LargeVector<char> text(bytes, 'x');
    EXPECT_EQ(reinterpret_cast<uintptr_t>(text.data()) % (size_t{2} << 20), 0U) << bytes;
    EXPECT_EQ(text.back(), 'x');
  }
}

TEST(LargeVector, TooLargeOnesAreBadAllocations) {
  LargeVector<int64_t> numbers;
  EXPECT_THROW(numbers.reserve(numbers.max_size()), std::bad_alloc);
  EXPECT_THROW(allocate_large(std::numeric_limits<size_t>::max()), std::bad_alloc);
}

}  // namespace
}  // namespace megalith
