#include "text/token_trie.h"

#include <algorithm>
#include <limits>

#include "text/tokenizer_tables.h"

namespace megalith {

TokenSet StringTokens::inside(uint32_t characters) const {
  if (by_characters_.empty() || characters >= by_characters_.back().first) return all_;
  TokenSet set(rows_);
  for (const auto& [n, id] : by_characters_) {
    if (n > characters) break;
    set.add(id);
  }
  return set;
}

TokenTrie::TokenTrie(const TokenizerTables& tables) : rows_(tables.rows), has_token_(tables.rows) {
  std::vector<bool> added(static_cast<size_t>(tables.size()));
  for (const auto& token : tables.added.all()) added[static_cast<size_t>(token.id)] = true;
  std::vector<std::pair<std::string_view, int32_t>> sorted;
  sorted.reserve(added.size());
  for (int32_t id = 0; id < tables.size(); ++id) {
    if (!added[static_cast<size_t>(id)] && !tables.token(id).empty()) sorted.emplace_back(tables.token(id), id);
  }
  std::sort(sorted.begin(), sorted.end());
  tokens_.reserve(sorted.size());
  bytes_ = {0};
  ends_ = {0};
  firsts_ = {0};
  std::vector<uint32_t> path = {0};
  std::string_view last;
  for (const auto& [token, id] : sorted) {
    add(token, last, path);
    if (token.size() == 1) has_byte_[static_cast<uint8_t>(token[0])] = true;
    has_token_.add(id);
    tokens_.push_back(id);
    last = token;
  }
  for (uint32_t node : path) ends_[node] = static_cast<uint32_t>(bytes_.size());
  firsts_.push_back(static_cast<uint32_t>(tokens_.size()));
}

// `path` are the nodes of the token before, from the root on.
void TokenTrie::add(std::string_view token, std::string_view last, std::vector<uint32_t>& path) {
  const auto differ = std::mismatch(token.begin(), token.end(), last.begin(), last.end()).first;
  const auto common = static_cast<size_t>(differ - token.begin());
  for (size_t at = common + 1; at < path.size(); ++at) ends_[path[at]] = static_cast<uint32_t>(bytes_.size());
  path.resize(common + 1);
  for (char byte : token.substr(common)) {
    path.push_back(static_cast<uint32_t>(bytes_.size()));
    bytes_.push_back(static_cast<uint8_t>(byte));
    ends_.push_back(0);
    firsts_.push_back(static_cast<uint32_t>(tokens_.size()));
  }
}

const StringTokens& TokenTrie::in_string(StringState state) const {
  Lazy& lazy = in_string_[state];
  std::call_once(lazy.once, [&] {
    std::unique_ptr<StringTokens> made(new StringTokens(rows_));
    auto stays = [&](uint32_t node, uint32_t characters) {
      for (int32_t id : tokens(node)) {
        made->all_.add(id);
        made->by_characters_.emplace_back(characters, id);
      }
    };
    auto closes = [&](uint32_t node, uint32_t characters) { made->exits_.push_back({node, characters}); };
    walk_string(0, state, std::numeric_limits<uint32_t>::max(), stays, closes);
    std::sort(made->by_characters_.begin(), made->by_characters_.end());
    lazy.tokens = std::move(made);
  });
  return *lazy.tokens;
}

}  // namespace megalith
