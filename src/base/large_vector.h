#pragma once

// A std::vector for tables of megabytes that are filled at once or looked up at random: its memory is in huge pages
// where the kernel grants them, which spares page faults and misses of the TLB.

#include <cstddef>
#include <cstdint>
#include <new>
#include <vector>

namespace megalith {

// Small amounts are the ordinary allocator's. Throws std::bad_alloc.
void* allocate_large(size_t bytes);
void free_large(void* memory, size_t bytes);

template <typename T>
struct LargeAllocator {
  using value_type = T;
  LargeAllocator() = default;
  template <typename U>
  LargeAllocator(const LargeAllocator<U>&) {}  // NOLINT: as allocators have it

  T* allocate(size_t count) {
    if (count > SIZE_MAX / sizeof(T)) throw std::bad_alloc();
    return static_cast<T*>(allocate_large(count * sizeof(T)));
  }
  void deallocate(T* memory, size_t count) { free_large(memory, count * sizeof(T)); }
  bool operator==(const LargeAllocator&) const = default;
};

template <typename T>
using LargeVector = std::vector<T, LargeAllocator<T>>;

}  // namespace megalith
