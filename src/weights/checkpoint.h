#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "program/weight.h"
#include "weights/safetensors.h"

namespace megalith {

// The tensors of a model directory: model.safetensors, or the shards that model.safetensors.index.json names. The index
// is the truth: all shards that it names must be there, with the tensors that it says; other files are not read.
class Checkpoint {
 public:
  // Opens all files and checks their headers; throws Error naming every missing shard, every tensor that is not in its
  // shard, or the first damage.
  explicit Checkpoint(const std::filesystem::path& directory);

  struct Tensor {
    const SafetensorsFile* file = nullptr;
    const StoredTensor* stored = nullptr;
  };

  const std::map<std::string, Tensor>& tensors() const { return tensors_; }
  bool has(const std::string& name) const { return tensors_.contains(name); }
  std::vector<std::string> names() const;  // sorted
  // Nothing where the tensor is missing; throws Error where it is of a type that Megalith does not compute with.
  std::optional<TensorInfo> find(const std::string& name) const;
  // The same; throws Error where the tensor is missing.
  TensorInfo info(const std::string& name) const;
  std::span<const std::byte> data(const std::string& name) const;
  // Lets a part of a tensor's bytes (a piece of data()) leave memory after use. They may be read again, from disk.
  void release(const std::string& name, std::span<const std::byte> part) const;
  // find(), for the builders of programs. Borrows the checkpoint.
  TensorCatalog catalog() const;
  uint64_t bytes() const;  // of all tensors
  size_t files() const { return files_.size(); }
  // The number formats of the tensors, the one with most bytes first: "BF16, F32".
  std::string formats() const;
  const std::filesystem::path& directory() const { return directory_; }

 private:
  const Tensor& at(const std::string& name) const;
  void open_shards(const std::filesystem::path& index);
  void note_unread(const std::filesystem::path& index) const;

  std::filesystem::path directory_;
  std::map<std::string, SafetensorsFile> files_;
  std::map<std::string, Tensor> tensors_;
};

// Tensors that a program does not need.
struct Ignored {
  size_t tensors = 0;
  uint64_t bytes = 0;
};
// Compares what a program wants with what the checkpoint has. One Error lists all missing tensors, all wrong shapes and
// types, and up to 20 names that are neither wanted nor ignored. Warns of a head that is ignored, since config.json
// ties it to the embedding, and differs from it.
Ignored check_tensors(const Checkpoint& checkpoint, const std::vector<Weight>& wanted,
                      const std::function<bool(const std::string&)>& ignores);

}  // namespace megalith
