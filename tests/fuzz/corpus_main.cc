// Runs a fuzz target once over each file named, and over all files of each directory named. A crash is in the file
// whose name was printed last.

#include <algorithm>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <vector>

#include <sys/resource.h>

#include "tests/fuzz/fuzz.h"

namespace {

// Small, so that an input of a few kilobytes shows a recursion without a limit.
constexpr rlim_t kStackBytes = 512 * 1024;

std::vector<std::filesystem::path> files_of(const std::filesystem::path& path) {
  if (!std::filesystem::is_directory(path)) return {path};
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(path)) {
    if (entry.is_regular_file()) files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  return files;
}

bool run(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  std::printf("%s (%zu bytes)\n", path.c_str(), text.size());
  std::fflush(stdout);
  if (!file) return false;
  try {
    LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(text.data()), text.size());
  } catch (const std::exception& error) {
    std::printf("not an Error: %s\n", error.what());
    return false;
  }
  return true;
}

}  // namespace

int main(int argc, char** argv) {
  const rlimit limit = {kStackBytes, kStackBytes};
  setrlimit(RLIMIT_STACK, &limit);
  size_t runs = 0, failures = 0;
  for (int i = 1; i < argc; ++i) {
    for (const auto& path : files_of(argv[i])) {
      ++runs;
      if (!run(path)) ++failures;
    }
  }
  std::printf("%zu inputs, %zu failed\n", runs, failures);
  return runs == 0 || failures > 0 ? 1 : 0;
}
