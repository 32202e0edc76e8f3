#include "machines/cpu/topology.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/scratch.h"

namespace megalith {
namespace {

TEST(Topology, QuotaOfBothVersionsOfGroupsIsRead) {
  const Scratch root;
  EXPECT_EQ(read_quota(root.path()), 0);
  root.write("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1\n");
  root.write("sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(read_quota(root.path()), 0);
  root.write("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "250000\n");
  EXPECT_EQ(read_quota(root.path()), 2.5);
  root.write("sys/fs/cgroup/cpu.max", "150000 100000\n");
  EXPECT_EQ(read_quota(root.path()), 1.5);
  root.write("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1\n");
  root.write("sys/fs/cgroup/cpu.max", "max 100000\n");
  EXPECT_EQ(read_quota(root.path()), 0);
}

TEST(Topology, AQuotaLimitsTheThreadsAndNeverToNone) {
  Topology topology = {.cpus = {0, 1, 2, 3}, .cores = 4, .quota = 0};
  EXPECT_EQ(topology.default_threads(), 4);
  topology.quota = 1.5;
  EXPECT_EQ(topology.default_threads(), 1);
  topology.quota = 0.2;
  EXPECT_EQ(topology.default_threads(), 1);
  topology.quota = 9;
  EXPECT_EQ(topology.default_threads(), 4);
}

TEST(Topology, WishesThatAreNotGrantedAreNamedWithWhatThereIs) {
  const Scratch root;
  const Topology two = {.cpus = {0, 1}, .cores = 2, .quota = 0};
  EXPECT_TRUE(missing_wishes(two, 2, root.path()).empty());
  root.write("sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n");
  EXPECT_TRUE(missing_wishes(two, 0, root.path()).empty());
  root.write("sys/kernel/mm/transparent_hugepage/enabled", "always madvise [never]\n");
  const auto lines = missing_wishes(two, 64, root.path());
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_THAT(lines[0], testing::HasSubstr("64 threads wished for, 2 processors"));
  EXPECT_THAT(lines[1], testing::HasSubstr("huge pages"));
}

TEST(Topology, OfThisMachineHasAProcessorForEachCore) {
  const Topology topology = read_topology();
  EXPECT_GE(topology.cores, 1);
  EXPECT_GE(topology.cpus.size(), static_cast<size_t>(topology.cores));
  EXPECT_FALSE(processor_name().empty());
}

}  // namespace
}  // namespace megalith
