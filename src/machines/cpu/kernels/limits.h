#pragma once

#include <cstddef>
#include <cstdint>

namespace megalith {

// Loads every byte of [data, data + size), size a multiple of 1024, as fast as one core can. Returns something that
// depends on all of them.
uint64_t read_bytes(const std::byte* data, size_t size);

// Independent chains of fused multiply-adds in registers, `rounds` times. Returns the floating-point operations done.
double multiply_add(int64_t rounds);

}  // namespace megalith
