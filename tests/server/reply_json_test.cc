#include "server/reply_json.h"

#include <cmath>
#include <limits>
#include <set>

#include <gtest/gtest.h>

#include "tests/server/scripted.h"

namespace megalith {
namespace {

TEST(RandomId, HasTwentyFourDigitsAndIsNeverTheSame) {
  std::set<std::string> ids;
  for (int i = 0; i < 1000; ++i) {
    const std::string id = random_id("x-");
    EXPECT_EQ(id.size(), 26u);
    EXPECT_EQ(id.find_first_not_of("0123456789abcdef", 2), std::string::npos);
    ids.insert(id);
  }
  EXPECT_EQ(ids.size(), 1000u);
}

TEST(MetricsJson, CountsWhatBecameOfTheGuesses) {
  Generation g;
  g.tokens = {1, 2, 3, 4, 5};
  g.queue_s = 0.001;
  g.prefill_s = 0.002;
  g.decode_s = 0.008;
  g.steps.guesses = {3, 0, 3, 2};
  g.steps.accepted = {1, 0, 3, 1};
  const Json metrics = metrics_json(g, 3);
  EXPECT_DOUBLE_EQ(metrics["time_to_first_token_ms"].get<double>(), 3);
  EXPECT_DOUBLE_EQ(metrics["mean_itl_ms"].get<double>(), 2);
  EXPECT_DOUBLE_EQ(metrics["tokens_per_second"].get<double>(), 500);
  const Json& guesses = metrics["speculative_decoding"];
  EXPECT_EQ(guesses["acceptance_histogram"], (std::vector<int>{0, 2, 0, 1}));
  EXPECT_EQ(guesses["num_spec_steps"], 3);
  EXPECT_EQ(guesses["num_accepted_draft_tokens"], 5);
  EXPECT_EQ(guesses["num_draft_tokens"], 8);
  EXPECT_EQ(guesses["num_spec_tokens"], 3);
  EXPECT_DOUBLE_EQ(guesses["mean_acceptance_length"].get<double>(), 1 + 5.0 / 3);
  EXPECT_DOUBLE_EQ(guesses["draft_acceptance_rate"].get<double>(), 5.0 / 8);
}

TEST(MetricsJson, NothingGeneratedIsNoDivisionByZero) {
  const Json metrics = metrics_json({}, 7);
  EXPECT_EQ(metrics["time_to_first_token_ms"], nullptr);
  EXPECT_EQ(metrics["tokens_per_second"], nullptr);
  EXPECT_EQ(metrics["speculative_decoding"]["acceptance_histogram"].size(), 8u);
}

TEST(CompletionLogprobs, OfEqualTextsTheLikelierOneCounts) {
  const Tokenizer& tokenizer = *tiny_qwen().text.tokenizer;
  // Two tokens that are each a part of some character.
  std::vector<int32_t> parts;
  for (int32_t id = 0; id < tokenizer.size() && parts.size() < 2; ++id) {
    if (tokenizer.decode({&id, 1}, false) == "\ufffd") parts.push_back(id);
  }
  ASSERT_EQ(parts.size(), 2u);
  Generation g;
  g.tokens = {parts[0]};
  g.logprobs = {{-3, {{parts[1], -0.5f}, {0, -1}}}};
  CompletionLogprobs arrays(tokenizer, 2);
  arrays.add_tokens(g, 0, 1);
  const Json top = arrays.take()["top_logprobs"][0];
  EXPECT_EQ(top["\ufffd"], -0.5);
  EXPECT_EQ(top.size(), 2u);
}

TEST(CompletionLogprobs, NoMoreAlternativesThanAskedForAndTheTokenItself) {
  Generation g;
  g.tokens = {40};
  g.logprobs = {{-3, {{41, -0.5f}, {42, -1}, {43, -2}}}};
  CompletionLogprobs arrays(*tiny_qwen().text.tokenizer, 2);
  arrays.add_tokens(g, 0, 1);
  EXPECT_EQ(arrays.take()["top_logprobs"][0].size(), 3u);
}

TEST(CompletionLogprobs, OffsetsCountCharactersAndGoOnOverCalls) {
  const auto tokens = ids_of(tiny_qwen(), "éa");
  Generation g;
  g.tokens = tokens;
  g.logprobs.resize(tokens.size());
  CompletionLogprobs arrays(*tiny_qwen().text.tokenizer, 1);
  Json offsets = Json::array();
  for (size_t i = 0; i < tokens.size(); ++i) {
    arrays.add_tokens(g, i, i + 1);
    const Json taken = arrays.take();
    for (const auto& offset : taken["text_offset"]) offsets.push_back(offset);
  }
  for (size_t i = 0; i < tokens.size(); ++i) EXPECT_EQ(offsets[i], i);
}

TEST(CompletionLogprobs, InfinityIsANumber) {
  Generation g;
  g.tokens = {40};
  g.logprobs = {{-std::numeric_limits<float>::infinity(), {}}};
  CompletionLogprobs arrays(*tiny_qwen().text.tokenizer, 1);
  arrays.add_tokens(g, 0, 1);
  EXPECT_EQ(arrays.take()["token_logprobs"][0], -9999);
}

// An engine that forgot them must not be answered with wrong arrays.
TEST(CompletionLogprobs, MissingValuesThrow) {
  Generation g;
  g.tokens = {40};
  CompletionLogprobs arrays(*tiny_qwen().text.tokenizer, 1);
  EXPECT_THROW(arrays.add_tokens(g, 0, 1), std::out_of_range);
}

}  // namespace
}  // namespace megalith
