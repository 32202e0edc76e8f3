#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>

namespace megalith {

// Zeroed memory from the system, 2 MiB aligned, in huge pages where the kernel grants them. A page is placed on the
// NUMA node of the thread that first writes to it, so nothing is touched here.
class Pages {
 public:
  Pages() = default;
  // Throws Error when the system refuses the address space.
  explicit Pages(size_t bytes);
  ~Pages();
  Pages(Pages&& other) noexcept;
  Pages& operator=(Pages&& other) noexcept;

  std::byte* data() const { return data_; }
  size_t size() const { return size_; }

 private:
  std::byte* data_ = nullptr;
  size_t size_ = 0;
  std::byte* base_ = nullptr;
  size_t reserved_ = 0;
};

// A whole file, mapped for reading. Bytes are read from disk when they are first touched.
class MappedFile {
 public:
  MappedFile() = default;
  // Throws Error when the file cannot be opened or mapped, or isn't a regular file.
  explicit MappedFile(const std::filesystem::path& path);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;

  std::span<const std::byte> bytes() const { return {data_, size_}; }
  // Tells the kernel that a part has been used and may leave memory.
  void release(size_t offset, size_t size) const;

 private:
  const std::byte* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace megalith
