#pragma once

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <span>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <unistd.h>

#include "base/error.h"
#include "weights/safetensors.h"

namespace megalith {

// A directory that ends with the test.
class Scratch {
 public:
  Scratch() {
    std::string name = (std::filesystem::temp_directory_path() / "weights_test.XXXXXX").string();
    if (!mkdtemp(name.data())) ADD_FAILURE() << std::strerror(errno);
    path_ = name;
  }
  ~Scratch() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  Scratch(const Scratch&) = delete;

  // Writes a file, and the directories that it needs.
  std::filesystem::path write(const std::string& name, const std::string& text) const {
    std::filesystem::create_directories((path_ / name).parent_path());
    std::ofstream(path_ / name, std::ios::binary) << text;
    return path_ / name;
  }
  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path operator/(const std::string& name) const { return path_ / name; }

 private:
  std::filesystem::path path_;
};

// The first line of the Error that `run` throws; a failure when it throws none.
template <class Run>
std::string cause_of(Run run) {
  try {
    run();
  } catch (const Error& error) {
    return error.cause();
  }
  ADD_FAILURE() << "no Error";
  return "";
}

// A safetensors file of a header and `data_bytes` bytes of data.
inline std::string safetensors_text(const std::string& header, size_t data_bytes) {
  const uint64_t length = header.size();
  std::string text(8, '\0');
  std::memcpy(text.data(), &length, 8);
  return text + header + std::string(data_bytes, '\1');
}

inline std::string file_text(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
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
