#pragma once

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "tests/support/errors.h"
#include "tests/support/scratch.h"
#include "weights/safetensors.h"

namespace megalith {

// A safetensors file of a header and `data_bytes` bytes of data.
inline std::string safetensors_text(const std::string& header, size_t data_bytes) {
  const uint64_t length = header.size();
  std::string text(8, '\0');
  std::memcpy(text.data(), &length, 8);
  return text + header + std::string(data_bytes, '\1');
}

// A file of tensors, all of one shape and type, filled with one byte.
inline void write_tensors(const std::filesystem::path& path, const std::vector<std::string>& names,
                          const std::vector<int64_t>& shape = {2}, const std::string& dtype = "F32", int fill = 0) {
  size_t bytes = dtype == "F32" || dtype == "I32" ? 4 : 2;
  for (const int64_t size : shape) bytes *= static_cast<size_t>(size);
  const std::vector<std::byte> data(bytes, static_cast<std::byte>(fill));
  std::vector<TensorToWrite> tensors;
  for (const std::string& name : names) tensors.push_back({name, dtype, shape, data});
  write_safetensors(path, tensors);
}

}  // namespace megalith
