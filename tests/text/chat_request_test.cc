#include "test_data.h"
#include "text/chat.h"
#include "text/utf8_stream.h"

namespace megalith {
namespace {

using Json = nlohmann::ordered_json;

ChatRequest parse(const char* text) {
  return parse_chat_request(Json::parse(text));
}

std::string prompt(const char* text, const char* format = "qwen3.5") {
  return joined(chat_format(format)->render(parse(text)));
}

std::string cause(const char* text) {
  return cause_of([&] { prompt(text); });
}

constexpr const char* kFormats[] = {"qwen3.5", "qwen3.8"};

// The token ids of a prompt, as a model gets them.
std::vector<int32_t> ids(const std::string& text, const char* format) {
  return small_tokenizer().encode(chat_format(format)->render(parse(text.c_str())));
}

void expect_same_ids(const std::string& a, const std::string& b) {
  for (const char* format : kFormats) EXPECT_EQ(ids(a, format), ids(b, format)) << format << "\n" << a << "\n" << b;
}

// A conversation of these messages, without the brackets.
std::string of_messages(const std::string& messages) {
  return R"({"messages":[)" + messages + "]}";
}

// A call in the history with these arguments, or without the key.
std::string with_arguments(const std::string& arguments) {
  std::string field = arguments.empty() ? "" : ",\"arguments\":" + arguments;
  return R"({"messages":[{"role":"user","content":"q"},{"role":"assistant","content":null,"tool_calls":)"
         R"([{"id":"c","type":"function","function":{"name":"f")" +
         field + R"(}}]},{"role":"tool","tool_call_id":"c","content":"4 C"}]})";
}

TEST(ChatRequest, NullContentNextToCallsIsEmptyContent) {
  std::string calls = R"("tool_calls":[{"id":"functions.get_weather:0","function":{"name":"get_weather",)"
                      R"("arguments":"{\"city\":\"Oslo\"}"}}])";
  std::vector<std::string> prompts;
  for (const char* content : {"\"content\":null,", "\"content\":\"\",", ""}) {
    std::string text = R"({"messages":[{"role":"user","content":"weather in Oslo?"},{"role":"assistant",)" +
                       std::string(content) + calls + R"(},{"role":"tool","content":"4 C"}]})";
    prompts.push_back(prompt(text.c_str()));
  }
  EXPECT_EQ(prompts[0], prompts[1]);
  EXPECT_EQ(prompts[0], prompts[2]);
  EXPECT_EQ(prompts[0].find("None"), std::string::npos);
  EXPECT_EQ(prompts[0].find("null"), std::string::npos);
  EXPECT_NE(prompts[0].find("<function=get_weather>\n<parameter=city>\nOslo\n"), std::string::npos);
  EXPECT_NE(prompts[0].find("<tool_response>\n4 C\n</tool_response>"), std::string::npos);
}

TEST(ChatRequest, NullContentNextToCallsHasTheIdsOfEmptyContentInEveryFormat) {
  const auto with = [](const std::string& content) {
    return of_messages(R"({"role":"user","content":"weather in Oslo?"},{"role":"assistant",)" + content +
                       R"("tool_calls":[{"id":"functions.get_weather:0","function":{"name":"get_weather",)"
                       R"("arguments":"{\"city\":\"Oslo\"}"}}]},{"role":"tool","tool_call_id":"x","content":"4 C"})");
  };
  expect_same_ids(with(R"("content":null,)"), with(R"("content":"",)"));
  expect_same_ids(with(R"("content":null,)"), with(""));
}

TEST(ChatRequest, NullContentOfAnyRoleIsEmptyContent) {
  for (const char* role : {"system", "developer", "user", "assistant", "tool"}) {
    const auto with = [&](const char* content) {
      bool first = *role == 's' || *role == 'd';
      std::string message = R"({"role":")" + std::string(role) + "\"" + content + "}";
      std::string user = R"({"role":"user","content":"q"})";
      return of_messages(first ? message + "," + user : user + "," + message);
    };
    expect_same_ids(with(R"(,"content":null)"), with(R"(,"content":"")"));
    expect_same_ids(with(R"(,"content":[])"), with(R"(,"content":"")"));
    expect_same_ids(with(""), with(R"(,"content":"")"));
  }
}

TEST(ChatRequest, NoArgumentsInAllSpellingsIsACallWithoutParameters) {
  std::string expected = prompt(with_arguments("{}").c_str());
  EXPECT_NE(expected.find("<function=f>\n</function>"), std::string::npos);
  for (const char* arguments : {"null", "\"\"", "\"{}\"", "\"  \"", "\"null\"", ""}) {
    EXPECT_EQ(prompt(with_arguments(arguments).c_str()), expected) << arguments;
  }
  EXPECT_EQ(prompt(with_arguments(R"("{\"b\":1,\"a\":[2]}")").c_str()),
            prompt(with_arguments(R"({"b":1,"a":[2]})").c_str()));
}

TEST(ChatRequest, WrongArgumentsAreRefusedByTheirPath) {
  for (const char* arguments : {"\"[1,2]\"", R"("{\"a\":1")", "[1,2]", "5", "true", "\"x\""}) {
    EXPECT_TRUE(cause(with_arguments(arguments).c_str()).starts_with("messages[1].tool_calls[0].function.arguments:"))
        << arguments;
  }
}

TEST(ChatRequest, NoArgumentsInAllSpellingsHaveTheSameIdsInEveryFormat) {
  for (const char* arguments : {"null", "\"\"", "\"{}\"", ""}) {
    expect_same_ids(with_arguments(arguments), with_arguments("{}"));
  }
}

TEST(ChatRequest, ArgumentsThatAreNotJsonSayWhereTheyBreak) {
  EXPECT_EQ(cause(with_arguments(R"("{\"a\":1")").c_str()),
            "messages[1].tool_calls[0].function.arguments: expected JSON, found an end after 6 bytes");
  EXPECT_EQ(cause(with_arguments("\"[1,2]\"").c_str()),
            "messages[1].tool_calls[0].function.arguments: expected a JSON object, found a list");
}

TEST(ChatRequest, LoneSurrogatesInArgumentsAreRefusedAndNotRendered) {
  EXPECT_TRUE(cause(with_arguments(R"("{\"a\":\"\\ud83d\"}")").c_str())
                  .starts_with("messages[1].tool_calls[0].function.arguments: expected JSON"));
}

TEST(ChatRequest, ArgumentsAndToolsThatAreTooDeepAreRefusedBeforeTheStackOverflows) {
  const auto nested = [](size_t depth) { return "{\"a\":" + std::string(depth, '[') + std::string(depth, ']') + "}"; };
  const auto text = [](const std::string& json) { return Json(json).dump(); };
  for (const std::string& arguments : {text(nested(100'000)), nested(100'000), nested(150), text(nested(150))}) {
    EXPECT_TRUE(cause(with_arguments(arguments).c_str())
                    .starts_with("messages[1].tool_calls[0].function.arguments: expected at most 100"));
  }
  std::string tools =
      R"({"messages":[{"role":"user","content":"q"}],"tools":[{"function":{"name":"f","x":)" + nested(100'000) + "}}]}";
  EXPECT_TRUE(cause(tools.c_str()).starts_with("tools[0]: expected at most 100"));
  EXPECT_NO_THROW(prompt(with_arguments(nested(50)).c_str()));
}

TEST(ChatRequest, ArgumentsWithTooManyNamesAreRefusedBeforeTheyTakeQuadraticTime) {
  const auto named = [](int names) {
    std::string json = "{";
    for (int i = 0; i < names; ++i) json += (i > 0 ? ",\"k" : "\"k") + std::to_string(i) + "\":0";
    return with_arguments(Json(json + "}").dump());
  };
  EXPECT_TRUE(cause(named(100'000).c_str()).find("at most 1000 names") != std::string::npos);
  EXPECT_NO_THROW(prompt(named(1000).c_str()));
}

TEST(ChatRequest, RefusalsDoNotRepeatLongValues) {
  std::string huge = repeat("\u56fd", 100'000);
  for (const std::string& body :
       {of_messages(R"({"role":")" + huge + R"(","content":"x"})"),
        of_messages(R"({"role":"user","content":[{"type":")" + huge + R"("}]})"),
        R"({"messages":[{"role":"user","content":"q"}],"chat_template_kwargs":{")" + huge + R"(":1}})",
        R"({"messages":[{"role":"user","content":"q"}],"tools":[{"type":")" + huge + R"("}]})",
        R"({"messages":[{"role":"user","content":"q"}],"reasoning_effort":")" + huge + R"("})"}) {
    std::string refusal = cause_of([&] { prompt(body.c_str(), "qwen3.8"); });
    EXPECT_LT(refusal.size(), 300U);
    EXPECT_EQ(invalid_utf8(refusal), std::string::npos) << refusal;
  }
}

TEST(ChatRequest, DeveloperIsSystem) {
  EXPECT_EQ(prompt(R"({"messages":[{"role":"developer","content":"be brief"},{"role":"user","content":"hi"}]})"),
            prompt(R"({"messages":[{"role":"system","content":"be brief"},{"role":"user","content":"hi"}]})"));
}

TEST(ChatRequest, LeadingSystemMessagesAreMerged) {
  EXPECT_EQ(prompt(R"({"messages":[{"role":"system","content":"A "},{"role":"developer","content":" B"},
                      {"role":"user","content":"hi"}]})"),
            prompt(R"({"messages":[{"role":"system","content":"A\n\nB"},{"role":"user","content":"hi"}]})"));
}

TEST(ChatRequest, DeveloperHasTheIdsOfSystemInEveryFormat) {
  expect_same_ids(of_messages(R"({"role":"developer","content":"be brief"},{"role":"user","content":"hi"})"),
                  of_messages(R"({"role":"system","content":"be brief"},{"role":"user","content":"hi"})"));
}

TEST(ChatRequest, SeveralLeadingSystemMessagesHaveTheIdsOfOneWithBlankLines) {
  expect_same_ids(of_messages(R"({"role":"system","content":"A"},{"role":"developer","content":"B"},
                                 {"role":"developer","content":"C"},{"role":"user","content":"hi"})"),
                  of_messages(R"({"role":"system","content":"A\n\nB\n\nC"},{"role":"user","content":"hi"})"));
  expect_same_ids(of_messages(R"({"role":"system","content":" "},{"role":"developer","content":"B"},
                                 {"role":"system"},{"role":"user","content":"hi"})"),
                  of_messages(R"({"role":"system","content":"B"},{"role":"user","content":"hi"})"));
}

TEST(ChatRequest, LateSystemMessageIsRefusedInPlainWordsInEveryFormat) {
  for (const char* role : {"system", "developer"}) {
    std::string body = of_messages(R"({"role":"system","content":"A"},{"role":"user","content":"hi"},{"role":")" +
                                   std::string(role) + R"(","content":"B"},{"role":"user","content":"go on"})");
    for (const char* format : kFormats) {
      EXPECT_EQ(cause_of([&] { prompt(body.c_str(), format); }),
                "messages[2].role: expected system and developer messages before all others, found one after another "
                "message");
    }
  }
}

TEST(ChatRequest, LateSystemMessageIsRefusedByItsIndex) {
  std::string text = cause(R"({"messages":[{"role":"user","content":"hi"},{"role":"system","content":"B"},
                              {"role":"user","content":"go on"}]})");
  EXPECT_TRUE(text.starts_with("messages[1].role:")) << text;
}

TEST(ChatRequest, PartsAreJoinedAndEmptyListsAreEmpty) {
  EXPECT_EQ(
      prompt(R"({"messages":[{"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]}]})"),
      prompt(R"({"messages":[{"role":"user","content":"ab"}]})"));
  EXPECT_EQ(prompt(R"({"messages":[{"role":"user","content":[]}]})"),
            prompt(R"({"messages":[{"role":"user","content":""}]})"));
  EXPECT_EQ(prompt(R"({"messages":[{"role":"user","content":"a"},{"role":"assistant","content":"b","tool_calls":[]},
                      {"role":"user","content":"c"}]})"),
            prompt(R"({"messages":[{"role":"user","content":"a"},{"role":"assistant","content":"b"},
                      {"role":"user","content":"c"}]})"));
}

TEST(ChatRequest, PartsOfEveryRoleAreJoinedWithNothingBetween) {
  for (const char* role : {"system", "user", "assistant", "tool"}) {
    const auto with = [&](const char* content) {
      std::string message = R"({"role":")" + std::string(role) + R"(","content":)" + content + "}";
      std::string user = R"({"role":"user","content":"q"})";
      return of_messages(*role == 's' ? message + "," + user : user + "," + message);
    };
    expect_same_ids(with(R"([{"type":"text","text":"a"},{"type":"text","text":"b"}])"), with("\"ab\""));
    expect_same_ids(with(R"([{"text":"a"},{"type":"text","text":""}])"), with("\"a\""));
  }
}

TEST(ChatRequest, ImagesAndAudioAreRefusedInPlainWords) {
  for (const char* part : {R"({"type":"image_url","image_url":{"url":"data:"}})", R"({"type":"input_audio"})",
                           R"({"type":"video"})", R"({"type":"file"})"}) {
    try {
      prompt(
          of_messages(R"({"role":"user","content":[{"type":"text","text":"see"},)" + std::string(part) + "]}").c_str());
      ADD_FAILURE() << part;
    } catch (const Error& error) {
      EXPECT_EQ(error.fault().where, "messages[0].content[1].type");
      EXPECT_NE(error.fault().next.find("Images, audio and other parts are not supported"), std::string::npos);
    }
  }
}

TEST(ChatRequest, EmptyListOfCallsIsNoListOfCalls) {
  expect_same_ids(of_messages(R"({"role":"user","content":"a"},{"role":"assistant","content":"b","tool_calls":[]})"),
                  of_messages(R"({"role":"user","content":"a"},{"role":"assistant","content":"b"})"));
  expect_same_ids(of_messages(R"({"role":"user","content":"a"},{"role":"assistant","content":"b","tool_calls":null})"),
                  of_messages(R"({"role":"user","content":"a"},{"role":"assistant","content":"b"})"));
}

TEST(ChatRequest, ConversationWithoutUserIsRefusedInPlainWords) {
  for (const char* format : kFormats) {
    EXPECT_EQ(cause_of([&] {
                prompt(of_messages(R"({"role":"system","content":"s"},{"role":"assistant","content":"a"},
                                      {"role":"tool","content":"t"})")
                           .c_str(),
                       format);
              }),
              "messages: expected at least one user message, found none");
  }
}

TEST(ChatRequest, TurnsOfTheSameRoleStayApartAndInOrder) {
  for (const char* format : kFormats) {
    std::string text = prompt(R"({"messages":[{"role":"user","content":"first"},{"role":"user","content":"second"},
        {"role":"assistant","content":"third"},{"role":"assistant","content":"fourth"}]})",
                              format);
    size_t at = 0;
    for (const char* turn :
         {"user\nfirst<|im_end|>", "user\nsecond<|im_end|>", "third<|im_end|>", "fourth<|im_end|>"}) {
      at = text.find(turn, at);
      ASSERT_NE(at, std::string::npos) << turn << " in " << text;
    }
  }
}

TEST(ChatRequest, TwoUserTurnsStayTwo) {
  std::string text = prompt(R"({"messages":[{"role":"user","content":"a"},{"role":"user","content":"b"}]})");
  EXPECT_TRUE(text.starts_with("<|im_start|>user\na<|im_end|>\n<|im_start|>user\nb<|im_end|>\n")) << text;
}

TEST(ChatRequest, BothNamesOfThoughtsAreRead) {
  auto with = [](const std::string& fields) {
    return prompt((R"({"messages":[{"role":"user","content":"q"},{"role":"assistant",)" + fields +
                   R"("content":"c"}],"add_generation_prompt":false})")
                      .c_str());
  };
  std::string expected = with(R"("reasoning_content":"R1",)");
  EXPECT_NE(expected.find("<think>\nR1\n</think>"), std::string::npos);
  EXPECT_EQ(with(R"("reasoning":"R1",)"), expected);
  EXPECT_EQ(with(R"("reasoning":"R2","reasoning_content":"R1",)"), expected);
  EXPECT_EQ(with(R"("reasoning":"R1","reasoning_content":null,)"), expected);
  EXPECT_EQ(with(R"("reasoning":"R1","reasoning_content":"",)"), expected);
}

TEST(ChatRequest, BothNamesOfThoughtsNextToCallsHaveTheSameIds) {
  const auto with = [](const std::string& fields) {
    return of_messages(R"({"role":"user","content":"q"},{"role":"assistant",)" + fields +
                       R"("content":null,"tool_calls":[{"function":{"name":"f"}}]},{"role":"tool","content":"t"})");
  };
  std::string expected = with(R"("reasoning_content":"R1",)");
  for (const char* format : kFormats) {
    EXPECT_NE(prompt(expected.c_str(), format).find("<think>\nR1\n</think>"), std::string::npos) << format;
  }
  expect_same_ids(with(R"("reasoning":"R1",)"), expected);
  expect_same_ids(with(R"("reasoning":"R1","reasoning_content":null,)"), expected);
  expect_same_ids(with(R"("reasoning":"R2","reasoning_content":"R1",)"), expected);
  expect_same_ids(with(R"("reasoning":null,"reasoning_content":null,)"), with(""));
}

TEST(ChatRequest, PromptsEndAsThinkingIsOnOrOff) {
  std::vector<int32_t> open = small_tokenizer().encode("<think>\n", Specials::recognised);
  std::vector<int32_t> closed = small_tokenizer().encode("<think>\n\n</think>\n\n", Specials::recognised);
  const std::pair<const char*, bool> cases[] = {{"", true},
                                                {R"(,"chat_template_kwargs":{})", true},
                                                {R"(,"chat_template_kwargs":{"enable_thinking":true})", true},
                                                {R"(,"chat_template_kwargs":{"enable_thinking":null})", true},
                                                {R"(,"chat_template_kwargs":{"enable_thinking":false})", false},
                                                {R"(,"enable_thinking":false)", false},
                                                {R"(,"reasoning_effort":"none")", false},
                                                {R"(,"enableThinking":false)", true}};
  for (const char* format : kFormats) {
    for (const auto& [fields, thinking] : cases) {
      std::string body = R"({"messages":[{"role":"user","content":"q"}])" + std::string(fields) + "}";
      std::vector<int32_t> prompt = ids(body, format);
      const std::vector<int32_t>& tail = thinking ? open : closed;
      ASSERT_GT(prompt.size(), tail.size());
      EXPECT_TRUE(std::equal(tail.rbegin(), tail.rend(), prompt.rbegin())) << format << fields;
      EXPECT_EQ(chat_format(format)->thinks(parse(body.c_str())), thinking) << format << fields;
    }
  }
}

TEST(ChatRequest, ThinkingIsNoSwitchInTheText) {
  for (const char* format : kFormats) {
    std::string text = prompt(R"({"messages":[{"role":"user","content":"hi /no_think"}]})", format);
    EXPECT_NE(text.find("hi /no_think<|im_end|>"), std::string::npos);
    EXPECT_TRUE(text.ends_with("<think>\n"));
  }
}

TEST(ChatRequest, EffortNoneIsThinkingOff) {
  const char* off = R"({"messages":[{"role":"user","content":"q"}],"enable_thinking":false})";
  for (const char* format : {"qwen3.5", "qwen3.8"}) {
    std::string expected = prompt(off, format);
    EXPECT_TRUE(expected.ends_with("<think>\n\n</think>\n\n"));
    for (const char* fields : {R"("reasoning_effort":"none")", R"("chat_template_kwargs":{"enable_thinking":false})",
                               R"("chat_template_kwargs":{"reasoning_effort":"none"})",
                               R"("chat_template_kwargs":{"thinking_effort":"none"})",
                               R"("enable_thinking":true,"chat_template_kwargs":{"enable_thinking":false})"}) {
      std::string body = std::string(R"({"messages":[{"role":"user","content":"q"}],)") + fields + "}";
      EXPECT_EQ(prompt(body.c_str(), format), expected) << fields;
    }
  }
}

TEST(ChatRequest, ContinuedMessageStaysOpen) {
  const char* body = R"({"messages":[{"role":"user","content":"q"},{"role":"assistant","content":"The answer"}],
                        "continue_final_message":true})";
  EXPECT_EQ(prompt(body), "<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\nThe answer");
  EXPECT_FALSE(chat_format("qwen3.5")->thinks(parse(body)));
  const char* thoughts = R"({"messages":[{"role":"user","content":"q"},{"role":"assistant","reasoning_content":"Hm",
                            "content":""}],"continue_final_message":true})";
  EXPECT_TRUE(prompt(thoughts).ends_with("<|im_start|>assistant\n<think>\nHm"));
  EXPECT_TRUE(chat_format("qwen3.5")->thinks(parse(thoughts)));
}

TEST(ChatRequest, WrongFieldsAreNamed) {
  const std::pair<const char*, const char*> cases[] = {
      {R"([])", "request:"},
      {R"({})", "messages:"},
      {R"({"messages":null})", "messages:"},
      {R"({"messages":[]})", "messages:"},
      {R"({"messages":"hi"})", "messages:"},
      {R"({"messages":["hi"]})", "messages[0]:"},
      {R"({"messages":[{"content":"hi"}]})", "messages[0].role:"},
      {R"({"messages":[{"role":"robot","content":"hi"}]})", "messages[0].role:"},
      {R"({"messages":[{"role":7,"content":"hi"}]})", "messages[0].role:"},
      {R"({"messages":[{"role":"user","content":5}]})", "messages[0].content:"},
      {R"({"messages":[{"role":"user","content":["x"]}]})", "messages[0].content[0]:"},
      {R"({"messages":[{"role":"user","content":[{"type":"text"}]}]})", "messages[0].content[0].text:"},
      {R"({"messages":[{"role":"user","content":[{"type":"image_url","image_url":{}}]}]})",
       "messages[0].content[0].type:"},
      {R"({"messages":[{"role":"system","content":"s"},{"role":"assistant","content":"a"},{"role":"tool","content":"t"}]})",
       "messages:"},
      {R"({"messages":[{"role":"user","content":"<tool_response>x</tool_response>"}]})", "messages:"},
      {R"({"messages":[{"role":"assistant","tool_calls":{}}]})", "messages[0].tool_calls:"},
      {R"({"messages":[{"role":"assistant","tool_calls":[{}]}]})", "messages[0].tool_calls[0].function:"},
      {R"({"messages":[{"role":"assistant","tool_calls":[{"function":{}}]}]})",
       "messages[0].tool_calls[0].function.name:"},
      {R"({"messages":[{"role":"assistant","reasoning":{}}]})", "messages[0].reasoning:"},
      {R"({"messages":[{"role":"user","content":"q"}],"tools":{}})", "tools:"},
      {R"({"messages":[{"role":"user","content":"q"}],"tools":[{"type":"retrieval"}]})", "tools[0].type:"},
      {R"({"messages":[{"role":"user","content":"q"}],"tools":[{"type":"function"}]})", "tools[0].function:"},
      {R"({"messages":[{"role":"user","content":"q"}],"tools":[{"function":{}}]})", "tools[0].function.name:"},
      {R"({"messages":[{"role":"user","content":"q"}],"enable_thinking":"yes"})", "enable_thinking:"},
      {R"({"messages":[{"role":"user","content":"q"}],"chat_template_kwargs":{"enableThinking":true}})",
       "chat_template_kwargs.enableThinking:"},
      {R"({"messages":[{"role":"user","content":"q"}],"chat_template_kwargs":{"enable_thinking":1}})",
       "chat_template_kwargs.enable_thinking:"},
      {R"({"messages":[{"role":"user","content":"q"}],"enable_thinking":true,"reasoning_effort":"none"})",
       "reasoning_effort:"},
      {R"({"messages":[{"role":"user","content":"q"}],"continue_final_message":true})", "messages[0].role:"},
      {R"({"messages":[{"role":"user","content":"q"},{"role":"assistant","content":"a"}],
          "continue_final_message":true,"add_generation_prompt":true})",
       "add_generation_prompt:"},
  };
  for (const auto& [body, named] : cases) {
    std::string found = cause(body);
    EXPECT_TRUE(found.starts_with(named)) << body << ": " << found;
  }
}

TEST(ChatFormat, TemplatesAreRecognisedWithTheirDefault) {
  std::string base = "<|im_start|> <function= ";
  auto on = detect_chat_format(base + "{%- if enable_thinking is defined and enable_thinking is false %}");
  EXPECT_EQ(on.name, "qwen3.5");
  EXPECT_TRUE(on.thinking);
  auto off = detect_chat_format(base + "{%- if enable_thinking is defined and enable_thinking is true %}");
  EXPECT_EQ(off.name, "qwen3.5");
  EXPECT_FALSE(off.thinking);
  auto newer = detect_chat_format(base + "reasoning_effort preserve_thinking enable_thinking is false");
  EXPECT_EQ(newer.name, "qwen3.8");
  EXPECT_TRUE(newer.thinking);
  EXPECT_EQ(detect_chat_format(base + "preserve_thinking is true enable_thinking is false").name, "qwen3.5");
  std::string cause = cause_of([] { detect_chat_format("{{ bos_token }}[INST]"); });
  EXPECT_NE(cause.find("qwen3.8"), std::string::npos) << cause;
  EXPECT_THROW(chat_format("chatml"), Error);
}

}  // namespace
}  // namespace megalith
