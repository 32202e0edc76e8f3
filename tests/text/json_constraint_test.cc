#include "text/json_constraint.h"

#include <chrono>

#include <fmt/format.h>

#include "json_documents.h"
#include "kimi_data.h"
#include "large_vocabulary.h"
#include "linear_time.h"
#include "text/json_masks.h"
#include "text/json_schema.h"
#include "text/request_json.h"
#include "text/token_trie.h"

namespace megalith {
namespace {

const Tokenizer& qwen_tokenizer() {
  static const Tokenizer tokenizer = *Tokenizer::from_directory(MEGALITH_SOURCE_DIR "/models/tiny-qwen");
  return tokenizer;
}

int32_t end_of(const Tokenizer& tokenizer) {
  auto end = tokenizer.find_added("<|im_end|>");
  return end ? *end : *tokenizer.find_added("<|end_of_msg|>");
}

JsonConstraint constraint_of(const Json& schema, const Tokenizer& tokenizer) {
  const int32_t end = end_of(tokenizer);
  return JsonConstraint(schema_grammar(schema, false, "schema"), tokenizer, {&end, 1});
}

// The ids of a text cut anywhere.
std::vector<int32_t> any_ids(const Tokenizer& tokenizer, std::string_view text, std::mt19937& random) {
  const TokenTrie& trie = tokenizer.trie();
  std::vector<int32_t> ids;
  while (!text.empty()) {
    std::vector<std::pair<int32_t, size_t>> fitting;
    uint32_t node = 0;
    for (size_t n = 0; n < text.size(); ++n) {
      uint32_t child = node + 1;
      while (child < trie.end(node) && trie.byte(child) != static_cast<uint8_t>(text[n])) child = trie.end(child);
      if (child >= trie.end(node)) break;
      node = child;
      for (int32_t id : trie.tokens(node)) fitting.emplace_back(id, n + 1);
    }
    auto [id, n] = fitting.at(random() % fitting.size());
    ids.push_back(id);
    text.remove_prefix(n);
  }
  return ids;
}

std::vector<int32_t> ids_in(const TokenSet& set, const Tokenizer& tokenizer) {
  std::vector<int32_t> ids;
  for (int32_t id = 0; id < tokenizer.rows(); ++id) {
    if (set.has(id)) ids.push_back(id);
  }
  return ids;
}

TEST(TokenTrie, HasEveryTokenButTheAddedOnes) {
  for (const Tokenizer* tokenizer : {&qwen_tokenizer(), &kimi_tokenizer()}) {
    const TokenTrie& trie = tokenizer->trie();
    std::set<int32_t> found;
    std::vector<std::pair<uint32_t, std::string>> path = {{trie.end(0), ""}};
    for (uint32_t node = 1; node < trie.end(0); ++node) {
      while (path.back().first <= node) path.pop_back();
      path.emplace_back(trie.end(node), path.back().second + static_cast<char>(trie.byte(node)));
      for (int32_t id : trie.tokens(node)) {
        ASSERT_EQ(tokenizer->token_bytes(id), path.back().second);
        ASSERT_TRUE(found.insert(id).second);
      }
    }
    for (int32_t id = 0; id < tokenizer->rows(); ++id) {
      const auto bytes = tokenizer->token_bytes(id);
      const bool expected = !bytes.empty() && tokenizer->find_added(bytes) != id;
      ASSERT_EQ(found.contains(id), expected) << id;
      ASSERT_EQ(trie.has_token(id), expected) << id;
    }
    EXPECT_FALSE(trie.has_token(-1));
    EXPECT_FALSE(trie.has_token(tokenizer->rows()));
  }
}

TEST(JsonConstraint, TheSetHasExactlyTheTokensThatMayBeTaken) {
  std::mt19937 random(3);
  for (int round = 0; round < 60; ++round) {
    const Tokenizer& tokenizer = round % 2 == 0 ? small_tokenizer() : kimi_tokenizer();
    const Json schema = SchemaWriter(random).write();
    JsonConstraint constraint = constraint_of(schema, tokenizer);
    const std::string text = DocumentWriter(schema, random).write();
    const auto ids = any_ids(tokenizer, text, random);
    size_t at = 0;
    for (;; ++at) {
      if (ids.size() < 12 || random() % 4 == 0 || at == ids.size()) {
        const auto set = constraint.allowed();
        ASSERT_NE(set, nullptr);
        for (int32_t id = 0; id < tokenizer.rows(); ++id) {
          ASSERT_EQ(set->has(id), JsonConstraint(constraint).take(id)) << schema << "\n"
                                                                       << text << "\n"
                                                                       << at << " " << tokenizer.token_bytes(id);
        }
      }
      if (at == ids.size()) break;
      ASSERT_TRUE(constraint.take(ids[at])) << schema << "\n" << text;
    }
    EXPECT_TRUE(constraint.complete());
    EXPECT_TRUE(constraint.take(end_of(tokenizer)));
    EXPECT_EQ(constraint.allowed(), nullptr);
  }
}

TEST(JsonConstraint, DocumentsAreTakenInAnyTokens) {
  std::mt19937 random(4);
  for (int round = 0; round < 500; ++round) {
    const Tokenizer& tokenizer = round % 2 == 0 ? qwen_tokenizer() : kimi_tokenizer();
    const Json schema = SchemaWriter(random).write();
    const std::string text = DocumentWriter(schema, random).write();
    for (const auto& ids : {tokenizer.encode(text, Specials::plain_text), any_ids(tokenizer, text, random)}) {
      JsonConstraint constraint = constraint_of(schema, tokenizer);
      for (int32_t id : ids) ASSERT_TRUE(constraint.take(id)) << schema << "\n" << text;
      ASSERT_TRUE(constraint.take(end_of(tokenizer)));
    }
  }
}

// A token that leads to the end, where there is one of these: in a string the quote, else a bracket.
int32_t nearest_to_the_end(const std::vector<int32_t>& ids, const Tokenizer& tokenizer, int32_t other) {
  auto find = [&](std::string_view bytes) {
    return std::find_if(ids.begin(), ids.end(), [&](int32_t id) { return tokenizer.token_bytes(id) == bytes; });
  };
  const bool in_string = find("~") != ids.end();
  for (const char* bytes : {"}", "]", "null", "n", ":", ",", "\""}) {
    if (in_string && std::string_view(bytes) != "\"") continue;
    if (auto found = find(bytes); found != ids.end()) return *found;
  }
  if (std::isspace(static_cast<unsigned char>(tokenizer.token_bytes(other)[0])) != 0) return ids.back();
  return other;
}

// What a model may write at worst: any token that is allowed, and sooner or later one that ends what is open.
std::string walk(Constraint& constraint, const Tokenizer& tokenizer, std::mt19937& random, size_t patience) {
  const int32_t end = end_of(tokenizer);
  std::string text;
  for (size_t steps = 0;; ++steps) {
    const auto set = constraint.allowed();
    if (!set) return text;
    const auto ids = ids_in(*set, tokenizer);
    EXPECT_FALSE(ids.empty()) << text;
    if (ids.empty() || steps > patience + 20'000) return text + "...";
    int32_t id = ids[random() % ids.size()];
    if (steps > patience || random() % 3 == 0) {
      id = set->has(end) ? end : nearest_to_the_end(ids, tokenizer, id);
    }
    EXPECT_TRUE(constraint.take(id));
    if (id != end) text += tokenizer.token_bytes(id);
  }
}

TEST(JsonConstraint, AnyWalkEndsWithAValidDocument) {
  std::mt19937 random(5);
  for (int round = 0; round < 600; ++round) {
    const Tokenizer& tokenizer = round % 2 == 0 ? qwen_tokenizer() : kimi_tokenizer();
    const Json schema = SchemaWriter(random).write();
    JsonConstraint constraint = constraint_of(schema, tokenizer);
    const std::string text = walk(constraint, tokenizer, random, 200);
    ASSERT_TRUE(is_json(text)) << schema << "\n" << text;
    ASSERT_TRUE(Validator(schema).valid(Json::parse(text))) << schema << "\n" << text;
  }
}

TEST(JsonConstraint, AnyWalkInAnObjectEndsWithAnObject) {
  std::mt19937 random(6);
  for (int round = 0; round < 100; ++round) {
    const int32_t end = end_of(qwen_tokenizer());
    auto constraint = make_json_constraint(qwen_tokenizer(), {ResponseFormat::Kind::json_object}, {&end, 1})->clone();
    const std::string text = walk(*constraint, qwen_tokenizer(), random, 100);
    ASSERT_TRUE(is_json(text)) << text;
    ASSERT_TRUE(Json::parse(text).is_object()) << text;
  }
}

TEST(JsonConstraint, ClonesGoTheirOwnWays) {
  JsonConstraint first = constraint_of({{"type", "object"}}, small_tokenizer());
  ASSERT_TRUE(first.take_text("{\"a\":1"));
  auto second = first.clone();
  ASSERT_TRUE(first.take_text("}"));
  ASSERT_TRUE(first.take(end_of(small_tokenizer())));
  EXPECT_EQ(first.allowed(), nullptr);
  EXPECT_FALSE(second->take(end_of(small_tokenizer())));
  const int32_t digit = small_tokenizer().encode("2", Specials::plain_text).at(0);
  EXPECT_TRUE(second->allowed()->has(digit));
  EXPECT_TRUE(second->take(digit));
}

TEST(JsonConstraint, ARefusedTokenLeavesTheStateAsItWas) {
  JsonConstraint constraint = constraint_of({{"type", "object"}}, small_tokenizer());
  ASSERT_TRUE(constraint.take_text("{"));
  const auto before = ids_in(*constraint.allowed(), small_tokenizer());
  for (int32_t id : {-1, end_of(small_tokenizer()), small_tokenizer().rows(), INT32_MAX,
                     small_tokenizer().encode("]", Specials::plain_text).at(0)}) {
    EXPECT_FALSE(constraint.take(id)) << id;
  }
  EXPECT_EQ(ids_in(*constraint.allowed(), small_tokenizer()), before);
}

TEST(JsonConstraint, WithoutEndTokensAnythingFollowsTheDocument) {
  JsonConstraint constraint(any_object_grammar(), small_tokenizer(), {});
  for (char byte : std::string("{}")) {
    ASSERT_NE(constraint.allowed(), nullptr);
    ASSERT_TRUE(constraint.take(small_tokenizer().encode(std::string(1, byte), Specials::plain_text).at(0)));
  }
  EXPECT_EQ(constraint.allowed(), nullptr);
}

TEST(JsonConstraint, TextHasNone) {
  EXPECT_EQ(make_json_constraint(small_tokenizer(), {}, {}), nullptr);
}

class LargeVocabulary : public testing::Test {
 protected:
  static double milliseconds(const std::function<void()>& run) {
    const double begin = thread_seconds();
    run();
    return (thread_seconds() - begin) * 1e3;
  }
};

// The bounds leave room for a busy machine and for sanitizers; what an idle one takes is printed.
TEST_F(LargeVocabulary, SetsAreFoundInMillisecondsAndKept) {
  const Tokenizer& tokenizer = large_tokenizer();
  std::printf("%d tokens, trie %.0f ms\n", tokenizer.size(), milliseconds([&] { tokenizer.trie(); }));
  const Json schema =
      Json::parse(R"({"type":"object","properties":{"name":{"type":"string"},"short":{"type":"string","maxLength":20},
      "kind":{"anyOf":[{"enum":["a","b"]},{"type":"string"}]},
      "list":{"type":"array","items":{"type":"number"}},"free":{}},
      "required":["name","short","kind","list","free"]})");
  JsonConstraint constraint(schema_grammar(schema, false, "schema"), tokenizer,
                            std::vector<int32_t>{tokenizer.size() - 1});
  double longest = 0;
  for (const char* text : {"",   "{",   "\"",  "name",        "\":",        " \"", "some",
                           "\\", "\"",  "\"",  ",",           "\"short\":", "\"",  "a",
                           "bc", "é",   "\",", "\"kind\":\"", "a",          "x",   "\",\"list\":[",
                           "1",  ",",   "23",  "], \"free\"", ":",          "{\"", "k\":\"",
                           "v",  "\"}", ",",   "\"",          "other",      "\":", "0",
                           "}"}) {
    ASSERT_TRUE(constraint.take_text(text)) << text;
    const double first = milliseconds([&] { ASSERT_NE(constraint.allowed(), nullptr); });
    JsonConstraint again = constraint;
    ASSERT_TRUE(again.take_text(""));
    const double kept = milliseconds([&] { ASSERT_NE(again.allowed(), nullptr); });
    std::printf("%-12s %8.3f ms, kept %6.4f ms\n", text, first, kept);
    longest = std::max(longest, first);
    EXPECT_LT(kept, 1);
  }
  EXPECT_LT(longest, 1000);
  EXPECT_TRUE(constraint.complete());
}

TEST_F(LargeVocabulary, TakingAndCloningTakeMicroseconds) {
  const Tokenizer& tokenizer = large_tokenizer();
  JsonConstraint constraint(any_object_grammar(), tokenizer, {});
  ASSERT_TRUE(constraint.take_text("{\"a\":[{\"b\":\""));
  const int32_t word = tokenizer.encode("word", Specials::plain_text).at(0);
  const double took = milliseconds([&] {
    for (int i = 0; i < 10'000; ++i) {
      auto clone = constraint.clone();
      ASSERT_TRUE(clone->take(word));
    }
  });
  std::printf("%.2f us\n", took / 10);
  EXPECT_LT(took / 10, 500);
}

}  // namespace
}  // namespace megalith
