#include <filesystem>

#include <gtest/gtest.h>

#include "engine/engine.h"
#include "engine/loaded_model.h"
#include "tests/support/golden.h"

namespace megalith {
namespace {

std::filesystem::path tiny_qwen() {
  return std::filesystem::path(MEGALITH_SOURCE_DIR) / "models/tiny-qwen";
}

LoadedModel load(int ranks) {
  LoadOptions options;
  options.ranks = ranks;
  options.quiet = true;
  options.machine = {.threads = 2, .max_rows = 64, .max_sequences = 3, .context = 512};
  return load_model(tiny_qwen(), options);
}

TEST(TinyQwen, TokensAndGreedyTextEqualTransformersForAllRanks) {
  const auto cases = read_json(test_data("tiny-qwen.json"));
  for (const int ranks : {1, 2, 4, 8}) {
    const LoadedModel loaded = load(ranks);
    Engine engine(*loaded.machine, loaded.model->vocabulary(), 64);
    std::vector<Engine::Id> ids;
    for (const auto& one : cases) {
      const auto prompt = one["prompt_ids"].get<std::vector<int32_t>>();
      EXPECT_EQ(loaded.text.tokenizer->encode(one["prompt"].get<std::string>(), Specials::recognised), prompt);
      const auto budget = static_cast<int64_t>(one["greedy_ids"].size());
      ids.push_back(engine.add({.prompt = prompt, .max_tokens = budget, .sampling = {}, .end_tokens = {}}));
    }
    engine.run();
    for (size_t i = 0; i < ids.size(); ++i) {
      EXPECT_EQ(engine.generation(ids[i]).tokens, cases[i]["greedy_ids"].get<std::vector<int32_t>>())
          << ranks << " ranks";
    }
  }
}

// What `make demo` shows: a question, thought through and answered in a sentence.
TEST(TinyQwen, AnswersTheQuestionOfTheDemo) {
  const LoadedModel loaded = load(1);
  ChatRequest request;
  request.messages.push_back({.role = Role::user,
                              .content =
                                  "Mia has 48 marbles. She gives 15 marbles to Tom and then finds 7 more. How many "
                                  "marbles does Mia have now?"});
  const Tokenizer& tokenizer = loaded.text.require_tokenizer();
  const ChatFormat& format = loaded.text.require_format();
  Engine engine(*loaded.machine, loaded.model->vocabulary(), 64);
  const auto id = engine.add({.prompt = tokenizer.encode(format.render(request)),
                              .max_tokens = 256,
                              .sampling = {},
                              .end_tokens = loaded.end_tokens});
  engine.run();
  EXPECT_EQ(engine.generation(id).finish, Finish::end_token);
  const MessageOutput message =
      parse_output(*format.parser(tokenizer, request), engine.generation(id).tokens, FinishReason::stop);
  EXPECT_EQ(message.content, "Mia has 40 marbles now.");
  EXPECT_TRUE(message.reasoning_content.has_value());
}

}  // namespace
}  // namespace megalith
