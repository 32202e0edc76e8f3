#include "base/large_vector.h"

#include <cstdint>

#include <sys/mman.h>

namespace megalith {

namespace {

constexpr size_t kHugePage = size_t{2} << 20;

size_t whole_huge_pages(size_t bytes) {
  return (bytes + kHugePage - 1) / kHugePage * kHugePage;
}

}  // namespace

void* allocate_large(size_t bytes) {
  if (bytes < kHugePage) return ::operator new(bytes);
  if (bytes > SIZE_MAX - 2 * kHugePage) throw std::bad_alloc();
  const size_t size = whole_huge_pages(bytes);
  void* p = mmap(nullptr, size + kHugePage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (p == MAP_FAILED) throw std::bad_alloc();
  // A huge page more than is needed has a boundary of one in it; what lies before it and after the end goes back.
  auto* begin = static_cast<std::byte*>(p);
  const size_t before = whole_huge_pages(reinterpret_cast<uintptr_t>(p)) - reinterpret_cast<uintptr_t>(p);
  if (before > 0) munmap(begin, before);
  begin += before;
  if (before < kHugePage) munmap(begin + size, kHugePage - before);
  madvise(begin, bytes, MADV_HUGEPAGE);  // a wish; small pages work as well
  return begin;
}

void free_large(void* memory, size_t bytes) {
  if (bytes < kHugePage) return ::operator delete(memory);
  munmap(memory, whole_huge_pages(bytes));
}

}  // namespace megalith
