#pragma once

#include <string>
#include <vector>

namespace megalith {

// The computer that the CPU machine would run on, for reports.
struct Host {
  std::string processor;        // as /proc/cpuinfo names it
  std::string instruction_set;  // "AVX-512"
  // What `threads` workers wish for and do not get, a line each; nothing fails for it.
  std::vector<std::string> missing_wishes;
};

// `threads` as in MachineOptions. Throws Error where the processor has no instruction set that the kernels are built
// for.
Host describe_host(int threads);

}  // namespace megalith
