// The models that come with the source: their text is that of independent implementations, and makes sense.

#include "tests/engine/tiny_model.h"
#include "tests/support/sanitized.h"

namespace megalith {
namespace {

TEST(TinyQwen, TokensAndGreedyTextEqualTransformersForAllRanks) {
  for (const int ranks : {1, 2, 4, 8}) {
    if (kSanitized && ranks != 1 && ranks != 8) continue;
    expect_reference_text("tiny-qwen", load_tiny("tiny-qwen", ranks));
  }
  const LoadedModel loaded = load_tiny("tiny-qwen", 1);
  for (const auto& one : read_json(test_data("tiny-qwen.json"))) {
    EXPECT_EQ(loaded.text.tokenizer->encode(one["prompt"].get<std::string>(), Specials::recognised),
              one["prompt_ids"].get<std::vector<int32_t>>());
  }
}

// Tokens beyond the end of an answer are guessed less well, and the recorded texts have some.
TEST(TinyQwen, ItsDraftGivesTheSameTextSeveralTokensAStep) {
  for (const int ranks : {1, 4}) {
    expect_reference_text("tiny-qwen", load_tiny("tiny-qwen", ranks, "tiny-qwen-dflash2"), 4);
  }
}

// What `make demo` shows: a question, thought through and answered in a sentence.
TEST(TinyQwen, AnswersTheQuestionOfTheDemo) {
  const MessageOutput message = ask(load_tiny("tiny-qwen", 1),
                                    "Mia has 48 marbles. She gives 15 marbles to Tom and then finds 7 more. How many "
                                    "marbles does Mia have now?");
  EXPECT_EQ(message.content, "Mia has 40 marbles now.");
  EXPECT_TRUE(message.reasoning_content.has_value());
}

// The continuations are by tools/train's own code in torch (kimi_oracle.py), token by token in f32.
TEST(TinyKimi, GreedyTextEqualsTheTrainingCodeForAllRanks) {
  for (const int ranks : {1, 2, 8}) {
    if (kSanitized && ranks == 2) continue;
    expect_reference_text("tiny-kimi", load_tiny("tiny-kimi", ranks));
  }
}

TEST(TinyKimi, ItsDraftGivesTheSameTextSeveralTokensAStep) {
  for (const int ranks : {1, 4}) {
    expect_reference_text("tiny-kimi", load_tiny("tiny-kimi", ranks, "tiny-kimi-dspark"), 4);
  }
}

TEST(TinyKimi, AnswersAQuestionInItsChatFormat) {
  const MessageOutput message = ask(load_tiny("tiny-kimi", 1),
                                    "Mara has 45 marbles. She buys 27 more. How many marbles does Mara have now?");
  EXPECT_EQ(message.content, "Mara has 72 marbles now.");
  EXPECT_TRUE(message.reasoning_content.has_value());
}

}  // namespace
}  // namespace megalith
