#include "weights/source.h"

#include <algorithm>
#include <array>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <spdlog/spdlog.h>

#include "base/error.h"
#include "weights/files.h"

namespace megalith {

namespace {

namespace fs = std::filesystem;

struct Pin {
  std::string_view repository;
  const char* variable;
};
constexpr std::array kPins = {
    Pin{"Qwen/Qwen3.8-27B", "QWEN_CHECKPOINT_REVISION"}, Pin{"z-lab/Qwen3.8-27B-DFlash2", "QWEN_DRAFT_REVISION"},
    Pin{"moonshotai/Kimi-K3", "KIMI_CHECKPOINT_REVISION"}, Pin{"Inferact/Kimi-K3-DSpark", "KIMI_DRAFT_REVISION"}};

// The variable that pins a repository's revision, or null.
const char* pin_of(std::string_view repository) {
  for (const Pin& pin : kPins) {
    if (pin.repository == repository) return pin.variable;
  }
  return nullptr;
}

bool directory_exists(const fs::path& path) {
  std::error_code ignored;
  return fs::is_directory(path, ignored);
}

bool plain_file_exists(const fs::path& path) {
  std::error_code ignored;
  return fs::is_regular_file(path, ignored);
}

// A variable that is empty counts as not set.
std::optional<std::string> value_of(const Environment& environment, const std::string& name) {
  const auto value = environment(name);
  return value && !value->empty() ? value : std::nullopt;
}

std::string expand_home(std::string_view path, const Environment& environment) {
  const auto home = value_of(environment, "HOME");
  const bool named = path == "~" || path.starts_with("~/");
  return named && home ? *home + std::string(path.substr(1)) : std::string(path);
}

// "name" or "org/name", of the characters that the hub allows.
bool is_repository(std::string_view spec) {
  size_t part = 0;
  int slashes = 0;
  for (const char c : spec) {
    const bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
    if (c == '/') {
      if (part == 0 || ++slashes > 1) return false;
      part = 0;
    } else if (letter || c == '-' || c == '_' || c == '.') {
      ++part;
    } else {
      return false;
    }
  }
  return part > 0 && spec.find("..") == spec.npos;
}

std::vector<fs::path> cache_folders(const Environment& environment) {
  std::vector<fs::path> folders;
  const auto add = [&](const std::string& variable, const char* below) {
    const auto value = value_of(environment, variable);
    if (!value) return false;
    const fs::path folder = fs::path(expand_home(*value, environment)) / below;
    if (std::find(folders.begin(), folders.end(), folder) == folders.end()) folders.push_back(folder);
    return true;
  };
  if (!add("HF_HUB_CACHE", "")) add("HUGGINGFACE_HUB_CACHE", "");
  add("HF_HOME", "hub");
  if (!add("XDG_CACHE_HOME", "huggingface/hub")) add("HOME", ".cache/huggingface/hub");
  return folders;
}

std::string trimmed(const std::string& text) {
  const char* const blanks = " \t\r\n";
  const size_t begin = text.find_first_not_of(blanks);
  return begin == text.npos ? "" : text.substr(begin, text.find_last_not_of(blanks) - begin + 1);
}

// Whether a revision or a commit, used as a path, stays inside its folder.
bool stays_inside(const std::string& name) {
  return !name.empty() && name[0] != '/' && name.find("..") == name.npos && name != ".";
}

// A place in a cache.
struct Snapshot {
  fs::path repository;
  std::string commit;
};

std::string commit_of(const fs::path& repository, const std::string& revision) {
  const fs::path ref = repository / "refs" / revision;
  return plain_file_exists(ref) ? trimmed(read_text(ref)) : revision;
}

// "main (1d4bf0f2…)" for refs, and snapshots that no ref names: what can be asked for.
std::vector<std::string> revisions_of(const fs::path& repository) {
  std::vector<std::string> names, known;
  std::error_code ignored;
  for (fs::recursive_directory_iterator at(repository / "refs", ignored), end; at != end; at.increment(ignored)) {
    if (!plain_file_exists(at->path())) continue;
    known.push_back(trimmed(read_text(at->path())));
    const bool there = stays_inside(known.back()) && directory_exists(repository / "snapshots" / known.back());
    names.push_back(fmt::format("{} ({}{})", fs::relative(at->path(), repository / "refs", ignored).string(),
                                known.back(), there ? "" : ", not downloaded"));
  }
  for (const auto& entry : fs::directory_iterator(repository / "snapshots", ignored)) {
    const std::string commit = entry.path().filename().string();
    if (std::find(known.begin(), known.end(), commit) == known.end()) names.push_back(commit);
  }
  std::sort(names.begin(), names.end());
  return names;
}

[[noreturn]] void fail_path(std::string_view spec, const std::string& path, const char* expected) {
  std::error_code ignored;
  throw Error({.where = fmt::format("model {}", spec),
               .expected = expected,
               .found = fs::exists(path, ignored) ? fmt::format("{} is not a directory", path)
                                                  : fmt::format("{} does not exist", path),
               .next = "Give the directory with config.json, or a repository id that is in the hub's cache."});
}

// `pin` is the variable that the revision came from, or null.
[[noreturn]] void fail_repository(std::string_view spec, const std::string& revision, const char* pin,
                                  const std::vector<Snapshot>& tried) {
  std::vector<std::string> places;
  for (const auto& [repository, commit] : tried) {
    std::string place = (repository / "snapshots" / commit).string();
    if (directory_exists(repository)) {
      const std::vector<std::string> others = revisions_of(repository);
      place += others.empty() ? " (the repository is there, without any revision)"
                              : fmt::format(" (the repository is there, with {})", fmt::join(others, ", "));
    }
    places.push_back(place);
  }
  throw Error(
      {.where = fmt::format("model {}", spec),
       .expected = fmt::format("a directory, or a repository in the hub's cache at revision {}{}", revision,
                               pin ? fmt::format(" (from {})", pin) : ""),
       .found = places.empty() ? "no cache: none of HF_HUB_CACHE, HF_HOME and HOME is set"
                               : fmt::format("neither {} nor {}", spec, fmt::join(places, " nor ")),
       .next = fmt::format("Download it (hf download {} --revision {}), set HF_HOME to the cache that has it, or "
                           "give the path of a directory.",
                           spec, revision)});
}

}  // namespace

std::optional<std::string> pinned_revision(std::string_view repository, const Environment& environment) {
  const char* variable = pin_of(repository);
  return variable ? value_of(environment, variable) : std::nullopt;
}

fs::path resolve_model(const std::string& spec, const std::optional<std::string>& revision,
                       const Environment& environment) {
  const std::string path = expand_home(spec, environment);
  if (directory_exists(path)) {
    if (revision) spdlog::warn("{} is a directory: revision {} means nothing there", path, *revision);
    return path;
  }
  const bool is_path = path.starts_with('/') || path.starts_with('.') || path.starts_with('~');
  if (is_path) fail_path(spec, path, "a directory");
  if (!is_repository(path)) fail_path(spec, path, "a directory, or a repository id (organisation/name)");

  const auto pinned = revision ? std::nullopt : pinned_revision(spec, environment);
  const std::string wanted = revision.value_or(pinned.value_or("main"));
  if (!stays_inside(wanted)) {
    throw Error({.where = "revision", .expected = "a branch, a tag or a commit", .found = wanted, .next = {}});
  }
  std::string folder = "models--";
  for (const char c : path) folder += c == '/' ? "--" : std::string(1, c);
  std::vector<Snapshot> tried;
  for (const fs::path& cache : cache_folders(environment)) {
    const std::string commit = commit_of(cache / folder, wanted);
    const fs::path snapshot = cache / folder / "snapshots" / commit;
    if (stays_inside(commit) && directory_exists(snapshot)) return snapshot;
    tried.push_back({cache / folder, commit});
  }
  fail_repository(spec, wanted, pinned ? pin_of(spec) : nullptr, tried);
}

}  // namespace megalith
