// The tokenizer of tiktoken.model, against ids of the tiktoken library (tools/vocabulary/make_tiktoken.py).

#include <random>

#include "kimi_data.h"
#include "linear_time.h"
#include "long_texts.h"
#include "test_data.h"

namespace megalith {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kRanksName = "model/tiktoken.model";
constexpr const char* kConfigName = "model/tokenizer_config.json";

std::string base64(const std::string& bytes) {
  constexpr std::string_view kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string text;
  for (size_t i = 0; i < bytes.size(); i += 3) {
    uint32_t bits = 0;
    for (size_t k = 0; k < 3; ++k) bits = bits << 8 | (i + k < bytes.size() ? static_cast<uint8_t>(bytes[i + k]) : 0);
    for (size_t k = 0; k < 4; ++k) text += i + k > bytes.size() ? '=' : kDigits[bits >> (18 - 6 * k) & 63];
  }
  return text;
}

// The ranks of all bytes, then of `tokens`.
std::string ranks_of(const std::vector<std::string>& tokens = {}) {
  std::string text;
  int rank = 0;
  for (int byte = 0; byte < 256; ++byte) {
    text += base64(std::string(1, static_cast<char>(byte))) + " " + std::to_string(rank++) + "\n";
  }
  for (const std::string& token : tokens) text += base64(token) + " " + std::to_string(rank++) + "\n";
  return text;
}

Tokenizer load(const std::string& ranks, const std::string& config = "{}", int32_t model_rows = 0) {
  return Tokenizer::from_tiktoken(ranks, kRanksName, config, kConfigName, model_rows);
}

std::string cause(const std::string& ranks, const std::string& config = "{}") {
  return cause_of([&] { load(ranks, config); });
}

std::vector<int32_t> plain(const Tokenizer& tokenizer, const std::string& text) {
  return tokenizer.encode(text, Specials::plain_text);
}

TEST(Tiktoken, IdsEqualTheReferenceLibrarys) {
  Json cases = read_json(data_path("kimi-cases.json"));
  EXPECT_GT(cases["cases"].size(), 350U);
  expect_cases(kimi_tokenizer(), cases);
}

TEST(Tiktoken, SegmentsAreEncodedApart) {
  Tokenizer tokenizer = load(ranks_of({"ab"}));
  for (bool control : {false, true}) {
    std::vector<Segment> apart = {{"a", control}, {"b", control}};
    EXPECT_EQ(tokenizer.encode(apart), (std::vector<int32_t>{'a', 'b'}));
  }
  EXPECT_EQ(plain(tokenizer, "ab"), (std::vector<int32_t>{256}));
}

TEST(Tiktoken, LongTextsAreCutWhereTheReferenceCutsThem) {
  Json cases = read_json(data_path("kimi-cases.json"));
  EXPECT_EQ(cases["long"].size(), 14U);
  for (const Json& one : cases["long"]) {
    auto unit = one["unit"].get<std::string>();
    auto count = one["count"].get<size_t>();
    auto ids = kimi_tokenizer().encode(repeat(unit, count) + one["tail"].get<std::string>(), Specials::recognised);
    uint32_t digest = 0;
    for (int32_t id : ids) digest = digest * 31 + static_cast<uint32_t>(id);
    EXPECT_EQ(ids.size(), one["ids"].get<size_t>()) << count << " of " << unit;
    EXPECT_EQ(digest, one["digest"].get<uint32_t>()) << count << " of " << unit;
  }
}

TEST(Tiktoken, TimeIsLinearInLongRuns) {
  for (const LongText& kind : kLongTexts) {
    SCOPED_TRACE(kind.name);
    expect_linear_time(kind.n, kind.make,
                       [](const std::string& text) { kimi_tokenizer().encode(text, Specials::recognised); });
  }
}

TEST(Tiktoken, WholePiecesComeBeforeMerges) {
  Tokenizer tokenizer = load(ranks_of({"ab", "zyx", "bc"}));
  EXPECT_EQ(plain(tokenizer, "zyx"), (std::vector<int32_t>{257}));
  EXPECT_EQ(plain(tokenizer, "zyxz"), (std::vector<int32_t>{'z', 'y', 'x', 'z'}));
  EXPECT_EQ(plain(tokenizer, "abc"), (std::vector<int32_t>{256, 'c'}));
}

TEST(Tiktoken, LowestRankMergesFirstAndTheLeftmostOfEqualsWhateverPairMakesIt) {
  Json dense = read_json(data_path("kimi-cases.json"))["dense"];
  Tokenizer tokenizer = load(ranks_of(dense["tokens"].get<std::vector<std::string>>()));
  EXPECT_EQ(dense["cases"].size(), 200U);
  for (const Json& one : dense["cases"]) {
    auto text = one["text"].get<std::string>();
    EXPECT_EQ(plain(tokenizer, text), one["ids"].get<std::vector<int32_t>>()) << text;
  }
}

TEST(Tiktoken, NothingIsNormalised) {
  EXPECT_NE(plain(kimi_tokenizer(), "e\u0301"), plain(kimi_tokenizer(), "é"));
  EXPECT_EQ(kimi_tokenizer().decode(plain(kimi_tokenizer(), "e\u0301"), false), "e\u0301");
}

TEST(Tiktoken, TextThatIsNotUtf8IsRefused) {
  for (const char* text : {"\xff", "ab\xe5\x9b", "\xed\xa0\x80"}) {
    EXPECT_THROW(plain(kimi_tokenizer(), text), Error);
  }
  EXPECT_TRUE(plain(kimi_tokenizer(), "").empty());
}

TEST(Tiktoken, TwoHundredAndFiftySixControlTokensFollowTheRanks) {
  const char* config = R"({"added_tokens_decoder":{"256":{"content":"[BOS]","special":true},
      "259":{"content":"<|open|>","special":false},"260":{"content":"<|close|>"}}})";
  Tokenizer tokenizer = load(ranks_of(), config, 600);
  EXPECT_EQ(tokenizer.size(), 512);
  EXPECT_EQ(tokenizer.rows(), 600);
  EXPECT_EQ(tokenizer.find_added("[BOS]"), 256);
  EXPECT_EQ(tokenizer.find_added("<|reserved_token_257|>"), 257);
  EXPECT_EQ(tokenizer.find_added("<|reserved_token_511|>"), 511);
  EXPECT_EQ(tokenizer.find_added("<|reserved_token_259|>"), std::nullopt);
  EXPECT_EQ(tokenizer.encode("a<|open|>b<|reserved_token_257|>", Specials::recognised),
            (std::vector<int32_t>{'a', 259, 'b', 257}));
  EXPECT_EQ(plain(tokenizer, "<|open|>").size(), 8U);
}

TEST(Tiktoken, EveryIdDecodesWithItsFlag) {
  const Tokenizer& tokenizer = kimi_tokenizer();
  for (int32_t id = 0; id < tokenizer.rows(); ++id) {
    EXPECT_FALSE(tokenizer.token_bytes(id).empty()) << id;
    EXPECT_EQ(tokenizer.decode({&id, 1}, true).empty(), tokenizer.is_special(id)) << id;
  }
  for (const char* visible : {"<|open|>", "<|close|>", "<|sep|>"}) {
    EXPECT_FALSE(tokenizer.is_special(tokenizer.find_added(visible).value())) << visible;
  }
  // A slot without a name has its filler's, and is left out with the special ones.
  std::string filler = "<|reserved_token_" + std::to_string(tokenizer.size() - 3) + "|>";
  std::vector<int32_t> ids = {tokenizer.find_added(filler).value()};
  EXPECT_EQ(tokenizer.decode(ids, false), filler);
  EXPECT_EQ(tokenizer.decode(ids, true), "");
  for (int32_t outside : {-1, tokenizer.rows()}) EXPECT_THROW(tokenizer.decode({&outside, 1}, false), Error);
}

TEST(Tiktoken, RowsBeyondTheVocabularyArePadding) {
  int32_t padding = 599;
  EXPECT_EQ(load(ranks_of(), "{}", 600).decode({&padding, 1}, false), "");
}

TEST(Tiktoken, DamagedLinesAreNamed) {
  std::string good = ranks_of();
  const std::tuple<std::string, const char*, const char*> cases[] = {
      {"", "model/tiktoken.model:", "no line"},
      {"IQ==\n", "model/tiktoken.model:1:", "a blank"},
      {good + "Y!I= 256\n", "model/tiktoken.model:257:", "a token in base64"},
      {good + "YWI 256\n", "model/tiktoken.model:257:", "a token in base64"},
      {good + "YW=I 256\n", "model/tiktoken.model:257:", "a token in base64"},
      {good + " 256\n", "model/tiktoken.model:257:", "a token in base64"},
      {good + "YWI= many\n", "model/tiktoken.model:257:", "a rank"},
      {good + "YWI= 256 1\n", "model/tiktoken.model:257:", "a rank"},
      {good + "YWI= -1\n", "model/tiktoken.model:257:", "a rank"},
      {good + "YWI= 99999999999999999999\n", "model/tiktoken.model:257:", "a rank"},
      {good + "YWI= 257\n", "model/tiktoken.model:257:", "a rank from 0 to 256"},
      {good + "YWI= 255\n", "model/tiktoken.model:257:", "as in line 256"},
      {good + "YQ== 256\n", "model/tiktoken.model:257:", "a token that is new"},
      {good.substr(good.find('\n') + 1), "model/tiktoken.model:255:", "a rank from 0 to 254"},
      {good + base64(std::string(1025, 'x')) + " 256\n", "model/tiktoken.model:257:", "at most 1024 bytes"},
      {good + std::string("\xff\xfe\0 x", 5) + "\n", "model/tiktoken.model:257:", "a token in base64"},
  };
  for (const auto& [ranks, where, what] : cases) {
    std::string found = cause(ranks);
    EXPECT_TRUE(found.starts_with(where)) << found;
    EXPECT_NE(found.find(what), std::string::npos) << found;
  }
}

TEST(Tiktoken, MissingByteIsNamed) {
  std::string ranks;
  for (int byte = 0; byte < 255; ++byte) {
    ranks +=
        base64(std::string(1, static_cast<char>(byte < 'q' ? byte : byte + 1))) + " " + std::to_string(byte) + "\n";
  }
  EXPECT_NE(cause(ranks).find("a token for byte 0x71"), std::string::npos) << cause(ranks);
}

TEST(Tiktoken, LinesMayEndInAnyWayAndComeInAnyOrder) {
  std::string ranks = ranks_of({"ab"});
  std::string carriages;
  for (char c : ranks) carriages += c == '\n' ? "\r\n" : std::string(1, c);
  std::string moved = ranks.substr(ranks.find('\n') + 1) + "\n" + ranks.substr(0, ranks.find('\n'));
  for (const std::string& text : {carriages, moved, ranks.substr(0, ranks.size() - 1)}) {
    EXPECT_EQ(plain(load(text), "ab"), (std::vector<int32_t>{256}));
  }
}

TEST(Tiktoken, WrongFieldsOfTheConfigurationAreNamed) {
  const std::string path = "model/tokenizer_config.json: added_tokens_decoder";
  const std::pair<const char*, std::string> cases[] = {
      {"", "model/tokenizer_config.json:"},
      {"[]", "model/tokenizer_config.json:"},
      {R"({"added_tokens_decoder":[]})", path + ":"},
      {R"({"added_tokens_decoder":{"x":{}}})", path + ".x:"},
      {R"({"added_tokens_decoder":{"255":{"content":"a"}}})", path + ".255:"},
      {R"({"added_tokens_decoder":{"512":{"content":"a"}}})", path + ".512:"},
      {R"({"added_tokens_decoder":{"256":"a"}})", path + ".256:"},
      {R"({"added_tokens_decoder":{"256":{}}})", path + ".256.content:"},
      {R"({"added_tokens_decoder":{"256":{"content":""}}})", path + ".256.content:"},
      {R"({"added_tokens_decoder":{"256":{"content":"a","lstrip":true}}})", path + ".256.lstrip:"},
      {R"({"added_tokens_decoder":{"256":{"content":"a","special":1}}})", path + ".256.special:"},
      {R"({"added_tokens_decoder":{"256":{"content":"a"},"257":{"content":"a"}}})", path + ".257.content:"},
      {R"({"added_tokens_decoder":{"256":{"content":"<|reserved_token_258|>"}}})", path + ".258.content:"},
  };
  for (const auto& [config, where] : cases) {
    std::string found = cause(ranks_of(), config);
    EXPECT_TRUE(found.starts_with(where)) << config << ": " << found;
  }
  EXPECT_EQ(load(ranks_of(), R"({"added_tokens_decoder":null})").size(), 512);
}

TEST(Tiktoken, FlippedBytesNeverCrash) {
  std::string text = ranks_of({"ab", "abc", "\xe5\x9b\xbd"});
  std::mt19937 random(1);
  for (int round = 0; round < 1000; ++round) {
    std::string damaged = text.substr(0, round % 3 == 0 ? random() % text.size() : text.size());
    if (!damaged.empty()) damaged[random() % damaged.size()] = static_cast<char>(random() % 256);
    try {
      load(damaged);
    } catch (const Error& error) {
      EXPECT_FALSE(error.cause().empty());
    }
  }
}

TEST(Tiktoken, DirectoryTellsWhichKindOfFileItHas) {
  auto kimi = Tokenizer::from_directory(data_path("kimi"));
  ASSERT_TRUE(kimi.has_value());
  EXPECT_EQ(kimi->find_added("<|open|>"), kimi_tokenizer().find_added("<|open|>"));
  EXPECT_FALSE(Tokenizer::from_directory(data_path(".")).has_value());
  EXPECT_THROW(Tokenizer::from_tiktoken(data_path("absent/tiktoken.model")), Error);
}

}  // namespace
}  // namespace megalith
