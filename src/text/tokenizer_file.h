#pragma once

// Reads tokenizer.json. The vocabulary and the merges, which are nearly all of it, are kept apart from the rest.

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

namespace megalith {

struct TokenizerFile {
  nlohmann::ordered_json rest;                              // all but model.vocab and model.merges
  std::vector<std::pair<std::string, int64_t>> vocabulary;  // as written, in order
  std::vector<std::pair<std::string, std::string>> merges;  // both forms, "a b" and ["a", "b"]
};

// Error, naming the place, when the text is not JSON or the vocabulary or the merges have not their form.
TokenizerFile parse_tokenizer_file(std::string_view json, const std::string& name);

}  // namespace megalith
