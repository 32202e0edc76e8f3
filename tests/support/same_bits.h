#pragma once

#include <cstddef>
#include <cstring>
#include <vector>

namespace megalith {

inline bool same_bits(const float* a, const float* b, size_t size) {
  return std::memcmp(a, b, size * sizeof(float)) == 0;
}
inline bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && same_bits(a.data(), b.data(), a.size());
}

}  // namespace megalith
