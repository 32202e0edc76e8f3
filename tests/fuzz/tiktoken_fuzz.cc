// A tiktoken.model, then a zero byte and a tokenizer_config.json: files that load encode every text and decode it
// again.

#include "base/check.h"
#include "tests/fuzz/fuzz.h"
#include "text/tokenizer.h"

namespace megalith {
namespace {

constexpr const char* kTexts[] = {
    "",
    "Hello, world!  It's 12345 o'clock.\r\n\n",
    "a\u0301 \u212b \u56fd\u3005a \U0001f44d\u200d<|open|>",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
};

void check(const Tokenizer& tokenizer) {
  CHECK(tokenizer.size() <= tokenizer.rows(), "{} tokens, {} rows", tokenizer.size(), tokenizer.rows());
  for (int32_t id = tokenizer.size() - 256; id < tokenizer.size(); ++id) {
    CHECK(tokenizer.find_added(tokenizer.token_bytes(id)) == id, "control token {}", id);
  }
  for (const std::string text : kTexts) {
    const auto ids = tokenizer.encode(text, Specials::plain_text);
    for (const int32_t id : ids) CHECK(id < tokenizer.size() - 256, "control token {} for plain text", id);
    CHECK(tokenizer.decode(ids, false) == text, "another text came back for \"{}\"", text);
    const auto control = tokenizer.encode(text, Specials::recognised);
    CHECK(tokenizer.decode(control, false) == text, "another text came back for \"{}\"", text);
  }
}

}  // namespace
}  // namespace megalith

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace megalith;
  const std::string input(text_of(data, size));
  const size_t end = std::min(input.find('\0'), input.size());
  const std::string config = end < input.size() ? input.substr(end + 1) : "{}";
  refuse_with_error_only([&] {
    check(Tokenizer::from_tiktoken(input.substr(0, end), "tiktoken.model", config, "tokenizer_config.json"));
  });
  return 0;
}
