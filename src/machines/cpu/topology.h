#pragma once

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

}  // namespace megalith
