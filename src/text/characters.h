#pragma once

// Single characters of UTF-8 text: where they end, and which of them are blank.

#include <cstddef>
#include <string>
#include <string_view>

namespace megalith {

// What the bytes of a text begin with.
struct Character {
  enum class Kind { whole, unfinished, ill_formed };
  Kind kind = Kind::whole;
  size_t bytes = 0;   // whole: of the character; else: of the maximal part that could have begun one (at least 1)
  char32_t code = 0;  // whole
};

// Needs a text that is not empty. Overlong forms, surrogates and codes beyond U+10FFFF are ill-formed.
Character first_character(std::string_view text);

// White space as Python's str.strip() sees it, which the chat templates' `trim` is.
bool is_blank(char32_t code);

// The offset at which the trailing blanks begin. Needs UTF-8.
size_t trailing_blanks(std::string_view text);

// The text without blanks at both ends. Needs UTF-8.
std::string_view trim(std::string_view text);
std::string_view trim_left(std::string_view text);

// A text as an Error shows it: not more than 80 bytes of it, in whole characters. Needs UTF-8.
std::string shortened(std::string_view text);

}  // namespace megalith
