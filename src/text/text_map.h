#pragma once

// Token texts to ids, for vocabularies of hundreds of thousands.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "base/large_vector.h"

namespace megalith {

// A flat table over the texts in order. Loading is mostly look-ups, and those of std::unordered_map wait for memory.
class TextMap {
 public:
  TextMap() : TextMap(0) {}
  // For at most `size` texts.
  explicit TextMap(size_t size);

  // Whether the text is new; one that is not keeps its id. The map holds a view of it.
  bool insert(std::string_view text, int32_t id);
  // Begins to fetch what insert() of the text will look at.
  void prefetch(std::string_view text) const;
  std::optional<int32_t> find(std::string_view text) const;
  // The ids of several texts, -1 for those that are not there. Their waits for memory overlap, so this is quicker than
  // one look-up after the other.
  void find(std::span<const std::string_view> texts, std::span<int32_t> ids) const;

 private:
  struct Entry {
    std::string_view text;
    int32_t id = 0;
  };
  struct Slot {
    uint32_t hash = 0;   // the lower half, which spares most looks at other texts
    uint32_t entry = 0;  // counted from 1; 0: empty
  };

  // Where a text is, or else would be.
  size_t place(std::string_view text, uint32_t hash) const;

  LargeVector<Entry> entries_;
  LargeVector<Slot> slots_;  // open addressing, a power of two, at most half full
};

}  // namespace megalith
