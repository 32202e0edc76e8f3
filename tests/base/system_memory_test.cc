#include "base/system_memory.h"

#include <gtest/gtest.h>

#include "tests/support/scratch.h"

namespace megalith {
namespace {

constexpr const char* kMeminfo = "MemTotal:       24000000 kB\nMemFree:  100 kB\nMemAvailable:    1000 kB\n";

TEST(AvailableMemory, IsWhatTheKernelSaysWhereNoGroupLimitsIt) {
  const Scratch root;
  root.write("proc/meminfo", kMeminfo);
  EXPECT_EQ(available_memory(root.path()), 1000u * 1024);
  root.write("proc/self/cgroup", "0::/job\n");
  root.write("sys/fs/cgroup/job/memory.max", "max\n");
  root.write("sys/fs/cgroup/job/memory.current", "5\n");
  EXPECT_EQ(available_memory(root.path()), 1000u * 1024);
}

TEST(AvailableMemory, AGroupLimitCountsWithPageCacheAsFree) {
  const Scratch root;
  root.write("proc/meminfo", kMeminfo);
  root.write("proc/self/cgroup", "0::/job/step\n");
  root.write("sys/fs/cgroup/job/step/memory.max", "500000\n");
  root.write("sys/fs/cgroup/job/step/memory.current", "300000\n");
  EXPECT_EQ(available_memory(root.path()), 200000u);
  root.write("sys/fs/cgroup/job/step/memory.stat", "anon 100000\ninactive_file 150000\nactive_file 50000\n");
  EXPECT_EQ(available_memory(root.path()), 400000u);
}

TEST(AvailableMemory, ALimitOfAnOuterGroupCounts) {
  const Scratch root;
  root.write("proc/meminfo", kMeminfo);
  root.write("proc/self/cgroup", "0::/job/step\n");
  root.write("sys/fs/cgroup/job/memory.max", "90000\n");
  root.write("sys/fs/cgroup/job/memory.current", "20000\n");
  EXPECT_EQ(available_memory(root.path()), 70000u);
  root.write("sys/fs/cgroup/memory.max", "1000\n");
  root.write("sys/fs/cgroup/memory.current", "2000\n");
  EXPECT_EQ(available_memory(root.path()), 0u);
}

TEST(AvailableMemory, TheFirstVersionOfGroupsCounts) {
  const Scratch root;
  root.write("proc/meminfo", kMeminfo);
  root.write("proc/self/cgroup", "5:cpu,cpuacct:/\n4:memory:/job\n");
  root.write("sys/fs/cgroup/memory/job/memory.limit_in_bytes", "80000\n");
  root.write("sys/fs/cgroup/memory/job/memory.usage_in_bytes", "30000\n");
  EXPECT_EQ(available_memory(root.path()), 50000u);
}

TEST(AvailableMemory, IsUnlimitedWhereNothingIsKnown) {
  const Scratch root;
  EXPECT_EQ(available_memory(root.path()), UINT64_MAX);
}

TEST(AvailableMemory, OfThisMachineIsSomethingBelowAPetabyte) {
  EXPECT_GT(available_memory(), 0u);
  EXPECT_LT(available_memory(), uint64_t{1} << 50);
}

}  // namespace
}  // namespace megalith
