#include "weights/checkpoint.h"

#include <algorithm>
#include <cstring>
#include <set>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>
#include <spdlog/spdlog.h>

#include "base/error.h"
#include "weights/files.h"

namespace megalith {

namespace {

constexpr size_t kMaxListed = 20;

std::string all_of(const std::vector<std::string>& names) {
  return fmt::format("{}", fmt::join(names, ", "));
}

// "a, b, c and 7 more"
std::string some_of(const std::vector<std::string>& names) {
  if (names.size() <= kMaxListed) return all_of(names);
  return fmt::format("{} and {} more", fmt::join(names.begin(), names.begin() + kMaxListed, ", "),
                     names.size() - kMaxListed);
}

std::optional<DType> dtype_of(const std::string& name) {
  if (name == "BF16") return DType::bf16;
  if (name == "F32") return DType::f32;
  if (name == "F16") return DType::f16;
  if (name == "U8") return DType::u8;
  if (name == "I64") return DType::i64;
  return std::nullopt;
}

// Whether a tensor's type is one that its weight is read from: packed codes and scales are bytes, ids are integers, all
// others numbers.
bool fits(const std::string& dtype, const StoredTensorName& tensor) {
  const auto known = dtype_of(dtype);
  return known && (*known == DType::u8) == tensor.packed && (*known == DType::i64) == tensor.integers;
}

bool is_dangling(const std::filesystem::path& path) {
  std::error_code ignored;
  return std::filesystem::is_symlink(path, ignored) && !file_exists(path);
}

// Names of the directory's .safetensors files that are not in `shards`, sorted.
std::vector<std::string> other_files(const std::filesystem::path& directory, const std::set<std::string>& shards) {
  std::vector<std::string> names;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(directory, ignored)) {
    const std::string name = entry.path().filename().string();
    if (entry.path().extension() == ".safetensors" && !shards.contains(name)) names.push_back(name);
  }
  std::sort(names.begin(), names.end());
  return names;
}

// A file's name; in the hub's cache the file may be a link whose target was not downloaded.
std::string describe(const std::filesystem::path& path) {
  return path.filename().string() + (is_dangling(path) ? " (a link to a file that is missing)" : "");
}

Error no_weights(const std::filesystem::path& directory) {
  std::error_code ignored;
  std::vector<std::string> others;
  for (const std::string& name : other_files(directory, {})) {
    others.push_back(describe(directory / name));
  }
  std::string found = "neither";
  if (!std::filesystem::is_directory(directory, ignored)) found = "no such directory";
  if (!others.empty()) found = "only " + some_of(others);
  return Error({.where = directory.string(),
                .expected = "model.safetensors, or model.safetensors.index.json with its shards",
                .found = found,
                .next = "Give --model a directory with a Hugging Face checkpoint."});
}

Error bad_index(const std::string& where, std::string expected, std::string found) {
  return Error({.where = where,
                .expected = std::move(expected),
                .found = std::move(found),
                .next = "Download the missing files, or the index, again."});
}

// Tensor name → file name, as the index has it.
std::map<std::string, std::string> read_index(const std::filesystem::path& path) {
  const nlohmann::json json = read_json(path);
  const auto map = json.is_object() ? json.find("weight_map") : json.end();
  if (!json.is_object() || map == json.end() || !map->is_object() || map->empty()) {
    throw bad_index(path.string() + ": weight_map", "an object of tensor names and files",
                    !json.is_object() || map == json.end() ? "none" : brief(*map));
  }
  std::map<std::string, std::string> places;
  for (const auto& [name, shard] : map->items()) {
    const std::string file = shard.is_string() ? shard.get<std::string>() : "";
    if (file.empty() || file == "." || file == ".." || file.find_first_of(std::string_view("/\0", 2)) != file.npos) {
      throw bad_index(path.string() + ": weight_map." + name, "the name of a file beside the index", brief(shard));
    }
    places.emplace(name, file);
  }
  return places;
}

}  // namespace

Checkpoint::Checkpoint(const std::filesystem::path& directory) : directory_(directory) {
  const auto index = directory / "model.safetensors.index.json";
  const auto single = directory / "model.safetensors";
  // A link to an index that was not downloaded is still the word that there are shards.
  if (file_exists(index) || is_dangling(index)) {
    open_shards(index);
    return;
  }
  if (!file_exists(single)) throw no_weights(directory);
  const SafetensorsFile& file = files_.emplace("model.safetensors", SafetensorsFile(single)).first->second;
  for (const auto& [name, stored] : file.tensors()) tensors_[name] = {&file, &stored};
}

void Checkpoint::open_shards(const std::filesystem::path& index) {
  const std::map<std::string, std::string> places = read_index(index);
  std::set<std::string> shards;
  for (const auto& [name, shard] : places) shards.insert(shard);
  std::vector<std::string> missing;
  for (const std::string& shard : shards) {
    if (!file_exists(directory_ / shard)) missing.push_back(describe(directory_ / shard));
  }
  if (!missing.empty()) {
    throw bad_index(index.string(), fmt::format("{} shards", shards.size()),
                    fmt::format("{} of them missing: {}", missing.size(), all_of(missing)));
  }
  for (const std::string& shard : shards) files_.emplace(shard, SafetensorsFile(directory_ / shard));

  std::vector<std::string> absent;
  for (const auto& [name, shard] : places) {
    const SafetensorsFile& file = files_.at(shard);
    const auto stored = file.tensors().find(name);
    if (stored == file.tensors().end()) {
      absent.push_back(fmt::format("{} in {}", name, shard));
    } else {
      tensors_[name] = {&file, &stored->second};
    }
  }
  if (!absent.empty()) {
    throw bad_index(index.string(), "every tensor in the shard that the index names",
                    fmt::format("{} missing: {}", absent.size(), all_of(absent)));
  }
  note_unread(index);
}

void Checkpoint::note_unread(const std::filesystem::path& index) const {
  std::set<std::string> shards;
  std::vector<std::string> tensors;
  for (const auto& [shard, file] : files_) {
    shards.insert(shard);
    for (const auto& [name, stored] : file.tensors()) {
      const auto known = tensors_.find(name);
      if (known == tensors_.end() || known->second.file != &file)
        tensors.push_back(fmt::format("{} in {}", name, shard));
    }
  }
  if (!tensors.empty()) {
    spdlog::info("{}: {} tensors of the shards are not in the index and are not read: {}", index.string(),
                 tensors.size(), some_of(tensors));
  }
  const std::vector<std::string> others = other_files(directory_, shards);
  if (!others.empty()) {
    spdlog::info("{}: {} files are not in the index and are not read: {}", index.string(), others.size(),
                 some_of(others));
  }
}

std::vector<std::string> Checkpoint::names() const {
  std::vector<std::string> names;
  for (const auto& [name, tensor] : tensors_) names.push_back(name);
  return names;
}

const Checkpoint::Tensor& Checkpoint::at(const std::string& name) const {
  const auto found = tensors_.find(name);
  if (found == tensors_.end()) {
    throw Error(
        {.where = directory_.string(), .expected = "the tensor " + name, .found = "none of this name", .next = {}});
  }
  return found->second;
}

TensorInfo Checkpoint::info(const std::string& name) const {
  const Tensor& t = at(name);
  const auto dtype = dtype_of(t.stored->dtype);
  if (!dtype) {
    throw Error({.where = t.file->path().string() + ": " + name,
                 .expected = "BF16, F16 or F32",
                 .found = t.stored->dtype,
                 .next = "Use the checkpoint that has not been quantised."});
  }
  return {*dtype, t.stored->shape};
}

std::optional<TensorInfo> Checkpoint::find(const std::string& name) const {
  return has(name) ? std::optional(info(name)) : std::nullopt;
}

std::span<const std::byte> Checkpoint::data(const std::string& name) const {
  const Tensor& t = at(name);
  return t.file->data(*t.stored);
}

void Checkpoint::release(const std::string& name, std::span<const std::byte> part) const {
  at(name).file->release(part);
}

TensorCatalog Checkpoint::catalog() const {
  return [this](const std::string& name) { return find(name); };
}

std::string Checkpoint::formats() const {
  std::map<std::string, uint64_t> bytes;
  for (const auto& [name, t] : tensors_) bytes[t.stored->dtype] += t.stored->end - t.stored->begin;
  std::vector<std::string> names;
  for (const auto& [name, size] : bytes) names.push_back(name);
  std::stable_sort(names.begin(), names.end(), [&](const auto& a, const auto& b) { return bytes[a] > bytes[b]; });
  return fmt::format("{}", fmt::join(names, ", "));
}

uint64_t Checkpoint::bytes() const {
  uint64_t sum = 0;
  for (const auto& [name, t] : tensors_) sum += t.stored->end - t.stored->begin;
  return sum;
}

namespace {

// What is wrong with a checkpoint, by kind; empty strings where nothing is.
std::string summary(const std::vector<std::string>& missing, const std::vector<std::string>& shapes,
                    const std::vector<std::string>& types, const std::vector<std::string>& unknown) {
  std::vector<std::string> found;
  if (!missing.empty()) found.push_back(fmt::format("{} missing: {}", missing.size(), all_of(missing)));
  if (!shapes.empty()) found.push_back(fmt::format("{} of another shape: {}", shapes.size(), all_of(shapes)));
  if (!types.empty()) found.push_back(fmt::format("{} of another type than BF16, F16 or F32: {}", types.size(), all_of(types)));
  if (!unknown.empty()) found.push_back(fmt::format("{} unknown: {}", unknown.size(), some_of(unknown)));
  return fmt::format("{}", fmt::join(found, "; "));
}

// Whether two tensors differ in form, or in the bytes at their beginning. That is enough to tell weights apart, and
// spares reading gigabytes.
bool differ(const Checkpoint::Tensor& a, const Checkpoint::Tensor& b) {
  constexpr size_t kCompared = 1 << 20;
  if (a.stored->dtype != b.stored->dtype || a.stored->shape != b.stored->shape) return true;
  const auto x = a.file->data(*a.stored), y = b.file->data(*b.stored);
  return std::memcmp(x.data(), y.data(), std::min(x.size(), kCompared)) != 0;
}

// A head that is ignored is one beside a tied embedding. Where the two differ, the configuration may be wrong, and
// answers would make no sense without any other sign.
void warn_of_other_head(const Checkpoint& checkpoint, const std::string& head, const std::set<std::string>& wanted) {
  const auto embedding = std::find_if(wanted.begin(), wanted.end(),
                                      [](const std::string& name) { return name.ends_with("embed_tokens.weight"); });
  if (!head.ends_with("lm_head.weight") || embedding == wanted.end() || !checkpoint.has(*embedding)) return;
  if (!differ(checkpoint.tensors().at(head), checkpoint.tensors().at(*embedding))) return;
  spdlog::warn("{}: {} is not read, since config.json ties it to {} (tie_word_embeddings), but the two differ",
               checkpoint.directory().string(), head, *embedding);
}

}  // namespace

Ignored check_tensors(const Checkpoint& checkpoint, const std::vector<Weight>& wanted,
                      const std::function<bool(const std::string&)>& ignores) {
  std::set<std::string> names;
  std::vector<std::string> missing, shapes, types, unknown;
  const auto check = [&](const StoredTensorName& tensor) {
    if (!names.insert(tensor.name).second) return;
    const auto found = checkpoint.tensors().find(tensor.name);
    if (found == checkpoint.tensors().end()) return missing.push_back(tensor.name);
    const StoredTensor& stored = *found->second.stored;
    if (stored.shape != tensor.shape) {
      shapes.push_back(fmt::format("{}: expected [{}], found [{}]", tensor.name, fmt::join(tensor.shape, ", "),
                                   fmt::join(stored.shape, ", ")));
    }
    if (!fits(stored.dtype, tensor)) {
      const char* wanted = tensor.packed ? " in place of U8" : tensor.integers ? " in place of I64" : "";
      types.push_back(fmt::format("{}: {}{}", tensor.name, stored.dtype, wanted));
    }
  };
  for (const Weight& w : wanted) {
    for (const StoredTensorName& tensor : stored_tensors(w)) check(tensor);
  }
  Ignored ignored;
  for (const auto& [name, t] : checkpoint.tensors()) {
    if (names.contains(name)) continue;
    if (!ignores(name)) {
      unknown.push_back(name);
      continue;
    }
    warn_of_other_head(checkpoint, name, names);
    ++ignored.tensors;
    ignored.bytes += t.stored->end - t.stored->begin;
  }
  const std::string found = summary(missing, shapes, types, unknown);
  if (!found.empty()) {
    throw Error({.where = checkpoint.directory().string(),
                 .expected = "the tensors that config.json describes",
                 .found = found,
                 .next = "config.json and the weights do not belong together, or a file is missing."});
  }
  return ignored;
}

}  // namespace megalith
