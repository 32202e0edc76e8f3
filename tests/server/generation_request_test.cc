#include "server/generation_request.h"

#include <cmath>
#include <set>

#include <fmt/format.h>
#include <gmock/gmock.h>

#include "server/prompt.h"
#include "tests/engine/tiny_model.h"
#include "tests/server/refusal.h"
#include "tests/support/scratch.h"
#include "tests/support/text_service.h"
#include "text/request_json.h"

namespace megalith {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Pair;
using Json = nlohmann::ordered_json;

const Service& qwen() {
  static const TextService service("tiny-qwen");
  return service.service;
}
const Service& kimi() {
  static const TextService service("tiny-kimi");
  return service.service;
}

// Fields as text, after those that a route needs.
Json body_of(const std::string& needed, const std::string& fields) {
  return parse_request_json("{" + needed + (fields.empty() ? "" : ", ") + fields + "}", "request");
}
CompletionRequest completion(const std::string& fields, const Service& service = qwen()) {
  return parse_completion_request(body_of(R"("prompt": "one two")", fields), service);
}
ChatCompletionRequest chat(const std::string& fields, const Service& service = qwen()) {
  return parse_chat_completion_request(body_of(R"("messages": [{"role": "user", "content": "one two"}])", fields), service);
}
// Without a prompt of its own.
CompletionRequest prompted(const std::string& fields, const Service& service = qwen()) {
  return parse_completion_request(body_of(R"("user": "u")", fields), service);
}

std::vector<int32_t> ids_of(const std::string& text, const Service& service = qwen()) {
  return service.model.text.tokenizer->encode(text, Specials::recognised);
}

std::string list_of(size_t n, const std::string& element) {
  std::string list = "[";
  for (size_t i = 0; i < n; ++i) list += (i == 0 ? "" : ",") + element;
  return list + "]";
}

struct Wrong {
  const char* fields;
  const char* param;
};

TEST(GenerationRequest, WrongCommonFieldsAreRefusedByTheirNameOnBothRoutes) {
  const Wrong cases[] = {
      {R"("model": 5)", "model"},
      {R"("max_tokens": -1)", "max_tokens"},
      {R"("max_tokens": "8")", "max_tokens"},
      {R"("max_tokens": 8.5)", "max_tokens"},
      {R"("max_tokens": [])", "max_tokens"},
      {R"("max_tokens": true)", "max_tokens"},
      {R"("max_tokens": 1e300)", "max_tokens"},
      {R"("max_tokens": -1e300)", "max_tokens"},
      {R"("max_tokens": 18446744073709551615)", "max_tokens"},
      {R"("max_completion_tokens": -5)", "max_completion_tokens"},
      {R"("max_completion_tokens": -5, "max_tokens": 8)", "max_completion_tokens"},
      {R"("max_completion_tokens": 5, "max_tokens": "8")", "max_tokens"},
      {R"("temperature": -1)", "temperature"},
      {R"("temperature": 100.5)", "temperature"},
      {R"("temperature": 1e300)", "temperature"},
      {R"("temperature": "hot")", "temperature"},
      {R"("temperature": true)", "temperature"},
      {R"("top_p": 0)", "top_p"},
      {R"("top_p": 1.0001)", "top_p"},
      {R"("top_p": -0.5)", "top_p"},
      {R"("top_p": {})", "top_p"},
      {R"("top_k": -2)", "top_k"},
      {R"("top_k": 1.5)", "top_k"},
      {R"("top_k": "many")", "top_k"},
      {R"("min_p": 1.5)", "min_p"},
      {R"("min_p": -0.1)", "min_p"},
      {R"("seed": true)", "seed"},
      {R"("seed": "7")", "seed"},
      {R"("seed": 1.5)", "seed"},
      {R"("seed": 1e30)", "seed"},
      {R"("presence_penalty": 3)", "presence_penalty"},
      {R"("frequency_penalty": -2.5)", "frequency_penalty"},
      {R"("repetition_penalty": 0)", "repetition_penalty"},
      {R"("repetition_penalty": -1)", "repetition_penalty"},
      {R"("repetition_penalty": 1e300)", "repetition_penalty"},
      {R"("logit_bias": 5)", "logit_bias"},
      {R"("logit_bias": {"x": 1})", "logit_bias"},
      {R"("logit_bias": {"": 1})", "logit_bias"},
      {R"("logit_bias": {"5 ": 1})", "logit_bias"},
      {R"("logit_bias": {"-1": 1})", "logit_bias"},
      {R"("logit_bias": {"999999999": 5})", "logit_bias"},
      {R"("logit_bias": {"99999999999999999999": 5})", "logit_bias"},
      {R"("logit_bias": {"5": 101})", "logit_bias.5"},
      {R"("logit_bias": {"5": "x"})", "logit_bias.5"},
      {R"("logit_bias": {"5": null})", "logit_bias.5"},
      {R"("logit_bias": [5])", "logit_bias[0]"},
      {R"("logit_bias": [[5, 1], [5]])", "logit_bias[1]"},
      {R"("logit_bias": [[5, 1, 2]])", "logit_bias[0]"},
      {R"("logit_bias": [["5", 1]])", "logit_bias[0][0]"},
      {R"("logit_bias": [[-5, 1]])", "logit_bias[0][0]"},
      {R"("logit_bias": [[5, false]])", "logit_bias[0][1]"},
      {R"("min_tokens": -1)", "min_tokens"},
      {R"("stop_token_ids": 5)", "stop_token_ids"},
      {R"("stop_token_ids": [1, -5])", "stop_token_ids[1]"},
      {R"("stop_token_ids": [1, "x"])", "stop_token_ids[1]"},
      {R"("stop_token_ids": [4294967297])", "stop_token_ids[0]"},
      {R"("ignore_eos": 1)", "ignore_eos"},
      {R"("ignore_eos": "yes")", "ignore_eos"},
      {R"("stop": 5)", "stop"},
      {R"("stop": {})", "stop"},
      {R"("stop": ["a", 5])", "stop[1]"},
      {R"("stop": ["a", null])", "stop[1]"},
      {R"("n": 0)", "n"},
      {R"("n": 17)", "n"},
      {R"("n": "2")", "n"},
      {R"("n": true)", "n"},
      {R"("stream": "yes")", "stream"},
      {R"("stream": 1)", "stream"},
      {R"("stream_options": true)", "stream_options"},
      {R"("stream_options": [])", "stream_options"},
      {R"("stream_options": {"include_usage": 1})", "stream_options.include_usage"},
      {R"("stream_options": {"continuous_usage_stats": "x"})", "stream_options.continuous_usage_stats"},
      {R"("include_stop_str_in_output": 0)", "include_stop_str_in_output"},
      {R"("skip_special_tokens": "no")", "skip_special_tokens"},
      {R"("return_token_ids": 1)", "return_token_ids"},
      {R"("response_format": "json")", "response_format"},
      {R"("response_format": {"type": "xml"})", "response_format.type"},
      {R"("response_format": {"type": "json_schema"})", "response_format.json_schema"},
      {R"("response_format": {"type": "json_object"}, "ignore_eos": true)", "ignore_eos"},
      {R"("response_format": {"type": "json_object"}, "min_tokens": 1)", "min_tokens"},
  };
  for (const Wrong& one : cases) {
    for (const Refusal& refusal : {refusal_of([&] { completion(one.fields); }), refusal_of([&] { chat(one.fields); })}) {
      EXPECT_EQ(refusal.status, 400) << one.fields;
      EXPECT_EQ(refusal.param, one.param) << one.fields << "\n" << refusal;
    }
  }
}

TEST(GenerationRequest, WrongFieldsOfCompletionsAreRefused) {
  const Wrong cases[] = {
      {R"("logprobs": -1)", "logprobs"},      {R"("logprobs": 21)", "logprobs"}, {R"("logprobs": "1")", "logprobs"},
      {R"("logprobs": 1.5)", "logprobs"},     {R"("echo": "yes")", "echo"},      {R"("echo": 1)", "echo"},
      {R"("suffix": "end")", "suffix"},       {R"("suffix": 5)", "suffix"},      {R"("best_of": 2)", "best_of"},
      {R"("best_of": 3, "n": 2)", "best_of"}, {R"("best_of": 0)", "best_of"},    {R"("best_of": "1")", "best_of"},
  };
  for (const Wrong& one : cases) {
    const Refusal refusal = refusal_of([&] { completion(one.fields); });
    EXPECT_EQ(refusal.status, 400) << one.fields;
    EXPECT_EQ(refusal.param, one.param) << one.fields << "\n" << refusal;
  }
}

TEST(GenerationRequest, WrongFieldsOfChatsAreRefused) {
  const Wrong cases[] = {
      {R"("logprobs": 1)", "logprobs"},
      {R"("logprobs": "true")", "logprobs"},
      {R"("logprobs": true, "top_logprobs": 21)", "top_logprobs"},
      {R"("logprobs": true, "top_logprobs": -1)", "top_logprobs"},
      {R"("top_logprobs": 5)", "top_logprobs"},
      {R"("logprobs": false, "top_logprobs": 5)", "top_logprobs"},
      {R"("parallel_tool_calls": 1)", "parallel_tool_calls"},
      {R"("thinking_budget": -1)", "thinking_budget"},
      {R"("thinking_budget": "long")", "thinking_budget"},
      {R"("thinking_token_budget": 0.5)", "thinking_token_budget"},
      {R"("tool_choice": "required")", "tool_choice"},
      {R"("tool_choice": "required", "tools": [])", "tool_choice"},
      {R"("tool_choice": "sometimes")", "tool_choice"},
      {R"("tools": [{"function": {"name": "f"}}], "tool_choice": "required", "ignore_eos": true)", "ignore_eos"},
      {R"("messages": "hi")", "messages"},
      {R"("messages": [])", "messages"},
      {R"("messages": null)", "messages"},
      {R"("messages": [5])", "messages[0]"},
      {R"("messages": [{"role": 7}])", "messages[0].role"},
      {R"("messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}])",
       "messages[0].content[0].type"},
  };
  for (const Wrong& one : cases) {
    const Refusal refusal = refusal_of([&] { chat(one.fields); });
    EXPECT_EQ(refusal.status, 400) << one.fields;
    EXPECT_EQ(refusal.param, one.param) << one.fields << "\n" << refusal;
  }
}

TEST(GenerationRequest, BodiesThatAreNoObjectAreRefused) {
  for (const char* body : {"[]", "null", "5", "\"text\"", "true", "[{}]"}) {
    const Json json = parse_request_json(body, "request");
    EXPECT_EQ(refusal_of([&] { parse_completion_request(json, qwen()); }).param, "request") << body;
    EXPECT_EQ(refusal_of([&] { parse_chat_completion_request(json, qwen()); }).param, "request") << body;
  }
  for (const char* body : {"", "{", "{\"temperature\": NaN}", "{\"temperature\": 1e400}", "{\"a\": \"\xff\"}"}) {
    EXPECT_EQ(refusal_of([&] { parse_request_json(body, "request"); }).status, 400) << body;
  }
}

TEST(GenerationRequest, UnknownFieldsAndNullsAreNotLookedAt) {
  const std::string all = R"("model": null, "max_tokens": null, "max_completion_tokens": null, "temperature": null,
    "top_p": null, "top_k": null, "min_p": null, "seed": null, "presence_penalty": null, "frequency_penalty": null,
    "repetition_penalty": null, "logit_bias": null, "min_tokens": null, "stop_token_ids": null, "ignore_eos": null,
    "stop": null, "n": null, "stream": null, "stream_options": null, "include_stop_str_in_output": null,
    "skip_special_tokens": null, "return_token_ids": null, "response_format": null, "logprobs": null, "echo": null,
    "suffix": null, "best_of": null, "top_logprobs": null, "parallel_tool_calls": null, "thinking_budget": null,
    "thinking_token_budget": null, "tools": null, "tool_choice": null, "user": 5, "metadata": {"a": []}, "nonsense": [[]])";
  for (const CommonFields& common : {completion(all).common, chat(all).common}) {
    EXPECT_EQ(common.request.max_tokens, 512);
    EXPECT_EQ(common.request.sampling.temperature, 0);
    EXPECT_EQ(common.request.sampling.top_p, 1);
    EXPECT_EQ(common.request.sampling.top_k, 0);
    EXPECT_FALSE(common.request.penalties.any());
    EXPECT_EQ(common.request.end_tokens, qwen().model.end_tokens);
    EXPECT_EQ(common.request.min_tokens, 0);
    EXPECT_EQ(common.request.constraint, nullptr);
    EXPECT_FALSE(common.request.logprobs);
    EXPECT_FALSE(common.request.score_prompt);
    EXPECT_THAT(common.stop, IsEmpty());
    EXPECT_EQ(common.n, 1);
    EXPECT_FALSE(common.stream || common.include_usage || common.include_stop || common.return_token_ids);
    EXPECT_FALSE(common.skip_special_tokens);
  }
}

TEST(GenerationRequest, TheBudgetIsTheNewerNameOnChatsAndTheOlderOnCompletions) {
  struct Case {
    const char* fields;
    int64_t completion, chat;
  };
  const Case cases[] = {
      {R"("max_tokens": 8)", 8, 8},
      {R"("max_completion_tokens": 8)", 8, 8},
      {R"("max_tokens": 8, "max_completion_tokens": 5)", 8, 5},
      {R"("max_tokens": null, "max_completion_tokens": 5)", 5, 5},
      {R"("max_tokens": 8, "max_completion_tokens": null)", 8, 8},
      {R"("max_tokens": 0)", 0, 0},
      {R"("max_tokens": 0, "max_completion_tokens": 5)", 0, 5},
      {R"("max_tokens": 8.0)", 8, 8},
      {R"("max_tokens": 1e12)", 512, 512},
      {R"("max_tokens": 9223372036854775807)", 512, 512},
  };
  for (const Case& one : cases) {
    EXPECT_EQ(completion(one.fields).common.request.max_tokens, one.completion) << one.fields;
    EXPECT_EQ(chat(one.fields).common.request.max_tokens, one.chat) << one.fields;
  }
}

TEST(GenerationRequest, WhatTheServerWasToldHoldsWhereTheRequestSaysNothing) {
  TextService other("tiny-qwen");
  Service& service = other.service;
  service.defaults.max_tokens = 77;
  service.defaults.sampling = {.temperature = 0.5, .top_k = 20, .top_p = 0.9f, .min_p = 0.1f};
  service.defaults.ignore_eos = true;
  const Request plain = completion("", service).common.request;
  EXPECT_EQ(plain.max_tokens, 77);
  EXPECT_EQ(plain.sampling.temperature, 0.5f);
  EXPECT_EQ(plain.sampling.top_k, 20);
  EXPECT_EQ(plain.sampling.top_p, 0.9f);
  EXPECT_EQ(plain.sampling.min_p, 0.1f);
  EXPECT_THAT(plain.end_tokens, IsEmpty());
  EXPECT_THAT(chat(R"("ignore_eos": false)", service).common.request.end_tokens, IsEmpty());
  const Request own =
      chat(R"("temperature": 0, "top_k": -1, "top_p": 1, "min_p": 0, "max_tokens": 3)", service).common.request;
  EXPECT_EQ(own.max_tokens, 3);
  EXPECT_EQ(own.sampling.temperature, 0);
  EXPECT_EQ(own.sampling.top_k, 0);
  EXPECT_EQ(own.sampling.top_p, 1);
  EXPECT_EQ(own.sampling.min_p, 0);
}

TEST(GenerationRequest, SamplingAtItsEdgesIsTaken) {
  const auto sampling = [](const char* fields) { return completion(fields).common.request.sampling; };
  EXPECT_EQ(sampling(R"("temperature": 1e-9)").temperature, 1e-9f);
  EXPECT_EQ(sampling(R"("temperature": 2)").temperature, 2);
  EXPECT_EQ(sampling(R"("temperature": 100)").temperature, 100);
  EXPECT_EQ(sampling(R"("temperature": -0.0)").temperature, 0);
  EXPECT_EQ(sampling(R"("temperature": 1e-300)").temperature, 0);
  EXPECT_GT(sampling(R"("top_p": 1e-300)").top_p, 0);
  EXPECT_EQ(sampling(R"("top_k": 0)").top_k, 0);
  EXPECT_EQ(sampling(R"("top_k": 1)").top_k, 1);
  EXPECT_EQ(sampling(R"("top_k": 20.0)").top_k, 20);
  EXPECT_EQ(sampling(R"("top_k": 10000000)").top_k, 0);
  EXPECT_EQ(sampling(R"("top_k": 9223372036854775807)").top_k, 0);
  EXPECT_EQ(sampling(R"("min_p": 1)").min_p, 1);
  const Penalties penalties =
      chat(R"("presence_penalty": -2, "frequency_penalty": 2, "repetition_penalty": 1.5)").common.request.penalties;
  EXPECT_EQ(penalties.presence, -2);
  EXPECT_EQ(penalties.frequency, 2);
  EXPECT_EQ(penalties.repetition, 1.5f);
}

TEST(GenerationRequest, SeedsAreWholeNumbersModuloTwoToThe64) {
  const auto seed = [](const char* fields) { return completion(fields).common.request.sampling.seed; };
  EXPECT_EQ(seed(R"("seed": 7)"), 7U);
  EXPECT_EQ(seed(R"("seed": 7.0)"), 7U);
  EXPECT_EQ(seed(R"("seed": 0)"), 0U);
  EXPECT_EQ(seed(R"("seed": -1)"), UINT64_MAX);
  EXPECT_EQ(seed(R"("seed": -2.0)"), UINT64_MAX - 1);
  EXPECT_EQ(seed(R"("seed": 9223372036854775808)"), uint64_t{1} << 63);
  EXPECT_EQ(seed(R"("seed": 18446744073709551615)"), UINT64_MAX);
  std::set<uint64_t> drawn;
  for (int i = 0; i < 20; ++i) drawn.insert(seed(R"("seed": null)"));
  EXPECT_EQ(drawn.size(), 20U);
}

TEST(GenerationRequest, BiasesComeAsAnObjectOrAsPairs) {
  const auto biases = [](const char* fields) { return completion(fields).common.request.logit_bias; };
  EXPECT_THAT(biases(R"("logit_bias": {})"), IsEmpty());
  EXPECT_THAT(biases(R"("logit_bias": {"12": -100, "5": 2.5})"), ElementsAre(Pair(5, 2.5f), Pair(12, -100)));
  EXPECT_THAT(biases(R"("logit_bias": [[12, 1], [5, 100], [12, 3]])"), ElementsAre(Pair(5, 100), Pair(12, 3)));
  EXPECT_EQ(completion(R"("logit_bias": )" + list_of(1000, "[1, 1]")).common.request.logit_bias.size(), 1U);
  EXPECT_EQ(refusal_of([] { completion(R"("logit_bias": )" + list_of(1001, "[1, 1]")); }).param, "logit_bias");
}

TEST(GenerationRequest, StopsAreOneOrAFewAndEmptyOnesAreNone) {
  const auto stops = [](const std::string& value) { return chat(R"("stop": )" + value).common.stop; };
  EXPECT_THAT(stops(R"("END")"), ElementsAre("END"));
  EXPECT_THAT(stops(R"("")"), IsEmpty());
  EXPECT_THAT(stops("[]"), IsEmpty());
  EXPECT_THAT(stops(R"(["a", "", "b\n", "é"])"), ElementsAre("a", "b\n", "é"));
  EXPECT_EQ(stops(list_of(16, R"("a")")).size(), 16U);
  EXPECT_EQ(stops(list_of(40, R"("")")).size(), 0U);
  EXPECT_EQ(refusal_of([&] { stops(list_of(17, R"("a")")); }).param, "stop");
  EXPECT_EQ(stops("\"" + std::string(2048, 'a') + "\"").size(), 1U);
  EXPECT_EQ(refusal_of([&] { stops("\"" + std::string(2049, 'a') + "\""); }).param, "stop");
  EXPECT_EQ(refusal_of([&] { stops(list_of(2, "\"" + std::string(1025, 'a') + "\"")); }).param, "stop");
}

TEST(GenerationRequest, TokensOfTheRequestEndItBesideTheModels) {
  const auto ends = qwen().model.end_tokens;
  ASSERT_FALSE(ends.empty());
  const auto of = [](const std::string& fields) { return completion(fields).common.request.end_tokens; };
  auto more = ends;
  more.push_back(7);
  EXPECT_EQ(of(fmt::format(R"("stop_token_ids": [7, {}, 7])", ends[0])), more);
  EXPECT_THAT(of(R"("ignore_eos": true)"), IsEmpty());
  EXPECT_THAT(of(R"("ignore_eos": true, "stop_token_ids": [7, 9])"), ElementsAre(7, 9));
  EXPECT_EQ(completion(R"("min_tokens": 5)").common.request.min_tokens, 5);
  EXPECT_EQ(refusal_of([&] { of(R"("stop_token_ids": )" + list_of(1001, "1")); }).param, "stop_token_ids");
  EXPECT_EQ(refusal_of([&] { of(fmt::format(R"("stop_token_ids": [{}])", vocabulary_of(qwen()))); }).param,
            "stop_token_ids[0]");
}

TEST(GenerationRequest, SwitchesAreRead) {
  const std::string fields = R"("stream": true, "stream_options": {"include_usage": true, "continuous_usage_stats": true},
    "include_stop_str_in_output": true, "skip_special_tokens": true, "return_token_ids": true, "n": 3)";
  for (const CommonFields& common : {completion(fields).common, chat(fields).common}) {
    EXPECT_TRUE(common.stream && common.include_usage && common.continuous_usage_stats);
    EXPECT_TRUE(common.include_stop && common.return_token_ids);
    EXPECT_TRUE(common.skip_special_tokens);
    EXPECT_EQ(common.n, 3);
  }
  EXPECT_TRUE(chat(R"("stream_options": {"include_usage": true})").common.include_usage);
  EXPECT_FALSE(chat(R"("parallel_tool_calls": false)").parallel_tool_calls);
  EXPECT_EQ(completion(R"("n": 16, "temperature": 0)").common.n, 16);
  EXPECT_EQ(completion(R"("n": 2, "best_of": 2)").common.n, 2);
  EXPECT_EQ(completion(R"("best_of": 1, "suffix": "")").common.n, 1);
}

TEST(GenerationRequest, LogprobsOfCompletionsAreANumberOrTrue) {
  const auto logprobs = [](const char* fields) { return completion(fields).logprobs; };
  EXPECT_EQ(logprobs(R"("logprobs": 0)"), std::nullopt);
  EXPECT_EQ(logprobs(R"("logprobs": false)"), std::nullopt);
  EXPECT_EQ(logprobs(R"("logprobs": true)"), 1);
  EXPECT_EQ(logprobs(R"("logprobs": 5)"), 5);
  EXPECT_EQ(logprobs(R"("logprobs": 20)"), 20);
  const CompletionRequest scored = completion(R"("logprobs": 2, "echo": true, "max_tokens": 0)");
  EXPECT_TRUE(scored.echo && scored.common.request.score_prompt);
  EXPECT_EQ(scored.common.request.logprobs, 2);
  EXPECT_EQ(scored.common.request.max_tokens, 0);
  EXPECT_FALSE(completion(R"("logprobs": 2)").common.request.score_prompt);
  EXPECT_FALSE(completion(R"("echo": true)").common.request.score_prompt);
  EXPECT_TRUE(completion(R"("logprobs": 2, "echo": true, "stream": true)").common.request.score_prompt);
}

TEST(GenerationRequest, LogprobsOfChatsAreASwitchAndANumber) {
  EXPECT_FALSE(chat(R"("top_logprobs": 0)").common.request.logprobs);
  const auto chosen_only = chat(R"("logprobs": true)");
  EXPECT_TRUE(chosen_only.logprobs);
  EXPECT_EQ(chosen_only.common.request.logprobs, 0);
  const auto many = chat(R"("logprobs": true, "top_logprobs": 20)");
  EXPECT_EQ(many.top_logprobs, 20);
  EXPECT_EQ(many.common.request.logprobs, 20);
  EXPECT_FALSE(many.common.request.score_prompt);
}

TEST(GenerationRequest, PromptsHaveFourForms) {
  using Prompts = std::vector<std::vector<int32_t>>;
  EXPECT_EQ(prompted(R"("prompt": "one two")").prompts, Prompts{ids_of("one two")});
  EXPECT_EQ(prompted(R"("prompt": [1, 2, 3.0])").prompts, (Prompts{{1, 2, 3}}));
  EXPECT_EQ(prompted(R"("prompt": ["one", "two three"])").prompts, (Prompts{ids_of("one"), ids_of("two three")}));
  EXPECT_EQ(prompted(R"("prompt": [[1], [2, 3]])").prompts, (Prompts{{1}, {2, 3}}));
  EXPECT_EQ(prompted(R"("prompt": ["one"], "stream": true)").prompts.size(), 1U);
  EXPECT_EQ(prompted(R"("prompt": "\u0000")").prompts, Prompts{ids_of(std::string(1, '\0'))});
}

TEST(GenerationRequest, OtherPromptsAreRefusedByTheirPlace) {
  const Wrong cases[] = {
      {R"("a": 1)", "prompt"},
      {R"("prompt": null)", "prompt"},
      {R"("prompt": 5)", "prompt"},
      {R"("prompt": {})", "prompt"},
      {R"("prompt": true)", "prompt"},
      {R"("prompt": "")", "prompt"},
      {R"("prompt": [])", "prompt"},
      {R"("prompt": [[]])", "prompt[0]"},
      {R"("prompt": ["one", ""])", "prompt[1]"},
      {R"("prompt": [null])", "prompt[0]"},
      {R"("prompt": [true])", "prompt[0]"},
      {R"("prompt": [{}])", "prompt[0]"},
      {R"("prompt": [1, "one"])", "prompt[1]"},
      {R"("prompt": [1, [2]])", "prompt[1]"},
      {R"("prompt": ["one", 1])", "prompt[1]"},
      {R"("prompt": ["one", [1]])", "prompt[1]"},
      {R"("prompt": [[1], "one"])", "prompt[1]"},
      {R"("prompt": [1.5])", "prompt[0]"},
      {R"("prompt": [-1])", "prompt[0]"},
      {R"("prompt": [1, 4294967297])", "prompt[1]"},
      {R"("prompt": [[1], [2, -3]])", "prompt[1][1]"},
      {R"("prompt": [[[1]]])", "prompt[0][0]"},
      {R"("prompt": ["one", "two"], "stream": true)", "stream"},
      {R"("prompt": ["one", "two"], "stream": true, "n": 2)", "stream"},
  };
  for (const Wrong& one : cases) {
    const Refusal refusal = refusal_of([&] { prompted(one.fields); });
    EXPECT_EQ(refusal.status, 400) << one.fields;
    EXPECT_EQ(refusal.param, one.param) << one.fields << "\n" << refusal;
  }
  const int64_t vocabulary = vocabulary_of(qwen());
  EXPECT_EQ(prompted(fmt::format(R"("prompt": [{}])", vocabulary - 1)).prompts.size(), 1U);
  EXPECT_EQ(refusal_of([&] { prompted(fmt::format(R"("prompt": [{}])", vocabulary)); }).param, "prompt[0]");
}

TEST(GenerationRequest, ARequestHasNoMoreThan1024Choices) {
  EXPECT_EQ(prompted(R"("prompt": )" + list_of(64, "[1]") + R"(, "n": 16)").prompts.size(), 64U);
  EXPECT_EQ(refusal_of([] { prompted(R"("prompt": )" + list_of(65, "[1]") + R"(, "n": 16)"); }).param, "prompt");
  EXPECT_EQ(refusal_of([] { prompted(R"("prompt": )" + list_of(1025, R"("a")")); }).param, "prompt");
}

TEST(GenerationRequest, RawTextMayHaveControlTokensAndBeginsAsTheModelSays) {
  EXPECT_EQ(prompted(R"("prompt": "<|im_start|>user")").prompts[0][0],
            qwen().model.text.tokenizer->find_added("<|im_start|>"));
  const int32_t bos = *kimi().model.text.tokenizer->find_added("[BOS]");
  auto expected = ids_of("one two", kimi());
  expected.insert(expected.begin(), bos);
  EXPECT_EQ(prompted(R"("prompt": "one two")", kimi()).prompts[0], expected);
  EXPECT_THAT(prompted(R"("prompt": "")", kimi()).prompts[0], ElementsAre(bos));
  EXPECT_THAT(prompted(R"("prompt": [5, 6])", kimi()).prompts[0], ElementsAre(5, 6));
}

TEST(GenerationRequest, AModelMaySayThatTextsBeginWithNothing) {
  const auto source = std::filesystem::path(MEGALITH_SOURCE_DIR) / "models/tiny-kimi";
  const auto begin_token = [&](const char* field, const char* value) {
    const Scratch directory;
    directory.write("tiktoken.model", file_text(source / "tiktoken.model"));
    Json config = Json::parse(file_text(source / "tokenizer_config.json"));
    config[field] = Json::parse(value);
    directory.write("tokenizer_config.json", config.dump());
    return load_text(directory.path(), std::nullopt).begin_token;
  };
  EXPECT_EQ(begin_token("add_bos_token", "true"), kimi().model.text.begin_token);
  EXPECT_EQ(begin_token("add_bos_token", "false"), std::nullopt);
  EXPECT_EQ(begin_token("bos_token", "null"), std::nullopt);
  EXPECT_EQ(begin_token("bos_token", "\"[NONE]\""), std::nullopt);
}

TEST(GenerationRequest, APromptNeedsRoomForATokenUnlessNoneIsWanted) {
  const auto refusal = [](size_t tokens, int max_tokens) {
    return refusal_of([&] { prompted(fmt::format(R"("max_tokens": {}, "prompt": {})", max_tokens, list_of(tokens, "5"))); });
  };
  EXPECT_EQ(refusal(511, 100).status, 200);
  EXPECT_EQ(refusal(512, 0).status, 200);
  for (const Refusal& full : {refusal(512, 1), refusal(513, 0), refusal(600, 100)}) {
    EXPECT_EQ(full.status, 400);
    EXPECT_EQ(full.param, "prompt");
    EXPECT_EQ(full.code, "context_length_exceeded");
    EXPECT_THAT(full.message, HasSubstr("512"));
  }
  EXPECT_THAT(refusal(600, 1).message, HasSubstr("600"));
  EXPECT_EQ(refusal_of([&] { prompted(R"("prompt": [[5], )" + list_of(600, "5") + "]"); }).code, "context_length_exceeded");

  const std::string words = list_of(3, R"({"role": "user", "content": ")" + std::string(3000, 'x') + "\"}");
  const Refusal chat_refusal = refusal_of([&] { chat(R"("messages": )" + words); });
  EXPECT_EQ(chat_refusal.param, "messages");
  EXPECT_EQ(chat_refusal.code, "context_length_exceeded");
}

TEST(GenerationRequest, OnlyAStrictServerMindsTheModelsName) {
  TextService other("tiny-qwen");
  Service& service = other.service;
  EXPECT_EQ(refusal_of([&] { completion(R"("model": "other/model")", service); }).status, 200);
  service.defaults.strict_model = true;
  for (const char* fields : {R"("a": 1)", R"("model": null)", R"("model": "served")"}) {
    EXPECT_EQ(refusal_of([&] { completion(fields, service); }).status, 200) << fields;
    EXPECT_EQ(refusal_of([&] { chat(fields, service); }).status, 200) << fields;
  }
  for (const char* fields : {R"("model": "other/model")", R"("model": "Served")", R"("model": "")"}) {
    for (const Refusal& refusal :
         {refusal_of([&] { completion(fields, service); }), refusal_of([&] { chat(fields, service); })}) {
      EXPECT_EQ(refusal.status, 404) << fields;
      EXPECT_EQ(refusal.param, "model");
      EXPECT_EQ(refusal.code, "model_not_found");
      EXPECT_THAT(refusal.message, HasSubstr("\"served\""));
    }
  }
}

TEST(GenerationRequest, AChatsPromptIsItsRenderedMessages) {
  for (const Service* service : {&qwen(), &kimi()}) {
    const Json body = body_of(R"("messages": [{"role": "user", "content": "Hi <|im_end|> <|end_of_msg|>"}])",
                              R"("reasoning_effort": "none")");
    const ChatCompletionRequest read = parse_chat_completion_request(body, *service);
    const TextModel& text = service->model.text;
    EXPECT_EQ(read.prompt, text.tokenizer->encode(text.format->render(parse_chat_request(body))));
    EXPECT_NE(read.prompt, text.tokenizer->encode(joined(text.format->render(read.chat)), Specials::recognised));
    EXPECT_EQ(read.chat.enable_thinking, false);
    EXPECT_NE(read.prompt[0], text.begin_token.value_or(-1));
  }
}

TEST(GenerationRequest, ToolsOfASystemMessageMayBeRequired) {
  const std::string system = R"({"role": "system", "content": "", "tools": [{"function": {"name": "f"}}]},)";
  const Refusal refusal = refusal_of([&] {
    chat(R"("tool_choice": "required", "messages": [)" + system + R"({"role": "user", "content": "a"}], "ignore_eos": true)",
         kimi());
  });
  EXPECT_EQ(refusal.param, "ignore_eos") << refusal;
}

TEST(GenerationRequest, WithoutATokenizerIdsAreTakenAndTextsRefused) {
  LoadedModel bare = text_of_model("tiny-qwen");
  bare.text.tokenizer.reset();
  bare.text.format.reset();
  const TextService service(std::move(bare));
  EXPECT_THAT(prompted(R"("prompt": [5, 6])", service.service).prompts[0], ElementsAre(5, 6));
  for (const Refusal& refusal :
       {refusal_of([&] { completion("", service.service); }), refusal_of([&] { chat("", service.service); })}) {
    EXPECT_EQ(refusal.status, 400);
    EXPECT_EQ(refusal.param, "");
    EXPECT_THAT(refusal.message, Not(HasSubstr("/tiny-qwen")));
  }
}

TEST(GenerationRequest, TheEngineTakesWhatIsAccepted) {
  LoadedModel loaded = load_tiny("tiny-qwen", 1);
  Machine& machine = *loaded.machine;
  Engine engine(machine, loaded.model->vocabulary(), 64);
  const TextService service(std::move(loaded));
  const std::string all = list_of(511, "5"), whole = list_of(512, "5");
  for (const std::string& fields : {
           std::string(R"("prompt": "one", "max_tokens": 3, "temperature": 1e-9, "ignore_eos": true)"),
           std::string(R"("prompt": "one", "max_tokens": 3, "temperature": 1e-300, "top_p": 1e-300, "min_tokens": 3)"),
           std::string(R"("prompt": "one", "max_tokens": 3, "temperature": 100, "top_k": 10000000, "seed": -1, "min_p": 1)"),
           R"("max_tokens": 1, "prompt": )" + all,
           R"("max_tokens": 0, "prompt": )" + whole,
       }) {
    const CompletionRequest read = prompted(fields, service.service);
    Request request = read.common.request;
    request.prompt = read.prompts[0];
    const auto id = engine.add(request);
    engine.run();
    EXPECT_EQ(engine.generation(id).error, "") << fields;
    EXPECT_LE(engine.generation(id).tokens.size(), static_cast<size_t>(request.max_tokens)) << fields;
  }
}

}  // namespace
}  // namespace megalith
