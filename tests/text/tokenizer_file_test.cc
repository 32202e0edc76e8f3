// Damaged and unknown tokenizer.json files: one Error that names the field, never a crash.

#include <random>

#include <fmt/format.h>

#include "test_data.h"

namespace megalith {
namespace {

using Json = nlohmann::ordered_json;

// All bytes, one merge, one added token.
Json tiny_file() {
  Json file = {{"version", "1.0"},
               {"added_tokens",
                {{{"id", 257},
                  {"content", "<x>"},
                  {"single_word", false},
                  {"lstrip", false},
                  {"rstrip", false},
                  {"normalized", false},
                  {"special", true}}}},
               {"normalizer", {{"type", "NFC"}}},
               {"pre_tokenizer",
                {{"type", "Sequence"},
                 {"pretokenizers",
                  {{{"type", "Split"}, {"pattern", {{"Regex", "\\p{L}+|\\s+"}}}, {"behavior", "Isolated"}},
                   {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}}}}}},
               {"post_processor", nullptr},
               {"decoder", {{"type", "ByteLevel"}}},
               {"model", {{"type", "BPE"}, {"vocab", Json::object()}, {"merges", {"a b"}}}}};
  Json& vocabulary = file["model"]["vocab"];
  int other = 0x100;
  for (int byte = 0; byte < 256; ++byte) {
    bool printable = (byte > 0x20 && byte < 0x7f) || (byte > 0xa0 && byte != 0xad);
    int code = printable ? byte : other++;
    std::string text;
    if (code < 0x80) {
      text = static_cast<char>(code);
    } else {
      text = {static_cast<char>(0xc0 | code >> 6), static_cast<char>(0x80 | (code & 0x3f))};
    }
    vocabulary[text] = byte;
  }
  vocabulary["ab"] = 256;
  return file;
}

Tokenizer load(const Json& file) {
  return Tokenizer::from_json(file.dump(), "tokenizer.json");
}

TEST(TokenizerFile, TinyOneLoads) {
  Tokenizer tokenizer = load(tiny_file());
  EXPECT_EQ(tokenizer.encode("ab<x>b", Specials::recognised), (std::vector<int32_t>{256, 257, 'b'}));
  EXPECT_EQ(tokenizer.size(), 258);
}

struct Damage {
  const char* at;     // JSON pointer
  const char* value;  // JSON; "" removes the field
  const char* named;  // what the Error must name
};

TEST(TokenizerFile, DamageIsNamedByItsField) {
  const Damage damages[] = {
      {"/model", "", "model"},
      {"/model", "5", "model"},
      {"/model/type", "\"Unigram\"", "model.type"},
      {"/model/vocab", "", "model.vocab"},
      {"/model/vocab", "[1]", "model.vocab"},
      {"/model/vocab", "7", "model.vocab"},
      {"/model/vocab", "{}", "model.vocab"},
      {"/model/vocab/a", "\"97\"", "model.vocab[\"a\"]"},
      {"/model/vocab/a", "1.5", "model.vocab[\"a\"]"},
      {"/model/vocab/a", "-1", "model.vocab[\"a\"]"},
      {"/model/vocab/a", "98", "model.vocab"},
      {"/model/vocab/a", "4000000000", "model.vocab[\"a\"]"},
      {"/model/vocab/a", "99999999999999999999", "model.vocab[\"a\"]"},
      {"/model/vocab/a", "18446744073709551615", "model.vocab[\"a\"]"},
      {"/model/vocab/a", "", "model."},
      {"/model/vocab/a", "[1]", "model.vocab[\"a\"]"},
      {"/model/vocab/a", "{}", "model.vocab[\"a\"]"},
      {"/model/merges", "", "model.merges"},
      {"/model/merges", "{}", "model.merges"},
      {"/model/merges/0", "\"a zz\"", "model.merges[0]"},
      {"/model/merges/0", "\"a c\"", "model.merges[0]"},
      {"/model/merges/0", "\"ab\"", "model.merges[0]"},
      {"/model/merges/0", "\"a b c\"", "model.merges[0]"},
      {"/model/merges/0", "[\"a\"]", "model.merges[0]"},
      {"/model/merges/0", "[\"a\", 1]", "model.merges[0]"},
      {"/model/merges/0", "[[\"a\"], \"b\"]", "model.merges[0]"},
      {"/model/merges/0", "null", "model.merges[0]"},
      {"/model/dropout", "0.1", "model.dropout"},
      {"/model/unk_token", "\"<unk>\"", "model.unk_token"},
      {"/model/byte_fallback", "true", "model.byte_fallback"},
      {"/model/continuing_subword_prefix", "\"##\"", "model.continuing_subword_prefix"},
      {"/model/end_of_word_suffix", "\"</w>\"", "model.end_of_word_suffix"},
      {"/model/ignore_merges", "1", "model.ignore_merges"},
      {"/normalizer", "3", "normalizer"},
      {"/normalizer/type", "\"Lowercase\"", "normalizer.type"},
      {"/normalizer/type", "", "normalizer.type"},
      {"/pre_tokenizer", "", "pre_tokenizer"},
      {"/pre_tokenizer", "null", "pre_tokenizer"},
      {"/pre_tokenizer/pretokenizers", "", "pre_tokenizer.pretokenizers"},
      {"/pre_tokenizer/pretokenizers", "[]", "pre_tokenizer"},
      {"/pre_tokenizer/pretokenizers/0/type", "\"Metaspace\"", "pre_tokenizer.pretokenizers[0].type"},
      {"/pre_tokenizer/pretokenizers/0/behavior", "\"Removed\"", "pre_tokenizer.pretokenizers[0].behavior"},
      {"/pre_tokenizer/pretokenizers/0/pattern", "{\"String\": \"a\"}", "pre_tokenizer.pretokenizers[0].pattern"},
      {"/pre_tokenizer/pretokenizers/0/pattern/Regex", "\"(a\"", "pre_tokenizer.pretokenizers[0].pattern.Regex"},
      {"/pre_tokenizer/pretokenizers/0/pattern/Regex", "\"[\\\\S]\"", "pre_tokenizer.pretokenizers[0].pattern.Regex"},
      {"/pre_tokenizer/pretokenizers/1/add_prefix_space", "true", "pre_tokenizer.pretokenizers[1].add_prefix_space"},
      {"/post_processor", "{\"type\": \"TemplateProcessing\"}", "post_processor.type"},
      {"/decoder", "null", "decoder"},
      {"/decoder", "{\"type\": \"WordPiece\"}", "decoder.type"},
      {"/added_tokens", "{}", "added_tokens"},
      {"/added_tokens/0", "1", "added_tokens[0]"},
      {"/added_tokens/0/id", "\"1\"", "added_tokens[0].id"},
      {"/added_tokens/0/id", "97", "model.vocab"},
      {"/added_tokens/0/id", "-5", "added_tokens[0].id"},
      {"/added_tokens/0/id", "1000000000", "added_tokens[0].id"},
      {"/added_tokens/0/content", "\"\"", "added_tokens[0].content"},
      {"/added_tokens/0/content", "", "added_tokens[0].content"},
      {"/added_tokens/0/lstrip", "true", "added_tokens[0].lstrip"},
      {"/added_tokens/0/rstrip", "true", "added_tokens[0].rstrip"},
      {"/added_tokens/0/single_word", "true", "added_tokens[0].single_word"},
      {"/added_tokens/0/normalized", "true", "added_tokens[0].normalized"},
      {"/added_tokens/0/special", "\"yes\"", "added_tokens[0].special"},
  };
  for (const Damage& damage : damages) {
    Json file = tiny_file();
    Json::json_pointer at(damage.at);
    if (*damage.value != 0) {
      file[at] = Json::parse(damage.value);
    } else {
      file[at.parent_pointer()].erase(at.back());
    }
    std::string cause = cause_of([&] { load(file); });
    EXPECT_TRUE(cause.starts_with(std::string("tokenizer.json: ") + damage.named))
        << damage.at << " = " << damage.value << ": " << cause;
  }
}

TEST(TokenizerFile, TextThatIsNotItsJsonIsRefused) {
  for (const char* text :
       {"", "{", "[]", "null", "{\"model\": {\"vocab\": {\"a\": 1", "\xff\xfe", "{\"a\": \"\xff\"}"}) {
    EXPECT_THROW(Tokenizer::from_json(text, "tokenizer.json"), Error) << text;
  }
  std::string deep(100'000, '[');
  EXPECT_THROW(Tokenizer::from_json(deep, "tokenizer.json"), Error);
  EXPECT_THROW(Tokenizer::from_file(data_path("absent.json")), Error);
}

TEST(TokenizerFile, CutOrFlippedBytesNeverCrash) {
  std::string text = tiny_file().dump();
  for (size_t end = 0; end < text.size(); end += 37) {
    EXPECT_THROW(Tokenizer::from_json(text.substr(0, end), "tokenizer.json"), Error);
  }
  std::mt19937 random(1);
  for (int round = 0; round < 2000; ++round) {
    std::string damaged = text;
    damaged[random() % damaged.size()] = static_cast<char>(random() % 256);
    try {
      Tokenizer::from_json(damaged, "tokenizer.json");
    } catch (const Error& error) {
      EXPECT_FALSE(error.cause().empty());
    }
  }
}

TEST(TokenizerFile, ReservedIdsDecodeToTheirNameOrToNothing) {
  Json file = tiny_file();
  file["added_tokens"].push_back({{"id", 300}, {"content", "<|reserved_300|>"}, {"special", true}});
  file["added_tokens"].push_back({{"id", 301}, {"content", "<|reserved_301|>"}, {"special", false}});
  Tokenizer tokenizer = load(file);
  EXPECT_EQ(tokenizer.size(), 302);
  for (int32_t gap = 258; gap < 300; ++gap) {
    EXPECT_EQ(tokenizer.decode({&gap, 1}, false), "");
    EXPECT_EQ(tokenizer.decode({&gap, 1}, true), "");
    EXPECT_FALSE(tokenizer.is_special(gap));
  }
  std::vector<int32_t> reserved = {300, 301};
  EXPECT_EQ(tokenizer.decode(reserved, false), "<|reserved_300|><|reserved_301|>");
  EXPECT_EQ(tokenizer.decode(reserved, true), "<|reserved_301|>");
  for (int32_t outside : {-1, 302}) EXPECT_THROW(tokenizer.decode({&outside, 1}, false), Error);
}

TEST(TokenizerFile, ByteLevelWithItsRegexSplitsAsGpt2) {
  Json file = tiny_file();
  file["pre_tokenizer"] = {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", true}};
  file["model"]["merges"] = {"a b", "\u0120 a"};
  file["model"]["vocab"]["\u0120a"] = 258;
  EXPECT_EQ(load(file).encode(" ab  a", Specials::recognised), (std::vector<int32_t>{' ', 256, ' ', 258}));
}

TEST(TokenizerFile, MergesMayMakeTheirTokensInAnyOrder) {
  Json file = tiny_file();
  file["model"]["vocab"]["aa"] = 260;
  file["model"]["vocab"]["abaa"] = 258;
  file["model"]["merges"] = {"a a", "a b", "ab aa"};
  EXPECT_EQ(load(file).encode("ab aa abaa", Specials::recognised), (std::vector<int32_t>{256, ' ', 260, ' ', 258}));
}

TEST(TokenizerFile, MergeMakesNoAddedTokenOfTheSameText) {
  Json file = tiny_file();
  file["added_tokens"][0]["content"] = "aa";
  file["model"]["vocab"]["aa"] = 258;
  file["model"]["merges"] = {"a b", "a a"};
  EXPECT_EQ(load(file).encode("aa", Specials::plain_text), (std::vector<int32_t>{258}));
}

TEST(TokenizerFile, EscapedTextsReadAsTheirCharacters) {
  std::string text = tiny_file().dump();
  for (auto [plain, escaped] : {std::pair("\"a b\"", "[\"\\u0061\", \"\\u0062\"]"), {"\"ab\"", "\"\\u0061b\""}}) {
    text.replace(text.find(plain), std::string_view(plain).size(), escaped);
  }
  EXPECT_EQ(Tokenizer::from_json(text, "tokenizer.json").encode("ab", Specials::recognised),
            (std::vector<int32_t>{256}));
}

TEST(TokenizerFile, EscapedKeysAndOtherFieldsReadAsTheirCharacters) {
  std::string text = tiny_file().dump();
  for (auto [plain, escaped] : {std::pair("\"vocab\"", "\"voc\\u0061b\""), {"\"<x>\"", "\"\\u003cx\\u003E\""}}) {
    text.replace(text.find(plain), std::string_view(plain).size(), escaped);
  }
  EXPECT_EQ(Tokenizer::from_json(text, "tokenizer.json").encode("ab<x>", Specials::recognised),
            (std::vector<int32_t>{256, 257}));
}

TEST(TokenizerFile, ByteOrderMarkAndBlanksAroundAreSkipped) {
  std::string text = "\xef\xbb\xbf \n" + tiny_file().dump(2) + "\r\n\t ";
  EXPECT_EQ(Tokenizer::from_json(text, "tokenizer.json").size(), 258);
}

TEST(TokenizerFile, FaultOfJsonIsNamedByItsByte) {
  std::string text = tiny_file().dump();
  for (const char* after : {"}", "{}", "x", "1"}) {
    std::string cause = cause_of([&] { Tokenizer::from_json(text + after, "tokenizer.json"); });
    EXPECT_NE(cause.find(fmt::format("an error at byte {} ", text.size() + 1)), std::string::npos) << cause;
  }
  text.insert(text.find("\"ab\""), "\"\\udc00\": 1, ");
  std::string cause = cause_of([&] { Tokenizer::from_json(text, "tokenizer.json"); });
  EXPECT_NE(cause.find("expected JSON, found an error at byte"), std::string::npos) << cause;
}

TEST(TokenizerFile, IgnoreMergesTakesWholePieces) {
  Json file = tiny_file();
  file["model"]["vocab"]["abc"] = 258;
  file["model"]["ignore_merges"] = true;
  EXPECT_EQ(load(file).encode("abc", Specials::recognised), (std::vector<int32_t>{258}));
  file["model"]["ignore_merges"] = false;
  EXPECT_EQ(load(file).encode("abc", Specials::recognised), (std::vector<int32_t>{256, 'c'}));
}

TEST(TokenizerFile, AddedTokenListedInTheVocabularyIsNotReachedByPlainText) {
  Json file = tiny_file();
  file["model"]["vocab"]["<x>"] = 257;
  file["model"]["ignore_merges"] = true;
  file["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = ".+";
  EXPECT_EQ(load(file).encode("<x>", Specials::plain_text), (std::vector<int32_t>{'<', 'x', '>'}));
  EXPECT_EQ(load(file).encode("<x>", Specials::recognised), (std::vector<int32_t>{257}));
}

}  // namespace
}  // namespace megalith
