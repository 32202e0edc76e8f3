#pragma once

// Reads tokenizer.json. The vocabulary and the merges, which are nearly all of it, are kept apart from the rest.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

#include "base/large_vector.h"

namespace megalith {

struct VocabularyEntry {
  std::string_view text;
  int64_t id = 0;
};

// From "a b" or ["a", "b"].
struct MergeEntry {
  std::string_view left;
  std::string_view right;
};

struct TokenizerFile {
  nlohmann::ordered_json rest;              // all but model.vocab and model.merges
  LargeVector<VocabularyEntry> vocabulary;  // as written, in order
  LargeVector<MergeEntry> merges;
  std::shared_ptr<const void> texts;  // what the entries are views of
};

// Error, naming the place, when the text is not JSON or the vocabulary or the merges have not their form.
TokenizerFile parse_tokenizer_file(std::string_view json, const std::string& name);

}  // namespace megalith
