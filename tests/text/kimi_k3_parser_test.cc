// Answers of Kimi K3.

#include "text/kimi_k3_parser.h"

#include <random>

#include "kimi_data.h"
#include "linear_time.h"
#include "text/chat.h"
#include "text/utf8_stream.h"

namespace megalith {
namespace {

using Json = nlohmann::ordered_json;
using Kind = OutputEvent::Kind;

// Thoughts, content, calls as "NAME ARGUMENTS" and the end's reason.
struct Answer {
  std::optional<std::string> reasoning;
  std::string content;
  std::vector<std::string> calls;
  FinishReason reason = FinishReason::stop;
  bool operator==(const Answer&) const = default;
};

void PrintTo(const Answer& answer, std::ostream* out) {
  *out << "[" << answer.reasoning.value_or("(none)") << "] [" << answer.content << "]";
  for (const std::string& call : answer.calls) *out << " " << call;
  *out << " " << finish_reason_name(answer.reason);
}

ChatRequest request(bool thinking, const std::string& fields = "") {
  return parse_chat_request(Json::parse(R"({"messages":[{"role":"user","content":"q"}],"thinking":)" +
                                        std::string(thinking ? "true" : "false") + fields + "}"));
}

std::vector<int32_t> ids_of(const std::string& text) {
  return kimi_tokenizer().encode(text, Specials::recognised);
}

MessageOutput streamed(const ChatRequest& made, std::span<const int32_t> ids, size_t n, FinishReason reason) {
  auto parser = chat_format("kimi-k3")->parser(kimi_tokenizer(), made);
  MessageOutput message;
  auto add = [&](const std::vector<OutputEvent>& events) {
    for (const OutputEvent& event : events) {
      EXPECT_EQ(invalid_utf8(event.text), std::string::npos);
      message.add(event);
    }
  };
  for (size_t at = 0; at < ids.size(); at += n) add(parser->feed(ids.subspan(at, std::min(n, ids.size() - at))));
  add(parser->finish(reason));
  return message;
}

// What the ids read as, in steps of 1 to 8 and all at once, which must be equal.
MessageOutput message_of(const ChatRequest& made, const std::vector<int32_t>& ids, FinishReason reason) {
  MessageOutput whole = streamed(made, ids, ids.size() + 1, reason);
  for (size_t n = 1; n <= 8; ++n) {
    MessageOutput message = streamed(made, ids, n, reason);
    EXPECT_EQ(message.reasoning_content, whole.reasoning_content);
    EXPECT_EQ(message.content, whole.content);
    EXPECT_EQ(message.tool_calls, whole.tool_calls);
    EXPECT_EQ(message.finish_reason, whole.finish_reason);
  }
  return whole;
}

Answer read(const ChatRequest& made, const std::vector<int32_t>& ids, FinishReason reason) {
  MessageOutput message = message_of(made, ids, reason);
  Answer answer = {message.reasoning_content, message.content, {}, message.finish_reason};
  for (const CallOutput& call : message.tool_calls) {
    EXPECT_TRUE(Json::parse(call.arguments, nullptr, false).is_object()) << call.arguments;
    answer.calls.push_back(call.name + " " + call.arguments);
  }
  return answer;
}

// Thinking, with a spelling of marks as {open} for <|open|>.
Answer thinking(const std::string& text, FinishReason reason = FinishReason::stop) {
  return read(request(true), ids_of(text), reason);
}

Answer responding(const std::string& text, FinishReason reason = FinishReason::stop) {
  return read(request(false), ids_of(text), reason);
}

std::string open(const std::string& tag) {
  return "<|open|>" + tag + "<|sep|>";
}

std::string close(const std::string& tag) {
  return "<|close|>" + tag + "<|sep|>";
}

std::string call(const std::string& tool, const std::string& inside) {
  return open("call tool=\"" + tool + "\" index=\"1\"") + inside + close("call");
}

std::string argument(const std::string& key, const std::string& type, const std::string& value) {
  return open("argument key=\"" + key + "\" type=\"" + type + "\"") + value + close("argument");
}

const std::string kEnd = close("message") + "<|end_of_msg|>";
constexpr FinishReason kStop = FinishReason::stop, kLength = FinishReason::length, kCalls = FinishReason::tool_calls;

TEST(KimiK3Parser, ChannelsBecomeFields) {
  EXPECT_EQ(thinking(" Hm.\n" + close("think") + open("response") + " Yes. \n" + close("response") + kEnd),
            (Answer{" Hm.\n", " Yes. \n", {}, kStop}));
  EXPECT_EQ(responding("Yes." + close("response") + kEnd), (Answer{{}, "Yes.", {}, kStop}));
  EXPECT_EQ(thinking(close("think") + open("response") + close("response") + kEnd), (Answer{{}, "", {}, kStop}));
}

TEST(KimiK3Parser, CallsBecomeCallsWithTypedArguments) {
  std::string inside = argument("city", "string", "Oslo \"x\"\n") + argument("days", "number", "1e2") +
                       argument("now", "boolean", "true") + argument("o", "object", "{\"a\": [1,\n2]}") +
                       argument("l", "array", "[]") + argument("n", "null", "null");
  EXPECT_EQ(thinking("t" + close("think") + open("response") + "Using it." + close("response") + open("tools") +
                     call("f", inside) + call("g", "") + close("tools") + kEnd),
            (Answer{"t",
                    "Using it.",
                    {R"(f {"city": "Oslo \"x\"\n", "days": 1e2, "now": true, "o": {"a": [1,)"
                     "\n"
                     R"(2]}, "l": [], "n": null})",
                     "g {}"},
                    kCalls}));
}

TEST(KimiK3Parser, ValuesThatAreNotOfTheirTypeAreStrings) {
  const std::tuple<const char*, const char*, const char*> cases[] = {
      {"string", "5", R"("5")"},
      {"string", "", R"("")"},
      {"string", "null", R"("null")"},
      {"number", " 7 ", "7"},
      {"number", "many", R"("many")"},
      {"boolean", "True", R"("True")"},
      {"array", "[1,", R"("[1,")"},
      {"object", "", R"("")"},
      {"number", "1e999", R"("1e999")"},
      {"", "[1]", "[1]"},
      {"other", "x", R"("x")"},
      {"string", " s ", R"(" s ")"},
      {"string", "&quot;&amp;", R"("&quot;&amp;")"},
  };
  for (const auto& [type, value, json] : cases) {
    EXPECT_EQ(responding(call("f", argument("k", type, value))).calls,
              (std::vector<std::string>{std::string("f {\"k\": ") + json + "}"}))
        << type << " " << value;
  }
}

TEST(KimiK3Parser, AttributesAreUnescapedOnce) {
  EXPECT_EQ(responding(call("a&amp;quot;&quot;b", argument("&lt;&amp;amp; x=y", "string", "v"))).calls,
            (std::vector<std::string>{R"(a&quot;"b {"&lt;&amp; x=y": "v"})"}));
}

TEST(KimiK3Parser, JsonBlocksAreTheArgumentsAsWritten) {
  auto with = [](const std::string& inside) { return responding(call("f", inside)).calls.at(0); };
  EXPECT_EQ(with(open("json type=\"object\"") + "{\"a\":1e2,\"b\":[ ]}" + close("json")), "f {\"a\":1e2,\"b\":[ ]}");
  EXPECT_EQ(with("{\"a\":1}"), "f {\"a\":1}");
  EXPECT_EQ(with(open("json") + close("json")), "f {}");
  EXPECT_EQ(with(open("json") + "{\"a\":1e2}" + close("json") + argument("b", "number", "2")),
            R"(f {"a": 1e2, "b": 2})");
}

TEST(KimiK3Parser, LastValueOfAKeyCounts) {
  EXPECT_EQ(
      responding(call("f", argument("a", "number", "1") + argument("b", "number", "2") + argument("a", "number", "3")))
          .calls,
      (std::vector<std::string>{R"(f {"a": 3, "b": 2})"}));
}

TEST(KimiK3Parser, IdsNameTheFunctionAndCountOverTheConversation) {
  ChatRequest made = parse_chat_request(Json::parse(
      R"({"messages":[{"role":"user","content":"q"},{"role":"assistant","tool_calls":[
      {"id":"functions.g:2","function":{"name":"g"}},{"id":"x","function":{"name":"f"}}]},
      {"role":"tool","tool_call_id":"functions.g:2","content":"r"},{"role":"tool","tool_call_id":"x","content":"r"}]})"));
  MessageOutput message =
      message_of(made, ids_of(open("tools") + call("f", "") + call("g", "") + call("g", "")), kStop);
  ASSERT_EQ(message.tool_calls.size(), 3U);
  EXPECT_EQ(message.tool_calls[0].id, "functions.f:2");
  EXPECT_EQ(message.tool_calls[1].id, "functions.g:3");
  EXPECT_EQ(message.tool_calls[2].id, "functions.g:4");
}

TEST(KimiK3Parser, AnswerReadAndRenderedAgainIsWhatTheModelWrote) {
  std::string written = "t" + close("think") + open("response") + "c" + close("response") + open("tools") +
                        call("f&amp;", argument("a", "number", "1e2") + argument("b", "string", "x\n")) +
                        close("tools") + kEnd;
  MessageOutput message = message_of(request(true), ids_of(written), kStop);
  Json call = {{"id", message.tool_calls.at(0).id},
               {"function", {{"name", message.tool_calls[0].name}, {"arguments", message.tool_calls[0].arguments}}}};
  Json again = {{"messages",
                 {{{"role", "user"}, {"content", "q"}},
                  {{"role", "assistant"},
                   {"reasoning_content", *message.reasoning_content},
                   {"content", message.content},
                   {"tool_calls", {call}}}}},
                {"add_generation_prompt", false}};
  auto format = chat_format("kimi-k3");
  EXPECT_EQ(joined(format->render(parse_chat_request(again))), joined(format->render(request(true))) + written);
}

TEST(KimiK3Parser, CutInsideThoughtsIsAllThoughts) {
  EXPECT_EQ(thinking("one two \n", kLength), (Answer{"one two \n", "", {}, kLength}));
  EXPECT_EQ(thinking("", kLength), (Answer{{}, "", {}, kLength}));
}

TEST(KimiK3Parser, ForgottenEndsAreImplied) {
  Answer whole = {"t", "c", {"f {\"a\": 1}"}, kCalls};
  std::string calls = open("tools") + call("f", argument("a", "number", "1")) + close("tools");
  for (const std::string& text : {
           "t" + open("response") + "c" + close("response") + calls + kEnd,
           "t" + close("think") + open("response") + "c" + calls + kEnd,
           "t" + close("think") + open("response") + "c" + calls + "<|end_of_msg|>",
           "t" + close("think") + open("response") + "c" + calls + "[EOS]",
           "t" + close("think") + open("response") + "c" + calls,
           "t" + calls + open("response") + "c" + kEnd,
           "t" + open("tools") + open("call tool=\"f\" index=\"1\"") + open("argument key=\"a\" type=\"number\"") +
               "1" + close("call") + open("response") + "c" + kEnd,
           "t" + open("call tool=\"f\"") + open("argument key=\"a\" type=\"number\"") + "1" + open("response") + "c",
           "t" + close("think") + open("response") + "c" + open("call tool=\"f\"") +
               open("argument key=\"a\" type=\"number\"") + "1<|end_of_msg|>",
           "t<|close|>think<|open|>response<|sep|>c<|close|>response<|open|>tools<|sep|>" +
               call("f", argument("a", "number", "1")) + "<|close|>message<|end_of_msg|>",
       }) {
    EXPECT_EQ(thinking(text), whole) << text;
  }
}

TEST(KimiK3Parser, ChannelsMayComeInAnyOrderAndLoseNoText) {
  EXPECT_EQ(thinking("a" + close("think") + "b" + open("think") + "c" + open("response") + "d" + close("think") + "e" +
                     open("response") + "f" + kEnd),
            (Answer{"ac", "bdef", {}, kStop}));
  EXPECT_EQ(thinking(close("tools") + "a" + close("response") + "b<|sep|>c" + close("call") + "d" + close("argument")),
            (Answer{"abcd", "", {}, kStop}));
  EXPECT_EQ(responding("a" + open("argument key=\"x\" type=\"string\"") + "b" + close("argument") + "c" +
                       open("tools") + "d" + call("f", "e") + "g"),
            (Answer{{}, "abcdeg", {"f {}"}, kCalls}));
  EXPECT_EQ(responding(open("message role=\"assistant\"") + open("think") + "t" + close("think") + " \n" +
                       open("response") + "c"),
            (Answer{"t", "c", {}, kStop}));
}

TEST(KimiK3Parser, WithoutAGenerationPromptTheAnswerBringsItsOwnMessage) {
  ChatRequest made = request(true, R"(,"add_generation_prompt":false)");
  EXPECT_EQ(
      read(made, ids_of(open("message role=\"assistant\"") + open("think") + "t" + open("response") + "c"), kStop),
      (Answer{"t", "c", {}, kStop}));
  EXPECT_EQ(read(made, ids_of(" \n c"), kStop), (Answer{{}, "c", {}, kStop}));
}

TEST(KimiK3Parser, NoMarkAndNoTagLeaksWhereNoToolsAreDeclared) {
  EXPECT_EQ(responding("Using it." + close("response") + open("tools") + call("f", argument("a", "string", "x")) +
                       close("tools") + kEnd),
            (Answer{{}, "Using it.", {"f {\"a\": \"x\"}"}, kCalls}));
  for (std::string tag : {"respo", "response", "tools", "call tool=\"f\" ind", "message role=\"assi", ""}) {
    EXPECT_EQ(responding("c<|open|>" + tag, kLength), (Answer{{}, "c", {}, kLength})) << tag;
    EXPECT_EQ(responding("c<|close|>" + tag, kLength), (Answer{{}, "c", {}, kLength})) << tag;
  }
  EXPECT_EQ(responding("c" + open("video src=\"x\"") + "d" + close("video")), (Answer{{}, "cd", {}, kStop}));
}

TEST(KimiK3Parser, TextAfterAMarkThatIsNoTagIsText) {
  EXPECT_EQ(responding("a<|open|> I see, all right" + close("response")),
            (Answer{{}, "a I see, all right", {}, kStop}));
  EXPECT_EQ(responding("a<|close|> I see", kLength), (Answer{{}, "a I see", {}, kLength}));
  std::string prose = repeat("on and on ", 100);
  EXPECT_EQ(responding("a<|open|>" + prose + close("response")), (Answer{{}, "a" + prose, {}, kStop}));
}

TEST(KimiK3Parser, MarksAndTagsSpelledAsTextAreText) {
  std::string text = "a " + close("think") + open("response") + " think <|end_of_msg|> [EOS]";
  auto ids = kimi_tokenizer().encode(text, Specials::plain_text);
  EXPECT_EQ(read(request(true), ids, kStop), (Answer{text, "", {}, kStop}));
}

TEST(KimiK3Parser, NothingFollowsTheEndOfTheMessage) {
  for (const std::string& end : {close("message"), std::string("<|end_of_msg|>"), std::string("[EOS]")}) {
    EXPECT_EQ(responding("c" + end + "d" + open("think") + "e" + call("f", "")), (Answer{{}, "c", {}, kStop})) << end;
  }
}

TEST(KimiK3Parser, CutOrShapelessCallIsContent) {
  std::string begin = "Look." + close("response") + open("tools") + open("call tool=\"f\" index=\"1\"");
  EXPECT_EQ(responding(begin, kLength), (Answer{{}, "Look.\nf", {}, kLength}));
  EXPECT_EQ(
      responding(begin + argument("a", "number", "1") + open("argument key=\"b\" type=\"string\"") + "Os", kLength),
      (Answer{{}, "Look.\nf {\"a\": 1, \"b\": \"Os\"}", {}, kLength}));
  EXPECT_EQ(responding(begin + open("json") + "{\"a\":" + close("json") + close("call")),
            (Answer{{}, "Look.\nf {\"a\":", {}, kStop}));
  EXPECT_EQ(responding(open("call index=\"1\"") + argument("a", "number", "1") + close("call")),
            (Answer{{}, "{\"a\": 1}", {}, kStop}));
}

TEST(KimiK3Parser, SpecialTokensAreHidden) {
  std::string filler = "<|reserved_token_" + std::to_string(kimi_tokenizer().size() - 3) + "|>";
  EXPECT_EQ(responding("a[BOS]b<|media_pad|>c" + filler + "d"), (Answer{{}, "abcd", {}, kStop}));
}

// The tokens of single bytes.
std::vector<int32_t> bytes_of(const std::string& text) {
  std::vector<int32_t> ids;
  for (char c : text) {
    int32_t id = 0;
    while (kimi_tokenizer().token_bytes(id) != std::string_view(&c, 1)) ++id;
    ids.push_back(id);
  }
  return ids;
}

TEST(KimiK3Parser, SplitCharactersAreWholeAndBrokenOnesOneReplacement) {
  std::string text = "👩‍👩‍👧 मूर्ति 𠮷野家 ok";
  EXPECT_EQ(read(request(false), bytes_of(text), kStop), (Answer{{}, text, {}, kStop}));
  EXPECT_EQ(read(request(false), bytes_of("ok \xf0\x9f\x91"), kLength), (Answer{{}, "ok \ufffd", {}, kLength}));
  std::vector<int32_t> ids = bytes_of("ok \xf0\x9f\x91");
  ids.push_back(kimi_tokenizer().find_added("<|close|>").value());
  EXPECT_EQ(read(request(true), ids, kLength), (Answer{"ok \ufffd", "", {}, kLength}));
}

TEST(KimiK3Parser, ContinuedAnswersGoOnInTheirChannel) {
  auto made = [](const std::string& answer) {
    return parse_chat_request(Json::parse(R"({"messages":[{"role":"user","content":"q"},{"role":"assistant",)" +
                                          answer + R"(}],"continue_final_message":true})"));
  };
  EXPECT_EQ(read(made(R"("content":"The")"), ids_of(" end" + kEnd), kStop), (Answer{{}, " end", {}, kStop}));
  EXPECT_EQ(read(made(R"("reasoning":"t")"), ids_of(" u" + open("response") + "c" + kEnd), kStop),
            (Answer{" u", "c", {}, kStop}));
}

TEST(KimiK3Parser, IdsOutsideTheVocabularyAreRefused) {
  auto parser = chat_format("kimi-k3")->parser(kimi_tokenizer(), request(true));
  for (int32_t outside : {-1, kimi_tokenizer().rows()}) EXPECT_THROW(parser->feed({&outside, 1}), Error);
}

TEST(KimiK3Parser, AnyAnswerIsReadAlikeHoweverItIsCutAndKeepsItsText) {
  const std::vector<std::string> parts = {"<|open|>",
                                          "<|close|>",
                                          "<|sep|>",
                                          "XY, you see",
                                          " Z it is\n",
                                          "W< that",
                                          "{\"q\":1}",
                                          "国",
                                          "[BOS]",
                                          open("think"),
                                          close("think"),
                                          open("response"),
                                          close("response"),
                                          open("tools"),
                                          close("tools"),
                                          open("json"),
                                          close("json"),
                                          open("call tool=\"f\" index=\"1\""),
                                          close("call"),
                                          close("argument"),
                                          open("video"),
                                          call("f", ""),
                                          open("message role=\"assistant\"")};
  std::mt19937 random(1);
  for (int round = 0; round < 2000; ++round) {
    std::string text;
    for (size_t n = random() % 16; n > 0; --n) {
      std::string key = "argument key=\"" + std::to_string(n) + "\" type=\"number\"";
      text += random() % 6 == 0 ? open(key) : parts[random() % parts.size()];
    }
    MessageOutput message = message_of(request(round % 2 == 0), ids_of(text), round % 3 == 0 ? kStop : kLength);
    std::string all = message.reasoning_content.value_or("") + message.content;
    EXPECT_EQ(all.find("<|"), std::string::npos) << text;
    for (const CallOutput& made : message.tool_calls) all += made.name + made.arguments;
    for (char letter : std::string("XYZW")) {
      EXPECT_EQ(std::count(all.begin(), all.end(), letter), std::count(text.begin(), text.end(), letter)) << text;
    }
  }
}

TEST(KimiK3Parser, LongRunsOfOneTokenTakeLinearTime) {
  const std::string starts[] = {"", "<|open|>", "<|open|>call ", open("call tool=\"f\""),
                                open("call tool=\"f\"") + open("argument key=\"k\" type=\"number\"")};
  for (const std::string& start : starts) {
    for (const char* unit : {" ", "\n", "q", "[", "<|open|>", "<|close|>", "<|sep|>"}) {
      SCOPED_TRACE(start + unit);
      std::vector<int32_t> unit_ids = ids_of(unit);
      ASSERT_EQ(unit_ids.size(), 1U);
      std::vector<int32_t> begin = ids_of(start);
      expect_linear_time(50'000, [&](size_t n) {
        std::vector<int32_t> ids = begin;
        ids.resize(begin.size() + n, unit_ids[0]);
        streamed(request(false), ids, 1, kLength);
      });
    }
  }
}

}  // namespace
}  // namespace megalith
