#include "server/random_hex.h"

#include <cstdint>
#include <random>

namespace megalith {

std::string random_hex(size_t digits) {
  thread_local std::mt19937_64 random = [] {
    std::random_device device;
    std::seed_seq seed{device(), device(), device(), device()};
    return std::mt19937_64(seed);
  }();
  std::string text;
  for (uint64_t bits = 0; text.size() < digits; bits >>= 4) {
    if (text.size() % 16 == 0) bits = random();
    text += "0123456789abcdef"[bits & 15];
  }
  return text;
}

}  // namespace megalith
