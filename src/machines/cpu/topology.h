#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace megalith {

// The processors that this process may use: the affinity mask, and a container's quota of processor time.
struct Topology {
  std::vector<int> cpus;  // one of each core first, then their siblings; neighbours share caches and memory
  int cores = 1;
  double quota = 0;  // processors' worth of time; 0 is no limit

  // As many workers as cores, within the quota.
  int default_threads() const;
};

Topology read_topology();

// Processors' worth of time that the control group grants (v2 or v1), 0 for no limit. `root` is where /sys is looked for.
double read_quota(const std::filesystem::path& root = "/");

// What a machine of `threads` workers wishes for and does not get, a line each; nothing fails for it.
std::vector<std::string> missing_wishes(const Topology& topology, int threads, const std::filesystem::path& root = "/");

// The processor's name for reports, as /proc/cpuinfo has it.
std::string processor_name();

}  // namespace megalith
