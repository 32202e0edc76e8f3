#include "text/nfc.h"

#include <algorithm>
#include <iterator>
#include <vector>

#include <utf8proc.h>

#include "base/check.h"
#include "text/characters.h"

namespace megalith {

namespace {

constexpr auto kOptions = static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE);

struct Range {
  char32_t first;
  char32_t last;
};

// Codes with a combining class or a composition that Unicode 9 did not have. The library that tokenizer.json is written
// for (Hugging Face's tokenizers) has that version's tables, so there these are plain letters: nothing is ordered or
// composed across them.
constexpr Range kLaterMarks[] = {
    {0x7fd, 0x7fd},     {0x898, 0x89f},     {0x8ca, 0x8d3},     {0x9fe, 0x9fe},     {0xc3c, 0xc3c},
    {0xd3b, 0xd3c},     {0xeba, 0xeba},     {0x1715, 0x1715},   {0x1abf, 0x1ace},   {0x1df6, 0x1dfa},
    {0xa82c, 0xa82c},   {0x10d24, 0x10d27}, {0x10eab, 0x10eac}, {0x10efd, 0x10eff}, {0x10f46, 0x10f50},
    {0x10f82, 0x10f85}, {0x11070, 0x11070}, {0x1133b, 0x1133b}, {0x1145e, 0x1145e}, {0x11839, 0x1183a},
    {0x11930, 0x11930}, {0x11938, 0x11938}, {0x1193d, 0x1193e}, {0x11943, 0x11943}, {0x119e0, 0x119e0},
    {0x11a34, 0x11a34}, {0x11a47, 0x11a47}, {0x11a99, 0x11a99}, {0x11d42, 0x11d42}, {0x11d44, 0x11d45},
    {0x11d97, 0x11d97}, {0x11f41, 0x11f42}, {0x16ff0, 0x16ff1}, {0x1e08f, 0x1e08f}, {0x1e130, 0x1e136},
    {0x1e2ae, 0x1e2ae}, {0x1e2ec, 0x1e2ef}, {0x1e4ec, 0x1e4ef}};

bool is_later_mark(char32_t code) {
  const Range* range = std::lower_bound(std::begin(kLaterMarks), std::end(kLaterMarks), code,
                                        [](const Range& r, char32_t c) { return r.last < c; });
  return range != std::end(kLaterMarks) && range->first <= code;
}

int combining_class(utf8proc_int32_t code) {
  return utf8proc_get_property(code)->combining_class;
}

void decompose(char32_t code, std::vector<utf8proc_int32_t>& codes) {
  constexpr utf8proc_ssize_t kLongest = 32;  // the longest canonical decomposition has four codes
  utf8proc_int32_t parts[kLongest];
  utf8proc_ssize_t n =
      utf8proc_decompose_char(static_cast<utf8proc_int32_t>(code), parts, kLongest, UTF8PROC_DECOMPOSE, nullptr);
  CHECK(n > 0 && n <= kLongest, "{} parts of U+{:04X}", n, static_cast<uint32_t>(code));
  codes.insert(codes.end(), parts, parts + n);
}

// Marks in order of their classes. utf8proc's own ordering takes quadratic time on a long run of marks.
void order_marks(std::vector<utf8proc_int32_t>& codes) {
  for (auto begin = codes.begin(); begin != codes.end();) {
    if (combining_class(*begin) == 0) {
      ++begin;
      continue;
    }
    auto end = std::find_if(begin, codes.end(), [](utf8proc_int32_t code) { return combining_class(code) == 0; });
    std::stable_sort(begin, end, [](auto a, auto b) { return combining_class(a) < combining_class(b); });
    begin = end;
  }
}

// Composes decomposed codes, and appends them as UTF-8.
void compose(std::vector<utf8proc_int32_t>& codes, std::string& text) {
  order_marks(codes);
  utf8proc_ssize_t n = utf8proc_normalize_utf32(codes.data(), static_cast<utf8proc_ssize_t>(codes.size()), kOptions);
  CHECK(n >= 0, "utf8proc: {}", utf8proc_errmsg(n));
  utf8proc_uint8_t bytes[4];
  for (utf8proc_ssize_t i = 0; i < n; ++i) {
    utf8proc_ssize_t length = utf8proc_encode_char(codes[static_cast<size_t>(i)], bytes);
    text.append(reinterpret_cast<const char*>(bytes), static_cast<size_t>(length));
  }
}

}  // namespace

bool is_plainly_nfc(std::string_view text) {
  // 0xcc is the first lead byte of codes from U+0300 on.
  return std::none_of(text.begin(), text.end(), [](char byte) { return static_cast<unsigned char>(byte) >= 0xcc; });
}

std::string nfc(std::string_view text) {
  std::string normal;
  normal.reserve(text.size());
  std::vector<utf8proc_int32_t> codes;
  codes.reserve(text.size() + 4);
  while (!text.empty()) {
    Character next = first_character(text);
    CHECK(next.kind == Character::Kind::whole, "byte {:#x}", static_cast<unsigned char>(text[0]));
    if (is_later_mark(next.code)) {
      compose(codes, normal);
      codes.clear();
      normal += text.substr(0, next.bytes);
    } else {
      decompose(next.code, codes);
    }
    text.remove_prefix(next.bytes);
  }
  compose(codes, normal);
  return normal;
}

}  // namespace megalith
