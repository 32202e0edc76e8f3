#include "server/chat.h"

#include <random>

#include <gmock/gmock.h>

#include "tests/server/scripted.h"
#include "text/utf8_stream.h"

namespace megalith {
namespace {

using testing::HasSubstr;

constexpr int32_t kTurnEnd = 1145;  // <|im_end|> of tiny-qwen

const std::string kCall =
    "<tool_call>\n<function=get_weather>\n<parameter=city>\nOslo\n</parameter>\n</function>\n</tool_call>";

ChatCompletionRequest question(bool thinking) {
  ChatCompletionRequest request;
  request.chat.messages = {{.role = Role::user, .content = "hi"}};
  request.chat.enable_thinking = thinking;
  request.prompt = {1, 2, 3, 4};
  return request;
}

Json whole(const Script& script, const ChatCompletionRequest& request, const LoadedModel& model = tiny_qwen()) {
  ScriptedService scripted(model, {script});
  auto exchange = std::make_shared<RecordingExchange>();
  answer_chat(exchange, request, scripted.service);
  scripted.generator.run();
  EXPECT_EQ(exchange->last_reply.status, 200) << exchange->last_reply.body;
  return exchange->body();
}

std::vector<Json> streamed(const Script& script, ChatCompletionRequest request, const LoadedModel& model = tiny_qwen(),
                           RequestDefaults defaults = {}) {
  ScriptedService scripted(model, {script});
  scripted.service.defaults = defaults;
  auto exchange = std::make_shared<RecordingExchange>();
  request.common.stream = true;
  answer_chat(exchange, request, scripted.service);
  scripted.generator.run();
  return exchange->events();
}

// The streamed choice, which must be the whole one.
Json same_in_both(const Script& script, const ChatCompletionRequest& request, const LoadedModel& model = tiny_qwen()) {
  const Json choice = whole(script, request, model)["choices"][0];
  const Json joined = joined_choice(streamed(script, request, model), 0);
  for (const char* key : {"finish_reason", "stop_reason", "token_ids", "prompt_token_ids", "logprobs"}) {
    EXPECT_EQ(choice.value(key, Json()), joined.value(key, Json())) << key;
  }
  for (const char* key : {"role", "reasoning_content", "tool_calls"}) {
    EXPECT_EQ(choice["message"].value(key, Json()), joined["message"].value(key, Json())) << key;
  }
  const Json content = choice["message"]["content"];
  EXPECT_EQ(content.is_null() ? Json("") : content, joined["message"].value("content", Json("")));
  return choice;
}

Script answer(const LoadedModel& model, const std::string& text, bool ends = true) {
  Script script{.tokens = ids_of(model, text)};
  if (!ends) return script;
  script.tokens.push_back(model.text.tokenizer->find_added(model.text.format->end_tokens().at(0)).value());
  script.finish = Finish::end_token;
  return script;
}

Script qwen(const std::string& text, bool ends = true) {
  return answer(tiny_qwen(), text, ends);
}
Script kimi(const std::string& text, bool ends = true) {
  return answer(tiny_kimi(), text, ends);
}

std::vector<Logprobs> made_up_logprobs(size_t n) {
  std::vector<Logprobs> list(n);
  for (size_t i = 0; i < n; ++i) {
    list[i].logprob = -0.25f * static_cast<float>(i % 9);
    for (int32_t j = 0; j < 3; ++j)
      list[i].top.push_back({static_cast<int32_t>(i) % 200 + j, -0.5f * static_cast<float>(j)});
  }
  return list;
}

TEST(Chat, TheReplyHasTheFieldsOfTheInterface) {
  const Json reply = whole(qwen("Hello!"), question(false));
  EXPECT_THAT(reply["id"].get<std::string>(), testing::MatchesRegex("chatcmpl-[0-9a-f]+"));
  EXPECT_EQ(reply["id"].get<std::string>().size(), 9u + 24u);
  EXPECT_EQ(reply["object"], "chat.completion");
  const Json choice = {{"index", 0},
                       {"message", {{"role", "assistant"}, {"content", "Hello!"}}},
                       {"logprobs", nullptr},
                       {"finish_reason", "stop"},
                       {"stop_reason", nullptr}};
  EXPECT_EQ(reply["choices"], Json::array({choice}));
  EXPECT_EQ(reply["usage"]["prompt_tokens"], 4);
  EXPECT_EQ(reply["usage"]["completion_tokens_details"]["reasoning_tokens"], 0);
}

TEST(Chat, TheStreamHasTheOrderOfTheInterface) {
  auto request = question(true);
  request.common.include_usage = true;
  const auto events = streamed(qwen("thought</think>\n\nHello!"), request);
  EXPECT_EQ(events[0]["object"], "chat.completion.chunk");
  EXPECT_EQ(events[0]["choices"][0]["delta"], (Json{{"role", "assistant"}}));
  bool content = false;
  for (size_t i = 1; i + 2 < events.size(); ++i) {
    const Json& delta = events[i]["choices"][0]["delta"];
    EXPECT_EQ(delta.size(), 1u);
    content = content || delta.contains("content");
    EXPECT_EQ(delta.contains("reasoning_content"), !content);
  }
  EXPECT_EQ(events[events.size() - 2]["choices"][0]["delta"], Json::object());
  EXPECT_EQ(events[events.size() - 2]["choices"][0]["finish_reason"], "stop");
  EXPECT_EQ(events.back()["choices"], Json::array());
  EXPECT_TRUE(events.back().contains("metrics"));
}

TEST(Chat, TheRoleComesBeforeTheFirstTokenOnlyWhereThatIsWanted) {
  for (const bool early : {false, true}) {
    ScriptedService scripted(tiny_qwen(), {qwen("a"), qwen("b")});
    scripted.service.defaults.early_role_chunk = early;
    auto exchange = std::make_shared<RecordingExchange>();
    auto request = question(false);
    request.common.stream = true;
    request.common.n = 2;
    answer_chat(exchange, request, scripted.service);
    EXPECT_EQ(exchange->sent.find("assistant") != std::string::npos, early);
    scripted.generator.run();
    for (int i : {0, 1}) EXPECT_EQ(joined_choice(exchange->events(), i)["message"]["role"], "assistant");
  }
}

// C4
TEST(Chat, WhereAnAnswerBeginsIsDecidedByThePrompt) {
  EXPECT_EQ(same_in_both(qwen("xyz"), question(false))["message"]["content"], "xyz");
  EXPECT_FALSE(same_in_both(qwen("xyz"), question(false))["message"].contains("reasoning_content"));
  const Json message = same_in_both(qwen("abc</think>\n\nxyz"), question(true))["message"];
  EXPECT_EQ(message["reasoning_content"], "abc");
  EXPECT_EQ(message["content"], "xyz");
}

// D-13
TEST(Chat, AStreamHasThoughtsApartFromContent) {
  const Json message = joined_choice(streamed(qwen("abc</think>\n\nxyz"), question(true)), 0)["message"];
  EXPECT_EQ(message["reasoning_content"], "abc");
  EXPECT_EQ(message["content"], "xyz");
}

// C5, D-08
TEST(Chat, ThoughtsThatTheBudgetCutsOffStayThoughts) {
  for (const LoadedModel* model : {&tiny_qwen(), &tiny_kimi()}) {
    const Script script = answer(*model, "let me think about", false);
    const Json reply = whole(script, question(true), *model);
    const Json choice = same_in_both(script, question(true), *model);
    EXPECT_EQ(choice["finish_reason"], "length");
    EXPECT_EQ(choice["message"]["reasoning_content"], "let me think about");
    EXPECT_EQ(choice["message"]["content"], "");
    EXPECT_EQ(reply["usage"]["completion_tokens"], script.tokens.size());
    EXPECT_EQ(reply["usage"]["completion_tokens_details"]["reasoning_tokens"], script.tokens.size());
  }
}

TEST(Chat, ThoughtsAreCountedApart) {
  const auto usage = whole(qwen("some thoughts</think>\n\nand an answer"), question(true))["usage"];
  EXPECT_EQ(usage["completion_tokens_details"]["reasoning_tokens"], ids_of(tiny_qwen(), "some thoughts").size());
}

TEST(Chat, CallsAreGivenWithoutTextBesideThemAsNull) {
  const Json choice = same_in_both(qwen(kCall), question(false));
  EXPECT_EQ(choice["finish_reason"], "tool_calls");
  EXPECT_EQ(choice["message"]["content"], nullptr);
  EXPECT_EQ(choice["message"]["tool_calls"][0]["type"], "function");
  EXPECT_EQ(choice["message"]["tool_calls"][0]["function"]["name"], "get_weather");
  EXPECT_EQ(Json::parse(choice["message"]["tool_calls"][0]["function"]["arguments"].get<std::string>()),
            (Json{{"city", "Oslo"}}));
  EXPECT_EQ(same_in_both(qwen("I look.\n" + kCall), question(false))["message"]["content"], "I look.");
}

TEST(Chat, AStreamedCallBeginsWithItsNameAndEmptyArguments) {
  std::vector<Json> calls;
  for (const Json& event : streamed(qwen(kCall), question(false))) {
    const Json delta = event["choices"][0]["delta"];
    if (delta.contains("tool_calls")) calls.push_back(delta["tool_calls"][0]);
  }
  ASSERT_EQ(calls.size(), 2u);
  EXPECT_EQ(calls[0]["function"], (Json{{"name", "get_weather"}, {"arguments", ""}}));
  EXPECT_TRUE(calls[0].contains("id"));
  EXPECT_EQ(calls[1], (Json{{"index", 0}, {"function", {{"arguments", calls[1]["function"]["arguments"]}}}}));
}

TEST(Chat, WithoutParallelCallsTheTextEndsAfterTheFirst) {
  auto request = question(false);
  const Script script = qwen(kCall + "\n" + kCall + "\nmore");
  EXPECT_EQ(same_in_both(script, request)["message"]["tool_calls"].size(), 2u);
  request.parallel_tool_calls = false;
  const Json choice = same_in_both(script, request);
  EXPECT_EQ(choice["message"]["tool_calls"].size(), 1u);
  EXPECT_EQ(choice["finish_reason"], "tool_calls");
  EXPECT_EQ(whole(script, request)["usage"]["completion_tokens"], ids_of(tiny_qwen(), kCall).size());
}

// C8
TEST(Chat, KimisMarksAreInNoFieldWithoutDeclaredTools) {
  const std::string text =
      "Using it.<|close|>response<|sep|><|open|>tools<|sep|><|open|>call tool=\"get_weather\" index=\"1\"<|sep|>"
      "<|open|>argument key=\"city\" "
      "type=\"string\"<|sep|>Oslo<|close|>argument<|sep|><|close|>call<|sep|><|close|>tools<|sep|>"
      "<|close|>message<|sep|>";
  const Json choice = same_in_both(kimi(text), question(false), tiny_kimi());
  EXPECT_EQ(choice["message"]["content"], "Using it.");
  EXPECT_EQ(choice["message"]["tool_calls"][0]["function"]["name"], "get_weather");
  EXPECT_EQ(choice["finish_reason"], "tool_calls");
  EXPECT_EQ(choice.dump().find("<|"), std::string::npos);
}

// C12
TEST(Chat, ThoughtsHaveASecondNameWhereThatIsWanted) {
  for (const bool alias : {false, true}) {
    const auto events = streamed(qwen("abc</think>xyz"), question(true), tiny_qwen(), {.reasoning_alias = alias});
    const Json message = joined_choice(events, 0)["message"];
    EXPECT_EQ(message["reasoning_content"], "abc");
    EXPECT_EQ(message.value("reasoning", ""), alias ? "abc" : "");
  }
}

TEST(Chat, StopStringsAreLookedForInTheContentOnly) {
  auto request = question(true);
  request.common.stop = {"Q:"};
  const Json choice = same_in_both(qwen("Q: is the question</think>\n\nThe answer. Q: next"), request);
  EXPECT_EQ(choice["message"]["reasoning_content"], "Q: is the question");
  EXPECT_EQ(choice["message"]["content"], "The answer. ");
  EXPECT_EQ(choice["finish_reason"], "stop");
  EXPECT_EQ(choice["stop_reason"], "Q:");
}

TEST(Chat, AStopStringEndsTheTextAtItsToken) {
  const Script script = qwen("The answer is here. And so on and on.");
  auto request = question(false);
  request.common.stop = {"here"};
  request.common.return_token_ids = true;
  ScriptedService scripted(tiny_qwen(), {script});
  auto exchange = std::make_shared<RecordingExchange>();
  answer_chat(exchange, request, scripted.service);
  scripted.generator.run();
  const Json body = exchange->body();
  EXPECT_EQ(body["choices"][0]["message"]["content"], "The answer is ");
  EXPECT_EQ(body["usage"]["completion_tokens"], scripted.generator.generation(0).tokens.size());
  EXPECT_EQ(body["choices"][0]["token_ids"].size(), scripted.generator.generation(0).tokens.size());
  EXPECT_LT(scripted.generator.generation(0).tokens.size(), script.tokens.size());
}

// T5
TEST(Chat, AnUnfinishedCharacterAtTheEndIsOneReplacementInBoth) {
  Script script = qwen("a\U00010E6D", false);
  script.tokens.pop_back();
  EXPECT_EQ(same_in_both(script, question(false))["message"]["content"], "a\ufffd");
  EXPECT_EQ(same_in_both(script, question(true))["message"]["reasoning_content"], "a\ufffd");
}

TEST(Chat, AnEndTokenOfTheRequestThatIsTextIsNoPartOfTheAnswer) {
  Script script = qwen("one two", false);
  script.finish = Finish::end_token;
  const Json choice = same_in_both(script, question(false));
  EXPECT_EQ(choice["stop_reason"], script.tokens.back());
  EXPECT_THAT(choice["message"]["content"].get<std::string>(), testing::Not(HasSubstr("two")));
}

TEST(Chat, LogprobsAreOfAllTokensThatCount) {
  auto request = question(true);
  request.logprobs = true;
  request.top_logprobs = 2;
  Script script = qwen("abc</think>\n\nхyz é");
  script.logprobs = made_up_logprobs(script.tokens.size());
  const Json choice = same_in_both(script, request);
  const Json& content = choice["logprobs"]["content"];
  ASSERT_EQ(content.size(), script.tokens.size());
  for (size_t i = 0; i < content.size(); ++i) {
    const std::string_view bytes = tiny_qwen().text.tokenizer->token_bytes(script.tokens[i]);
    ASSERT_EQ(content[i]["bytes"].size(), bytes.size());
    for (size_t j = 0; j < bytes.size(); ++j) EXPECT_EQ(content[i]["bytes"][j], static_cast<unsigned char>(bytes[j]));
    EXPECT_EQ(content[i]["logprob"].get<float>(), script.logprobs[i].logprob);
    EXPECT_EQ(content[i]["top_logprobs"].size(), 2u);
    for (const char* key : {"token", "logprob", "bytes"}) EXPECT_TRUE(content[i]["top_logprobs"][0].contains(key));
  }
  request.logprobs = false;
  EXPECT_EQ(same_in_both(script, request)["logprobs"], nullptr);
}

TEST(Chat, TokenIdsOfPromptAndAnswerAreGivenWhereAskedFor) {
  auto request = question(true);
  request.common.return_token_ids = true;
  const Script script = qwen("abc</think>\n\nxyz");
  const Json choice = same_in_both(script, request);
  EXPECT_EQ(choice["token_ids"], script.tokens);
  EXPECT_EQ(choice["prompt_token_ids"], request.prompt);
}

// The answer as the parser reads all of it at once, cut before the first of the stop strings in its content.
MessageOutput naive(const LoadedModel& model, const ChatCompletionRequest& request, const Script& script, bool* stopped) {
  const auto parser = model.text.format->parser(*model.text.tokenizer, request.chat);
  const auto reason = script.finish == Finish::end_token ? FinishReason::stop : FinishReason::length;
  MessageOutput message = parse_output(*parser, script.tokens, reason);
  size_t first = std::string::npos;
  for (const std::string& stop : request.common.stop) first = std::min(first, message.content.find(stop));
  *stopped = first != std::string::npos;
  if (*stopped) message.content.resize(first);
  return message;
}

std::vector<int32_t> random_answer(const LoadedModel& model, std::mt19937& random) {
  static const std::vector<std::string> qwen_parts = {"</think>",      "<think>",      kCall,          "<tool_call>",
                                                      "</tool_call>",  "\n\n",         " x ",          "é",
                                                      "Hello, world.", "<function=f>", "<|im_start|>", "👩‍👩‍👧"};
  static const std::vector<std::string> kimi_parts = {
      "<|close|>think<|sep|>",
      "<|open|>response<|sep|>",
      "<|close|>response<|sep|>",
      "<|open|>tools<|sep|>",
      "<|open|>call tool=\"f\" index=\"1\"<|sep|>",
      "<|close|>call<|sep|>",
      "<|open|>argument key=\"a\" type=\"string\"<|sep|>v<|close|>argument<|sep|>",
      "<|sep|>",
      "Hello, world.",
      " x ",
      "\n",
      "é",
      "<|open|>think<|sep|>",
      "👩‍👩‍👧"};
  const auto& parts = &model == &tiny_qwen() ? qwen_parts : kimi_parts;
  std::vector<int32_t> tokens;
  for (size_t n = random() % 12; n > 0; --n) {
    if (random() % 4 == 0) {
      tokens.push_back(static_cast<int32_t>(random() % 256));
    } else {
      const auto part = ids_of(model, parts[random() % parts.size()]);
      tokens.insert(tokens.end(), part.begin(), part.end());
    }
  }
  return tokens;
}

void expect_message(const Json& choice, const MessageOutput& expected, bool stopped) {
  const Json& message = choice["message"];
  EXPECT_EQ(message["content"].is_null() ? "" : message["content"].get<std::string>(), expected.content);
  if (stopped) {
    EXPECT_EQ(choice["finish_reason"], message.contains("tool_calls") ? "tool_calls" : "stop");
    return;
  }
  EXPECT_EQ(message.value("reasoning_content", ""), expected.reasoning_content.value_or(""));
  EXPECT_EQ(message.contains("reasoning_content"), expected.reasoning_content.has_value());
  EXPECT_EQ(choice["finish_reason"], finish_reason_name(expected.finish_reason));
  const Json calls = message.value("tool_calls", Json::array());
  ASSERT_EQ(calls.size(), expected.tool_calls.size());
  for (size_t i = 0; i < calls.size(); ++i) {
    EXPECT_EQ(calls[i]["id"], expected.tool_calls[i].id);
    EXPECT_EQ(calls[i]["function"]["name"], expected.tool_calls[i].name);
    EXPECT_EQ(calls[i]["function"]["arguments"], expected.tool_calls[i].arguments);
  }
}

TEST(Chat, RandomAnswersAreWhatTheParserReadsHoweverTheyAreCut) {
  std::mt19937 random(4);
  int n_stopped = 0;
  for (int round = 0; round < 600; ++round) {
    const LoadedModel& model = round % 2 == 0 ? tiny_qwen() : tiny_kimi();
    auto request = question(random() % 2 == 0);
    request.common.return_token_ids = true;
    request.logprobs = random() % 2 == 0;
    Script script{.tokens = random_answer(model, random)};
    if (random() % 2 == 0) {
      script.tokens.push_back(model.text.tokenizer->find_added(model.text.format->end_tokens().at(0)).value());
      script.finish = Finish::end_token;
    }
    script.logprobs = made_up_logprobs(script.tokens.size());
    script.bursts.clear();
    for (int i = 0; i < 10; ++i) script.bursts.push_back(1 + random() % 8);
    bool stopped = false;
    const std::string content = naive(model, request, script, &stopped).content;
    if (random() % 2 == 0 && !content.empty()) {
      const std::string stop = content.substr(random() % content.size(), 1 + random() % 5);
      if (invalid_utf8(stop) == std::string::npos) request.common.stop = {stop};
    }
    const MessageOutput expected = naive(model, request, script, &stopped);
    n_stopped += stopped;
    expect_message(same_in_both(script, request, model), expected, stopped);
    if (HasFailure()) {
      ADD_FAILURE() << "round " << round << ": " << model.text.tokenizer->decode(script.tokens, false);
      return;
    }
  }
  EXPECT_GT(n_stopped, 50);
}

TEST(Chat, ChoicesAreInterleavedAndCountedTogether) {
  ScriptedService scripted(tiny_qwen(), {qwen("one"), qwen("two words"), qwen(kCall)});
  auto exchange = std::make_shared<RecordingExchange>();
  auto request = question(false);
  request.common.stream = true;
  request.common.include_usage = true;
  request.common.n = 3;
  answer_chat(exchange, request, scripted.service);
  scripted.generator.run();
  const auto events = exchange->events();
  EXPECT_EQ(joined_choice(events, 0)["message"]["content"], "one");
  EXPECT_EQ(joined_choice(events, 1)["message"]["content"], "two words");
  EXPECT_EQ(joined_choice(events, 2)["finish_reason"], "tool_calls");
  EXPECT_EQ(events.back()["usage"]["prompt_tokens"], 4);
  const size_t tokens = qwen("one").tokens.size() + qwen("two words").tokens.size() + qwen(kCall).tokens.size();
  EXPECT_EQ(events.back()["usage"]["completion_tokens"], tokens);
}

// The engine itself, step by step, in place of a script.
class EngineGenerator : public Generator {
 public:
  explicit EngineGenerator(const LoadedModel& model) : engine_(*model.machine, model.model->vocabulary(), 64) {}

  std::vector<Ticket> submit(std::vector<Job> jobs) override {
    std::vector<Ticket> tickets;
    for (Job& job : jobs) {
      tickets.push_back(engine_.add(job.request));
      texts_.push_back({tickets.back(), std::move(job.listener)});
    }
    return tickets;
  }
  void cancel(Ticket) override {}
  int64_t abort(const std::string&) override { return 0; }

  void run() {
    while (engine_.step()) {
      for (Text& text : texts_) tell(text);
    }
  }
  const Generation& generation(Ticket ticket) const { return engine_.generation(ticket); }

 private:
  struct Text {
    Engine::Id id;
    std::shared_ptr<Listener> listener;
    size_t told = 0;
  };

  void tell(Text& text) {
    if (!text.listener) return;
    const Generation& g = engine_.generation(text.id);
    if (g.tokens.size() > text.told && !text.listener->on_tokens(g, text.told)) engine_.cancel(text.id);
    text.told = g.tokens.size();
    if (g.finish == Finish::running) return;
    text.listener->on_end(g);
    text.listener.reset();
  }

  Engine engine_;
  std::vector<Text> texts_;
};

TEST(Chat, AModelsOwnAnswerIsTheSameInBoth) {
  const LoadedModel& model = tiny_qwen();
  ChatCompletionRequest request;
  request.chat.messages = {{.role = Role::user,
                            .content = "Mia has 48 marbles. She gives 15 marbles to Tom and then finds 7 more. How many "
                                       "marbles does Mia have now?"}};
  request.prompt = model.text.tokenizer->encode(model.text.format->render(request.chat));
  request.common.request.end_tokens = model.end_tokens;
  for (const std::string stop : {"", "40"}) {
    if (!stop.empty()) request.common.stop = {stop};
    std::vector<Json> messages;
    for (const bool stream : {false, true}) {
      EngineGenerator engine(model);
      ScriptedService scripted(model);
      const Service service{.model = model, .context = 512, .generator = engine};
      auto exchange = std::make_shared<RecordingExchange>();
      request.common.stream = stream;
      answer_chat(exchange, request, service);
      engine.run();
      const Json choice = stream ? joined_choice(exchange->events(), 0) : exchange->body()["choices"][0];
      EXPECT_EQ(choice["finish_reason"], "stop");
      EXPECT_EQ(engine.generation(1).finish, stop.empty() ? Finish::end_token : Finish::cancelled);
      messages.push_back(choice["message"]);
    }
    EXPECT_EQ(messages[0]["content"], stop.empty() ? "Mia has 40 marbles now." : "Mia has ");
    EXPECT_EQ(messages[1]["content"], messages[0]["content"]);
    EXPECT_EQ(messages[1]["reasoning_content"], messages[0]["reasoning_content"]);
    EXPECT_NE(messages[0]["reasoning_content"], "");
  }
}

TEST(Chat, WhenTheClientGoesEverythingIsFreed) {
  ScriptedService scripted(tiny_qwen(), {qwen("a b c d e f")});
  auto exchange = std::make_shared<RecordingExchange>();
  const std::weak_ptr<RecordingExchange> weak = exchange;
  answer_chat(exchange, question(false), scripted.service);
  scripted.generator.step();
  exchange->leave();
  exchange.reset();
  scripted.generator.run();
  EXPECT_TRUE(weak.expired());
  EXPECT_EQ(scripted.generator.generation(0).finish, Finish::cancelled);
}

}  // namespace
}  // namespace megalith
