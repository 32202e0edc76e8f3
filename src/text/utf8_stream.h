#pragma once

// Bytes to text, piece by piece.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "text/tokenizer.h"

namespace megalith {

// The offset of the first byte that is not UTF-8 (surrogates and overlong forms included), or npos.
size_t invalid_utf8(std::string_view bytes);

// Gives only complete characters; an unfinished one is held until its bytes arrive or prove wrong. Each maximal
// ill-formed part becomes one U+FFFD, so the joined output does not depend on where the input was cut.
class Utf8Stream {
 public:
  std::string feed(std::string_view bytes);
  // The held bytes, if any, as one U+FFFD; then the stream is as new.
  std::string flush();
  // Bytes held.
  size_t pending() const { return held_.size(); }

 private:
  std::string held_;  // a proper prefix of one well-formed character; at most 3 bytes
};

// Token ids to text, piece by piece; feed()s and flush() joined equal Tokenizer::decode of all ids.
class TextStream {
 public:
  TextStream(Tokenizer tokenizer, bool skip_special) : tokenizer_(std::move(tokenizer)), skip_special_(skip_special) {}
  // Error when an id is outside the vocabulary.
  std::string feed(std::span<const int32_t> ids);
  std::string flush() { return utf8_.flush(); }

 private:
  Tokenizer tokenizer_;
  bool skip_special_;
  Utf8Stream utf8_;
};

}  // namespace megalith
