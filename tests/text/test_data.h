#pragma once

// The committed data of the tests of src/text.

#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/support/errors.h"
#include "text/tokenizer.h"

namespace megalith {

inline std::string read_text(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  EXPECT_TRUE(file) << path;
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

inline std::string data_path(const std::string& name) {
  return MEGALITH_SOURCE_DIR "/tests/data/text/" + name;
}

inline nlohmann::ordered_json read_json(const std::string& path) {
  return nlohmann::ordered_json::parse(read_text(path));
}

inline std::string repeat(const std::string& unit, size_t n) {
  std::string text;
  for (size_t i = 0; i < n; ++i) text += unit;
  return text;
}

// The first 5,000 ranks of the family's vocabulary with its added tokens (tools/vocabulary).
inline const Tokenizer& small_tokenizer() {
  static const Tokenizer tokenizer = Tokenizer::from_file(data_path("small-tokenizer.json"));
  return tokenizer;
}

// Compares with a file of tools/vocabulary: ids with added tokens recognised, ids with none, and decoding.
inline void expect_cases(const Tokenizer& tokenizer, const nlohmann::ordered_json& file) {
  for (const auto& one : file["cases"]) {
    auto text = one["text"].get<std::string>();
    auto ids = one["ids"].get<std::vector<int32_t>>();
    auto plain = one.value("plain", one["ids"]).get<std::vector<int32_t>>();
    ASSERT_EQ(tokenizer.encode(text, Specials::recognised), ids) << text.substr(0, 200);
    ASSERT_EQ(tokenizer.encode(text, Specials::plain_text), plain) << text.substr(0, 200);
    ASSERT_EQ(tokenizer.decode(ids, false), tokenizer.decode(plain, false)) << text.substr(0, 200);
  }
}

}  // namespace megalith
