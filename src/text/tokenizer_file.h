#pragma once

// Reads tokenizer.json. The vocabulary and the merges, which are nearly all of it, are kept apart from the rest.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

namespace megalith {

struct VocabularyEntry {
  std::string_view text;
  int64_t id = 0;
};

// From "a b" or ["a", "b"].
struct MergeEntry {
  std::string_view joined;  // "ab"
  size_t cut = 0;           // where the left part ends
  std::string_view left() const { return joined.substr(0, cut); }
  std::string_view right() const { return joined.substr(cut); }
};

struct TokenizerFile {
  nlohmann::ordered_json rest;              // all but model.vocab and model.merges
  std::vector<VocabularyEntry> vocabulary;  // as written, in order
  std::vector<MergeEntry> merges;
  std::vector<char> texts;  // of the entries
};

// Error, naming the place, when the text is not JSON or the vocabulary or the merges have not their form.
TokenizerFile parse_tokenizer_file(std::string_view json, const std::string& name);

}  // namespace megalith
