// The family's whole vocabulary, as tools/vocabulary makes it; skipped without MEGALITH_VOCABULARY_DIR.

#include <chrono>
#include <cstdlib>

#include "linear_time.h"
#include "long_texts.h"
#include "test_data.h"
#include "text/chat.h"

namespace megalith {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

class RealVocabulary : public testing::Test {
 protected:
  void SetUp() override {
    const char* dir = std::getenv("MEGALITH_VOCABULARY_DIR");
    if (dir == nullptr) GTEST_SKIP() << "MEGALITH_VOCABULARY_DIR is not set; see tools/vocabulary";
    dir_ = dir;
  }

  const Tokenizer& tokenizer() {
    static const Tokenizer tokenizer = Tokenizer::from_file(dir_ + "/tokenizer.json", kRows);
    return tokenizer;
  }

  static constexpr int32_t kTokens = 248077;
  static constexpr int32_t kRows = 248320;

  std::string dir_;
};

TEST_F(RealVocabulary, LoadsInSeconds) {
  auto begin = Clock::now();
  Tokenizer loaded = Tokenizer::from_file(dir_ + "/tokenizer.json", kRows);
  double seconds = seconds_since(begin);
  std::printf("%.3f s\n", seconds);
  // Well under a second on an idle machine; the bound leaves room for sanitizers.
  EXPECT_LT(seconds, 20);
  EXPECT_EQ(loaded.size(), kTokens);
  EXPECT_EQ(loaded.rows(), kRows);
}

TEST_F(RealVocabulary, IdsEqualTheReferenceLibrarys) {
  expect_cases(tokenizer(), read_json(dir_ + "/cases.json"));
}

TEST_F(RealVocabulary, PromptsHaveTheIdsOfTheirJoinedText) {
  auto golden = read_json(data_path("qwen-chat.json"));
  auto expected = read_json(dir_ + "/cases.json")["chats"];
  ASSERT_EQ(golden.size(), expected.size());
  for (const auto& [name, one] : golden.items()) {
    auto prompt = chat_format(one["template"].get<std::string>())->render(parse_chat_request(one["input"]));
    EXPECT_EQ(tokenizer().encode(prompt), expected[name].get<std::vector<int32_t>>()) << name;
  }
}

TEST_F(RealVocabulary, KnownPromptHasItsPublishedIds) {
  std::string prompt = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n<think>\n";
  std::vector<int32_t> ids = {248045, 846, 198, 5834, 248046, 198, 248045, 74455, 198, 248068, 198};
  EXPECT_EQ(tokenizer().encode(prompt, Specials::recognised), ids);
}

TEST_F(RealVocabulary, PeersTextsHaveThePeersIds) {
  Tokenizer peer = Tokenizer::from_file(dir_ + "/peer/tokenizer.json");
  auto cases = read_json(dir_ + "/peer/cases.json");
  EXPECT_EQ(cases["cases"].size(), 51U);
  expect_cases(peer, cases);
}

TEST_F(RealVocabulary, EveryIdDecodesToItsBytesAndPaddingToNothing) {
  for (int32_t id = 0; id < kTokens; ++id) {
    std::string_view bytes = tokenizer().token_bytes(id);
    ASSERT_FALSE(bytes.empty()) << id;
    std::string text = tokenizer().decode({&id, 1}, false);
    ASSERT_FALSE(text.empty()) << id;
    ASSERT_EQ(tokenizer().decode({&id, 1}, true).empty(), tokenizer().is_special(id)) << id;
    if (text == bytes) {
      // Not every token is reached from its own text, but the text always comes back.
      ASSERT_EQ(tokenizer().decode(tokenizer().encode(text, Specials::recognised), false), text) << id;
    }
  }
  for (int32_t id = kTokens; id < kRows; ++id) ASSERT_EQ(tokenizer().decode({&id, 1}, false), "");
}

TEST_F(RealVocabulary, LongTextsTakeLinearTimeAndSecondsAtMost) {
  for (const LongText& kind : kLongTexts) {
    SCOPED_TRACE(kind.name);
    expect_linear_time(kind.n, kind.make,
                       [this](const std::string& text) { tokenizer().encode(text, Specials::recognised); });
    const std::string text = kind.make(2 * kind.n);
    double begin = thread_seconds();
    auto ids = tokenizer().encode(text, Specials::recognised);
    double seconds = thread_seconds() - begin;
    std::printf("%s: %zu bytes, %zu ids, %.3f s\n", kind.name, text.size(), ids.size(), seconds);
    EXPECT_LT(seconds, 20);
  }
}

TEST_F(RealVocabulary, PrintsItsSpeedOnMixedText) {
  std::string text;
  auto file = read_json(dir_ + "/cases.json");
  for (const auto& one : file["cases"]) {
    auto part = one["text"].get<std::string>();
    if (part.size() < 1000) text += part;
  }
  std::string prose = read_text(MEGALITH_SOURCE_DIR "/src/text/tokenizer_tables.cc");
  while (prose.size() < 2'000'000) prose += prose;
  for (const std::string* one : {&text, &prose}) {
    auto begin = Clock::now();
    auto ids = tokenizer().encode(*one, Specials::recognised);
    double seconds = seconds_since(begin);
    std::printf("%zu bytes, %zu ids, %.1f MB/s\n", one->size(), ids.size(),
                static_cast<double>(one->size()) / seconds / 1e6);
    EXPECT_FALSE(ids.empty());
  }
}

}  // namespace
}  // namespace megalith
