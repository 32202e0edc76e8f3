#include "server/completions.h"

#include <random>

#include <gmock/gmock.h>

#include "tests/server/scripted.h"
#include "tests/text/linear_time.h"
#include "text/utf8_stream.h"

namespace megalith {
namespace {

using testing::HasSubstr;

constexpr int32_t kTurnEnd = 1145;  // <|im_end|> of tiny-qwen
constexpr int32_t kTurnStart = 1144;

CompletionRequest one_prompt(std::vector<int32_t> prompt = {1, 2, 3}) {
  CompletionRequest request;
  request.prompts = {std::move(prompt)};
  return request;
}

// The whole answer to a request.
Json whole(const Script& script, CompletionRequest request, const LoadedModel& model = tiny_qwen()) {
  ScriptedService scripted(model, {script});
  auto exchange = std::make_shared<RecordingExchange>();
  answer_completion(exchange, request, scripted.service);
  scripted.generator.run();
  EXPECT_EQ(exchange->last_reply.status, 200) << exchange->last_reply.body;
  return exchange->body();
}

std::vector<Json> streamed(const Script& script, CompletionRequest request, const LoadedModel& model = tiny_qwen()) {
  ScriptedService scripted(model, {script});
  auto exchange = std::make_shared<RecordingExchange>();
  request.common.stream = true;
  answer_completion(exchange, request, scripted.service);
  scripted.generator.run();
  return exchange->events();
}

// The streamed choice, which must be the whole one.
Json same_in_both(const Script& script, const CompletionRequest& request, const LoadedModel& model = tiny_qwen()) {
  const Json choice = whole(script, request, model)["choices"][0];
  const Json joined = joined_choice(streamed(script, request, model), 0);
  for (const char* key : {"text", "logprobs", "finish_reason", "stop_reason", "token_ids", "prompt_token_ids"}) {
    EXPECT_EQ(choice.value(key, Json()), joined.value(key, Json())) << key;
  }
  return choice;
}

std::vector<Logprobs> made_up_logprobs(size_t n, std::mt19937& random) {
  std::vector<Logprobs> list(n);
  for (Logprobs& at : list) {
    at.logprob = -0.25f * static_cast<float>(random() % 40);
    for (int i = 0; i < 3; ++i) at.top.push_back({static_cast<int32_t>(random() % 1152), -0.5f * static_cast<float>(i)});
  }
  return list;
}

TEST(Completion, TheReplyHasTheFieldsOfTheInterface) {
  Script script{.tokens = ids_of(tiny_qwen(), "Hello, world"), .finish = Finish::length, .cached = 2};
  const Json reply = whole(script, one_prompt());
  EXPECT_THAT(reply["id"].get<std::string>(), testing::MatchesRegex("cmpl-[0-9a-f]+"));
  EXPECT_EQ(reply["id"].get<std::string>().size(), 5u + 24u);
  EXPECT_EQ(reply["object"], "text_completion");
  EXPECT_EQ(reply["model"], "served");
  EXPECT_EQ(reply["system_fingerprint"], "megalith-test");
  EXPECT_TRUE(reply["created"].is_number_integer());
  const Json choice = {
      {"index", 0}, {"text", "Hello, world"}, {"logprobs", nullptr}, {"finish_reason", "length"}, {"stop_reason", nullptr}};
  EXPECT_EQ(reply["choices"], Json::array({choice}));
  const auto n = static_cast<int64_t>(script.tokens.size());
  EXPECT_EQ(reply["usage"], (Json{{"prompt_tokens", 3},
                                  {"completion_tokens", n},
                                  {"total_tokens", n + 3},
                                  {"prompt_tokens_details", {{"cached_tokens", 2}}}}));
  EXPECT_DOUBLE_EQ(reply["metrics"]["time_to_first_token_ms"].get<double>(), 750);
  EXPECT_FALSE(reply["metrics"].contains("speculative_decoding"));
}

TEST(Completion, TheStreamHasTheOrderOfTheInterface) {
  auto request = one_prompt();
  request.common.include_usage = true;
  const auto events = streamed({.tokens = ids_of(tiny_qwen(), "Hello, world"), .bursts = {2}}, request);
  ASSERT_GE(events.size(), 3u);
  for (size_t i = 0; i + 2 < events.size(); ++i) {
    EXPECT_EQ(events[i]["choices"][0]["finish_reason"], nullptr);
    EXPECT_NE(events[i]["choices"][0]["text"], "");
    EXPECT_FALSE(events[i].contains("usage"));
    EXPECT_EQ(events[i]["id"], events[0]["id"]);
    EXPECT_EQ(events[i]["created"], events[0]["created"]);
  }
  const Json& last = events[events.size() - 2];
  EXPECT_EQ(last["choices"][0]["text"], "");
  EXPECT_EQ(last["choices"][0]["finish_reason"], "length");
  EXPECT_EQ(events.back()["choices"], Json::array());
  EXPECT_EQ(events.back()["usage"]["prompt_tokens"], 3);
  EXPECT_EQ(events.back()["system_fingerprint"], "megalith-test");
  EXPECT_TRUE(events.back().contains("metrics"));
}

TEST(Completion, WithoutAUsageChunkTheLastOneHasTheFingerprint) {
  const auto events = streamed({.tokens = ids_of(tiny_qwen(), "ab")}, one_prompt());
  EXPECT_EQ(events.back()["system_fingerprint"], "megalith-test");
  EXPECT_FALSE(events[0].contains("system_fingerprint"));
}

TEST(Completion, ContinuousUsageCountsUpOnEveryChunk) {
  auto request = one_prompt();
  request.common.continuous_usage_stats = true;
  const Script script{.tokens = ids_of(tiny_qwen(), "one two three four")};
  int64_t before = 0;
  const auto events = streamed(script, request);
  for (const Json& event : events) {
    const auto now = event["usage"]["completion_tokens"].get<int64_t>();
    EXPECT_GE(now, before);
    before = now;
  }
  EXPECT_EQ(before, static_cast<int64_t>(script.tokens.size()));
}

// D-07
TEST(Completion, ABudgetOfNoTokensEndsByLength) {
  const Json choice = same_in_both({.tokens = {}}, one_prompt());
  EXPECT_EQ(choice["text"], "");
  EXPECT_EQ(choice["finish_reason"], "length");
}

TEST(Completion, AnEndTokenThatComesFirstIsCounted) {
  const Json reply = whole({.tokens = {kTurnEnd}, .finish = Finish::end_token}, one_prompt());
  EXPECT_EQ(reply["choices"][0]["text"], "");
  EXPECT_EQ(reply["choices"][0]["finish_reason"], "stop");
  EXPECT_EQ(reply["choices"][0]["stop_reason"], nullptr);
  EXPECT_EQ(reply["usage"]["completion_tokens"], 1);
}

TEST(Completion, AnEndTokenOfTheRequestIsTheReason) {
  const auto tokens = ids_of(tiny_qwen(), "one two");
  const Json choice = same_in_both({.tokens = tokens, .finish = Finish::end_token}, one_prompt());
  EXPECT_EQ(choice["stop_reason"], tokens.back());
  EXPECT_EQ(choice["text"], tiny_qwen().text.tokenizer->decode({tokens.data(), tokens.size() - 1}, false));
}

TEST(Completion, ControlTokensWithinTheTextAppearUnlessTheyAreToBeSkipped) {
  auto tokens = ids_of(tiny_qwen(), "a");
  tokens.insert(tokens.end(), {kTurnStart, kTurnEnd, tokens[0], kTurnEnd});
  auto request = one_prompt();
  request.common.skip_special_tokens = false;
  EXPECT_EQ(same_in_both({.tokens = tokens, .finish = Finish::end_token}, request)["text"], "a<|im_start|><|im_end|>a");
  request.common.skip_special_tokens = true;
  EXPECT_EQ(same_in_both({.tokens = tokens, .finish = Finish::end_token}, request)["text"], "aa");
}

// D-09, D-10
TEST(Completion, AStopStringEndsTheTextAtItsTokenAndLosesNothingBefore) {
  const auto tokens = ids_of(tiny_qwen(), "first line\n\nsecond line and some more");
  for (const size_t burst : {1, 2, 3, 100}) {
    ScriptedService scripted(tiny_qwen(), {{.tokens = tokens, .bursts = {burst}, .finish = Finish::end_token}});
    auto exchange = std::make_shared<RecordingExchange>();
    auto request = one_prompt();
    request.common.stop = {"second"};
    answer_completion(exchange, request, scripted.service);
    scripted.generator.run();
    const Json reply = exchange->body();
    EXPECT_EQ(reply["choices"][0]["text"], "first line\n\n");
    EXPECT_EQ(reply["choices"][0]["finish_reason"], "stop");
    EXPECT_EQ(reply["choices"][0]["stop_reason"], "second");
    size_t n = 0;
    while (tiny_qwen().text.tokenizer->decode({tokens.data(), n}, false).find("second") == std::string::npos) ++n;
    EXPECT_EQ(reply["usage"]["completion_tokens"], n) << "bursts of " << burst;
    EXPECT_LT(scripted.generator.generation(0).tokens.size(), n + burst);
  }
}

TEST(Completion, AStopStringAtTheVeryEndIsTakenOutAndTheLastTokenStays) {
  const auto tokens = ids_of(tiny_qwen(), "count to ten END");
  auto request = one_prompt();
  request.common.stop = {"END"};
  const Json choice = same_in_both({.tokens = tokens}, request);
  EXPECT_EQ(choice["text"], "count to ten ");
  EXPECT_EQ(choice["finish_reason"], "stop");
  request.common.include_stop = true;
  EXPECT_EQ(same_in_both({.tokens = tokens}, request)["text"], "count to ten END");
  request.common.stop = {"ENDE"};
  EXPECT_EQ(same_in_both({.tokens = tokens}, request)["text"], "count to ten END") << "what was held is lost";
}

TEST(Completion, EchoedTextIsNotSearchedForStopStrings) {
  auto request = one_prompt(ids_of(tiny_qwen(), "stop here: "));
  request.echo = true;
  request.common.stop = {"stop"};
  EXPECT_EQ(same_in_both({.tokens = ids_of(tiny_qwen(), "go on")}, request)["text"], "stop here: go on");
}

// D-11
TEST(Completion, AnUnfinishedCharacterAtTheEndIsOneReplacementInBoth) {
  auto tokens = ids_of(tiny_qwen(), "a\U00010E6D");  // a character that no training text had: one token for each byte
  ASSERT_GE(tokens.size(), 4u);
  tokens.pop_back();
  EXPECT_EQ(same_in_both({.tokens = tokens}, one_prompt())["text"], "a\ufffd");
}

// D-12
TEST(Completion, CharactersSplitOverBurstsComeWhole) {
  const std::string text = "👩‍👩‍👧 मूर्ति 𠮷野家 ok";
  for (const size_t burst : {1, 2, 3, 5}) {
    const auto events = streamed({.tokens = ids_of(tiny_qwen(), text), .bursts = {burst}}, one_prompt());
    EXPECT_EQ(joined_choice(events, 0)["text"], text);
    for (const Json& event : events) EXPECT_EQ(event.dump().find("\ufffd"), std::string::npos);
  }
}

// The worked example of the specification, with the likeliest token beside the one that is there.
TEST(Completion, ScoresOfThePromptAndOfWhatFollows) {
  const LoadedModel& model = tiny_qwen();
  const auto id = [&](const char* letter) { return ids_of(model, letter).at(0); };
  Script script{.tokens = {id("d")},
                .logprobs = {{-0.125f, {{id("d"), -0.125f}}}},
                .prompt_logprobs = {{-0.5f, {{id("b"), -0.5f}}}, {-2.25f, {{id("x"), -0.25f}}}}};
  auto request = one_prompt({id("a"), id("b"), id("c")});
  request.echo = true;
  request.logprobs = 1;
  const Json expected = {{"tokens", {"a", "b", "c", "d"}},
                         {"token_logprobs", {nullptr, -0.5, -2.25, -0.125}},
                         {"top_logprobs", {nullptr, {{"b", -0.5}}, {{"x", -0.25}, {"c", -2.25}}, {{"d", -0.125}}}},
                         {"text_offset", {0, 1, 2, 3}}};
  const Json choice = same_in_both(script, request);
  EXPECT_EQ(choice["logprobs"], expected);
  EXPECT_EQ(choice["text"], "abcd");
  request.echo = false;
  EXPECT_EQ(same_in_both(script, request)["logprobs"]["text_offset"], Json({0}));
}

// D-14: lm-eval leaves out the last entry, which must be that of the token generated.
TEST(Completion, TheEndTokenStaysInTheArrays) {
  const auto prompt = ids_of(tiny_qwen(), "ab cd");
  std::mt19937 random(1);
  auto request = one_prompt(prompt);
  request.echo = true;
  request.logprobs = 1;
  const Json choice = same_in_both({.tokens = {kTurnEnd},
                                    .finish = Finish::end_token,
                                    .logprobs = made_up_logprobs(1, random),
                                    .prompt_logprobs = made_up_logprobs(prompt.size() - 1, random)},
                                   request);
  EXPECT_EQ(choice["logprobs"]["tokens"].size(), prompt.size() + 1);
  EXPECT_EQ(choice["text"], "ab cd");
}

// D-15
TEST(Completion, TheFourArraysAreOfEqualLengthWithScoresInAll) {
  std::mt19937 random(2);
  auto request = one_prompt();
  request.logprobs = 2;
  const auto tokens = ids_of(tiny_qwen(), "नमस्ते, stop! and more");
  request.common.stop = {"stop"};
  const Json values =
      same_in_both({.tokens = tokens, .logprobs = made_up_logprobs(tokens.size(), random)}, request)["logprobs"];
  EXPECT_LT(values["tokens"].size(), tokens.size());
  for (const char* key : {"token_logprobs", "top_logprobs", "text_offset"})
    EXPECT_EQ(values[key].size(), values["tokens"].size());
  int64_t offset = 0;
  for (size_t i = 0; i < values["tokens"].size(); ++i) {
    EXPECT_TRUE(values["token_logprobs"][i].is_number());
    EXPECT_TRUE(values["top_logprobs"][i].contains(values["tokens"][i].get<std::string>()));
    EXPECT_EQ(values["text_offset"][i], offset);
    for (const char byte : values["tokens"][i].get<std::string>()) offset += (byte & 0xc0) != 0x80;
  }
}

// What a text must come to, by decoding all of it after each token.
struct Expected {
  std::string text;
  size_t tokens = 0;
  bool stopped = false;
};

Expected naive(const LoadedModel& model, const Script& script, const CommonFields& fields) {
  const bool has_end = script.finish == Finish::end_token && !script.tokens.empty();
  const size_t n = script.tokens.size() - (has_end ? 1 : 0);
  for (size_t i = 0; i <= n; ++i) {
    const std::string text = model.text.tokenizer->decode({script.tokens.data(), i}, fields.skip_special_tokens);
    size_t first = std::string::npos, size = 0;
    for (const std::string& stop : fields.stop) {
      if (text.find(stop) < first) {
        first = text.find(stop);
        size = stop.size();
      }
    }
    if (first != std::string::npos) return {text.substr(0, first + (fields.include_stop ? size : 0)), i, true};
    if (i == n) return {text, script.tokens.size(), false};
  }
  return {};
}

// Parts of the text, none of which is within another.
std::vector<std::string> stops_in(const std::string& text, std::mt19937& random) {
  std::vector<std::string> stops;
  for (size_t tries = random() % 4; tries > 0 && !text.empty(); --tries) {
    const std::string stop = text.substr(random() % text.size(), 1 + random() % 6);
    const bool whole_characters = invalid_utf8(stop) == std::string::npos && stop.find("\ufffd") == std::string::npos;
    const bool apart = std::none_of(stops.begin(), stops.end(), [&](const std::string& other) {
      return other.find(stop) != std::string::npos || stop.find(other) != std::string::npos;
    });
    if (whole_characters && apart) stops.push_back(stop);
  }
  return stops;
}

TEST(Completion, RandomTextsComeAsTheirDecodedTokensHoweverTheyAreCut) {
  std::mt19937 random(3);
  for (int round = 0; round < 400; ++round) {
    const LoadedModel& model = round % 2 == 0 ? tiny_qwen() : tiny_kimi();
    Script script;
    const size_t n = random() % 40;
    for (size_t i = 0; i < n; ++i) {
      script.tokens.push_back(static_cast<int32_t>(random() % (random() % 2 == 0 ? 300 : model.text.tokenizer->rows())));
    }
    script.bursts.clear();
    for (int i = 0; i < 10; ++i) script.bursts.push_back(1 + random() % 8);
    script.finish = n > 0 && random() % 2 == 0 ? Finish::end_token : Finish::length;
    script.logprobs = made_up_logprobs(n, random);
    auto request = one_prompt();
    CommonFields& fields = request.common;
    fields.skip_special_tokens = random() % 2 == 0;
    fields.include_stop = random() % 4 == 0;
    fields.return_token_ids = true;
    fields.stop = stops_in(model.text.tokenizer->decode(script.tokens, fields.skip_special_tokens), random);
    if (random() % 2 == 0) request.logprobs = 2;
    const Json choice = same_in_both(script, request, model);
    const Expected expected = naive(model, script, fields);
    EXPECT_EQ(choice["text"].get<std::string>(), expected.text) << "round " << round;
    EXPECT_EQ(choice["token_ids"].size(), expected.tokens);
    EXPECT_EQ(choice["finish_reason"], expected.stopped || script.finish == Finish::end_token ? "stop" : "length");
    EXPECT_EQ(choice["stop_reason"].is_string(), expected.stopped);
    if (request.logprobs) {
      EXPECT_EQ(choice["logprobs"]["tokens"].size(), expected.tokens);
    }
    if (HasFailure()) return;
  }
}

TEST(Completion, ChoicesOfSeveralPromptsHaveTheirIndexSeedAndText) {
  const auto a = ids_of(tiny_qwen(), "aa bb"), b = ids_of(tiny_qwen(), "cc dd ee ff"), c = ids_of(tiny_qwen(), "gg");
  const std::vector<Script> scripts = {
      {.tokens = a, .cached = 1}, {.tokens = b, .cached = 2}, {.tokens = c, .cached = 1}, {.tokens = a, .cached = 2}};
  CompletionRequest request;
  request.prompts = {{1, 2, 3}, {4, 5}};
  request.common.n = 2;
  request.common.request.sampling.seed = 7;
  request.common.request.max_tokens = 1'000'000;
  for (const bool stream : {false, true}) {
    ScriptedService scripted(tiny_qwen(), scripts);
    auto exchange = std::make_shared<RecordingExchange>();
    request.common.stream = stream;
    request.common.include_usage = true;
    answer_completion(exchange, request, scripted.service);
    scripted.generator.run();
    const Json usage = stream ? exchange->events().back()["usage"] : exchange->body()["usage"];
    EXPECT_EQ(usage["prompt_tokens"], 5) << "a prompt counts once";
    EXPECT_EQ(usage["completion_tokens"], 2 * a.size() + b.size() + c.size());
    EXPECT_EQ(usage["prompt_tokens_details"]["cached_tokens"], 2);
    const std::vector<std::string> texts = {"aa bb", "cc dd ee ff", "gg", "aa bb"};
    for (int i = 0; i < 4; ++i) {
      const Json choice =
          stream ? joined_choice(exchange->events(), i) : exchange->body()["choices"][static_cast<size_t>(i)];
      EXPECT_EQ(choice["text"], texts[static_cast<size_t>(i)]);
      const Request& asked = scripted.generator.requests.at(static_cast<size_t>(i));
      EXPECT_EQ(asked.prompt, request.prompts[static_cast<size_t>(i) / 2]);
      EXPECT_EQ(asked.sampling.seed, 7u + static_cast<unsigned>(i) % 2);
      EXPECT_EQ(asked.max_tokens, 100'000 - static_cast<int64_t>(asked.prompt.size())) << "the context is not more";
    }
    EXPECT_FALSE(exchange->sent.find("\"metrics\"") != std::string::npos) << "of several texts";
  }
}

TEST(Completion, StreamedChoicesAreInterleavedAsTheyCome) {
  CompletionRequest request = one_prompt();
  request.common.n = 2;
  request.common.stream = true;
  const auto tokens = ids_of(tiny_qwen(), "a b c d e");
  ScriptedService scripted(tiny_qwen(), {{.tokens = tokens}, {.tokens = tokens}});
  auto exchange = std::make_shared<RecordingExchange>();
  answer_completion(exchange, request, scripted.service);
  scripted.generator.run();
  std::vector<int> order;
  for (const Json& event : exchange->events()) order.push_back(event["choices"][0]["index"].get<int>());
  EXPECT_THAT(std::vector<int>(order.begin(), order.begin() + 4), testing::ElementsAre(0, 1, 0, 1));
}

TEST(Completion, AStreamedEchoBeginsWithThePrompt) {
  auto request = one_prompt(ids_of(tiny_qwen(), "Once upon"));
  request.echo = true;
  request.common.return_token_ids = true;
  const auto events = streamed({.tokens = ids_of(tiny_qwen(), " a time")}, request);
  EXPECT_EQ(events[0]["choices"][0]["text"], "Once upon");
  EXPECT_EQ(events[0]["choices"][0]["prompt_token_ids"], request.prompts[0]);
  EXPECT_FALSE(events[1]["choices"][0].contains("prompt_token_ids"));
  same_in_both({.tokens = ids_of(tiny_qwen(), " a time")}, request);
  same_in_both({.tokens = {}}, request);
}

TEST(Completion, TheStreamOpensBeforeTheFirstToken) {
  ScriptedService scripted(tiny_qwen(), {{.tokens = ids_of(tiny_qwen(), "a")}});
  auto exchange = std::make_shared<RecordingExchange>();
  auto request = one_prompt();
  request.common.stream = true;
  answer_completion(exchange, request, scripted.service);
  EXPECT_TRUE(exchange->begun);
  EXPECT_EQ(exchange->sent, "");
}

TEST(Completion, AFailureIsA500AndEndsTheOtherChoices) {
  auto request = one_prompt();
  request.common.n = 2;
  const auto tokens = ids_of(tiny_qwen(), "a b c d e");
  ScriptedService scripted(tiny_qwen(), {{.tokens = tokens}, {.tokens = tokens, .error = "not finite", .fails_after = 2}});
  auto exchange = std::make_shared<RecordingExchange>();
  answer_completion(exchange, request, scripted.service);
  scripted.generator.run();
  EXPECT_EQ(exchange->last_reply.status, 500);
  EXPECT_EQ(exchange->body()["error"]["type"], "server_error");
  EXPECT_THAT(exchange->body()["error"]["message"].get<std::string>(), HasSubstr("not finite"));
  EXPECT_EQ(scripted.generator.generation(0).finish, Finish::cancelled);
}

TEST(Completion, AFailureWithinAStreamIsAnEventAndThenDone) {
  auto request = one_prompt();
  request.common.n = 2;
  request.common.stream = true;
  const auto tokens = ids_of(tiny_qwen(), "a b c d e");
  ScriptedService scripted(tiny_qwen(), {{.tokens = tokens}, {.tokens = tokens, .error = "not finite", .fails_after = 2}});
  auto exchange = std::make_shared<RecordingExchange>();
  answer_completion(exchange, request, scripted.service);
  scripted.generator.run();
  EXPECT_EQ(exchange->events().back()["error"]["message"], "not finite");
  EXPECT_EQ(scripted.generator.generation(0).finish, Finish::cancelled);
}

TEST(Completion, AFailureBeforeTheStreamIsOpenIsAReply) {
  auto request = one_prompt();
  request.common.stream = true;
  ScriptedService scripted(tiny_qwen(), {{.tokens = {1}, .error = "no", .fails_after = 0}});
  scripted.generator.at_once = true;
  auto exchange = std::make_shared<RecordingExchange>();
  answer_completion(exchange, request, scripted.service);
  EXPECT_FALSE(exchange->begun);
  EXPECT_EQ(exchange->last_reply.status, 500);
}

TEST(Completion, WrongTokensOfTheEngineAreA500) {
  ScriptedService scripted(tiny_qwen(), {{.tokens = {1, 5'000'000}}});
  auto exchange = std::make_shared<RecordingExchange>();
  answer_completion(exchange, one_prompt(), scripted.service);
  scripted.generator.run();
  EXPECT_EQ(exchange->last_reply.status, 500);
}

TEST(Completion, ATextThatTheServerCancelsIsA503) {
  for (const bool stream : {false, true}) {
    ScriptedService scripted(tiny_qwen(), {{.tokens = ids_of(tiny_qwen(), "a b c d e")}});
    auto exchange = std::make_shared<RecordingExchange>();
    auto request = one_prompt();
    request.common.stream = stream;
    answer_completion(exchange, request, scripted.service);
    scripted.generator.step();
    scripted.generator.cancel(0);
    scripted.generator.run();
    const Json error = stream ? exchange->events().back() : exchange->body();
    EXPECT_EQ(error["error"]["type"], "unavailable_error");
    EXPECT_EQ(exchange->last_reply.status, stream ? 200 : 503);
  }
}

TEST(Completion, WhenTheClientGoesAllTextsEndAndEverythingIsFreed) {
  for (const bool stream : {false, true}) {
    auto request = one_prompt();
    request.common.n = 3;
    request.common.stream = stream;
    const auto tokens = ids_of(tiny_qwen(), "a b c d e f g h");
    ScriptedService scripted(tiny_qwen(), {{.tokens = tokens}, {.tokens = tokens}, {.tokens = tokens}});
    auto exchange = std::make_shared<RecordingExchange>();
    const std::weak_ptr<RecordingExchange> weak = exchange;
    answer_completion(exchange, request, scripted.service);
    scripted.generator.step();
    exchange->leave();
    for (int i = 0; i < 3; ++i) EXPECT_TRUE(scripted.generator.is_cancelled(i));
    const std::string sent = exchange->sent;
    scripted.generator.run();
    EXPECT_EQ(exchange->sent, sent);
    exchange.reset();
    EXPECT_TRUE(weak.expired()) << "something holds the exchange";
  }
}

TEST(Completion, ACompleteAnswerFreesItsExchange) {
  ScriptedService scripted(tiny_qwen(), {{.tokens = {1, 2, 3}}});
  auto exchange = std::make_shared<RecordingExchange>();
  const std::weak_ptr<RecordingExchange> weak = exchange;
  auto request = one_prompt();
  request.common.stream = true;
  answer_completion(exchange, request, scripted.service);
  scripted.generator.run();
  exchange.reset();
  EXPECT_TRUE(weak.expired());
}

TEST(Completion, AClientThatGoesWhileSomethingIsSentToItBlocksNothing) {
  ScriptedService scripted(tiny_qwen(), {{.tokens = ids_of(tiny_qwen(), "a b c d e")}});
  auto exchange = std::make_shared<RecordingExchange>();
  exchange->leaves_on_send = true;
  auto request = one_prompt();
  request.common.stream = true;
  answer_completion(exchange, request, scripted.service);
  scripted.generator.run();
  EXPECT_TRUE(scripted.generator.is_cancelled(0));
}

TEST(Completion, AClientThatHasGoneBeforeIsNotServed) {
  ScriptedService scripted(tiny_qwen(), {{.tokens = {1, 2, 3}}});
  auto exchange = std::make_shared<RecordingExchange>();
  exchange->leave();
  answer_completion(exchange, one_prompt(), scripted.service);
  EXPECT_TRUE(scripted.generator.is_cancelled(0));
}

class FullGenerator : public Generator {
 public:
  std::vector<Ticket> submit(std::vector<Job>) override { throw ApiError(429, "rate_limit_error", "full"); }
  void cancel(Ticket) override {}
  int64_t abort(const std::string&) override { return 0; }
};

TEST(Completion, WhatTheGeneratorRefusesIsThrownBeforeAnythingIsSent) {
  FullGenerator full;
  ScriptedService scripted(tiny_qwen());
  const Service service{.model = tiny_qwen(), .context = 100, .generator = full};
  auto exchange = std::make_shared<RecordingExchange>();
  auto request = one_prompt();
  request.common.stream = true;
  EXPECT_THROW(answer_completion(exchange, request, service), ApiError);
  EXPECT_FALSE(exchange->begun || exchange->replied);
}

TEST(Completion, ALongAnswerTakesLinearTime) {
  std::mt19937 random(5);
  const auto words = ids_of(tiny_qwen(), "some words, and more of them. ");
  auto request = one_prompt();
  request.logprobs = 3;
  request.common.stop = {"never there", "more of it"};
  expect_linear_time(16'000, [&](size_t n) {
    Script script{.bursts = {8}};
    while (script.tokens.size() < n) script.tokens.insert(script.tokens.end(), words.begin(), words.end());
    script.logprobs = made_up_logprobs(script.tokens.size(), random);
    whole(script, request);
    streamed(script, request);
  });
}

}  // namespace
}  // namespace megalith
