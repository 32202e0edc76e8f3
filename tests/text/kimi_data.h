#pragma once

#include "test_data.h"

namespace megalith {

// A vocabulary in the files of the Kimi family, learnt from the texts of these tests (tools/vocabulary).
inline const Tokenizer& kimi_tokenizer() {
  static const Tokenizer tokenizer = Tokenizer::from_tiktoken(data_path("kimi/tiktoken.model"));
  return tokenizer;
}

}  // namespace megalith
