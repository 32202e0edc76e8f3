#pragma once

// A vocabulary of a real one's size and make-up: words with and without a blank before them, in several scripts, runs
// of blanks, and punctuation as code and JSON have it.

#include <random>
#include <set>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "text/tokenizer.h"

namespace megalith {

inline std::string base64(std::string_view bytes) {
  constexpr std::string_view kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string text;
  for (size_t i = 0; i < bytes.size(); i += 3) {
    uint32_t bits = 0;
    for (size_t j = 0; j < 3; ++j) bits = bits << 8 | (i + j < bytes.size() ? static_cast<uint8_t>(bytes[i + j]) : 0);
    for (size_t j = 0; j < 4; ++j) text += i + j > bytes.size() ? '=' : kDigits[bits >> (18 - 6 * j) & 63];
  }
  return text;
}

inline std::vector<std::string> large_vocabulary(size_t size) {
  std::mt19937 random(1);
  std::vector<std::string> tokens;
  std::set<std::string> seen;
  auto add = [&](const std::string& token) {
    if (tokens.size() < size && seen.insert(token).second) tokens.push_back(token);
  };
  for (int byte = 0; byte < 256; ++byte) add(std::string(1, static_cast<char>(byte)));
  for (size_t n = 2; n <= 128; ++n) add(std::string(n, ' '));
  static const std::vector<std::string> kPunctuation = {"\"", ":", ",", "{", "}",  "[", "]", "\\", "/", ".",
                                                        "-",  "(", ")", " ", "\n", "'", "<", ">",  "_", "="};
  for (int i = 0; i < 30'000; ++i) {
    std::string token;
    for (size_t n = 2 + random() % 4; n > 0; --n) token += kPunctuation[random() % kPunctuation.size()];
    add(token);
  }
  for (int n = 0; n < 1000; ++n) add(std::to_string(n));
  static const std::vector<std::string> kSyllables = {"in",  "ter", "na", "tion", "al", "re",   "con", "pro",
                                                      "ma",  "ble", "s",  "ed",   "wo", "rd",   "é",   "ü",
                                                      "ние", "про", "国", "家",   "的", "です", "کار", "ing"};
  add("word");
  while (tokens.size() < size) {
    std::string token = random() % 2 == 0 ? " " : random() % 40 == 0 ? "\"" : "";
    for (size_t n = 1 + random() % 5; n > 0; --n) token += kSyllables[random() % kSyllables.size()];
    if (random() % 30 == 0) token += kPunctuation[random() % kPunctuation.size()];
    add(token);
  }
  return tokens;
}

inline const Tokenizer& large_tokenizer() {
  static const Tokenizer tokenizer = [] {
    const auto tokens = large_vocabulary(248'064);
    std::string ranks;
    for (size_t i = 0; i < tokens.size(); ++i) ranks += fmt::format("{} {}\n", base64(tokens[i]), i);
    return Tokenizer::from_tiktoken(ranks, "ranks", "{}", "config");
  }();
  return tokenizer;
}

}  // namespace megalith
