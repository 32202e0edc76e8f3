#include "base/check.h"

#include <gtest/gtest.h>

namespace megalith {
namespace {

TEST(Check, TrueConditionDoesNotEvaluateItsMessage) {
  int evaluated = 0;
  CHECK(true, "{}", ++evaluated);
  EXPECT_EQ(evaluated, 0);
}

TEST(Check, IsOneStatement) {
  bool other = false;
  if (other)
    CHECK(false, "never reached");
  else
    other = true;
  EXPECT_TRUE(other);
}

TEST(CheckDeathTest, BrokenInvariantAbortsWithItsPlaceConditionAndValues) {
  const int rows = 9;
  EXPECT_DEATH(CHECK(rows <= 8, "rows {} of {}", rows, 8),
               "check_test.cc:[0-9]+: broken invariant: rows <= 8: rows 9 of 8");
}

}  // namespace
}  // namespace megalith
