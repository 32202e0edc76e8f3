#include "cli/embedded.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <span>
#include <vector>

#include "base/error.h"

namespace megalith {

namespace {

struct Pair {
  const char *model, *draft;
};

constexpr Pair kEmbedded[] = {{"tiny-qwen", "tiny-qwen-dflash2"}, {"tiny-kimi", "tiny-kimi-dspark"}};
constexpr Pair kOfTheHub[] = {{"Qwen/Qwen3.8-27B", "z-lab/Qwen3.8-27B-DFlash2"},
                              {"moonshotai/Kimi-K3", "RedHatAI/Kimi-K3-speculator.dspark"}};

}  // namespace

bool is_embedded(const std::string& name) {
  return std::any_of(std::begin(kEmbedded), std::end(kEmbedded),
                     [&](const Pair& pair) { return name == pair.model || name == pair.draft; });
}

std::optional<std::string> known_draft(const std::string& model) {
  const std::string name = model.empty() ? kDefaultModel : model;
  for (const std::span<const Pair> pairs : {std::span<const Pair>(kEmbedded), std::span<const Pair>(kOfTheHub)}) {
    for (const Pair& pair : pairs) {
      if (name == pair.model) return pair.draft;
    }
  }
  return std::nullopt;
}

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
