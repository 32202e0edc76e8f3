#include "text/nfc.h"

#include <algorithm>
#include <vector>

#include <utf8proc.h>

#include "base/check.h"
#include "text/characters.h"

namespace megalith {

namespace {

constexpr auto kOptions = static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE);

int combining_class(utf8proc_int32_t code) {
  return utf8proc_get_property(code)->combining_class;
}

std::vector<utf8proc_int32_t> decomposed(std::string_view text) {
  std::vector<utf8proc_int32_t> codes;
  codes.reserve(text.size() + 4);
  constexpr utf8proc_ssize_t kLongest = 32;  // the longest canonical decomposition has four codes
  utf8proc_int32_t parts[kLongest];
  while (!text.empty()) {
    Character next = first_character(text);
    CHECK(next.kind == Character::Kind::whole, "byte {:#x}", static_cast<unsigned char>(text[0]));
    utf8proc_ssize_t n =
        utf8proc_decompose_char(static_cast<utf8proc_int32_t>(next.code), parts, kLongest, UTF8PROC_DECOMPOSE, nullptr);
    CHECK(n > 0 && n <= kLongest, "{} parts of U+{:04X}", n, static_cast<uint32_t>(next.code));
    codes.insert(codes.end(), parts, parts + n);
    text.remove_prefix(next.bytes);
  }
  return codes;
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

}  // namespace

bool is_plainly_nfc(std::string_view text) {
  // 0xcc is the first lead byte of codes from U+0300 on.
  return std::none_of(text.begin(), text.end(), [](char byte) { return static_cast<unsigned char>(byte) >= 0xcc; });
}

std::string nfc(std::string_view text) {
  std::vector<utf8proc_int32_t> codes = decomposed(text);
  order_marks(codes);
  utf8proc_ssize_t n = utf8proc_normalize_utf32(codes.data(), static_cast<utf8proc_ssize_t>(codes.size()), kOptions);
  CHECK(n >= 0, "utf8proc: {}", utf8proc_errmsg(n));
  std::string normal;
  normal.reserve(text.size());
  utf8proc_uint8_t bytes[4];
  for (utf8proc_ssize_t i = 0; i < n; ++i) {
    utf8proc_ssize_t length = utf8proc_encode_char(codes[static_cast<size_t>(i)], bytes);
    normal.append(reinterpret_cast<const char*>(bytes), static_cast<size_t>(length));
  }
  return normal;
}

}  // namespace megalith
