#include "text/bpe.h"

#include <bit>
#include <queue>

#include "base/check.h"

namespace megalith {

namespace {

// Up to this many bytes, looking at all pairs again after each merge beats a heap.
constexpr size_t kShortBytes = 48;
constexpr int32_t kNone = -1;
constexpr size_t kAhead = 16;  // merges whose slots are being fetched while the table is filled

uint64_t pair_of(int32_t left, int32_t right) {
  return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
}

uint64_t hash(uint64_t pair) {
  pair ^= pair >> 31;
  return pair * 0x9e3779b97f4a7c15U;
}

// A token of a long piece, linked to its neighbours; merged-away ones have id kNone.
struct Symbol {
  int32_t id;
  int32_t previous;
  int32_t next;
};

struct Candidate {
  int32_t rank;
  int32_t at;  // the left symbol
  int32_t result;
  int32_t left;
  int32_t right;
  bool operator>(const Candidate& other) const { return rank != other.rank ? rank > other.rank : at > other.at; }
};

}  // namespace

Bpe::Bpe(const std::array<int32_t, 256>& bytes, std::span<const Merge> merges) : bytes_(bytes) {
  slots_.resize(std::bit_ceil(merges.size() * 2 + 2));
  shift_ = 64 - std::countr_zero(slots_.size());
  for (size_t i = 0; i < merges.size(); ++i) {
    const Merge& merge = merges[i];
    if (i + kAhead < merges.size()) {
      const Merge& later = merges[i + kAhead];
      __builtin_prefetch(&slots_[hash(pair_of(later.left, later.right)) >> shift_], 1);
    }
    uint64_t pair = pair_of(merge.left, merge.right);
    slot(pair) = {pair, merge.rank, merge.result};
  }
}

Bpe::Slot& Bpe::slot(uint64_t pair) {
  size_t at = hash(pair) >> shift_;
  while (slots_[at].pair != kEmpty && slots_[at].pair != pair) at = (at + 1) & (slots_.size() - 1);
  return slots_[at];
}

const Bpe::Slot* Bpe::find(int32_t left, int32_t right) const {
  uint64_t pair = pair_of(left, right);
  for (size_t at = hash(pair) >> shift_;; at = (at + 1) & (slots_.size() - 1)) {
    if (slots_[at].pair == pair) return &slots_[at];
    if (slots_[at].pair == kEmpty) return nullptr;
  }
}

void Bpe::encode(std::string_view piece, std::vector<int32_t>& ids) const {
  if (piece.size() <= kShortBytes) {
    encode_short(piece, ids);
  } else {
    encode_long(piece, ids);
  }
}

void Bpe::encode_short(std::string_view piece, std::vector<int32_t>& ids) const {
  int32_t tokens[kShortBytes];
  const Slot* merges[kShortBytes];  // merges[i] joins tokens i and i+1
  size_t n = piece.size();
  for (size_t i = 0; i < n; ++i) {
    tokens[i] = bytes_[static_cast<uint8_t>(piece[i])];
    CHECK(tokens[i] >= 0, "no token for byte {:#x}", static_cast<uint8_t>(piece[i]));
    if (i > 0) merges[i - 1] = find(tokens[i - 1], tokens[i]);
  }
  while (n > 1) {
    size_t best = n;
    for (size_t i = 0; i + 1 < n; ++i) {
      if (merges[i] != nullptr && (best == n || merges[i]->rank < merges[best]->rank)) best = i;
    }
    if (best == n) break;
    tokens[best] = merges[best]->result;
    for (size_t i = best + 1; i + 1 < n; ++i) {
      tokens[i] = tokens[i + 1];
      if (i + 2 < n) merges[i] = merges[i + 1];
    }
    --n;
    if (best > 0) merges[best - 1] = find(tokens[best - 1], tokens[best]);
    if (best + 1 < n) merges[best] = find(tokens[best], tokens[best + 1]);
  }
  ids.insert(ids.end(), tokens, tokens + n);
}

void Bpe::encode_long(std::string_view piece, std::vector<int32_t>& ids) const {
  auto n = static_cast<int32_t>(piece.size());
  std::vector<Symbol> symbols(piece.size());
  std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>> queue;
  auto offer = [&](int32_t at) {
    const Symbol& left = symbols[static_cast<size_t>(at)];
    if (left.next == kNone) return;
    int32_t right = symbols[static_cast<size_t>(left.next)].id;
    if (const Slot* merge = find(left.id, right)) queue.push({merge->rank, at, merge->result, left.id, right});
  };
  for (int32_t i = 0; i < n; ++i) {
    uint8_t byte = static_cast<uint8_t>(piece[static_cast<size_t>(i)]);
    CHECK(bytes_[byte] >= 0, "no token for byte {:#x}", byte);
    symbols[static_cast<size_t>(i)] = {bytes_[byte], i - 1, i + 1 < n ? i + 1 : kNone};
  }
  for (int32_t i = 0; i + 1 < n; ++i) offer(i);
  while (!queue.empty()) {
    Candidate best = queue.top();
    queue.pop();
    Symbol& left = symbols[static_cast<size_t>(best.at)];
    // An earlier merge may have taken either side since this was offered.
    if (left.id != best.left || left.next == kNone || symbols[static_cast<size_t>(left.next)].id != best.right)
      continue;
    Symbol& right = symbols[static_cast<size_t>(left.next)];
    left.id = best.result;
    right.id = kNone;
    left.next = right.next;
    if (left.next != kNone) symbols[static_cast<size_t>(left.next)].previous = best.at;
    if (left.previous != kNone) offer(left.previous);
    offer(best.at);
  }
  for (int32_t i = 0; i != kNone; i = symbols[static_cast<size_t>(i)].next)
    ids.push_back(symbols[static_cast<size_t>(i)].id);
}

}  // namespace megalith
