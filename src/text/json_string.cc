#include "text/json_string.h"

#include <string_view>

namespace megalith {

namespace {

// After a backslash; digits of an escape; the second half of a pair; what is left of a character.
enum State : StringState {
  text = kStringText,
  escape,
  hex1,
  hex2,
  hex2_after_d,
  hex3,
  hex4,
  high3,
  high4,
  low_backslash,
  low_u,
  low1,
  low2,
  low3,
  low4,
  one_left,
  two_left,
  three_left,
  after_e0,
  after_ed,
  after_f0,
  after_f4,
  plain = kStringPlain,
  plain_one_left,
};

using Table = std::array<std::array<StringState, 256>, kStringStates>;

constexpr void set(Table& table, int from, int first, int last, int to) {
  for (int byte = first; byte <= last; ++byte) {
    table[static_cast<size_t>(from)][static_cast<size_t>(byte)] = static_cast<StringState>(to);
  }
}

constexpr void set(Table& table, int from, std::string_view bytes, int to) {
  for (char byte : bytes) set(table, from, byte, byte, to);
}

// Characters beyond ASCII, in the text of one of the two kinds; `left` is the state with one byte left.
constexpr void set_utf8(Table& table, int from, int left) {
  const int shift = left - one_left;
  set(table, from, 0xc2, 0xdf, one_left + shift);
  set(table, from, 0xe1, 0xef, two_left + shift);
  set(table, from, 0xe0, 0xe0, after_e0 + shift);
  set(table, from, 0xed, 0xed, after_ed + shift);
  set(table, from, 0xf1, 0xf3, three_left + shift);
  set(table, from, 0xf0, 0xf0, after_f0 + shift);
  set(table, from, 0xf4, 0xf4, after_f4 + shift);
  set(table, one_left + shift, 0x80, 0xbf, from);
  set(table, two_left + shift, 0x80, 0xbf, one_left + shift);
  set(table, three_left + shift, 0x80, 0xbf, two_left + shift);
  set(table, after_e0 + shift, 0xa0, 0xbf, one_left + shift);
  set(table, after_ed + shift, 0x80, 0x9f, one_left + shift);
  set(table, after_f0 + shift, 0x90, 0xbf, two_left + shift);
  set(table, after_f4 + shift, 0x80, 0x8f, two_left + shift);
}

constexpr void set_escapes(Table& table) {
  constexpr std::string_view kHex = "0123456789abcdefABCDEF";
  set(table, text, "\\", escape);
  set(table, escape, "\"\\/bfnrt", text);
  set(table, escape, "u", hex1);
  set(table, hex1, kHex, hex2);
  set(table, hex1, "dD", hex2_after_d);
  set(table, hex2, kHex, hex3);
  set(table, hex2_after_d, "01234567", hex3);
  set(table, hex2_after_d, "89abAB", high3);
  set(table, hex3, kHex, hex4);
  set(table, hex4, kHex, text);
  set(table, high3, kHex, high4);
  set(table, high4, kHex, low_backslash);
  set(table, low_backslash, "\\", low_u);
  set(table, low_u, "u", low1);
  set(table, low1, "dD", low2);
  set(table, low2, "cdefCDEF", low3);
  set(table, low3, kHex, low4);
  set(table, low4, kHex, text);
}

constexpr Table make_table() {
  Table table{};
  for (auto& row : table) row.fill(kStringDead);
  for (int from : {int{text}, int{plain}}) {
    set(table, from, 0x20, 0x7f, from);
    set(table, from, "\"", kStringClosed);
  }
  set(table, plain, "\\", kStringDead);
  set_escapes(table);
  set_utf8(table, text, one_left);
  set_utf8(table, plain, plain_one_left);
  return table;
}

static_assert(after_f4 + 1 == plain && plain_one_left + (after_f4 - one_left) + 1 == kStringStates);

}  // namespace

constexpr std::array<std::array<StringState, 256>, kStringStates> kStringNext = make_table();

}  // namespace megalith
