// Text to tokens and back, with vocabularies that are known to be good.

#include "base/check.h"
#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/vocabulary.h"
#include "text/nfc.h"
#include "text/utf8_stream.h"

namespace megalith {
namespace {

using Ids = std::vector<int32_t>;

bool refuses(const Tokenizer& tokenizer, std::string_view text) {
  try {
    tokenizer.encode(text, Specials::plain_text);
  } catch (const Error&) {
    return true;
  }
  return false;
}

void check_plain(const Vocabulary& vocabulary, const std::string& text, bool normalises) {
  const Ids ids = vocabulary.tokenizer.encode(text, Specials::plain_text);
  for (const int32_t id : ids) CHECK(!vocabulary.is_added(id), "added token {} for plain text", id);
  CHECK(vocabulary.tokenizer.decode(ids, false) == (normalises ? nfc(text) : text), "another text came back");
}

// A normaliser sees no further than to the next added token, so only the normalised texts are equal.
void check_recognised(const Tokenizer& tokenizer, const std::string& text) {
  const Ids ids = tokenizer.encode(text, Specials::recognised);
  CHECK(nfc(tokenizer.decode(ids, false)) == nfc(text), "another text came back");
}

// Plain segments are encoded as their joined text, or each by itself.
void check_segments(const Tokenizer& tokenizer, const std::string& text, bool apart) {
  size_t cut = text.size() / 2;
  while (cut < text.size() && invalid_utf8(text.substr(0, cut)) != std::string::npos) ++cut;
  const Segment parts[] = {{text.substr(0, cut), false}, {text.substr(cut), false}};
  Ids ids = tokenizer.encode(apart ? parts[0].text : text, Specials::plain_text);
  if (apart) {
    const Ids more = tokenizer.encode(parts[1].text, Specials::plain_text);
    ids.insert(ids.end(), more.begin(), more.end());
  }
  CHECK(tokenizer.encode(parts) == ids, "other tokens for segments cut at {}", cut);
}

// Any ids decode to UTF-8, to the same whether at once or one by one.
void check_ids(const Tokenizer& tokenizer, std::string_view input) {
  Ids ids;
  for (Choices choices(input); !choices.rest().empty();) {
    const int32_t high = choices.byte();
    ids.push_back((high << 8 | choices.byte()) % tokenizer.rows());
  }
  for (const bool skip_special : {false, true}) {
    TextStream stream(tokenizer, skip_special);
    std::string text;
    for (const int32_t id : ids) text += stream.feed({&id, 1});
    text += stream.flush();
    CHECK(invalid_utf8(text) == std::string::npos, "not UTF-8");
    CHECK(tokenizer.decode(ids, skip_special) == text, "another text at once");
  }
}

void check_vocabulary(const Vocabulary& vocabulary, const std::string& text, bool qwen) {
  const bool valid = invalid_utf8(text) == std::string::npos;
  CHECK(refuses(vocabulary.tokenizer, text) == !valid, "{} text", valid ? "valid" : "invalid");
  check_ids(vocabulary.tokenizer, text);
  if (!valid) return;
  check_plain(vocabulary, text, qwen);
  check_recognised(vocabulary.tokenizer, text);
  check_segments(vocabulary.tokenizer, text, !qwen);
  CHECK(nfc(nfc(text)) == nfc(text), "normalised text is not in form C");
}

}  // namespace
}  // namespace megalith

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace megalith;
  const std::string text(text_of(data, size));
  check_vocabulary(qwen_vocabulary(), text, true);
  check_vocabulary(kimi_vocabulary(), text, false);
  return 0;
}
