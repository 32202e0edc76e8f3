// Answers whose texts are written while their request's own thread is still at work, and whose clients go meanwhile.

#include "server/chat.h"
#include "server/completions.h"
#include "tests/server/scripted.h"

namespace megalith {
namespace {

// Every third client goes.
void run_rounds(const std::vector<Script>& scripts, const RequestDefaults& defaults,
                const std::function<void(const std::shared_ptr<Exchange>&, const Service&)>& answer,
                const std::function<void(const std::vector<Json>&)>& expect) {
  for (int round = 0; round < 60; ++round) {
    ScriptedService scripted(tiny_qwen(), scripts);
    scripted.service.defaults = defaults;
    scripted.generator.own_thread = true;
    auto exchange = std::make_shared<RecordingExchange>();
    const std::weak_ptr<RecordingExchange> weak = exchange;
    answer(exchange, scripted.service);
    if (round % 3 == 0) exchange->leave();
    scripted.generator.join();
    if (round % 3 != 0) expect(exchange->events());
    exchange.reset();
    EXPECT_TRUE(weak.expired());
  }
}

TEST(AnswerThreads, ACompletionsEngineMayBeFasterThanItsRequest) {
  CompletionRequest request;
  request.prompts = {{1, 2}, {3}};
  request.common.stream = true;
  const auto a = ids_of(tiny_qwen(), "a b c d e f g"), b = ids_of(tiny_qwen(), "h i j k");
  run_rounds(
      {{.tokens = a}, {.tokens = b}}, {},
      [&](const auto& exchange, const Service& service) { answer_completion(exchange, request, service); },
      [](const std::vector<Json>& events) {
        EXPECT_EQ(joined_choice(events, 0)["text"], "a b c d e f g");
        EXPECT_EQ(joined_choice(events, 1)["text"], "h i j k");
      });
}

TEST(AnswerThreads, RolesThatAreSentEarlyStillComeFirst) {
  ChatCompletionRequest request;
  request.chat.messages = {{.role = Role::user, .content = "hi"}};
  request.chat.enable_thinking = false;
  request.prompt = {1, 2, 3};
  request.common.stream = true;
  request.common.continuous_usage_stats = true;
  request.common.n = 2;
  const auto a = ids_of(tiny_qwen(), "a b c d e f g");
  run_rounds(
      {{.tokens = a}, {.tokens = a}}, {.early_role_chunk = true},
      [&](const auto& exchange, const Service& service) { answer_chat(exchange, request, service); },
      [](const std::vector<Json>& events) {
        for (const size_t i : {0, 1}) EXPECT_EQ(events.at(i)["choices"][0]["delta"], (Json{{"role", "assistant"}}));
        for (const int i : {0, 1}) EXPECT_EQ(joined_choice(events, i)["message"]["content"], "a b c d e f g");
      });
}

TEST(AnswerThreads, AFailureReachesTheClientOnce) {
  for (int round = 0; round < 60; ++round) {
    ScriptedService scripted(tiny_qwen(), {{.tokens = {1, 2}, .error = "no", .fails_after = round % 2 == 0 ? 0u : 1u},
                                           {.tokens = {1, 2, 3, 4}}});
    scripted.generator.own_thread = true;
    auto exchange = std::make_shared<RecordingExchange>();
    CompletionRequest request;
    request.prompts = {{1}};
    request.common.n = 2;
    request.common.stream = true;
    answer_completion(exchange, request, scripted.service);
    scripted.generator.join();
    const Json error = exchange->begun ? exchange->events().back() : exchange->body();
    EXPECT_EQ(error["error"]["message"], "no");
  }
}

}  // namespace
}  // namespace megalith
