#include "machines/cpu/topology.h"

#include <fmt/format.h>
#include <hwloc.h>
#include <sched.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <string>

namespace megalith {

namespace {

std::vector<int> allowed_cpus() {
  cpu_set_t set;
  CPU_ZERO(&set);
  std::vector<int> cpus;
  if (sched_getaffinity(0, sizeof(set), &set) != 0) return {0};
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(cpu, &set)) cpus.push_back(cpu);
  }
  return cpus;
}

}  // namespace

// v2 writes "max 100000" or "150000 100000", time and period in µs; v1 has a file for each, and -1 for no limit.
double read_quota(const std::filesystem::path& root) {
  std::ifstream file(root / "sys/fs/cgroup/cpu.max");
  double time = 0, period = 0;
  if (!(file >> time >> period)) {
    std::ifstream(root / "sys/fs/cgroup/cpu/cpu.cfs_quota_us") >> time;
    std::ifstream(root / "sys/fs/cgroup/cpu/cpu.cfs_period_us") >> period;
  }
  return time > 0 && period > 0 ? time / period : 0;
}

std::vector<std::string> missing_wishes(const Topology& topology, int threads, const std::filesystem::path& root) {
  std::vector<std::string> lines;
  const int processors = static_cast<int>(topology.cpus.size());
  if (threads > processors) {
    lines.push_back(fmt::format("{} threads wished for, {} processors to be had: threads take turns, and are not pinned",
                                threads, processors));
  }
  std::string pages;
  std::getline(std::ifstream(root / "sys/kernel/mm/transparent_hugepage/enabled"), pages);
  if (pages.find("[never]") != std::string::npos) {
    lines.push_back("huge pages wished for the weights, none to be had (transparent_hugepage/enabled is never): expect less speed");
  }
  return lines;
}

int Topology::default_threads() const {
  if (quota <= 0) return cores;
  return std::clamp(static_cast<int>(std::floor(quota)), 1, cores);
}

Topology read_topology() {
  Topology result;
  result.quota = read_quota();
  const std::vector<int> allowed = allowed_cpus();
  const auto may_use = [&](int cpu) { return std::find(allowed.begin(), allowed.end(), cpu) != allowed.end(); };
  std::vector<int> siblings;
  hwloc_topology_t topology;
  if (hwloc_topology_init(&topology) == 0) {
    if (hwloc_topology_load(topology) == 0) {
      hwloc_obj_t core = nullptr;
      while ((core = hwloc_get_next_obj_by_type(topology, HWLOC_OBJ_CORE, core)) != nullptr) {
        bool first = true;
        int cpu = -1;
        while ((cpu = hwloc_bitmap_next(core->cpuset, cpu)) >= 0) {
          if (!may_use(cpu)) continue;
          (first ? result.cpus : siblings).push_back(cpu);
          first = false;
        }
      }
    }
    hwloc_topology_destroy(topology);
  }
  if (result.cpus.empty()) result.cpus = allowed;
  result.cores = static_cast<int>(result.cpus.size());
  result.cpus.insert(result.cpus.end(), siblings.begin(), siblings.end());
  return result;
}

std::string processor_name() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    const size_t colon = line.find(": ");
    if (line.starts_with("model name") && colon != std::string::npos) return line.substr(colon + 2);
  }
  return "unknown processor";
}

}  // namespace megalith
