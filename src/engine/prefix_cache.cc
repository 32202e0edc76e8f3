#include "engine/prefix_cache.h"

#include <algorithm>
#include <functional>
#include <string_view>

#include "base/check.h"

namespace megalith {

struct PrefixCache::Chunk {
  Chunk* parent = nullptr;
  std::vector<int32_t> tokens;
  std::vector<std::byte> positions, sequence;  // states
  std::list<Chunk*>::iterator used;

  int64_t bytes() const { return static_cast<int64_t>(positions.size() + sequence.size() + tokens.size() * sizeof(int32_t)); }
};

PrefixCache::PrefixCache(Machine& machine, int chunk, int64_t max_bytes)
    : machine_(machine),
      chunk_((chunk + machine.position_grain() - 1) / machine.position_grain() * machine.position_grain()),
      max_bytes_(max_bytes) {
  CHECK(chunk > 0 && max_bytes >= 0, "chunks of {}, {} bytes", chunk, max_bytes);
}

PrefixCache::~PrefixCache() = default;

// Equal keys are told apart by their tokens.
PrefixCache::Key PrefixCache::key_of(const Chunk* parent, std::span<const int32_t> tokens) {
  const std::string_view bytes(reinterpret_cast<const char*>(tokens.data()), tokens.size_bytes());
  return std::hash<std::string_view>()(bytes) * 3 + std::hash<const Chunk*>()(parent);
}

PrefixCache::Chunk* PrefixCache::find(const Chunk* parent, std::span<const int32_t> tokens) {
  const auto [first, last] = chunks_.equal_range(key_of(parent, tokens));
  for (auto at = first; at != last; ++at) {
    Chunk* chunk = at->second.get();
    if (chunk->parent == parent && std::equal(tokens.begin(), tokens.end(), chunk->tokens.begin(), chunk->tokens.end())) {
      return chunk;
    }
  }
  return nullptr;
}

std::span<const int32_t> PrefixCache::chunk_of(std::span<const int32_t> prompt, int64_t index) const {
  return prompt.subspan(static_cast<size_t>(index * chunk_), static_cast<size_t>(chunk_));
}

int64_t PrefixCache::restore(std::span<const int32_t> prompt, int slot) {
  std::vector<Chunk*> path;
  const auto whole = (static_cast<int64_t>(prompt.size()) - 1) / chunk_;
  for (int64_t i = 0; i < whole; ++i) {
    Chunk* next = find(path.empty() ? nullptr : path.back(), chunk_of(prompt, i));
    if (next == nullptr) break;
    path.push_back(next);
  }
  if (path.empty()) return 0;
  for (size_t i = 0; i < path.size(); ++i) {
    const auto first = static_cast<int>(static_cast<int64_t>(i) * chunk_);
    machine_.restore(slot, {first, first + static_cast<int>(chunk_)}, path[i]->positions);
  }
  machine_.restore(slot, {}, path.back()->sequence);
  touch(path.back());
  return static_cast<int64_t>(path.size()) * chunk_;
}

void PrefixCache::keep(std::span<const int32_t> prompt, int64_t length, int slot) {
  if (max_bytes_ == 0 || length == 0 || length % chunk_ != 0) return;
  Chunk* parent = nullptr;
  for (int64_t i = 0; i + 1 < length / chunk_; ++i) {
    parent = find(parent, chunk_of(prompt, i));
    if (parent == nullptr) return;
  }
  const auto tokens = chunk_of(prompt, length / chunk_ - 1);
  if (Chunk* known = find(parent, tokens)) return touch(known);
  if (parent != nullptr) touch(parent);
  auto chunk = std::make_unique<Chunk>();
  const auto last = static_cast<int>(length);
  chunk->parent = parent;
  chunk->tokens.assign(tokens.begin(), tokens.end());
  chunk->positions = machine_.save(slot, {last - static_cast<int>(chunk_), last});
  chunk->sequence = machine_.save(slot, {});
  // Its own prefix is the most recently used, and must stay.
  int64_t least = chunk->bytes();
  for (const Chunk* before = parent; before != nullptr; before = before->parent) least += before->bytes();
  if (least > max_bytes_) return;
  make_room(chunk->bytes());
  bytes_ += chunk->bytes();
  chunk->used = used_.insert(used_.begin(), chunk.get());
  Chunk* kept = chunk.get();
  chunks_.emplace(key_of(parent, tokens), std::move(chunk));
  touch(kept);
}

// A chunk and those before it.
void PrefixCache::touch(Chunk* chunk) {
  for (; chunk != nullptr; chunk = chunk->parent) used_.splice(used_.begin(), used_, chunk->used);
}

// The least recently used has no chunks after it: those would have been used before it.
void PrefixCache::make_room(int64_t bytes) {
  while (!used_.empty() && bytes_ + bytes > max_bytes_) drop(used_.back());
}

void PrefixCache::drop(Chunk* chunk) {
  bytes_ -= chunk->bytes();
  used_.erase(chunk->used);
  const auto [first, last] = chunks_.equal_range(key_of(chunk->parent, chunk->tokens));
  const auto at = std::find_if(first, last, [&](const auto& entry) { return entry.second.get() == chunk; });
  chunks_.erase(at);
}

}  // namespace megalith
