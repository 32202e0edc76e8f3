#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/memory.h"
#include "program/weight.h"

namespace megalith {

// A tensor as a safetensors header describes it. The dtype keeps the file's own name ("BF16"), since files may hold
// tensors of types that Megalith does not compute with.
struct StoredTensor {
  std::string dtype;
  std::vector<int64_t> shape;
  uint64_t begin = 0, end = 0;  // bytes, from the start of the data
};

// One .safetensors file, mapped. The header is checked as a whole when the file is opened: known types, sizes that
// agree with shapes, data without hole or overlap that fills the file. Every Error names the file, the tensor, and the
// bytes expected and found. Reading from many threads is safe.
class SafetensorsFile {
 public:
  // Throws Error where the file cannot be read or is damaged.
  explicit SafetensorsFile(const std::filesystem::path& path);

  const std::map<std::string, StoredTensor>& tensors() const { return tensors_; }
  // The strings of __metadata__; empty where there is none.
  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  // The tensor's bytes, little-endian, row-major. They may begin at any address.
  std::span<const std::byte> data(const StoredTensor& tensor) const;
  const std::filesystem::path& path() const { return path_; }
  // Lets a part of the file's data leave memory after use. It may be read again, from disk.
  void release(std::span<const std::byte> part) const;

 private:
  void read_header();

  std::filesystem::path path_;
  MappedFile file_;
  uint64_t data_offset_ = 0;
  std::map<std::string, StoredTensor> tensors_;
  std::map<std::string, std::string> metadata_;
};

// A tensor to be written. `bytes` holds it row-major in the dtype named ("F32", "BF16").
struct TensorToWrite {
  std::string name;
  std::string dtype;
  std::vector<int64_t> shape;
  std::span<const std::byte> bytes;
};

// Writes beside the path, syncs, and renames, so that `path` is the old file or the whole new one. Throws Error where
// the system refuses; nothing is left behind then. Bytes that do not fit the shape are a CHECK.
void write_safetensors(const std::filesystem::path& path, const std::vector<TensorToWrite>& tensors,
                       const std::map<std::string, std::string>& metadata = {});

}  // namespace megalith
