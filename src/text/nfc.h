#pragma once

// Unicode normalisation form C, as the tokenizers library has it.

#include <string>
#include <string_view>

namespace megalith {

// Needs UTF-8. Time grows with length × log(longest run of marks), whatever the text.
std::string nfc(std::string_view text);

// Whether the text surely is in form C already, by a cheap look: no code from U+0300 on.
bool is_plainly_nfc(std::string_view text);

}  // namespace megalith
