#include "base/phases.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

namespace megalith {
namespace {

TEST(Phases, TheTableHasEveryPhaseInOrderAndTheirSum) {
  Phases phases;
  phases.begin("first");
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  phases.begin("second");
  phases.end();
  EXPECT_GE(phases.total_s(), 0.02);
  const std::string table = phases.table();
  EXPECT_THAT(table, testing::ContainsRegex("0\\.[0-9]{3} s  first\n +0\\.[0-9]{3} s  second\n +0\\.[0-9]{3} s  until ready\n"));
}

TEST(Phases, TimeAfterTheEndCountsForNone) {
  Phases phases;
  phases.begin("only");
  phases.end();
  const double before = phases.total_s();
  std::this_thread::sleep_for(std::chrono::milliseconds(5));
  phases.end();
  EXPECT_EQ(phases.total_s(), before);
}

}  // namespace
}  // namespace megalith
