#include "base/system_memory.h"

#include <algorithm>
#include <fstream>
#include <optional>
#include <sstream>
#include <string>

#include <fmt/format.h>

namespace megalith {

namespace {

namespace fs = std::filesystem;

// The number that a file consists of; nothing where there is none ("max").
std::optional<uint64_t> read_number(const fs::path& path) {
  std::ifstream file(path);
  uint64_t value = 0;
  return file >> value ? std::optional(value) : std::nullopt;
}

// The number after `name` in a file of lines "name value" or "name: value kB".
std::optional<uint64_t> read_field(const fs::path& path, const std::string& name) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string word;
    uint64_t value = 0;
    if (words >> word >> value && word == name) return value;
  }
  return std::nullopt;
}

// What a control group leaves: limit - used, where page cache is not use.
std::optional<uint64_t> left_in(const fs::path& group, const char* limit_name, const char* used_name) {
  const auto limit = read_number(group / limit_name);
  const auto used = read_number(group / used_name);
  if (!limit || !used) return std::nullopt;
  const uint64_t cache = read_field(group / "memory.stat", "inactive_file").value_or(0) +
                         read_field(group / "memory.stat", "active_file").value_or(0);
  const uint64_t held = *used - std::min(cache, *used);
  return *limit - std::min(held, *limit);
}

// The least that the group at `path` below `mount`, or a group that holds it, leaves.
uint64_t left_in_groups(const fs::path& mount, const std::string& path, const char* limit_name, const char* used_name) {
  uint64_t least = UINT64_MAX;
  for (fs::path group = fs::path(path).relative_path();; group = group.parent_path()) {
    if (const auto left = left_in(mount / group, limit_name, used_name)) least = std::min(least, *left);
    if (group.empty()) return least;
  }
}

uint64_t left_in_all_groups(const fs::path& root) {
  std::ifstream file(root / "proc/self/cgroup");
  uint64_t least = UINT64_MAX;
  // Lines "hierarchy:controllers:path"; v2 is hierarchy 0 without controllers.
  for (std::string line; std::getline(file, line);) {
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = fmt::format(",{},", line.substr(first + 1, second - first - 1));
    const std::string path = line.substr(second + 1);
    const fs::path mount = root / "sys/fs/cgroup";
    if (controllers == ",,") {
      least = std::min(least, left_in_groups(mount, path, "memory.max", "memory.current"));
    } else if (controllers.find(",memory,") != std::string::npos) {
      least = std::min(least, left_in_groups(mount / "memory", path, "memory.limit_in_bytes", "memory.usage_in_bytes"));
    }
  }
  return least;
}

}  // namespace

uint64_t available_memory(const fs::path& root) {
  const auto kilobytes = read_field(root / "proc/meminfo", "MemAvailable:");
  return std::min(kilobytes ? *kilobytes * 1024 : UINT64_MAX, left_in_all_groups(root));
}

}  // namespace megalith
