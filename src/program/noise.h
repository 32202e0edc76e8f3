#pragma once

#include <array>
#include <cstdint>

namespace megalith {

// Philox4x32-10, a counter-based generator (Salmon, Moraes, Dror, Shaw: Parallel random numbers: as easy as 1, 2, 3,
// SC 2011): sixteen bytes that depend on the counter and the key only.
constexpr std::array<uint32_t, 4> philox(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t a = uint64_t{0xD2511F53} * counter[0];
    const uint64_t b = uint64_t{0xCD9E8D57} * counter[2];
    counter = {static_cast<uint32_t>(b >> 32) ^ counter[1] ^ key[0], static_cast<uint32_t>(b),
               static_cast<uint32_t>(a >> 32) ^ counter[3] ^ key[1], static_cast<uint32_t>(a)};
    key = {key[0] + 0x9E3779B9, key[1] + 0xBB67AE85};
  }
  return counter;
}

// The uniform number in (0, 1) behind the noise of one token at one position: one of 2^23, in the middle of its interval.
// The noise is -log(-log u).
constexpr float uniform(uint64_t seed, int32_t position, int32_t token) {
  const auto bits = philox({static_cast<uint32_t>(token), static_cast<uint32_t>(position), 0, 0},
                           {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)});
  return (static_cast<float>(bits[0] >> 9) + 0.5f) * 0x1p-23f;
}

// Bounds of the noise: -log(-log u) at u = 2^-24 and u = 1 - 2^-24, with room for rounding.
inline constexpr float kNoiseMin = -2.82f;
inline constexpr float kNoiseMax = 16.65f;

}  // namespace megalith
