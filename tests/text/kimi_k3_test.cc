// Prompts of Kimi K3, and the fields of a request that only its format writes.

#include "text/kimi_k3.h"

#include "kimi_data.h"

namespace megalith {
namespace {

using Json = nlohmann::ordered_json;

ChatRequest parse(const std::string& text) {
  return parse_chat_request(Json::parse(text));
}

std::vector<Segment> segments_of(const ChatRequest& request) {
  return chat_format("kimi-k3")->render(request);
}

std::string prompt(const std::string& text) {
  return joined(segments_of(parse(text)));
}

// A request with these messages and, perhaps, other fields after them; thinking is off unless they say otherwise.
std::string body(const std::string& messages, const std::string& fields = R"(,"thinking":false)") {
  return R"({"messages":[)" + messages + "]" + fields + "}";
}

std::string message(const std::string& attributes, const std::string& text) {
  return "<|open|>message " + attributes + "<|sep|>" + text + "<|close|>message<|sep|><|end_of_msg|>";
}

const std::string kEnd = R"(<|open|>message role="assistant"<|sep|><|open|>response<|sep|>)";
const std::string kUser = R"({"role":"user","content":"q"})";

TEST(KimiK3, GoldenChatsAreEqualByteForByte) {
  Json golden = read_json(data_path("kimi-chat.json"));
  EXPECT_EQ(golden.size(), 5U);
  for (const auto& [name, one] : golden.items()) {
    EXPECT_EQ(joined(segments_of(parse_chat_request(one["input"]))), one["text"].get<std::string>()) << name;
  }
}

TEST(KimiK3, GoldenChatsHaveTheIdsOfTheirParts) {
  Json golden = read_json(data_path("kimi-chat.json"));
  Json cases = read_json(data_path("kimi-cases.json"));
  ASSERT_EQ(cases["chats"].size(), golden.size());
  for (const auto& [name, one] : golden.items()) {
    EXPECT_EQ(kimi_tokenizer().encode(segments_of(parse_chat_request(one["input"]))),
              cases["chats"][name].get<std::vector<int32_t>>())
        << name;
  }
}

TEST(KimiK3, MarksAreTheOnlyControlTextAndStandAlone) {
  Json golden = read_json(data_path("kimi-chat.json"));
  for (const auto& [name, one] : golden.items()) {
    for (const Segment& segment : segments_of(parse_chat_request(one["input"]))) {
      EXPECT_FALSE(segment.text.empty());
      EXPECT_EQ(segment.control, kimi_tokenizer().find_added(segment.text).has_value()) << segment.text;
    }
  }
}

// A request with `text` in each of its fields that a user, a tool or a past answer fills.
ChatRequest with_everywhere(const std::string& text) {
  Json call = {{"id", text}, {"function", {{"name", text}, {"arguments", {{text, text}, {"list", {text}}}}}}};
  Json as_text = {{"id", text + "2"}, {"function", {{"name", text}, {"arguments", Json{{text, text}}.dump()}}}};
  Json tool = {{"type", "function"}, {"function", {{"name", text}, {"description", text}}}};
  Json request = {{"messages",
                   {{{"role", "system"}, {"content", text}, {"name", text}},
                    {{"role", "system"}, {"tools", {tool}}},
                    {{"role", "user"}, {"name", text}, {"content", {{{"type", "text"}, {"text", text}}}}},
                    {{"role", "assistant"},
                     {"name", text},
                     {"reasoning_content", text},
                     {"content", text},
                     {"tool_calls", {call, as_text}}},
                    {{"role", "tool"}, {"tool_call_id", text}, {"content", text}},
                    {{"role", "tool"}, {"tool", text}, {"content", text}}}},
                  {"tools", {tool}},
                  {"response_format", {{"type", "json_schema"}, {"json_schema", {{"schema", {{text, text}}}}}}}};
  return parse_chat_request(request);
}

std::vector<int32_t> control_ids(const std::vector<int32_t>& ids) {
  std::vector<int32_t> control;
  for (int32_t id : ids) {
    if (kimi_tokenizer().find_added(kimi_tokenizer().token_bytes(id)) == id) control.push_back(id);
  }
  return control;
}

TEST(KimiK3, NoFieldOfARequestCanMakeAControlToken) {
  auto encode = [](const std::string& text) { return kimi_tokenizer().encode(segments_of(with_everywhere(text))); };
  std::vector<int32_t> harmless = control_ids(encode("x"));
  EXPECT_GT(harmless.size(), 40U);
  for (int32_t id = kimi_tokenizer().size() - 256; id < kimi_tokenizer().size(); ++id) {
    std::string text(kimi_tokenizer().token_bytes(id));
    EXPECT_EQ(control_ids(encode(text)), harmless) << text;
    EXPECT_EQ(control_ids(encode("a" + text + text + "\"b")), harmless) << text;
  }
  EXPECT_EQ(kimi_tokenizer().decode(encode("<|sep|>\""), false), joined(segments_of(with_everywhere("<|sep|>\""))));
}

TEST(KimiK3, AttributesAreEscapedAndTextIsNot) {
  std::string text = prompt(body(R"({"role":"user","content":"& \" <b>","name":"a & \"b\" <c>"})"));
  EXPECT_EQ(text, message(R"(role="user" name="a &amp; &quot;b&quot; <c>")", "& \" <b>") + kEnd);
}

TEST(KimiK3, ThinkingOnWritesTheChannelEvenWhereItIsEmptyAndOffNever) {
  std::string messages = kUser + R"(,{"role":"assistant","content":"a","reasoning":" t "},{"role":"assistant"})";
  std::string on = prompt(body(messages, ""));
  EXPECT_NE(on.find("<|open|>think<|sep|> t <|close|>think<|sep|><|open|>response<|sep|>a<|close|>response"), on.npos);
  EXPECT_NE(on.find("<|open|>think<|sep|><|close|>think<|sep|><|open|>response<|sep|><|close|>response"), on.npos);
  EXPECT_TRUE(on.ends_with(R"(<|open|>message role="assistant"<|sep|><|open|>think<|sep|>)"));
  std::string off = prompt(body(messages));
  EXPECT_EQ(off.find("think"), off.npos);
  EXPECT_TRUE(off.ends_with(kEnd));
}

TEST(KimiK3, ThinkingIsSwitchedByEachOfItsNames) {
  for (const char* off :
       {R"("thinking":false)", R"("enable_thinking":false)", R"("thinking":{"type":"disabled"})",
        R"("chat_template_kwargs":{"thinking":false})", R"("reasoning_effort":"none")",
        R"("thinking":true,"enable_thinking":false)", R"("thinking":true,"chat_template_kwargs":{"thinking":false})"}) {
    EXPECT_TRUE(prompt(body(kUser, std::string(",") + off)).ends_with(kEnd)) << off;
    EXPECT_FALSE(chat_format("kimi-k3")->thinks(parse(body(kUser, std::string(",") + off)))) << off;
  }
  for (const char* on : {R"("thinking":true)", R"("thinking":null)", R"("thinking":{"type":"enabled"})"}) {
    EXPECT_TRUE(prompt(body(kUser, std::string(",") + on)).ends_with("<|open|>think<|sep|>")) << on;
    EXPECT_TRUE(chat_format("kimi-k3")->thinks(parse(body(kUser, std::string(",") + on)))) << on;
  }
  EXPECT_TRUE(joined(chat_format("kimi-k3", false)->render(parse(body(kUser, "")))).ends_with(kEnd));
}

TEST(KimiK3, EffortIsLowHighOrMaxAndMaxWithoutOne) {
  auto with = [](const std::string& fields) { return prompt(body(kUser, fields)); };
  for (const char* effort : {"low", "high", "max"}) {
    std::string sentence = std::string("`thinking_effort=") + effort + "`";
    for (const char* name : {"reasoning_effort", "thinking_effort"}) {
      std::string field = std::string(R"(")") + name + R"(":")" + effort + "\"";
      EXPECT_NE(with("," + field).find(sentence), std::string::npos) << field;
      EXPECT_NE(with(R"(,"chat_template_kwargs":{)" + field + "}").find(sentence), std::string::npos) << field;
    }
  }
  EXPECT_EQ(with(""), with(R"(,"reasoning_effort":"max")"));
  EXPECT_EQ(with(R"(,"thinking":false,"reasoning_effort":"low")").find("effort"), std::string::npos);
  for (const char* wrong : {"medium", "xhigh", ""}) {
    std::string fields = std::string(R"(,"reasoning_effort":")") + wrong + "\"";
    EXPECT_TRUE(cause_of([&] { with(fields); }).starts_with("reasoning_effort:")) << wrong;
  }
}

TEST(KimiK3, SystemMessagesStayWhereTheyAre) {
  EXPECT_EQ(prompt(body(R"({"role":"system","content":"A"},{"role":"developer","content":""},)" + kUser +
                        R"(,{"role":"system","content":" B ","name":"n"})")),
            message(R"(role="system")", "A") + message(R"(role="system")", "") + message(R"(role="user")", "q") +
                message(R"(role="system" name="n")", " B ") + kEnd);
}

TEST(KimiK3, ToolsAreCompactSortedJson) {
  std::string tools =
      R"([{"type":"function","function":{"name":"é","parameters":{"b":[1.0,{"z":1,"a":null}],"a":"x"}}}])";
  std::string json =
      R"([{"function":{"name":"é","parameters":{"a":"x","b":[1.0,{"a":null,"z":1}]}},"type":"function"}])";
  std::string declared =
      "# Tools\nHere are the available tools, described in JSONSchema.\n\n```json\n" + json + "\n```";
  EXPECT_EQ(prompt(body(kUser, R"(,"thinking":false,"tools":)" + tools)),
            message(R"(role="system" type="tool-declare")", declared) + message(R"(role="user")", "q") + kEnd);
  EXPECT_EQ(prompt(body(kUser, R"(,"thinking":false,"tools":[])")), message(R"(role="user")", "q") + kEnd);
}

TEST(KimiK3, SystemMessagesMayBringMoreTools) {
  std::string tool = R"({"type":"function","function":{"name":"f"}})";
  std::string text = prompt(body(kUser + R"(,{"role":"system","tools":[)" + tool + "]}"));
  EXPECT_EQ(text, message(R"(role="user")", "q") +
                      message(R"(role="system" type="tool-declare")",
                              "## New Tools Available\nThe system dynamically extends the toolset via lazy-loading.\n"
                              "You have access to all existing and extended tools.\n"
                              "Here are the specs for the extended tools.\n\n```json\n"
                              R"([{"function":{"name":"f"},"type":"function"}])"
                              "\n```") +
                      kEnd);
  EXPECT_EQ(cause_of([&] { prompt(body(R"({"role":"system","content":"c","tools":[)" + tool + "]}")); }),
            "messages[0].content: expected nothing next to tools, found a text");
}

std::string call_with(const std::string& arguments) {
  std::string text = prompt(
      body(kUser + R"(,{"role":"assistant","tool_calls":[{"function":{"name":"f","arguments":)" + arguments + "}}]}"));
  const std::string begin = R"(<|open|>call tool="f" index="1"<|sep|>)";
  size_t at = text.find(begin) + begin.size();
  return text.substr(at, text.find("<|close|>call") - at);
}

std::string argument(const std::string& key, const std::string& type, const std::string& value) {
  return "<|open|>argument key=\"" + key + "\" type=\"" + type + "\"<|sep|>" + value + "<|close|>argument<|sep|>";
}

TEST(KimiK3, ArgumentsHaveTheirTypes) {
  EXPECT_EQ(call_with(R"({"b":true,"n":null,"i":2,"f":1e2,"s":" <x> \"é\n","o":{"u":"C","a":[1,{}]},"l":[1.50,"z"]})"),
            argument("b", "boolean", "true") + argument("n", "null", "null") + argument("i", "number", "2") +
                argument("f", "number", "100.0") + argument("s", "string", " <x> \"é\n") +
                argument("o", "object", R"({"u": "C", "a": [1, {}]})") + argument("l", "array", R"([1.5, "z"])"));
}

TEST(KimiK3, ArgumentsGivenAsTextKeepTheirLiterals) {
  Json text = R"( { "f" : 1e2 , "b":false,"s":"a\"\u00e9\n","o":{"u":"}C\"",
 "a" : [1,{}]},"l":[1.50,"]z"] ,"n":null,"i":12345678901234567890123} )";
  EXPECT_EQ(call_with(text.dump()), argument("f", "number", "1e2") + argument("b", "boolean", "false") +
                                        argument("s", "string", "a\"é\n") +
                                        argument("o", "object", "{\"u\":\"}C\\\"\",\n \"a\" : [1,{}]}") +
                                        argument("l", "array", "[1.50,\"]z\"]") + argument("n", "null", "null") +
                                        argument("i", "number", "12345678901234567890123"));
}

TEST(KimiK3, CallsWithoutArgumentsAreAlikeAndOtherTextIsRefused) {
  for (const char* none : {"null", "\"\"", "\"{}\"", "{}", "\" {} \"", "\"null\""}) EXPECT_EQ(call_with(none), "");
  for (const char* wrong : {R"("[1,2]")", R"("{\"a\":1")", "[1]", "7"}) {
    EXPECT_TRUE(cause_of([&] { call_with(wrong); }).starts_with("messages[1].tool_calls[0].function.arguments:"))
        << wrong;
  }
}

TEST(KimiK3, NullContentNextToCallsIsNoText) {
  auto with = [](const std::string& content) {
    return prompt(body(kUser + R"(,{"role":"assistant",)" + content +
                       R"("tool_calls":[{"id":"functions.f:0","function":{"name":"f"}}]},)"
                       R"({"role":"tool","tool_call_id":"functions.f:0","content":"r"})"));
  };
  EXPECT_EQ(with(R"("content":null,)"), with(R"("content":"",)"));
  EXPECT_EQ(with(""), with(R"("content":"",)"));
  EXPECT_EQ(with("").find("None"), std::string::npos);
  EXPECT_NE(with("").find(message(R"(role="tool" tool="f" index="1")", "r")), std::string::npos);
}

// The turns of results after an assistant's calls a (of f), b (of g) and c (of f).
std::string results(const std::string& messages) {
  std::string text = prompt(
      body(kUser +
           R"(,{"role":"assistant","tool_calls":[{"id":"a","function":{"name":"f"}},{"id":"b","function":{"name":"g"}},
      {"id":"c","function":{"name":"f"}}]},)" +
           messages));
  size_t at = text.find("<|open|>message role=\"tool\"");
  return text.substr(at, text.size() - at - kEnd.size());
}

std::string result(const std::string& tool, int index, const std::string& text) {
  return message("role=\"tool\" tool=\"" + tool + "\" index=\"" + std::to_string(index) + "\"", text);
}

TEST(KimiK3, ResultsFollowTheOrderOfTheCalls) {
  EXPECT_EQ(results(R"({"role":"tool","tool_call_id":"c","content":"3"},{"role":"tool","id":"a","content":"1"},
                       {"role":"tool","tool_call_id":"b","name":"stale","content":"2"})"),
            result("f", 1, "1") + result("g", 2, "2") + result("f", 3, "3"));
  EXPECT_EQ(
      results(R"({"role":"tool","tool_call_id":"b","content":"2"},{"role":"tool","tool_call_id":"b","content":"2b"},
                       {"role":"tool","tool_call_id":"a","content":"1"})"),
      result("f", 1, "1") + result("g", 2, "2") + result("g", 3, "2b"));
}

TEST(KimiK3, ResultsKeepTheirOrderWhereOneNamesNoCall) {
  EXPECT_EQ(
      results(R"({"role":"tool","tool_call_id":"c","content":"3"},{"role":"tool","tool_call_id":"x","content":"1"},
                       {"role":"tool","name":"own","content":"2"})"),
      result("f", 1, "3") + result("g", 2, "1") + result("own", 3, "2"));
}

TEST(KimiK3, ResultOfNoCallIsRefused) {
  std::string cause = cause_of([] {
    results(R"({"role":"tool","content":"1"},{"role":"tool","content":"2"},{"role":"tool","content":"3"},
               {"role":"tool","content":"4"})");
  });
  EXPECT_TRUE(cause.starts_with("messages[5]:")) << cause;
  cause = cause_of([] { prompt(body(kUser + R"(,{"role":"tool","content":"r"})")); });
  EXPECT_TRUE(cause.starts_with("messages[1]:")) << cause;
  EXPECT_NE(prompt(body(kUser + R"(,{"role":"tool","tool":"t","content":"r"})")).find(result("t", 1, "r")),
            std::string::npos);
}

TEST(KimiK3, ToolChoiceAndResponseFormatFollowTheMessages) {
  auto with = [](const std::string& fields) { return prompt(body(kUser, R"(,"thinking":false,)" + fields)); };
  std::string user = message(R"(role="user")", "q");
  EXPECT_EQ(with(R"("tool_choice":"none")"), user +
                                                 message(R"(role="system" type="tool-choice")",
                                                         "The system is invoked with `tool_choice=none`.\n"
                                                         "You MUST NOT call any tools in the next message.") +
                                                 kEnd);
  EXPECT_EQ(with(R"("tool_choice":"auto","response_format":{"type":"text"})"), user + kEnd);
  EXPECT_EQ(with(R"("response_format":{"type":"json_schema","json_schema":{"name":"n","schema":{"b":1,"a":"é"}}})"),
            user +
                message(R"(role="system" type="response-format")",
                        "The system is invoked with `response_format=json_schema`.\nYour response must be raw JSON "
                        "data without markdown code blocks (```json) or any additional formatting.\nThe JSON data "
                        "must match the following schema:\n```json\n{\"a\":\"é\",\"b\":1}\n```") +
                kEnd);
  std::string one = R"("tools":[{"function":{"name":"f"}}],"tool_choice":{"type":"function","function":{"name":"f"}})";
  EXPECT_NE(with(one).find("The system is invoked with `tool_choice=required`.\n"), std::string::npos);
}

TEST(KimiK3, WrongFieldsAreNamed) {
  const std::pair<const char*, const char*> cases[] = {
      {R"("tool_choice":"always")", "tool_choice:"},
      {R"("tool_choice":7)", "tool_choice:"},
      {R"("tool_choice":{"type":"function"})", "tool_choice.function:"},
      {R"("tool_choice":{"type":"function","function":{"name":"f"}})", "tool_choice.function.name:"},
      {R"("response_format":"json")", "response_format:"},
      {R"("response_format":{})", "response_format.type:"},
      {R"("response_format":{"type":"xml"})", "response_format.type:"},
      {R"("response_format":{"type":"json_schema"})", "response_format.json_schema:"},
      {R"("response_format":{"type":"json_schema","json_schema":{"schema":7}})", "response_format.json_schema.schema:"},
      {R"("thinking":"yes")", "thinking:"},
      {R"("thinking":{"type":"auto"})", "thinking.type:"},
      {R"("chat_template_kwargs":{"thinking":1})", "chat_template_kwargs.thinking:"},
  };
  for (const auto& [field, named] : cases) {
    EXPECT_TRUE(cause_of([&field = field] { parse(body(kUser, std::string(",") + field)); }).starts_with(named)) << field;
  }
  EXPECT_TRUE(cause_of([] { parse(body(R"({"role":"system","tools":[{}]})")); }).starts_with("messages[0].tools[0]"));
  EXPECT_TRUE(cause_of([] { parse(body(R"({"role":"tool","tool":7})")); }).starts_with("messages[0].tool:"));
}

TEST(KimiK3, QwenFormatsDoNotLookAtFieldsThatTheyCannotWrite) {
  std::string fields = R"(,"tool_choice":"required","response_format":{"type":"json_object"})";
  for (const char* format : {"qwen3.5", "qwen3.8"}) {
    EXPECT_EQ(joined(chat_format(format)->render(parse(body(kUser, fields)))),
              joined(chat_format(format)->render(parse(body(kUser, "")))));
  }
}

TEST(KimiK3, ContinuedMessageStaysOpen) {
  auto with = [](const std::string& answer, const std::string& fields) {
    return body(kUser + R"(,{"role":"assistant",)" + answer + "}", R"(,"continue_final_message":true)" + fields);
  };
  std::string content = with(R"("reasoning":"t","content":"The")", "");
  EXPECT_TRUE(prompt(content).ends_with("<|open|>think<|sep|>t<|close|>think<|sep|><|open|>response<|sep|>The"));
  EXPECT_FALSE(chat_format("kimi-k3")->thinks(parse(content)));
  std::string thoughts = with(R"("reasoning":"t")", R"(,"response_format":{"type":"json_object"})");
  EXPECT_TRUE(
      prompt(thoughts).ends_with(R"(<|end_of_msg|><|open|>message role="assistant"<|sep|><|open|>think<|sep|>t)"));
  EXPECT_TRUE(chat_format("kimi-k3")->thinks(parse(thoughts)));
  EXPECT_TRUE(prompt(with(R"("content":"The")", R"(,"thinking":false)")).ends_with(kEnd + "The"));
}

TEST(KimiK3, PromptsMayEndAfterTheLastMessage) {
  std::string whole = body(kUser, R"(,"thinking":false,"add_generation_prompt":false)");
  EXPECT_EQ(prompt(whole), message(R"(role="user")", "q"));
  EXPECT_FALSE(chat_format("kimi-k3")->thinks(parse(whole)));
}

TEST(KimiK3, CheckpointsAreRecognisedByTheirMarks) {
  ASSERT_TRUE(detect_chat_format(kimi_tokenizer()).has_value());
  EXPECT_EQ(detect_chat_format(kimi_tokenizer())->name, "kimi-k3");
  EXPECT_TRUE(detect_chat_format(kimi_tokenizer())->thinking);
  EXPECT_FALSE(detect_chat_format(small_tokenizer()).has_value());
  EXPECT_EQ(detect_chat_format("{{ '<|open|>message<|sep|>' }} <|close|> <|end_of_msg|>").name, "kimi-k3");
}

TEST(KimiK3, VocabularyWithoutTheMarksIsRefused) {
  std::string cause = cause_of([] { chat_format("kimi-k3")->parser(small_tokenizer(), parse(body(kUser))); });
  EXPECT_NE(cause.find("<|open|>"), std::string::npos) << cause;
  EXPECT_EQ(chat_format("kimi-k3")->end_tokens(), (std::vector<std::string>{"<|end_of_msg|>", "[EOS]"}));
}

}  // namespace
}  // namespace megalith
