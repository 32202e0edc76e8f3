#include "base/pending_file.h"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include "base/error.h"

namespace megalith {

PendingFile::PendingFile(std::filesystem::path path) : path_(std::move(path)), beside_(path_) {
  beside_ += fmt::format(".tmp.{}", getpid());
  fd_ = open(beside_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (fd_ < 0) fail("a file that can be written");
}

PendingFile::~PendingFile() {
  if (fd_ >= 0) close(fd_);
  if (!finished_) unlink(beside_.c_str());
}

void PendingFile::write(const void* data, size_t bytes) {
  const char* p = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t n = ::write(fd_, p, bytes);
    if (n < 0 && errno != EINTR) fail("room for the file");
    if (n <= 0) continue;
    p += n;
    bytes -= static_cast<size_t>(n);
  }
}

void PendingFile::finish() {
  if (fsync(fd_) != 0 || rename(beside_.c_str(), path_.c_str()) != 0) fail("a file that can be written");
  finished_ = true;
  const std::filesystem::path parent = path_.parent_path();
  const int directory = open(parent.empty() ? "." : parent.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (directory >= 0) {
    fsync(directory);
    close(directory);
  }
}

void PendingFile::fail(const char* expected) const {
  throw Error({.where = path_.string(), .expected = expected, .found = std::strerror(errno), .next = {}});
}

void write_file(const std::filesystem::path& path, std::string_view text) {
  PendingFile file(path);
  file.write(text.data(), text.size());
  file.finish();
}

}  // namespace megalith
