#include "text/output_parser.h"

#include <random>

#include "linear_time.h"
#include "test_data.h"
#include "text/chat.h"
#include "text/utf8_stream.h"

namespace megalith {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kTools =
    R"([{"type":"function","function":{"name":"f","parameters":{"type":"object","properties":{
    "s":{"type":"string"},"i":{"type":"integer"},"n":{"type":"number"},"b":{"type":"boolean"},"o":{"type":"object"},
    "l":{"type":"array"},"sn":{"type":["string","null"]},"any":{"anyOf":[{"type":"integer"},{"type":"null"}]}}}}}])";

ChatRequest request(bool thinking) {
  ChatRequest made;
  made.messages.push_back(
      {.role = Role::user, .content = "q", .reasoning_content = {}, .tool_calls = {}, .name = {}, .tool_call_id = {}});
  made.tools = Json::parse(kTools);
  made.enable_thinking = thinking;
  return made;
}

std::vector<int32_t> ids_of(const std::string& text) {
  return small_tokenizer().encode(text, Specials::recognised);
}

// The token of one byte.
int32_t id_of_byte(unsigned char byte) {
  for (int32_t id = 0; id < 256; ++id) {
    if (small_tokenizer().token_bytes(id) == std::string_view(reinterpret_cast<const char*>(&byte), 1)) return id;
  }
  ADD_FAILURE() << "no token for the byte " << static_cast<int>(byte);
  return 0;
}

MessageOutput read(const std::string& text, bool thinking, FinishReason reason = FinishReason::stop) {
  auto parser = chat_format("qwen3.8")->parser(small_tokenizer(), request(thinking));
  return parse_output(*parser, ids_of(text), reason);
}

std::string call(const std::string& parameters) {
  return "<tool_call>\n<function=f>\n" + parameters + "</function>\n</tool_call>";
}

std::string arguments_of(const std::string& value, const std::string& key) {
  MessageOutput message = read(call("<parameter=" + key + ">\n" + value + "\n</parameter>\n"), false);
  if (message.tool_calls.size() != 1) return message.content;
  return message.tool_calls[0].arguments;
}

void expect_equal(const MessageOutput& a, const MessageOutput& b) {
  EXPECT_EQ(a.reasoning_content, b.reasoning_content);
  EXPECT_EQ(a.content, b.content);
  EXPECT_EQ(a.tool_calls, b.tool_calls);
  EXPECT_EQ(a.finish_reason, b.finish_reason);
}

// An answer as it is streamed: the sum of the deltas of steps of `n` tokens.
MessageOutput streamed(OutputParser& parser, std::span<const int32_t> ids, size_t n, FinishReason reason) {
  MessageOutput message;
  for (size_t at = 0; at < ids.size(); at += n) {
    for (const OutputEvent& event : parser.feed(ids.subspan(at, std::min(n, ids.size() - at)))) message.add(event);
  }
  for (const OutputEvent& event : parser.finish(reason)) message.add(event);
  return message;
}

constexpr const char* kFormats[] = {"qwen3.5", "qwen3.8"};

// What the answer to a request body reads as, whole and in steps of 1 to 8 tokens, which must be equal.
MessageOutput answer(const std::string& body, const std::string& format, const std::vector<int32_t>& ids,
                     FinishReason reason) {
  ChatRequest made = parse_chat_request(Json::parse(body));
  auto whole = chat_format(format)->parser(small_tokenizer(), made);
  MessageOutput message = parse_output(*whole, ids, reason);
  for (size_t n = 1; n <= 8; ++n) {
    auto parser = chat_format(format)->parser(small_tokenizer(), made);
    expect_equal(streamed(*parser, ids, n, reason), message);
  }
  return message;
}

std::string body(const std::string& fields) {
  return R"({"messages":[{"role":"user","content":"q"}])" + fields + "}";
}

TEST(OutputParser, ThoughtsAndContentAreApart) {
  MessageOutput message = read("abc\n</think>\n\nxyz<|im_end|>", true);
  EXPECT_EQ(message.reasoning_content, "abc");
  EXPECT_EQ(message.content, "xyz");
  EXPECT_EQ(message.finish_reason, FinishReason::stop);
}

TEST(OutputParser, WithThinkingOffTheAnswerIsContent) {
  MessageOutput message = read("xyz<|im_end|>", false);
  EXPECT_EQ(message.reasoning_content, std::nullopt);
  EXPECT_EQ(message.content, "xyz");
}

TEST(OutputParser, NoTagLeaksIntoEitherField) {
  for (const char* text : {"<think>\nabc</think>\n\nxyz", "abc</think></think>xyz",
                           "abc<think>\n</think>x<think>yz</think>", "abc</think>xyz</tool_call>"}) {
    for (bool thinking : {true, false}) {
      MessageOutput message = read(text, thinking);
      EXPECT_EQ((message.reasoning_content.value_or("") + message.content).find('<'), std::string::npos) << text;
    }
  }
  MessageOutput told = read("<think>\nabc\n</think>\n\nxyz", false);
  EXPECT_EQ(told.reasoning_content, "abc");
  EXPECT_EQ(told.content, "xyz");
}

TEST(OutputParser, TagsSpelledAsTextAreText) {
  auto parser = chat_format("qwen3.8")->parser(small_tokenizer(), request(true));
  auto ids = small_tokenizer().encode("a </think> b", Specials::plain_text);
  MessageOutput message = parse_output(*parser, ids, FinishReason::stop);
  EXPECT_EQ(message.reasoning_content, "a </think> b");
  EXPECT_EQ(message.content, "");
}

TEST(OutputParser, CutInsideThoughtsIsAllThoughts) {
  MessageOutput message = read("one two three \n", true, FinishReason::length);
  EXPECT_EQ(message.reasoning_content, "one two three \n");
  EXPECT_EQ(message.content, "");
  EXPECT_EQ(message.finish_reason, FinishReason::length);
}

TEST(OutputParser, SwitchOfTheRequestDecidesWhereTheAnswerStands) {
  for (const char* format : kFormats) {
    for (const char* fields :
         {"", R"(,"chat_template_kwargs":{"enable_thinking":true})", R"(,"enable_thinking":true)"}) {
      MessageOutput both = answer(body(fields), format, ids_of("abc</think>\n\nxyz"), FinishReason::stop);
      EXPECT_EQ(both.reasoning_content, "abc") << format << fields;
      EXPECT_EQ(both.content, "xyz") << format << fields;
      MessageOutput thoughts = answer(body(fields), format, ids_of("xyz"), FinishReason::stop);
      EXPECT_EQ(thoughts.reasoning_content, "xyz") << format << fields;
      EXPECT_EQ(thoughts.content, "") << format << fields;
    }
    for (const char* fields :
         {R"(,"chat_template_kwargs":{"enable_thinking":false})", R"(,"reasoning_effort":"none")"}) {
      MessageOutput plain = answer(body(fields), format, ids_of("xyz"), FinishReason::stop);
      EXPECT_EQ(plain.reasoning_content, std::nullopt) << format << fields;
      EXPECT_EQ(plain.content, "xyz") << format << fields;
      MessageOutput stray = answer(body(fields), format, ids_of("abc</think>\n\nxyz"), FinishReason::stop);
      EXPECT_EQ(stray.reasoning_content, std::nullopt) << format << fields;
      EXPECT_EQ(stray.content, "abc\n\nxyz") << format << fields;
    }
  }
}

TEST(OutputParser, BudgetThatEndsInsideThoughtsLosesNoTokenInEitherMode) {
  std::vector<int32_t> ids = ids_of("Let me see, what is the answer");
  ids.resize(5);
  for (const char* format : kFormats) {
    MessageOutput message = answer(body(R"(,"enable_thinking":true)"), format, ids, FinishReason::length);
    EXPECT_EQ(message.reasoning_content, small_tokenizer().decode(ids, true));
    EXPECT_EQ(message.content, "");
    EXPECT_TRUE(message.tool_calls.empty());
    EXPECT_EQ(message.finish_reason, FinishReason::length);
  }
}

TEST(OutputParser, BudgetThatEndsInsideACharacterGivesOneReplacement) {
  std::vector<int32_t> ids;
  for (unsigned char byte : std::string("ok \xf0\x9f\x91")) ids.push_back(id_of_byte(byte));
  MessageOutput content = answer(body(R"(,"enable_thinking":false)"), "qwen3.8", ids, FinishReason::length);
  EXPECT_EQ(content.content, "ok \ufffd");
  MessageOutput thoughts = answer(body(""), "qwen3.8", ids, FinishReason::length);
  EXPECT_EQ(thoughts.reasoning_content, "ok \ufffd");
  ids.push_back(*small_tokenizer().find_added("</think>"));
  EXPECT_EQ(answer(body(""), "qwen3.8", ids, FinishReason::length).reasoning_content, "ok \ufffd");
}

TEST(OutputParser, SplitCharactersAreWholeInEveryDelta) {
  std::string text = "👩‍👩‍👧 मूर्ति 𠮷野家 ok";
  std::vector<int32_t> ids;
  for (unsigned char byte : text) ids.push_back(id_of_byte(byte));
  for (const std::vector<int32_t>& tokens : {ids, ids_of(text)}) {
    for (size_t n = 1; n <= 8; ++n) {
      auto parser = chat_format("qwen3.8")->parser(small_tokenizer(), request(false));
      std::string joined;
      for (size_t at = 0; at < tokens.size(); at += n) {
        size_t step = std::min(n, tokens.size() - at);
        for (const OutputEvent& event : parser->feed(std::span(tokens).subspan(at, step))) {
          EXPECT_EQ(event.text.find("\ufffd"), std::string::npos);
          EXPECT_EQ(invalid_utf8(event.text), std::string::npos);
          joined += event.text;
        }
      }
      for (const OutputEvent& event : parser->finish(FinishReason::stop)) joined += event.text;
      EXPECT_EQ(joined, text);
    }
  }
}

TEST(OutputParser, SpecialTokensAreHiddenInContentAndOtherAddedOnesAreText) {
  MessageOutput message = read("a<|im_start|>b<|vision_start|>c<|fim_prefix|>d<tool_response>e", false);
  EXPECT_EQ(message.content, "abc<|fim_prefix|>d<tool_response>e");
}

TEST(OutputParser, ContinuedAnswersStreamAsTheyRead) {
  const char* continued = R"({"messages":[{"role":"user","content":"q"},{"role":"assistant","content":"Hello"}],
                              "continue_final_message":true})";
  MessageOutput message = answer(continued, "qwen3.5", ids_of(" world  \n\n" + call("") + " x "), FinishReason::length);
  EXPECT_EQ(message.content, " world  \n\n x ");
  EXPECT_EQ(message.tool_calls.size(), 1U);
}

TEST(OutputParser, LongRunsOfOneTokenTakeLinearTime) {
  for (const char* unit : {" ", "\n", "q", "</think>", "<tool_call>", "</tool_call>"}) {
    for (bool thinking : {true, false}) {
      SCOPED_TRACE(testing::Message() << unit << (thinking ? " in thoughts" : " in content"));
      std::vector<int32_t> unit_ids = ids_of(unit);
      ASSERT_EQ(unit_ids.size(), 1U);
      expect_linear_time(100'000, [&](size_t n) {
        auto parser = chat_format("qwen3.8")->parser(small_tokenizer(), request(thinking));
        std::vector<int32_t> ids = ids_of("x");
        ids.resize(n, unit_ids[0]);
        streamed(*parser, ids, 1, FinishReason::length);
      });
    }
  }
}

TEST(OutputParser, CallsBecomeCalls) {
  MessageOutput message = read("hm</think>\n\nLet me look.\n\n" +
                                   call("<parameter=s>\nOslo\n</parameter>\n<parameter=i>\n2\n</parameter>\n") + "\n" +
                                   call("") + "<|im_end|>",
                               true);
  EXPECT_EQ(message.reasoning_content, "hm");
  EXPECT_EQ(message.content, "Let me look.");
  ASSERT_EQ(message.tool_calls.size(), 2U);
  EXPECT_EQ(message.tool_calls[0], (CallOutput{"call_0", "f", R"({"s": "Oslo", "i": 2})"}));
  EXPECT_EQ(message.tool_calls[1], (CallOutput{"call_1", "f", "{}"}));
  EXPECT_EQ(message.finish_reason, FinishReason::tool_calls);
}

TEST(OutputParser, CallWithinThoughtsEndsThem) {
  MessageOutput message = read("hm\n" + call(""), true);
  EXPECT_EQ(message.reasoning_content, "hm");
  EXPECT_EQ(message.tool_calls.size(), 1U);
  EXPECT_EQ(message.content, "");
}

TEST(OutputParser, ArgumentsHaveTheirDeclaredTypes) {
  const std::tuple<const char*, const char*, const char*> cases[] = {
      {"s", "5", R"({"s": "5"})"},
      {"s", "null", R"({"s": "null"})"},
      {"s", "a\n<b> \"c\"\n", R"({"s": "a\n<b> \"c\"\n"})"},
      {"s", "", R"({"s": ""})"},
      {"s", "see </function> there", R"({"s": "see </function> there"})"},
      {"s", "<think>", R"({"s": "<think>"})"},
      {"i", " 12345678901234567890123 ", R"({"i": 12345678901234567890123})"},
      {"i", "many", R"({"i": "many"})"},
      {"n", "1.50", R"({"n": 1.50})"},
      {"b", "true", R"({"b": true})"},
      {"b", "False", R"({"b": false})"},
      {"b", "null", R"({"b": null})"},
      {"o", "{\"a\": [1]}", R"({"o": {"a": [1]}})"},
      {"l", "[1,\n2]", "{\"l\": [1,\n2]}"},
      {"l", "[1,", R"({"l": "[1,"})"},
      {"sn", "null", R"({"sn": null})"},
      {"sn", "7", R"({"sn": "7"})"},
      {"any", "7", R"({"any": 7})"},
      {"unknown", "7", R"({"unknown": "7"})"},
  };
  for (const auto& [key, value, expected] : cases) EXPECT_EQ(arguments_of(value, key), expected) << key << " " << value;
}

TEST(OutputParser, ForgottenTagsOfAClosedCallAreForgiven) {
  const char* expected = R"({"s": "x", "i": 1})";
  for (const char* text : {
           "<tool_call><function=f><parameter=s>x</parameter><parameter=i>1</parameter></function></tool_call>",
           "<tool_call>\n<function=f>\n<parameter=s>\nx\n<parameter=i>\n1\n</parameter>\n</function>\n</tool_call>",
           "<tool_call>\n<function=f>\n<parameter=s>\nx\n</parameter>\n<parameter=i>\n1\n</function>\n</tool_call>",
           "<tool_call>\n<function=f>\n<parameter=s>\nx\n</parameter>\n<parameter=i>\n1\n</tool_call>",
           "<tool_call>\n<function=f>\n<parameter=s>\nx\n</parameter>\n<parameter=i>\n1\n</parameter>\n</tool_call>",
           "<tool_call>\n<function=f>\n<parameter=s>\nx\n</parameter>\n<parameter=i>\n1\n</parameter>\n</function>\n",
       }) {
    MessageOutput message = read(text, false);
    ASSERT_EQ(message.tool_calls.size(), 1U) << text << ": " << message.content;
    EXPECT_EQ(message.tool_calls[0].arguments, expected) << text;
  }
}

TEST(OutputParser, UnfinishedOrShapelessCallIsContent) {
  MessageOutput cut = read("Look.\n\n<tool_call>\n<function=f>\n<parameter=s>\nOs", false, FinishReason::length);
  EXPECT_TRUE(cut.tool_calls.empty());
  EXPECT_EQ(cut.content, "Look.\n\n<tool_call>\n<function=f>\n<parameter=s>\nOs");
  EXPECT_EQ(cut.finish_reason, FinishReason::length);
  MessageOutput shapeless = read("<tool_call>\n{\"name\": \"f\"}\n</tool_call> done", false);
  EXPECT_TRUE(shapeless.tool_calls.empty());
  EXPECT_EQ(shapeless.content, "<tool_call>\n{\"name\": \"f\"}\n</tool_call> done");
  EXPECT_EQ(shapeless.finish_reason, FinishReason::stop);
}

TEST(OutputParser, CallIdsDifferFromThoseInTheConversation) {
  ChatRequest made = request(false);
  made.messages.push_back({.role = Role::assistant,
                           .content = "",
                           .reasoning_content = {},
                           .tool_calls = {{"call_1", "f"}},
                           .name = {},
                           .tool_call_id = {}});
  auto parser = chat_format("qwen3.5")->parser(small_tokenizer(), made);
  MessageOutput message = parse_output(*parser, ids_of(call("") + call("")), FinishReason::stop);
  ASSERT_EQ(message.tool_calls.size(), 2U);
  EXPECT_EQ(message.tool_calls[0].id, "call_2");
  EXPECT_EQ(message.tool_calls[1].id, "call_3");
}

TEST(OutputParser, ContinuedTextKeepsItsFirstBlank) {
  ChatRequest made = request(false);
  made.messages.push_back({.role = Role::assistant,
                           .content = "Hello",
                           .reasoning_content = {},
                           .tool_calls = {},
                           .name = {},
                           .tool_call_id = {}});
  made.continue_final_message = true;
  auto parser = chat_format("qwen3.5")->parser(small_tokenizer(), made);
  EXPECT_EQ(parse_output(*parser, ids_of(" world"), FinishReason::stop).content, " world");
}

TEST(OutputParser, NothingIsReadAfterAnEndToken) {
  for (const char* end : {"<|im_end|>", "<|endoftext|>"}) {
    MessageOutput message = read(std::string("a") + end + "b" + call(""), false);
    EXPECT_EQ(message.content, "a");
    EXPECT_TRUE(message.tool_calls.empty());
  }
}

TEST(OutputParser, VocabularyWithoutTheMarksIsRefused) {
  auto file = read_json(data_path("small-tokenizer.json"));
  file["added_tokens"] = Json::array();
  Tokenizer bare = Tokenizer::from_json(file.dump(), "file");
  std::string cause = cause_of([&] { chat_format("qwen3.5")->parser(bare, request(true)); });
  EXPECT_NE(cause.find("<think>"), std::string::npos) << cause;
}

// Feeds in random steps; checks each event on the way.
MessageOutput read_in_steps(const std::vector<int32_t>& ids, bool thinking, FinishReason reason, std::mt19937& random) {
  auto parser = chat_format("qwen3.8")->parser(small_tokenizer(), request(thinking));
  MessageOutput message;
  auto add = [&](const std::vector<OutputEvent>& events) {
    for (const OutputEvent& event : events) {
      EXPECT_EQ(invalid_utf8(event.text), std::string::npos);
      bool delta = event.kind == OutputEvent::Kind::reasoning || event.kind == OutputEvent::Kind::content;
      EXPECT_FALSE(delta && event.text.empty());
      message.add(event);
    }
  };
  for (size_t at = 0; at < ids.size();) {
    size_t n = std::min<size_t>(1 + random() % 8, ids.size() - at);
    add(parser->feed(std::span(ids).subspan(at, n)));
    at += n;
  }
  add(parser->finish(reason));
  return message;
}

TEST(OutputParser, DeltasJoinedEqualTheWholeWhereverItIsCut) {
  std::string text = "<think>\nhm 👩‍👩‍👧 \n\n so\n</think>\n\n  Let me 看  look. \n\n" +
                     call("<parameter=s>\nन मू\n</parameter>\n<parameter=i>\n2\n</parameter>\n") + "\n" + call("") +
                     "\n after <tool_call>\nodd</tool_call> end \n<|im_end|>";
  std::vector<int32_t> ids = ids_of(text);
  std::mt19937 random(3);
  for (size_t end = 0; end <= ids.size(); ++end) {
    std::vector<int32_t> cut(ids.begin(), ids.begin() + static_cast<long>(end));
    for (bool thinking : {true, false}) {
      for (FinishReason reason : {FinishReason::length, FinishReason::stop}) {
        auto parser = chat_format("qwen3.8")->parser(small_tokenizer(), request(thinking));
        MessageOutput whole = parse_output(*parser, cut, reason);
        expect_equal(read_in_steps(cut, thinking, reason, random), whole);
        for (const CallOutput& one : whole.tool_calls) EXPECT_TRUE(Json::accept(one.arguments));
      }
    }
  }
}

TEST(OutputParser, RandomTokensGiveTheSameStreamedAndWhole) {
  std::mt19937 random(4);
  std::vector<std::vector<int32_t>> parts;
  for (const char* part :
       {"<think>", "</think>", "<tool_call>", "</tool_call>", "<function=f>", "<parameter=s>", "</parameter>",
        "</function>", "\n", "  ", "text", "国", "<|im_start|>", "<tool_response>"}) {
    parts.push_back(ids_of(part));
  }
  for (int round = 0; round < 2000; ++round) {
    std::vector<int32_t> ids;
    for (int i = 0; i < 25; ++i) {
      if (random() % 5 == 0) {
        ids.push_back(static_cast<int32_t>(random() % 256));
      } else {
        const auto& part = parts[random() % parts.size()];
        ids.insert(ids.end(), part.begin(), part.end());
      }
    }
    bool thinking = random() % 2 == 0;
    FinishReason reason = random() % 2 == 0 ? FinishReason::stop : FinishReason::length;
    auto parser = chat_format("qwen3.8")->parser(small_tokenizer(), request(thinking));
    MessageOutput whole = parse_output(*parser, ids, reason);
    expect_equal(read_in_steps(ids, thinking, reason, random), whole);
    EXPECT_FALSE(whole.reasoning_content && whole.reasoning_content->empty());
  }
}

}  // namespace
}  // namespace megalith
