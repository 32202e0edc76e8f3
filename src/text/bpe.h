#pragma once

// Byte-pair merging: the bytes of one piece to token ids.

#include <array>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "base/large_vector.h"

namespace megalith {

struct Merge {
  int32_t left = 0;
  int32_t right = 0;
  int32_t result = 0;
  int32_t rank = 0;
};

// Immutable; encode() may be called from several threads at once.
class Bpe {
 public:
  // `bytes` are the ids of the 256 one-byte tokens, -1 for bytes without a token; of the merges, the lowest rank is the
  // best. A pair that comes twice has its later rank.
  Bpe(const std::array<int32_t, 256>& bytes, std::span<const Merge> merges);

  // Appends the ids of a piece: the pair of best rank is merged, the leftmost of equals, until no pair is left.
  // Needs a token for every byte of the piece.
  void encode(std::string_view piece, std::vector<int32_t>& ids) const;

 private:
  struct Slot {
    uint64_t pair = kEmpty;
    int32_t rank = 0;
    int32_t result = 0;
  };
  static constexpr uint64_t kEmpty = ~uint64_t{0};

  // The merge of a pair, or null.
  const Slot* find(int32_t left, int32_t right) const;
  Slot& slot(uint64_t pair);
  void encode_short(std::string_view piece, std::vector<int32_t>& ids) const;
  void encode_long(std::string_view piece, std::vector<int32_t>& ids) const;

  std::array<int32_t, 256> bytes_;
  LargeVector<Slot> slots_;  // open addressing, a power of two, at most half full
  int shift_ = 0;            // 64 less the logarithm of slots_.size()
};

}  // namespace megalith
