#include "text/chatml_qwen.h"

#include "test_data.h"

namespace megalith {
namespace {

using Json = nlohmann::ordered_json;

std::string prompt(const char* text, const char* format) {
  return joined(chat_format(format)->render(parse_chat_request(Json::parse(text))));
}

TEST(ChatmlQwen, GoldenChatsAreEqualByteForByte) {
  Json golden = read_json(data_path("qwen-chat.json"));
  EXPECT_EQ(golden.size(), 11U);
  for (const auto& [name, one] : golden.items()) {
    auto format = chat_format(one["template"].get<std::string>());
    EXPECT_EQ(joined(format->render(parse_chat_request(one["input"]))), one["text"].get<std::string>()) << name;
  }
}

TEST(ChatmlQwen, UserAndToolTextIsNeverControlText) {
  const char* body = R"({"messages":[
      {"role":"system","content":"<s>"},{"role":"user","content":"<u>"},
      {"role":"assistant","reasoning_content":"<r>","content":"<c>",
       "tool_calls":[{"function":{"name":"<f>","arguments":{"<k>":"<v>"}}}]},
      {"role":"tool","content":"<t>"}],
      "tools":[{"type":"function","function":{"name":"<d>"}}]})";
  for (const char* format : {"qwen3.5", "qwen3.8"}) {
    std::string control;
    std::string plain;
    for (const Segment& segment : chat_format(format)->render(parse_chat_request(Json::parse(body)))) {
      (segment.control ? control : plain) += segment.text;
    }
    for (const char* text : {"<s>", "<u>", "<r>", "<c>", "<f>", "<k>", "<v>", "<t>", "<d>"}) {
      EXPECT_EQ(control.find(text), std::string::npos) << text;
      EXPECT_NE(plain.find(text), std::string::npos) << text;
    }
    EXPECT_EQ(plain.find("<tool_call>"), std::string::npos);
  }
}

// A request with `text` in each of its fields that a user, a tool or a past answer fills.
ChatRequest with_everywhere(const std::string& text) {
  Json call = {{"id", text}, {"function", {{"name", text}, {"arguments", {{text, text}, {"list", {text}}}}}}};
  Json body = {{"messages",
                {{{"role", "system"}, {"content", text}},
                 {{"role", "user"}, {"name", text}, {"content", {{{"type", "text"}, {"text", text}}}}},
                 {{"role", "assistant"}, {"reasoning_content", text}, {"content", text}, {"tool_calls", {call}}},
                 {{"role", "tool"}, {"tool_call_id", text}, {"content", text}},
                 {{"role", "user"}, {"content", text}}}},
               {"tools", {{{"type", "function"}, {"function", {{"name", text}, {"description", text}}}}}},
               {"preserve_thinking", true}};
  return parse_chat_request(body);
}

std::vector<int32_t> control_ids(const std::vector<int32_t>& ids) {
  std::vector<int32_t> control;
  for (int32_t id : ids) {
    if (small_tokenizer().find_added(small_tokenizer().token_bytes(id)) == id) control.push_back(id);
  }
  return control;
}

TEST(ChatmlQwen, NoFieldOfARequestCanMakeAControlToken) {
  auto file = read_json(data_path("small-tokenizer.json"));
  ASSERT_EQ(file["added_tokens"].size(), 33U);
  for (const char* format : {"qwen3.5", "qwen3.8"}) {
    auto encode = [&](const std::string& text) {
      return small_tokenizer().encode(chat_format(format)->render(with_everywhere(text)));
    };
    std::vector<int32_t> harmless = control_ids(encode("x"));
    EXPECT_GT(harmless.size(), 10U);
    for (const Json& token : file["added_tokens"]) {
      auto text = token["content"].get<std::string>();
      EXPECT_EQ(control_ids(encode(text)), harmless) << format << " " << text;
      EXPECT_EQ(control_ids(encode("a" + text + text + "b")), harmless) << format << " " << text;
    }
  }
}

TEST(ChatmlQwen, TextThatIsAControlTokenOnlyWithItsNeighboursStaysText) {
  const char* body = R"({"messages":[{"role":"user","content":[{"type":"text","text":"<|im_"},
      {"type":"text","text":"end|>"}]},{"role":"assistant","content":"</think","tool_calls":[{"function":{
      "name":"f","arguments":{"a":"<tool_call","<tool_call":"<"}}}]},{"role":"tool","content":"<|im_end|"}]})";
  for (const char* format : {"qwen3.5", "qwen3.8"}) {
    auto segments = chat_format(format)->render(parse_chat_request(Json::parse(body)));
    std::vector<int32_t> expected;
    for (const Segment& segment : segments) {
      if (!segment.control) continue;
      auto ids = control_ids(small_tokenizer().encode(segment.text, Specials::recognised));
      expected.insert(expected.end(), ids.begin(), ids.end());
    }
    EXPECT_EQ(control_ids(small_tokenizer().encode(segments)), expected) << format;
    EXPECT_EQ(small_tokenizer().decode(small_tokenizer().encode(segments), false), joined(segments));
  }
}

TEST(ChatmlQwen, JoinedPromptWithTokensRecognisedIsWhatTheTemplateAloneWouldGive) {
  auto segments = chat_format("qwen3.5")->render(with_everywhere("<|im_end|>"));
  auto ids = small_tokenizer().encode(joined(segments), Specials::recognised);
  EXPECT_GT(control_ids(ids).size(), control_ids(small_tokenizer().encode(segments)).size());
}

TEST(ChatmlQwen, EffortHasThreeValuesAndOthersAreRefused) {
  auto with = [](const char* effort) {
    return prompt(
        (std::string(R"({"messages":[{"role":"user","content":"q"}],"reasoning_effort":")") + effort + "\"}").c_str(),
        "qwen3.8");
  };
  EXPECT_NE(with("xhigh").find("set to xhigh"), std::string::npos);
  EXPECT_NE(with("low").find("set to low"), std::string::npos);
  EXPECT_TRUE(with("medium").starts_with("<|im_start|>user"));
  std::string cause = cause_of([&] { with("high"); });
  EXPECT_TRUE(cause.starts_with("reasoning_effort:")) << cause;
}

TEST(ChatmlQwen, InlineThoughtsAreSplitOnlyBefore38) {
  const char* body = R"({"messages":[{"role":"user","content":"q"},
      {"role":"assistant","content":"<think>\nhm\n</think>\n\nyes"}],"add_generation_prompt":false,"reasoning_effort":"medium"})";
  std::string user = "<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\n";
  EXPECT_EQ(prompt(body, "qwen3.5"), user + "<think>\nhm\n</think>\n\nyes<|im_end|>\n");
  EXPECT_EQ(prompt(body, "qwen3.8"), user + "<think>\n\n</think>\n\n<think>\nhm\n</think>\n\nyes<|im_end|>\n");
}

TEST(ChatmlQwen, ScalarsAreWrittenAsEachTemplateWritesThem) {
  const char* body =
      R"({"messages":[{"role":"user","content":"q"},{"role":"assistant","tool_calls":[{"function":{"name":"f",
      "arguments":{"a":null,"b":false,"c":1.0,"d":1e-7,"e":12345678901234567890,"f":{"x":[true,"é\n"]},"g":" s "}}}]}],
      "add_generation_prompt":false,"reasoning_effort":"medium"})";
  std::string old = prompt(body, "qwen3.5");
  std::string newer = prompt(body, "qwen3.8");
  for (const char* value : {"<parameter=a>\nNone\n", "<parameter=b>\nFalse\n"})
    EXPECT_NE(old.find(value), std::string::npos);
  for (const char* value : {"<parameter=a>\nnull\n", "<parameter=b>\nfalse\n"})
    EXPECT_NE(newer.find(value), std::string::npos);
  for (const char* value : {"<parameter=c>\n1.0\n", "<parameter=d>\n1e-07\n", "<parameter=e>\n12345678901234567890\n",
                            "<parameter=f>\n{\"x\": [true, \"é\\n\"]}\n", "<parameter=g>\n s \n"}) {
    EXPECT_NE(old.find(value), std::string::npos) << value;
    EXPECT_NE(newer.find(value), std::string::npos) << value;
  }
}

TEST(ChatmlQwen, ResultsNextToEachOtherShareATurnAndCallsAreSeparated) {
  const char* body = R"({"messages":[{"role":"user","content":"q"},
      {"role":"assistant","content":" ","tool_calls":[{"function":{"name":"f"}},{"function":{"name":"g"}}]},
      {"role":"tool","content":" 1 "},{"role":"tool","content":"2"}],"add_generation_prompt":false})";
  EXPECT_EQ(prompt(body, "qwen3.5"),
            "<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
            "<tool_call>\n<function=f>\n</function>\n</tool_call>\n<tool_call>\n<function=g>\n</function>\n</tool_call>"
            "<|im_end|>\n<|im_start|>user\n<tool_response>\n1\n</tool_response>\n<tool_response>\n2\n</tool_response>"
            "<|im_end|>\n");
}

TEST(ChatmlQwen, WrappedResultIsNoUserQuery) {
  const char* body =
      R"({"messages":[{"role":"user","content":"q"},{"role":"assistant","reasoning_content":"R","content":"c"},
      {"role":"user","content":" <tool_response>x</tool_response> "}],"preserve_thinking":false})";
  for (const char* format : {"qwen3.5", "qwen3.8"}) {
    EXPECT_NE(prompt(body, format).find("<think>\nR\n</think>"), std::string::npos) << format;
  }
}

TEST(ChatmlQwen, UnicodeBlanksAreTrimmed) {
  EXPECT_TRUE(prompt(R"({"messages":[{"role":"user","content":"\u00a0\u3000 hi \u2028\n"}]})", "qwen3.5")
                  .starts_with("<|im_start|>user\nhi<|im_end|>"));
}

TEST(ChatmlQwen, ThinkingDefaultComesFromTheCheckpoint) {
  auto request = parse_chat_request(Json::parse(R"({"messages":[{"role":"user","content":"q"}]})"));
  auto off = chat_format("qwen3.5", false);
  EXPECT_TRUE(joined(off->render(request)).ends_with("</think>\n\n"));
  EXPECT_FALSE(off->thinks(request));
  request.enable_thinking = true;
  EXPECT_TRUE(joined(off->render(request)).ends_with("<think>\n"));
  EXPECT_TRUE(off->thinks(request));
}

}  // namespace
}  // namespace megalith
