#include "text/text_map.h"

#include <algorithm>
#include <array>
#include <bit>
#include <functional>

namespace megalith {

namespace {

uint32_t hash_of(std::string_view text) {
  return static_cast<uint32_t>(std::hash<std::string_view>()(text));
}

constexpr size_t kAtOnce = 64;  // texts that are looked up together

}  // namespace

TextMap::TextMap(size_t size) : slots_(std::bit_ceil(size * 2 + 2)) {
  entries_.reserve(size);
}

bool TextMap::insert(std::string_view text, int32_t id) {
  uint32_t hash = hash_of(text);
  Slot& slot = slots_[place(text, hash)];
  if (slot.entry != 0) return false;
  entries_.push_back({text, id});
  slot = {hash, static_cast<uint32_t>(entries_.size())};
  return true;
}

void TextMap::prefetch(std::string_view text) const {
  __builtin_prefetch(&slots_[hash_of(text) & (slots_.size() - 1)], 1);
}

std::optional<int32_t> TextMap::find(std::string_view text) const {
  const Slot& slot = slots_[place(text, hash_of(text))];
  return slot.entry == 0 ? std::nullopt : std::optional(entries_[slot.entry - 1].id);
}

void TextMap::find(std::span<const std::string_view> texts, std::span<int32_t> ids) const {
  std::array<uint32_t, kAtOnce> hashes;
  auto first_slot = [&](uint32_t hash) -> const Slot& { return slots_[hash & (slots_.size() - 1)]; };
  while (!texts.empty()) {
    // Each step fetches for all texts what the next one reads.
    const size_t count = std::min(texts.size(), kAtOnce);
    for (size_t i = 0; i < count; ++i) {
      hashes[i] = hash_of(texts[i]);
      __builtin_prefetch(&first_slot(hashes[i]));
    }
    for (size_t i = 0; i < count; ++i) {
      const Slot& slot = first_slot(hashes[i]);
      if (slot.entry != 0) __builtin_prefetch(&entries_[slot.entry - 1]);
    }
    for (size_t i = 0; i < count; ++i) {
      const Slot& slot = first_slot(hashes[i]);
      if (slot.hash == hashes[i] && slot.entry != 0) __builtin_prefetch(entries_[slot.entry - 1].text.data());
    }
    for (size_t i = 0; i < count; ++i) {
      const Slot& slot = slots_[place(texts[i], hashes[i])];
      ids[i] = slot.entry == 0 ? -1 : entries_[slot.entry - 1].id;
    }
    texts = texts.subspan(count);
    ids = ids.subspan(count);
  }
}

size_t TextMap::place(std::string_view text, uint32_t hash) const {
  auto here = [&](const Slot& slot) { return slot.hash == hash && entries_[slot.entry - 1].text == text; };
  size_t at = hash & (slots_.size() - 1);
  while (slots_[at].entry != 0 && !here(slots_[at])) at = (at + 1) & (slots_.size() - 1);
  return at;
}

}  // namespace megalith
