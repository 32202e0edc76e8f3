#pragma once

// Which tokens may come next in a JSON document.

#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <span>
#include <unordered_map>
#include <vector>

#include "text/constraint.h"
#include "text/json_grammar.h"
#include "text/token_trie.h"
#include "text/tokenizer.h"

namespace megalith {

// The tokens for each state, found by walking the vocabulary and the grammar together, and kept for the states that
// were asked for last. May be used from several threads at once.
class JsonMasks {
 public:
  JsonMasks(JsonGrammar grammar, const Tokenizer& tokenizer, std::span<const int32_t> end_tokens);

  const JsonGrammar& grammar() const { return grammar_; }
  const Tokenizer& tokenizer() const { return tokenizer_; }
  const std::vector<int32_t>& end_tokens() const { return end_tokens_; }

  // With the end tokens where the text may end.
  std::shared_ptr<const TokenSet> allowed(const JsonState& state);

 private:
  struct Hash {
    size_t operator()(const JsonState& state) const { return hash_of(state); }
  };
  struct Kept {
    JsonState state;
    std::shared_ptr<const TokenSet> set;
  };

  std::shared_ptr<const TokenSet> make(const JsonState& state) const;

  const JsonGrammar grammar_;
  const Tokenizer tokenizer_;
  const std::vector<int32_t> end_tokens_;
  std::mutex mutex_;
  std::list<Kept> kept_;  // the last asked for first
  std::unordered_map<JsonState, std::list<Kept>::iterator, Hash> places_;
};

}  // namespace megalith
