#include "text/json_masks.h"

#include <map>

#include <fmt/format.h>

#include "base/error.h"

namespace megalith {

namespace {

// Sets of tokens that are kept; of 248,000 tokens, one takes 31 KiB.
constexpr size_t kMostKept = 128;

// Walks the trie and the grammar together.
class Walk {
 public:
  Walk(const JsonGrammar& grammar, const TokenTrie& trie) : grammar_(grammar), trie_(trie), set_(trie.rows()) {}

  TokenSet run(const JsonState& state) {
    if (auto free = grammar_.free_string(state)) {
      start_in_string(state, *free);
    } else {
      walk(0, state);
    }
    while (!waiting_.empty()) {
      auto [node, from] = std::move(waiting_.back());
      waiting_.pop_back();
      walk(node, *from);
    }
    return std::move(set_);
  }

 private:
  struct Level {
    uint32_t end = 0;
    JsonState state;
  };
  struct Waiting {
    uint32_t node = 0;
    std::shared_ptr<const JsonState> state;
  };

  // What lies behind the ends of one string, by the characters before them where that matters.
  struct Ends {
    const JsonState& state;
    const bool alike;
    std::map<uint32_t, std::shared_ptr<const JsonState>> closed = {};
  };

  void start_in_string(const JsonState& state, const JsonGrammar::FreeString& free) {
    const StringTokens& tokens = trie_.in_string(free.state);
    set_ = tokens.inside(free.room);
    Ends ends{state, free.alike};
    for (const auto& exit : tokens.exits()) end_string(exit.node, exit.characters, ends);
  }

  void end_string(uint32_t node, uint32_t characters, Ends& ends) {
    auto& closed = ends.closed[ends.alike ? 0 : characters];
    if (!closed) closed = std::make_shared<const JsonState>(grammar_.closed(ends.state, characters));
    if (closed->empty()) return;
    add(node);
    if (trie_.end(node) > node + 1) waiting_.push_back({node, closed});
  }

  void add(uint32_t node) {
    for (int32_t id : trie_.tokens(node)) set_.add(id);
  }

  // The nodes below one; where strings of any characters begin, these are walked without the grammar.
  void walk(uint32_t from, const JsonState& state) {
    size_t depth = 0;
    push(depth, trie_.end(from)).state = state;
    JsonState after;
    for (uint32_t node = from + 1; node < trie_.end(from);) {
      while (levels_[depth - 1].end <= node) --depth;
      grammar_.take(levels_[depth - 1].state, trie_.byte(node), after);
      if (after.empty()) {
        node = trie_.end(node);
        continue;
      }
      add(node);
      if (trie_.end(node) == node + 1) {
        ++node;
      } else if (auto free = grammar_.free_string(after)) {
        Ends ends{after, free->alike};
        trie_.walk_string(
            node, free->state, free->room, [&](uint32_t inner, uint32_t) { add(inner); },
            [&](uint32_t inner, uint32_t characters) { end_string(inner, characters, ends); });
        node = trie_.end(node);
      } else {
        std::swap(push(depth, trie_.end(node)).state, after);
        ++node;
      }
    }
  }

  // Levels are kept for their memory.
  Level& push(size_t& depth, uint32_t end) {
    if (levels_.size() <= depth) levels_.emplace_back();
    levels_[depth].end = end;
    return levels_[depth++];
  }

  const JsonGrammar& grammar_;
  const TokenTrie& trie_;
  TokenSet set_;
  std::vector<Level> levels_;
  std::vector<Waiting> waiting_;
};

void check_bytes(const TokenTrie& trie) {
  for (int byte = 0x20; byte <= 0xf4; ++byte) {
    if (byte == 0xc0 || byte == 0xc1 || trie.has_byte(static_cast<uint8_t>(byte))) continue;
    throw Error({.where = "response_format",
                 .expected = "a vocabulary with a token for every byte",
                 .found = fmt::format("none for byte {:#04x}", byte),
                 .next = "Ask for JSON in the messages, without response_format."});
  }
}

}  // namespace

JsonMasks::JsonMasks(JsonGrammar grammar, const Tokenizer& tokenizer, std::span<const int32_t> end_tokens)
    : grammar_(std::move(grammar)), tokenizer_(tokenizer), end_tokens_(end_tokens.begin(), end_tokens.end()) {
  check_bytes(tokenizer_.trie());
}

std::shared_ptr<const TokenSet> JsonMasks::allowed(const JsonState& state) {
  {
    std::lock_guard lock(mutex_);
    if (auto place = places_.find(state); place != places_.end()) {
      kept_.splice(kept_.begin(), kept_, place->second);
      return kept_.front().set;
    }
  }
  auto set = make(state);
  std::lock_guard lock(mutex_);
  if (places_.contains(state)) return set;
  kept_.push_front({state, set});
  places_[state] = kept_.begin();
  if (kept_.size() > kMostKept) {
    places_.erase(kept_.back().state);
    kept_.pop_back();
  }
  return set;
}

std::shared_ptr<const TokenSet> JsonMasks::make(const JsonState& state) const {
  TokenSet set = Walk(grammar_, tokenizer_.trie()).run(state);
  if (grammar_.complete(state)) {
    for (int32_t id : end_tokens_) set.add(id);
  }
  return std::make_shared<const TokenSet>(std::move(set));
}

}  // namespace megalith
