#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>

#include "text/tokenizer.h"

namespace megalith {

// A small vocabulary with the marks of a family.
struct Vocabulary {
  explicit Vocabulary(Tokenizer from) : tokenizer(std::move(from)) {
    of_byte.fill(-1);
    for (int32_t id = 0; id < tokenizer.size(); ++id) {
      const auto bytes = tokenizer.token_bytes(id);
      if (tokenizer.find_added(bytes) == id) added.emplace(bytes, id);
      if (bytes.size() == 1) of_byte[static_cast<uint8_t>(bytes[0])] = id;
    }
  }

  bool is_added(int32_t id) const { return added.contains(tokenizer.token_bytes(id)); }

  Tokenizer tokenizer;
  std::map<std::string, int32_t, std::less<>> added;  // ids of added tokens, marked special or not, by text
  std::array<int32_t, 256> of_byte;                   // ids of bytes, -1 for those without a token
};

inline const Vocabulary& qwen_vocabulary() {
  static const Vocabulary qwen(Tokenizer::from_file(MEGALITH_SOURCE_DIR "/tests/data/text/small-tokenizer.json"));
  return qwen;
}

inline const Vocabulary& kimi_vocabulary() {
  static const Vocabulary kimi(Tokenizer::from_tiktoken(MEGALITH_SOURCE_DIR "/tests/data/text/kimi/tiktoken.model"));
  return kimi;
}

inline const Vocabulary& vocabulary_of(std::string_view chat_format) {
  return chat_format.starts_with("kimi") ? kimi_vocabulary() : qwen_vocabulary();
}

}  // namespace megalith
