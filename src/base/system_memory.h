#pragma once

#include <cstdint>
#include <filesystem>

namespace megalith {

// Bytes that this process may still allocate before something has to be swapped or killed: what the kernel calls
// available, and what the limits of the process's control groups (v2 or v1) leave. Page cache counts as available.
// `root` is where /proc and /sys are looked for. Where nothing is known, the answer is UINT64_MAX.
uint64_t available_memory(const std::filesystem::path& root = "/");

}  // namespace megalith
