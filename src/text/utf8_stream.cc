#include "text/utf8_stream.h"

#include "text/characters.h"

namespace megalith {

namespace {

constexpr std::string_view kReplacement = "\xef\xbf\xbd";  // U+FFFD

}  // namespace

size_t invalid_utf8(std::string_view bytes) {
  size_t at = 0;
  while (at < bytes.size()) {
    if (static_cast<unsigned char>(bytes[at]) < 0x80) {
      ++at;
      continue;
    }
    Character next = first_character(bytes.substr(at));
    if (next.kind != Character::Kind::whole) return at;
    at += next.bytes;
  }
  return std::string_view::npos;
}

std::string Utf8Stream::feed(std::string_view bytes) {
  std::string joined;
  if (!held_.empty()) {
    joined = std::move(held_).append(bytes);
    held_.clear();
    bytes = joined;
  }
  std::string text;
  text.reserve(bytes.size());
  while (!bytes.empty()) {
    Character next = first_character(bytes);
    if (next.kind == Character::Kind::unfinished) {
      held_ = bytes;
      break;
    }
    text += next.kind == Character::Kind::whole ? bytes.substr(0, next.bytes) : kReplacement;
    bytes.remove_prefix(next.bytes);
  }
  return text;
}

std::string Utf8Stream::flush() {
  if (held_.empty()) return "";
  held_.clear();
  return std::string(kReplacement);
}

std::string TextStream::feed(std::span<const int32_t> ids) {
  std::string text;
  for (int32_t id : ids) {
    std::string_view bytes = tokenizer_.token_bytes(id);
    if (skip_special_ && tokenizer_.is_special(id)) continue;
    text += utf8_.feed(bytes);
  }
  return text;
}

}  // namespace megalith
