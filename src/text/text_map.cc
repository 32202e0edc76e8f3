#include "text/text_map.h"

#include <bit>
#include <functional>

namespace megalith {

namespace {

uint32_t hash_of(std::string_view text) {
  return static_cast<uint32_t>(std::hash<std::string_view>()(text));
}

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

std::optional<int32_t> TextMap::find(std::string_view text) const {
  const Slot& slot = slots_[place(text, hash_of(text))];
  return slot.entry == 0 ? std::nullopt : std::optional(entries_[slot.entry - 1].id);
}

size_t TextMap::place(std::string_view text, uint32_t hash) const {
  auto here = [&](const Slot& slot) { return slot.hash == hash && entries_[slot.entry - 1].text == text; };
  size_t at = hash & (slots_.size() - 1);
  while (slots_[at].entry != 0 && !here(slots_[at])) at = (at + 1) & (slots_.size() - 1);
  return at;
}

}  // namespace megalith
