#pragma once

// What a tokenizer's files come to once they are read and checked.

#include <array>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/bpe.h"
#include "text/split.h"
#include "text/text_map.h"
#include "text/token_trie.h"

namespace megalith {

// Finds added tokens in raw text.
class AddedTokens {
 public:
  struct Added {
    std::string text;
    int32_t id = 0;
    bool special = false;
  };

  AddedTokens() = default;
  explicit AddedTokens(std::vector<Added> tokens);

  struct Match {
    size_t begin = 0;
    size_t end = 0;
    int32_t id = 0;
  };
  // The first occurrence at or after `begin`, the longest of those that begin there.
  std::optional<Match> find(std::string_view text, size_t begin) const;
  std::optional<int32_t> id(std::string_view text) const;
  const std::vector<Added>& all() const { return tokens_; }

 private:
  std::vector<Added> tokens_;                          // by first byte, then the longest first
  std::array<std::pair<size_t, size_t>, 256> ranges_;  // of tokens_, by first byte
};

// A trie that is made when it is first asked for.
struct LazyTrie {
  std::once_flag once;
  std::unique_ptr<const TokenTrie> made;
};

struct TokenizerTables {
  std::string bytes;           // of all tokens, joined
  std::vector<size_t> begins;  // by id, and one more; an id without a token is empty
  std::vector<bool> special;   // by id
  int32_t rows = 0;

  bool normalise = false;  // to form C
  std::vector<Splitter> splitters;
  std::optional<Bpe> bpe;
  bool ignore_merges = false;
  TextMap whole;  // with ignore_merges: pieces that are one token
  AddedTokens added;
  bool segments_apart = false;  // each segment is encoded by itself, after long texts are cut

  std::shared_ptr<LazyTrie> trie = std::make_shared<LazyTrie>();

  // One more than the highest id.
  int32_t size() const { return static_cast<int32_t>(special.size()); }
  std::string_view token(int32_t id) const {
    auto at = static_cast<size_t>(id);
    return std::string_view(bytes).substr(begins[at], begins[at + 1] - begins[at]);
  }
};

// Reads and checks a tokenizer.json. Error, naming the field, for what is damaged or not supported.
TokenizerTables make_tokenizer_tables(std::string_view json, const std::string& name, int32_t model_rows);

}  // namespace megalith
