#include "text/characters.h"

#include <cstdint>

namespace megalith {

namespace {

// What may follow a lead byte: the number of continuation bytes and the range of the first of them. The narrower
// ranges keep out overlong forms, surrogates and codes beyond U+10FFFF.
struct Lead {
  int continuations;
  uint8_t low;
  uint8_t high;
};

Lead lead(uint8_t byte) {
  if (byte >= 0xc2 && byte <= 0xdf) return {1, 0x80, 0xbf};
  if (byte == 0xe0) return {2, 0xa0, 0xbf};
  if (byte == 0xed) return {2, 0x80, 0x9f};
  if (byte >= 0xe1 && byte <= 0xef) return {2, 0x80, 0xbf};
  if (byte == 0xf0) return {3, 0x90, 0xbf};
  if (byte >= 0xf1 && byte <= 0xf3) return {3, 0x80, 0xbf};
  if (byte == 0xf4) return {3, 0x80, 0x8f};
  return {-1, 0, 0};
}

}  // namespace

Character first_character(std::string_view text) {
  auto first = static_cast<uint8_t>(text[0]);
  if (first < 0x80) return {Character::Kind::whole, 1, first};
  Lead form = lead(first);
  if (form.continuations < 0) return {Character::Kind::ill_formed, 1};
  char32_t code = first & (0x3f >> form.continuations);
  for (int i = 1; i <= form.continuations; ++i) {
    auto done = static_cast<size_t>(i);
    if (done >= text.size()) return {Character::Kind::unfinished, done};
    auto byte = static_cast<uint8_t>(text[done]);
    uint8_t low = i == 1 ? form.low : 0x80;
    uint8_t high = i == 1 ? form.high : 0xbf;
    if (byte < low || byte > high) return {Character::Kind::ill_formed, done};
    code = code << 6 | (byte & 0x3f);
  }
  return {Character::Kind::whole, static_cast<size_t>(form.continuations) + 1, code};
}

bool is_blank(char32_t code) {
  if (code < 0x80) return code == ' ' || (code >= 0x09 && code <= 0x0d) || (code >= 0x1c && code <= 0x1f);
  return code == 0x85 || code == 0xa0 || code == 0x1680 || (code >= 0x2000 && code <= 0x200a) || code == 0x2028 ||
         code == 0x2029 || code == 0x202f || code == 0x205f || code == 0x3000;
}

size_t trailing_blanks(std::string_view text) {
  size_t end = text.size();
  while (end > 0) {
    size_t begin = end - 1;
    while (begin > 0 && (static_cast<uint8_t>(text[begin]) & 0xc0) == 0x80) --begin;
    Character last = first_character(text.substr(begin, end - begin));
    if (last.kind != Character::Kind::whole || !is_blank(last.code)) break;
    end = begin;
  }
  return end;
}

std::string_view trim_left(std::string_view text) {
  while (!text.empty()) {
    Character first = first_character(text);
    if (first.kind != Character::Kind::whole || !is_blank(first.code)) break;
    text.remove_prefix(first.bytes);
  }
  return text;
}

std::string_view trim(std::string_view text) {
  return trim_left(text.substr(0, trailing_blanks(text)));
}

std::string shortened(std::string_view text) {
  size_t bytes = 80;
  if (text.size() <= bytes) return std::string(text);
  while (bytes > 0 && (static_cast<uint8_t>(text[bytes]) & 0xc0) == 0x80) --bytes;
  return std::string(text.substr(0, bytes)) + "...";
}

}  // namespace megalith
