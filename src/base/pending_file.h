#pragma once

#include <cstddef>
#include <filesystem>
#include <string_view>

namespace megalith {

// A file that is being written beside its final name, so that the name stands for the old file or the whole new one.
// Removed unless it was finished. Throws Error where the system refuses.
class PendingFile {
 public:
  explicit PendingFile(std::filesystem::path path);
  ~PendingFile();
  PendingFile(const PendingFile&) = delete;

  void write(const void* data, size_t bytes);
  // Syncs, and gives the file its name.
  void finish();

 private:
  [[noreturn]] void fail(const char* expected) const;

  std::filesystem::path path_, beside_;
  int fd_ = -1;
  bool finished_ = false;
};

// A whole text file, written so.
void write_file(const std::filesystem::path& path, std::string_view text);

}  // namespace megalith
