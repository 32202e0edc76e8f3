// A tokenizer.json: one that loads encodes every text and decodes it again, and has all of its rows.

#include "base/check.h"
#include "tests/fuzz/fuzz.h"
#include "text/nfc.h"
#include "text/tokenizer.h"
#include "text/utf8_stream.h"

namespace megalith {
namespace {

constexpr const char* kTexts[] = {
    "",
    "Hello, world!  It's 12 o'clock.\r\n\n",
    "a\u0301 \u212b \uac00 \U0001f44d\u200d<think>|",
    " \x01 \x02\x03a\x1f\x7f",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
};

void check_text(const Tokenizer& tokenizer, const std::string& text) {
  const auto ids = tokenizer.encode(text, Specials::plain_text);
  for (const int32_t id : ids) CHECK(!tokenizer.is_special(id), "special {} for plain text", id);
  const std::string decoded = tokenizer.decode(ids, false);
  CHECK(decoded == text || decoded == nfc(text), "\"{}\" came back as \"{}\"", text, decoded);
  tokenizer.encode(text, Specials::recognised);
}

void check_rows(const Tokenizer& tokenizer) {
  CHECK(tokenizer.size() <= tokenizer.rows(), "{} tokens, {} rows", tokenizer.size(), tokenizer.rows());
  for (int32_t id = 0; id < tokenizer.rows(); ++id) {
    const auto text = tokenizer.token_bytes(id);
    CHECK(!tokenizer.is_special(id) || tokenizer.find_added(text) == id, "special {}", id);
  }
}

}  // namespace
}  // namespace megalith

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace megalith;
  refuse_with_error_only([&] {
    const Tokenizer tokenizer = Tokenizer::from_json(text_of(data, size), "tokenizer.json");
    check_rows(tokenizer);
    for (const char* text : kTexts) check_text(tokenizer, text);
  });
  return 0;
}
