#include "base/memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include <fmt/format.h>

#include "base/error.h"

namespace megalith {

namespace {

constexpr size_t kHugePage = size_t{2} << 20;

}  // namespace

Pages::Pages(size_t bytes) : size_(bytes) {
  if (bytes == 0) return;
  const bool fits = bytes <= SIZE_MAX - kHugePage;
  reserved_ = bytes + kHugePage;
  errno = ENOMEM;
  void* p = fits ? mmap(nullptr, reserved_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)
                 : MAP_FAILED;
  if (p == MAP_FAILED) {
    throw Error({.where = "memory",
                 .expected = fmt::format("{:.2f} GB of address space", static_cast<double>(bytes) / 1e9),
                 .found = std::strerror(errno),
                 .next = "Raise the limit (ulimit -v), or choose a smaller --context or model."});
  }
  base_ = static_cast<std::byte*>(p);
  const auto address = reinterpret_cast<uintptr_t>(base_);
  data_ = base_ + ((kHugePage - address % kHugePage) % kHugePage);
  madvise(data_, bytes, MADV_HUGEPAGE);  // a wish; small pages work as well
}

Pages::~Pages() {
  if (base_) munmap(base_, reserved_);
}

Pages::Pages(Pages&& other) noexcept { *this = std::move(other); }

Pages& Pages::operator=(Pages&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  std::swap(base_, other.base_);
  std::swap(reserved_, other.reserved_);
  return *this;
}

MappedFile::MappedFile(const std::filesystem::path& path) {
  const auto fail = [&](const char* expected, const char* found) {
    return Error({.where = path.string(), .expected = expected, .found = found, .next = {}});
  };
  // Without O_NONBLOCK, opening a pipe would wait for a writer.
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) throw fail("a readable file", std::strerror(errno));
  struct stat info = {};
  if (fstat(fd, &info) != 0 || !S_ISREG(info.st_mode)) {
    close(fd);
    throw fail("a regular file", S_ISDIR(info.st_mode) ? "a directory" : "something else");
  }
  size_ = static_cast<size_t>(info.st_size);
  void* p = size_ ? mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, fd, 0) : nullptr;
  const int why = errno;
  close(fd);
  if (p == MAP_FAILED) throw fail("a file that can be mapped", std::strerror(why));
  data_ = static_cast<const std::byte*>(p);
}

MappedFile::~MappedFile() {
  if (data_) munmap(const_cast<std::byte*>(data_), size_);
}

MappedFile::MappedFile(MappedFile&& other) noexcept { *this = std::move(other); }

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

void MappedFile::release(size_t offset, size_t size) const {
  const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  const size_t first = (offset + page - 1) / page * page;
  const size_t last = (offset + size) / page * page;
  if (first < last) madvise(const_cast<std::byte*>(data_) + first, last - first, MADV_DONTNEED);
}

}  // namespace megalith
