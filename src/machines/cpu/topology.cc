#include "machines/cpu/topology.h"

#include <hwloc.h>
#include <sched.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <string>

namespace megalith {

namespace {

// cgroup v2 writes "max 100000" or "150000 100000": time and period in µs.
double read_quota() {
  std::ifstream file("/sys/fs/cgroup/cpu.max");
  std::string time;
  double period = 0;
  if (!(file >> time >> period) || time == "max" || period <= 0) return 0;
  return std::strtod(time.c_str(), nullptr) / period;
}

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

}  // namespace megalith
