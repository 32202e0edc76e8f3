#pragma once

// The inside of a JSON string, byte by byte: UTF-8 without overlong forms and surrogates, no control characters,
// escapes in pairs where they name surrogates.

#include <array>
#include <cstdint>

namespace megalith {

using StringState = uint8_t;

inline constexpr StringState kStringText = 0;    // between characters
inline constexpr StringState kStringPlain = 22;  // the same, in a string that may have no escapes
inline constexpr int kStringStates = 30;
inline constexpr StringState kStringClosed = 0xfe;  // behind the closing quote
inline constexpr StringState kStringDead = 0xff;    // no string goes on like this

extern const std::array<std::array<StringState, 256>, kStringStates> kStringNext;

// Whether a byte that may come begins a character of the string's value.
inline bool begins_character(StringState state) {
  return state == kStringText || state == kStringPlain;
}

}  // namespace megalith
