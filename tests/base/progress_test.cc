#include "base/progress.h"

#include <algorithm>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace megalith {
namespace {

using testing::EndsWith;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

// What a run of `steps` pieces writes to standard error, with a pause before the first.
std::string written(int steps, uint64_t bytes_a_step, int pause_ms, bool quiet = false) {
  testing::internal::CaptureStderr();
  {
    Progress progress("loading weights", static_cast<uint64_t>(steps) * bytes_a_step, quiet);
    std::this_thread::sleep_for(std::chrono::milliseconds(pause_ms));
    for (int i = 0; i < steps; ++i) progress.add(bytes_a_step);
  }
  return testing::internal::GetCapturedStderr();
}

TEST(Progress, ShortWorkStaysSilent) {
  EXPECT_EQ(written(100, 1'000'000, 0), "");
}

TEST(Progress, QuietWorkStaysSilent) {
  EXPECT_EQ(written(100, 1'000'000, 600, true), "");
}

TEST(Progress, OffATerminalItWritesWholeLinesAndEnds) {
  const std::string text = written(1000, 1'000'000, 600);
  EXPECT_THAT(text, Not(HasSubstr("\r")));
  EXPECT_THAT(text, StartsWith("loading weights: "));
  EXPECT_THAT(text, EndsWith("\n"));
  const size_t last = text.rfind('\n', text.size() - 2);
  ASSERT_NE(last, text.npos);
  EXPECT_THAT(text.substr(last + 1), StartsWith("loading weights: 100%  1.00 GB of 1.00 GB"));
}

TEST(Progress, OffATerminalItWritesALineEveryTwentiethAtMost) {
  const std::string text = written(1000, 1'000'000, 600);
  const auto lines = std::count(text.begin(), text.end(), '\n');
  EXPECT_GE(lines, 10);
  EXPECT_LE(lines, 22);
}

TEST(Progress, WorkOfNoBytesDoesNotDivideByThem) {
  testing::internal::CaptureStderr();
  {
    Progress progress("nothing", 0);
    std::this_thread::sleep_for(std::chrono::milliseconds(600));
    progress.add(0);
  }
  const std::string text = testing::internal::GetCapturedStderr();
  EXPECT_THAT(text, Not(HasSubstr("nan")));
  EXPECT_THAT(text, Not(HasSubstr("inf")));
}

TEST(Progress, MoreThanTheTotalLeavesNoNegativeTime) {
  testing::internal::CaptureStderr();
  {
    Progress progress("more", 10);
    std::this_thread::sleep_for(std::chrono::milliseconds(600));
    progress.add(1000);
  }
  EXPECT_THAT(testing::internal::GetCapturedStderr(), HasSubstr("  0 s left"));
}

TEST(Progress, NothingIsLostWhenManyThreadsAdd) {
  Progress progress("adding", 40'000, true);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 10'000; ++i) progress.add(1);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(progress.done(), 40'000u);
}

TEST(HumanBytes, UsesDecimalUnits) {
  EXPECT_EQ(human_bytes(0), "0 B");
  EXPECT_EQ(human_bytes(12), "12 B");
  EXPECT_EQ(human_bytes(999), "999 B");
  EXPECT_EQ(human_bytes(1000), "1.00 kB");
  EXPECT_EQ(human_bytes(750'000), "750.00 kB");
  EXPECT_EQ(human_bytes(1'500'000'000), "1.50 GB");
  EXPECT_EQ(human_bytes(2'000'000'000'000), "2.00 TB");
}

TEST(HumanBytes, NeverShowsAThousandOfAUnit) {
  EXPECT_EQ(human_bytes(999'994), "999.99 kB");
  EXPECT_EQ(human_bytes(999'995), "1.00 MB");
  EXPECT_EQ(human_bytes(999'999'999), "1.00 GB");
  EXPECT_EQ(human_bytes(1'000'000'000'000'000), "1000.00 TB");
}

}  // namespace
}  // namespace megalith
