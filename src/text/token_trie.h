#pragma once

// The bytes of a vocabulary's tokens as a trie, to find all tokens that a rule lets through in one walk. Added tokens
// are not in it.

#include <array>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "text/constraint.h"
#include "text/json_string.h"

namespace megalith {

struct TokenizerTables;

// What becomes of a JSON string by each token that may come next.
class StringTokens {
 public:
  // Where a token closes the string: the trie's node behind the quote, and the characters begun before it.
  struct Exit {
    uint32_t node = 0;
    uint32_t characters = 0;
  };

  // Tokens that stay inside the string and begin at most so many characters.
  TokenSet inside(uint32_t characters) const;
  std::span<const Exit> exits() const { return exits_; }

 private:
  friend class TokenTrie;
  explicit StringTokens(int64_t rows) : all_(rows), rows_(rows) {}

  TokenSet all_;
  int64_t rows_;
  std::vector<std::pair<uint32_t, int32_t>> by_characters_;  // sorted
  std::vector<Exit> exits_;
};

// Nodes are numbered in preorder, the root is 0. Immutable but for what is made when it is first asked for; every
// method may be called from several threads at once.
class TokenTrie {
 public:
  explicit TokenTrie(const TokenizerTables& tables);

  // The nodes below one are those from the next number up to this one; the first child of a node is the node behind it,
  // and a node's end is its next sibling.
  uint32_t end(uint32_t node) const { return ends_[node]; }
  uint8_t byte(uint32_t node) const { return bytes_[node]; }
  // The tokens whose bytes lead to a node.
  std::span<const int32_t> tokens(uint32_t node) const {
    return std::span(tokens_).subspan(firsts_[node], firsts_[node + 1] - firsts_[node]);
  }
  // Whether a byte by itself is a token.
  bool has_byte(uint8_t byte) const { return has_byte_[byte]; }
  bool has_token(int32_t id) const { return id >= 0 && id < rows_ && has_token_.has(id); }
  // The size of sets of tokens.
  int64_t rows() const { return rows_; }

  // The tokens in a JSON string at `state`, made at the first call.
  const StringTokens& in_string(StringState state) const;

  // Walks the nodes below one as long as they stay in a JSON string. stays(node, characters) is called for nodes in the
  // string, closes(node, characters) for those right behind its end; `room` is the most characters that may begin.
  template <typename Stays, typename Closes>
  void walk_string(uint32_t from, StringState state, uint32_t room, Stays stays, Closes closes) const;

 private:
  struct Lazy {
    std::once_flag once;
    std::unique_ptr<const StringTokens> tokens;
  };

  void add(std::string_view token, std::string_view last, std::vector<uint32_t>& path);

  int64_t rows_;
  std::vector<uint32_t> ends_;
  std::vector<uint32_t> firsts_;  // in tokens_, by node, and one more
  std::vector<uint8_t> bytes_;
  std::vector<int32_t> tokens_;  // sorted by their bytes
  TokenSet has_token_;
  std::array<bool, 256> has_byte_{};
  mutable std::array<Lazy, kStringStates> in_string_;
};

template <typename Stays, typename Closes>
void TokenTrie::walk_string(uint32_t from, StringState state, uint32_t room, Stays stays, Closes closes) const {
  struct Level {
    uint32_t end = 0;
    StringState state = kStringText;
    uint32_t characters = 0;
  };
  std::vector<Level> levels = {{ends_[from], state, 0}};
  for (uint32_t node = from + 1; node < ends_[from];) {
    while (levels.back().end <= node) levels.pop_back();
    const Level& above = levels.back();
    const StringState next = kStringNext[above.state][bytes_[node]];
    if (next == kStringClosed) closes(node, above.characters);
    const uint32_t characters = above.characters + (begins_character(above.state) ? 1 : 0);
    if (next == kStringClosed || next == kStringDead || characters > room) {
      node = ends_[node];
      continue;
    }
    stays(node, characters);
    if (ends_[node] > node + 1) levels.push_back({ends_[node], next, characters});
    ++node;
  }
}

}  // namespace megalith
