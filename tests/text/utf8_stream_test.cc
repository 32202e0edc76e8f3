#include "text/utf8_stream.h"

#include <random>

#include "test_data.h"

namespace megalith {
namespace {

const std::string kFamily = "👩‍👩‍👧 मूर्ति 𠮷野家 ok";

std::string whole(const std::string& bytes) {
  Utf8Stream stream;
  std::string text = stream.feed(bytes);
  return text + stream.flush();
}

TEST(Utf8Stream, CharactersSplitAnywhereComeOutWhole) {
  for (size_t cut = 0; cut <= kFamily.size(); ++cut) {
    Utf8Stream stream;
    std::string first = stream.feed(kFamily.substr(0, cut));
    EXPECT_EQ(first.find("\ufffd"), std::string::npos);
    EXPECT_EQ(invalid_utf8(first), std::string::npos);
    std::string second = stream.feed(kFamily.substr(cut));
    EXPECT_EQ(first + second + stream.flush(), kFamily);
  }
}

TEST(Utf8Stream, EachMaximalIllFormedPartIsOneReplacement) {
  const std::pair<const char*, const char*> cases[] = {
      {"a\x80"
       "b",
       "a\ufffdb"},
      {"\xf0\x9f\x98", "\ufffd"},
      {"\xf0\x9f\x98x", "\ufffdx"},
      {"\xe2\x82\xe2\x82\xac", "\ufffd\u20ac"},
      {"\xc0\x80", "\ufffd\ufffd"},
      {"\xed\xa0\x80", "\ufffd\ufffd\ufffd"},
      {"\xf4\x90\x80\x80", "\ufffd\ufffd\ufffd\ufffd"},
      {"\xe0\x80\xaf", "\ufffd\ufffd\ufffd"},
      {"\xff\xfe", "\ufffd\ufffd"},
      {"\xf1\x80\x80\xe1\x80\xc2"
       "b",
       "\ufffd\ufffd\ufffd"
       "b"},
  };
  for (const auto& [bytes, text] : cases) EXPECT_EQ(whole(bytes), text);
}

TEST(Utf8Stream, OutputDoesNotDependOnTheCuts) {
  std::mt19937 random(1);
  for (int round = 0; round < 3000; ++round) {
    std::string bytes;
    const char* parts[] = {"a", "é", "国", "👍", "\x80", "\xe2", "\xf0\x9f", "\xed\xa0", "\xf4\x8f", "\xc3"};
    for (int i = 0; i < 12; ++i) bytes += parts[random() % 10];
    std::string expected = whole(bytes);
    EXPECT_EQ(invalid_utf8(expected), std::string::npos);
    Utf8Stream stream;
    std::string text;
    for (size_t at = 0; at < bytes.size();) {
      size_t n = 1 + random() % 4;
      text += stream.feed(bytes.substr(at, n));
      EXPECT_LE(stream.pending(), 3U);
      at += n;
    }
    EXPECT_EQ(text + stream.flush(), expected);
  }
}

TEST(TextStream, DeltasJoinedEqualTheWholeDecode) {
  std::mt19937 random(2);
  const Tokenizer& tokenizer = small_tokenizer();
  for (int round = 0; round < 500; ++round) {
    std::vector<int32_t> ids;
    // Half of the ids are single bytes, so that many characters are broken.
    for (int i = 0; i < 40; ++i) {
      uint32_t range = random() % 2 == 0 ? 256 : static_cast<uint32_t>(tokenizer.size());
      ids.push_back(static_cast<int32_t>(random() % range));
    }
    bool skip_special = round % 2 == 0;
    TextStream stream(tokenizer, skip_special);
    std::string text;
    for (size_t at = 0; at < ids.size();) {
      size_t n = std::min<size_t>(1 + random() % 8, ids.size() - at);
      std::string delta = stream.feed(std::span(ids).subspan(at, n));
      EXPECT_EQ(invalid_utf8(delta), std::string::npos);
      text += delta;
      at += n;
    }
    EXPECT_EQ(text + stream.flush(), tokenizer.decode(ids, skip_special));
  }
}

TEST(TextStream, EmojiTokenByTokenHasNoReplacement) {
  auto ids = small_tokenizer().encode(kFamily, Specials::recognised);
  TextStream stream(small_tokenizer(), true);
  std::string text;
  for (int32_t id : ids) {
    std::string delta = stream.feed({&id, 1});
    EXPECT_EQ(delta.find("\ufffd"), std::string::npos);
    text += delta;
  }
  EXPECT_EQ(text + stream.flush(), kFamily);
}

}  // namespace
}  // namespace megalith
