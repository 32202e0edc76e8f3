#pragma once

#include <cstdint>
#include <string>

#include "test_data.h"

namespace megalith {

// A text of `n` characters (or so) of each kind that engines have crashed on, or taken quadratic time for.
struct LongText {
  const char* name;
  size_t n;
  std::string (*make)(size_t n);
};

inline std::string base64_line(size_t n) {
  std::string text;
  for (uint32_t x = 1; text.size() < n;) {
    x = x * 1664525 + 1013904223;
    text += "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"[x >> 26];
  }
  return text;
}

inline constexpr LongText kLongTexts[] = {
    {"q", 100'000, [](size_t n) { return repeat("q", n); }},
    {"blanks", 100'000, [](size_t n) { return repeat(" ", n); }},
    {"blanks before a word", 100'000, [](size_t n) { return repeat(" ", n) + "x"; }},
    {"line ends", 100'000, [](size_t n) { return repeat("\n", n); }},
    {"dashes", 100'000, [](size_t n) { return repeat("-", n); }},
    {"digits", 100'000, [](size_t n) { return repeat("7", n); }},
    {"Han", 50'000, [](size_t n) { return repeat("国", n); }},
    {"marks", 100'000, [](size_t n) { return "e" + repeat("\u0301\u0323", n / 2); }},
    {"base64", 500'000, [](size_t n) { return base64_line(n); }},
    {"words", 100'000, [](size_t n) { return repeat("ab", n / 2); }},
    {"beginnings of tokens", 10'000, [](size_t n) { return repeat("<|im_start|", n); }},
};

}  // namespace megalith
