#include "program/schedule.h"

#include <gtest/gtest.h>

#include "program/checker.h"
#include "tests/program/small_model.h"

namespace megalith {
namespace {

TEST(PartOf, CoversEverythingOnceInMultiplesOfTheGrain) {
  for (const int64_t size : {0, 1, 15, 16, 17, 33, 100, 1000}) {
    for (const int64_t grain : {1, 16, 32}) {
      for (const int64_t parts : {1, 2, 3, 7, 64}) {
        int64_t at = 0, least = size, most = 0;
        for (int64_t part = 0; part < parts; ++part) {
          const Range range = part_of(size, part, parts, grain);
          ASSERT_EQ(range.begin, at);
          ASSERT_GE(range.end, range.begin);
          ASSERT_TRUE(range.end % grain == 0 || range.end == size);
          at = range.end;
          least = std::min(least, range.size());
          most = std::max(most, range.size());
        }
        ASSERT_EQ(at, size);
        ASSERT_LT(most - least, 2 * grain) << size << " by " << grain << " in " << parts;
      }
    }
  }
}

TEST(WorkersOf, EveryWorkerServesARankAndEveryRankHasWorkers) {
  for (const int ranks : {1, 2, 4, 8}) {
    for (int workers = 1; workers <= 20; ++workers) {
      std::vector<int> served(static_cast<size_t>(workers));
      for (int rank = 0; rank < ranks; ++rank) {
        const WorkerRange range = workers_of(rank, ranks, workers);
        ASSERT_LT(range.first, range.last);
        ASSERT_LE(range.last, workers);
        for (int w = range.first; w < range.last; ++w) ++served[static_cast<size_t>(w)];
      }
      for (const int times : served) ASSERT_GE(times, 1) << ranks << " ranks, " << workers << " workers";
    }
  }
}

TEST(Schedule, IsRightForTheSmallModelAtEveryRankAndWorkerCount) {
  for (const int ranks : {1, 2, 4, 8}) {
    const Program program = program_of("qwen-a/target/config.json", ranks);
    for (const int workers : {1, 2, 3, 5, 8, 16}) {
      const auto problems = check_schedule(program, make_schedule(program, workers));
      EXPECT_TRUE(problems.empty()) << ranks << " ranks, " << workers << " workers: " << problems.front();
    }
  }
}

TEST(Schedule, OutputsKeepTheirBuffers) {
  const Program program = two_layers(2);
  const Schedule schedule = make_schedule(program, 3);
  for (const auto& [name, value] : program.outputs) {
    const int32_t buffer = schedule.buffer_of[static_cast<size_t>(value.id)];
    EXPECT_EQ(std::count(schedule.buffer_of.begin(), schedule.buffer_of.end(), buffer), 1) << name;
  }
}

TEST(Schedule, BuffersAreUsedAgainAndAreWideEnough) {
  const Program program = program_of("qwen-a/target/config.json", 1);
  const Schedule schedule = make_schedule(program, 2);
  EXPECT_LT(schedule.buffer_width.size(), program.values.size() / 4);
  for (size_t value = 0; value < program.values.size(); ++value) {
    EXPECT_GE(schedule.buffer_width[static_cast<size_t>(schedule.buffer_of[value])], program.values[value].width);
  }
}

}  // namespace
}  // namespace megalith
