#pragma once

// Reads the second kind of tokenizer file: tiktoken.model, whose lines are a token in base64 and its rank, with the
// names of the control tokens in tokenizer_config.json.

#include <cstdint>
#include <string>
#include <string_view>

#include "text/tokenizer_tables.h"

namespace megalith {

// A file's text, and its path for errors.
struct NamedText {
  std::string_view text;
  const std::string& name;
};

// An id is a rank; 256 control tokens follow the ranks. The pattern, which neither file holds, is that of the Kimi
// family. Error, naming the line or the field, for what is damaged.
TokenizerTables make_tiktoken_tables(NamedText ranks, NamedText config, int32_t model_rows);

}  // namespace megalith
