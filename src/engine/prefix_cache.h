#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "machines/machine.h"

namespace megalith {

// States after prefixes of prompts, so that a prompt that begins as an earlier one need not be computed again. Prefixes are
// whole chunks; each chunk is kept with the chunk before it, its own positions' states, and the states of the sequence after
// it. What was least recently used goes first. By the contract on bits a text is the same with and without.
class PrefixCache {
 public:
  // `chunk` positions, rounded up to what the machine can save; at most max_bytes are kept. 0 bytes: nothing is.
  PrefixCache(Machine& machine, int chunk, int64_t max_bytes);
  ~PrefixCache();

  // Puts the longest kept prefix of a prompt, but not all of it, into a slot; returns its length.
  int64_t restore(std::span<const int32_t> prompt, int slot);
  // Keeps the states of a slot that has just had the first `length` tokens of a prompt. Where `length` is no whole number of
  // chunks, or the chunk before is not there, nothing is kept.
  void keep(std::span<const int32_t> prompt, int64_t length, int slot);
  // Where in a prompt the states should be kept next, after `done` tokens.
  int64_t next_border(int64_t done) const { return max_bytes_ > 0 ? (done / chunk_ + 1) * chunk_ : INT64_MAX; }

  int64_t bytes() const { return bytes_; }
  int64_t max_bytes() const { return max_bytes_; }

 private:
  struct Chunk;
  using Key = uint64_t;
  static Key key_of(const Chunk* parent, std::span<const int32_t> tokens);
  Chunk* find(const Chunk* parent, std::span<const int32_t> tokens);
  std::span<const int32_t> chunk_of(std::span<const int32_t> prompt, int64_t index) const;
  void touch(Chunk* chunk);
  void make_room(int64_t bytes);
  void drop(Chunk* chunk);

  Machine& machine_;
  const int64_t chunk_;
  const int64_t max_bytes_;
  int64_t bytes_ = 0;
  std::unordered_multimap<Key, std::unique_ptr<Chunk>> chunks_;
  std::list<Chunk*> used_;  // the most recently used first; a chunk stands before those that follow it
};

}  // namespace megalith
