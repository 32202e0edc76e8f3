#include "cli/embedded.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <vector>

#include "base/error.h"

namespace megalith {

bool is_embedded(const std::string& name) { return name == "tiny-qwen" || name == "tiny-kimi"; }

std::filesystem::path embedded_model(const std::string& name) {
  std::error_code error;
  const auto program = std::filesystem::read_symlink("/proc/self/exe", error);
  const auto bin = program.parent_path();  // build/release, or bin
  std::vector<std::string> tried;
  for (const auto& place : {bin / "../../models", bin / "../share/megalith/models"}) {
    const auto directory = (place / name).lexically_normal();
    if (std::filesystem::exists(directory / "config.json")) return directory;
    tried.push_back(directory.string());
  }
  throw Error({.where = "the embedded model " + name,
               .expected = fmt::format("it in {}", fmt::join(tried, " or ")),
               .found = "neither",
               .next = "Give --model a directory with a Hugging Face checkpoint."});
}

}  // namespace megalith
