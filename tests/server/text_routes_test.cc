#include "server/text_routes.h"

#include <filesystem>

#include <gmock/gmock.h>

#include "server/generation_request.h"
#include "tests/server/refusal.h"
#include "tests/support/scratch.h"
#include "tests/support/text_service.h"
#include "text/request_json.h"
#include "text/utf8_stream.h"

namespace megalith {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using Json = nlohmann::ordered_json;
using Route = HttpReply (*)(const HttpRequest&, const Service&);

const Service& qwen() {
  static const TextService service("tiny-qwen");
  return service.service;
}
const Service& kimi() {
  static const TextService service("tiny-kimi");
  return service.service;
}

Json post(Route route, const std::string& body, const Service& service = qwen()) {
  HttpRequest request;
  request.body = body;
  const HttpReply reply = route(request, service);
  EXPECT_EQ(reply.status, 200);
  EXPECT_EQ(reply.content_type, "application/json");
  return Json::parse(reply.body);
}

std::vector<int32_t> tokens_of(const std::string& body, const Service& service = qwen()) {
  return post(tokenize, body, service)["tokens"].get<std::vector<int32_t>>();
}

TEST(TextRoutes, TokenizeGivesIdsTheirCountAndTheContext) {
  const auto ids = qwen().model.text.tokenizer->encode("one two", Specials::recognised);
  EXPECT_EQ(post(tokenize, R"({"prompt": "one two"})"),
            (Json{{"count", ids.size()}, {"max_model_len", 512}, {"tokens", ids}}));
  EXPECT_EQ(post(tokenize, R"({"content": "one two"})")["tokens"], Json(ids));
  for (const char* empty : {"{}", R"({"prompt": ""})", R"({"prompt": null})"}) {
    EXPECT_EQ(post(tokenize, empty), (Json{{"count", 0}, {"max_model_len", 512}, {"tokens", Json::array()}})) << empty;
  }
}

TEST(TextRoutes, TextsBeginWithTheModelsTokenUnlessToldOtherwise) {
  const Tokenizer& tokenizer = *kimi().model.text.tokenizer;
  const auto plain = tokenizer.encode("one", Specials::recognised);
  auto begun = plain;
  begun.insert(begun.begin(), *tokenizer.find_added("[BOS]"));
  EXPECT_EQ(tokens_of(R"({"prompt": "one"})", kimi()), begun);
  EXPECT_EQ(tokens_of(R"({"prompt": "one", "add_special_tokens": true})", kimi()), begun);
  EXPECT_EQ(tokens_of(R"({"prompt": "one", "add_special_tokens": false})", kimi()), plain);
  EXPECT_EQ(tokens_of(R"({"content": "one"})", kimi()), plain);
  EXPECT_EQ(tokens_of(R"({"content": "one", "add_special": true})", kimi()), begun);
}

TEST(TextRoutes, ControlTokensInTextsAreRecognisedUnlessToldOtherwise) {
  EXPECT_THAT(tokens_of(R"({"prompt": "<|im_end|>"})"), ElementsAre(*qwen().model.text.tokenizer->find_added("<|im_end|>")));
  EXPECT_GT(tokens_of(R"({"content": "<|im_end|>", "parse_special": false})").size(), 1U);
}

TEST(TextRoutes, MessagesHaveTheIdsOfTheChatsPrompt) {
  const std::string body = R"({"messages": [{"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Hi <|im_end|> <|open|>"}], "add_special_tokens": true, "reasoning_effort": "none"})";
  for (const Service* service : {&qwen(), &kimi()}) {
    const auto prompt = parse_chat_completion_request(parse_request_json(body, "request"), *service).prompt;
    EXPECT_EQ(tokens_of(body, *service), prompt);
    EXPECT_EQ(post(tokenize, body, *service)["count"], prompt.size());
    const auto text = post(apply_template, body, *service)["prompt"].get<std::string>();
    EXPECT_EQ(text, service->model.text.tokenizer->decode(prompt, false));
  }
}

TEST(TextRoutes, TokensAreShownAsTextsOrAsBytes) {
  const std::string text = R"("a \ud83d\udc69 b")";
  const Json strings = post(tokenize, R"({"return_token_strs": true, "prompt": )" + text + "}");
  ASSERT_EQ(strings["token_strs"].size(), strings["tokens"].size());
  EXPECT_EQ(strings["token_strs"][0], "a");
  EXPECT_THAT(strings["token_strs"].dump(), HasSubstr("\ufffd"));

  const Json pieces = post(tokenize, R"({"with_pieces": true, "content": )" + text + "}")["tokens"];
  std::string joined;
  for (const Json& token : pieces) {
    const Json& piece = token["piece"];
    EXPECT_EQ(token["id"].is_number(), true);
    if (piece.is_string()) joined += piece.get<std::string>();
    for (size_t i = 0; piece.is_array() && i < piece.size(); ++i) joined += static_cast<char>(piece[i].get<int>());
  }
  EXPECT_EQ(joined, "a \U0001f469 b");
}

TEST(TextRoutes, TextsComeBackFromTheirIds) {
  for (const Service* service : {&qwen(), &kimi()}) {
    const std::string text = "one \U0001f469 [EOS]<|im_end|> two";
    const Json ids = post(tokenize, Json{{"prompt", text}, {"add_special_tokens", false}}.dump(), *service)["tokens"];
    EXPECT_EQ(post(detokenize, Json{{"tokens", ids}}.dump(), *service), (Json{{"prompt", text}}));
  }
  const int32_t end = *qwen().model.text.tokenizer->find_added("<|im_end|>");
  const Json tokens = {{"tokens", {end}}, {"skip_special_tokens", true}};
  EXPECT_EQ(post(detokenize, tokens.dump())["prompt"], "");
  EXPECT_EQ(post(detokenize, R"({"tokens": []})")["prompt"], "");
  EXPECT_EQ(post(detokenize, R"({"tokens": [255.0]})")["prompt"].get<std::string>().empty(), false);
}

TEST(TextRoutes, WrongRequestsAreRefusedByTheirField) {
  struct Case {
    Route route;
    const char* body;
    const char* param;
  };
  const Case cases[] = {
      {tokenize, "", "request"},
      {tokenize, "{", "request"},
      {tokenize, "[]", "request"},
      {tokenize, "null", "request"},
      {tokenize, R"({"prompt": ["one"]})", "prompt"},
      {tokenize, R"({"prompt": [1]})", "prompt"},
      {tokenize, R"({"prompt": 5})", "prompt"},
      {tokenize, R"({"content": {}})", "content"},
      {tokenize, R"({"prompt": "a", "content": "b"})", "content"},
      {tokenize, R"({"prompt": "a", "messages": [{"role": "user", "content": "b"}]})", "prompt"},
      {tokenize, R"({"content": "a", "messages": [{"role": "user", "content": "b"}]})", "content"},
      {tokenize, R"({"messages": "hi"})", "messages"},
      {tokenize, R"({"messages": []})", "messages"},
      {tokenize, R"({"prompt": "a", "add_special_tokens": 1})", "add_special_tokens"},
      {tokenize, R"({"prompt": "a", "return_token_strs": "yes"})", "return_token_strs"},
      {tokenize, R"({"prompt": "a", "model": 5})", "model"},
      {detokenize, "{}", "tokens"},
      {detokenize, R"({"tokens": null})", "tokens"},
      {detokenize, R"({"tokens": "1,2"})", "tokens"},
      {detokenize, R"({"tokens": 5})", "tokens"},
      {detokenize, R"({"tokens": [1, -1]})", "tokens[1]"},
      {detokenize, R"({"tokens": [100000000]})", "tokens[0]"},
      {detokenize, R"({"tokens": [1e30]})", "tokens[0]"},
      {detokenize, R"({"tokens": ["1"]})", "tokens[0]"},
      {detokenize, R"({"tokens": [[1]]})", "tokens[0]"},
      {apply_template, "{}", "messages"},
      {apply_template, "[]", "request"},
      {apply_template, R"({"messages": [{"role": "nobody"}]})", "messages[0].role"},
  };
  for (const Case& one : cases) {
    const Refusal refusal = refusal_of([&] { post(one.route, one.body); });
    EXPECT_EQ(refusal.status, 400) << one.body;
    EXPECT_EQ(refusal.param, one.param) << one.body << "\n" << refusal;
  }
}

TEST(TextRoutes, EveryIdOfTheModelHasAText) {
  for (const Service* service : {&qwen(), &kimi()}) {
    const int64_t vocabulary = service->model.model->vocabulary();
    for (int64_t id = 0; id < vocabulary; ++id) {
      const Json text = post(detokenize, Json{{"tokens", {id}}}.dump(), *service)["prompt"];
      ASSERT_EQ(invalid_utf8(text.get<std::string>()), std::string::npos) << id;
    }
    const Json beyond = {{"tokens", {vocabulary}}};
    EXPECT_EQ(refusal_of([&] { post(detokenize, beyond.dump(), *service); }).param, "tokens[0]");
  }
}

TEST(TextRoutes, AStrictServerMindsTheModelsName) {
  TextService strict("tiny-qwen");
  strict.service.defaults.strict_model = true;
  const char* other = R"({"model": "other", "prompt": "a", "tokens": [1]})";
  for (const Route route : {tokenize, detokenize, apply_template}) {
    EXPECT_EQ(refusal_of([&] { post(route, other, strict.service); }).status, 404);
  }
  EXPECT_EQ(post(tokenize, R"({"model": "served", "prompt": "a"})", strict.service)["count"], 1);
}

TEST(TextRoutes, TokenizerInfoIsThatOfTheDirectory) {
  const Json info = post(tokenizer_info, "");
  EXPECT_EQ(info["tokenizer_class"], "Qwen2Tokenizer");
  EXPECT_EQ(info["eos_token"], "<|im_end|>");
  EXPECT_EQ(info["bos_token"], nullptr);
  EXPECT_EQ(info["pad_token"], "<|endoftext|>");
  EXPECT_EQ(info["chat_template"], file_text(qwen().model.text.directory / "chat_template.jinja"));

  const Json other = post(tokenizer_info, "", kimi());
  EXPECT_EQ(other["tokenizer_class"], "TikTokenTokenizer");
  EXPECT_EQ(other["eos_token"], "[EOS]");
  EXPECT_EQ(other["bos_token"], "[BOS]");
  EXPECT_EQ(other["pad_token"], "[PAD]");
  EXPECT_EQ(other["chat_template"], "");
}

TEST(TextRoutes, TokenizerInfoNeedsNoFile) {
  const auto info_with = [](const std::optional<std::string>& file) {
    const Scratch directory;
    if (file) directory.write("tokenizer_config.json", *file);
    LoadedModel model = text_of_model("tiny-qwen");
    model.text.directory = directory.path();
    const TextService service(std::move(model));
    return post(tokenizer_info, "", service.service);
  };
  const std::string end = qwen().model.text.tokenizer->decode({qwen().model.end_tokens.data(), 1}, false);
  for (const auto& file : {std::optional<std::string>(), std::optional<std::string>("{"), std::optional<std::string>("[]"),
                           std::optional<std::string>(R"({"eos_token": 5, "bos_token": {}, "chat_template": 5})")}) {
    const Json info = info_with(file);
    EXPECT_EQ(info["eos_token"], end);
    EXPECT_EQ(info["bos_token"], nullptr);
    EXPECT_EQ(info["pad_token"], nullptr);
    EXPECT_EQ(info["chat_template"], "");
    EXPECT_TRUE(info["tokenizer_class"].is_string());
  }
  const Json objects = info_with(R"({"eos_token": {"content": "[E]", "lstrip": false}, "chat_template": "{{ x }}"})");
  EXPECT_EQ(objects["eos_token"], "[E]");
  EXPECT_EQ(objects["chat_template"], "{{ x }}");
}

}  // namespace
}  // namespace megalith
