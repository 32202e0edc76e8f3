#include "text/channel_constraint.h"

#include <random>

#include "kimi_data.h"
#include "test_data.h"
#include "text/chat.h"
#include "text/request_json.h"

namespace megalith {
namespace {

using Json = nlohmann::ordered_json;

// One family: its format, its vocabulary, and texts with its marks.
struct Family {
  std::string name;
  const Tokenizer& tokenizer;
  std::string leave_thoughts, json_end, call, call_end, calls_end;

  std::unique_ptr<const ChatFormat> format() const { return chat_format(name); }
  std::vector<int32_t> end_tokens() const {
    std::vector<int32_t> ids;
    for (const auto& text : format()->end_tokens()) ids.push_back(*tokenizer.find_added(text));
    return ids;
  }
  std::vector<int32_t> ids(std::string_view text) const { return tokenizer.encode(text, Specials::recognised); }
};

const Family& qwen() {
  static const Tokenizer tokenizer = *Tokenizer::from_directory(MEGALITH_SOURCE_DIR "/models/tiny-qwen");
  static const Family family{.name = "qwen3.5",
                             .tokenizer = tokenizer,
                             .leave_thoughts = "</think>\n\n",
                             .json_end = "<|im_end|>",
                             .call = "<tool_call>\n<function=f>\n",
                             .call_end = "<parameter=x>\n1\n</parameter>\n</function>\n</tool_call>",
                             .calls_end = "<|im_end|>"};
  return family;
}

const Family& kimi() {
  static const Family family{
      .name = "kimi-k3",
      .tokenizer = kimi_tokenizer(),
      .leave_thoughts = "<|close|>think<|sep|><|open|>response<|sep|>",
      .json_end = "<|close|>response<|sep|><|close|>message<|sep|><|end_of_msg|>",
      .call = "<|close|>response<|sep|><|open|>tools<|sep|><|open|>call tool=\"f\" index=\"1\"<|sep|>",
      .call_end = "<|open|>argument key=\"x\" type=\"number\"<|sep|>1<|close|>argument<|sep|><|close|>call<|sep|>",
      .calls_end = "<|close|>tools<|sep|><|close|>message<|sep|><|end_of_msg|>"};
  return family;
}

class Answer : public testing::TestWithParam<const Family*> {
 protected:
  const Family& family() const { return *GetParam(); }

  void begin(Json fields, std::optional<int64_t> budget = {}, bool parallel = true) {
    fields["messages"] = fields.value("messages", Json{{{"role", "user"}, {"content", "q"}}});
    request_ = parse_chat_request(fields);
    const auto ends = family().end_tokens();
    made_ = make_answer_constraint(*family().format(), family().tokenizer, request_, budget, ends, parallel);
    constraint_ = made_ ? made_->clone() : nullptr;
    taken_.clear();
  }

  // Takes a text token by token, each allowed.
  void take(std::string_view text) {
    for (int32_t id : family().ids(text)) {
      auto set = constraint_->allowed();
      ASSERT_TRUE(!set || set->has(id)) << text << ": " << family().tokenizer.token_bytes(id);
      ASSERT_TRUE(constraint_->take(id));
      taken_.push_back(id);
    }
  }

  // Takes what is forced.
  std::string take_forced() {
    std::string text;
    for (auto set = constraint_->allowed(); set; set = constraint_->allowed()) {
      std::vector<int32_t> ids;
      for (int32_t id = 0; id < family().tokenizer.rows(); ++id) {
        if (set->has(id)) ids.push_back(id);
      }
      EXPECT_FALSE(ids.empty());
      if (ids.size() != 1) break;
      EXPECT_TRUE(constraint_->take(ids[0]));
      taken_.push_back(ids[0]);
      text += family().tokenizer.token_bytes(ids[0]);
    }
    return text;
  }

  bool allows(std::string_view mark) {
    const int32_t id = *family().tokenizer.find_added(mark);
    auto set = constraint_->allowed();
    const bool allowed = !set || set->has(id);
    EXPECT_EQ(constraint_->clone()->take(id), allowed);
    return allowed;
  }
  bool free() { return constraint_->allowed() == nullptr; }
  bool ends() { return allows(family().format()->end_tokens()[0]); }

  MessageOutput parsed() {
    return parse_output(*family().format()->parser(family().tokenizer, request_), taken_, FinishReason::stop);
  }

  static Json json_format() { return {{"response_format", {{"type", "json_object"}}}}; }
  static Json tools(const Json& choice) {
    return {{"tools", {{{"function", {{"name", "f"}}}}, {{"function", {{"name", "fg"}}}}}}, {"tool_choice", choice}};
  }

  ChatRequest request_;
  std::shared_ptr<const Constraint> made_;
  std::unique_ptr<Constraint> constraint_;
  std::vector<int32_t> taken_;
};

INSTANTIATE_TEST_SUITE_P(, Answer, testing::Values(&qwen(), &kimi()),
                         [](const auto& info) { return info.param == &qwen() ? "Qwen" : "Kimi"; });

TEST_P(Answer, NothingAskedIsNoConstraint) {
  begin(Json::object());
  EXPECT_EQ(constraint_, nullptr);
  begin(tools("auto"));
  EXPECT_EQ(constraint_, nullptr);
  begin({{"enable_thinking", false}}, 5);
  EXPECT_EQ(constraint_, nullptr);
}

TEST_P(Answer, ThoughtsEndAtTheirBudgetAndThenAnythingMayCome) {
  begin(Json::object(), 3);
  take("a b");
  while (free()) take("a");
  EXPECT_EQ(taken_.size(), 3U);
  const std::string forced = take_forced();
  EXPECT_TRUE(family().leave_thoughts.starts_with(forced) && !forced.empty()) << forced;
  EXPECT_TRUE(free());
  take("content");
  EXPECT_TRUE(ends());
}

TEST_P(Answer, ABudgetOfNothingEndsThoughtsAtOnce) {
  begin(json_format(), 0);
  EXPECT_EQ(take_forced(), family().leave_thoughts);
  take("{}");
  take_forced();
  EXPECT_EQ(parsed().content, "{}");
}

TEST_P(Answer, ThoughtsThatEndByThemselvesLeaveTheModelFree) {
  begin(Json::object(), 3);
  take("a");
  take(family().leave_thoughts);
  take("b b b b b b b");
  EXPECT_TRUE(free());
  // They may also end otherwise.
  begin(Json::object(), 3);
  take(&family() == &qwen() ? "<tool_call>" : "<|open|>");
  EXPECT_TRUE(free());
}

TEST_P(Answer, ContentIsJsonAfterThoughtsOfAnyForm) {
  begin(json_format());
  take("{ thinking \" about ]");
  EXPECT_FALSE(ends());
  EXPECT_FALSE(allows(&family() == &qwen() ? "<tool_call>" : "<|open|>"));
  take(family().leave_thoughts.substr(0, family().leave_thoughts.find('>') + 1));
  take_forced();
  EXPECT_FALSE(ends());
  take("{\"a\": [1, 2]}");
  EXPECT_FALSE(allows(&family() == &qwen() ? "<tool_call>" : "<|open|>"));
  take(family().json_end);
  EXPECT_TRUE(free());
  const MessageOutput answer = parsed();
  EXPECT_EQ(answer.reasoning_content, "{ thinking \" about ]");
  EXPECT_EQ(answer.content, "{\"a\": [1, 2]}");
}

TEST_P(Answer, ContentIsJsonAtOnceWithoutThoughts) {
  Json fields = json_format();
  fields["enable_thinking"] = false;
  begin(fields, 7);
  EXPECT_FALSE(free());
  EXPECT_FALSE(ends());
  take("{}");
  take(family().json_end);
  EXPECT_EQ(parsed().content, "{}");
  EXPECT_FALSE(parsed().reasoning_content);
}

TEST_P(Answer, ContentThatIsContinuedIsReadFirst) {
  Json fields = json_format();
  fields["enable_thinking"] = false;
  fields["continue_final_message"] = true;
  fields["messages"] = Json::parse(R"([{"role":"user","content":"q"},{"role":"assistant","content":"{\"a\":"}])");
  begin(fields);
  take("1}");
  EXPECT_TRUE(allows(&family() == &qwen() ? "<|im_end|>" : "<|close|>"));
  fields["messages"][1]["content"] = "Well";
  EXPECT_TRUE(cause_of([&] { begin(fields); }).starts_with("messages[1].content:"));
  fields["messages"][1]["content"] = "";
  fields["continue_final_message"] = false;
  fields["add_generation_prompt"] = false;
  EXPECT_TRUE(cause_of([&] { begin(fields); }).starts_with("response_format:"));
}

TEST_P(Answer, ARequiredCallIsOpenedAndNotLeftOpen) {
  begin(tools("required"));
  take("hm");
  EXPECT_FALSE(ends());
  take(family().leave_thoughts);
  take(family().call);
  EXPECT_FALSE(ends());
  take(family().call_end);
  EXPECT_TRUE(free());
  EXPECT_TRUE(ends());
  take(family().calls_end);
  const MessageOutput answer = parsed();
  ASSERT_EQ(answer.tool_calls.size(), 1U);
  EXPECT_EQ(answer.tool_calls[0].name, "f");
  EXPECT_EQ(answer.content, "");
}

TEST_P(Answer, ANamedFunctionIsTheOneCalled) {
  Json fields = tools({{"type", "function"}, {"function", {{"name", "fg"}}}});
  fields["enable_thinking"] = false;
  begin(fields);
  std::mt19937 random(7);
  for (int step = 0; step < 100; ++step) {
    auto set = constraint_->allowed();
    if (!set) break;
    std::vector<int32_t> ids;
    for (int32_t id = 0; id < family().tokenizer.rows(); ++id) {
      if (set->has(id)) ids.push_back(id);
    }
    ASSERT_FALSE(ids.empty());
    if (ids.size() > 100) break;
    taken_.push_back(ids[random() % ids.size()]);
    ASSERT_TRUE(constraint_->take(taken_.back()));
  }
  take(family().call_end);
  const MessageOutput answer = parsed();
  ASSERT_EQ(answer.tool_calls.size(), 1U);
  EXPECT_EQ(answer.tool_calls[0].name, "fg");
}

TEST_P(Answer, OnlyDeclaredFunctionsMayBeCalled) {
  Json fields = tools("required");
  fields["enable_thinking"] = false;
  begin(fields);
  const std::string before = family().call.substr(0, family().call.find("f\""));
  take(&family() == &qwen() ? "<tool_call>\n<function=" : std::string_view(before));
  const TokenSet set = *constraint_->allowed();
  for (int32_t id = 0; id < family().tokenizer.rows(); ++id) {
    if (!set.has(id)) continue;
    EXPECT_EQ(family().tokenizer.token_bytes(id)[0], 'f') << family().tokenizer.token_bytes(id);
  }
  fields.erase("tools");
  EXPECT_TRUE(cause_of([&] { begin(fields); }).starts_with("tool_choice:"));
}

TEST_P(Answer, WithoutParallelCallsTheFirstCallIsTheLast) {
  for (const char* choice : {"auto", "required"}) {
    Json fields = tools(choice);
    fields["enable_thinking"] = false;
    begin(fields, {}, false);
    take(family().call);
    take(family().call_end);
    EXPECT_FALSE(free());
    EXPECT_FALSE(allows(&family() == &qwen() ? "<tool_call>" : "<|open|>"));
    take(family().calls_end);
    EXPECT_TRUE(free());
    EXPECT_EQ(parsed().tool_calls.size(), 1U);
  }
  begin(tools("none"), {}, false);
  EXPECT_EQ(constraint_, nullptr);
}

TEST_P(Answer, WithoutParallelCallsTheAnswerMayHaveNone) {
  begin(tools("auto"), {}, false);
  take("thoughts");
  take(family().leave_thoughts);
  take("text");
  EXPECT_TRUE(ends());
}

TEST_P(Answer, ClonesGoTheirOwnWays) {
  begin(json_format());
  take("hm");
  auto clone = constraint_->clone();
  ASSERT_TRUE(constraint_->take(family().ids(family().leave_thoughts)[0]));
  EXPECT_TRUE(clone->allowed()->has(family().ids("x")[0]));
  EXPECT_FALSE(constraint_->allowed()->has(family().ids("x")[0]));
  // And the first of all is as before.
  EXPECT_TRUE(made_->clone()->take(family().ids("x")[0]));
}

TEST_P(Answer, StrictLeavesOutWhatIsNotDeclared) {
  Json schema = {{"strict", true}, {"schema", {{"properties", {{"a", true}}}, {"type", "object"}}}};
  Json fields = {{"response_format", {{"type", "json_schema"}, {"json_schema", schema}}}, {"enable_thinking", false}};
  for (bool strict : {true, false}) {
    fields["response_format"]["json_schema"]["strict"] = strict;
    begin(fields);
    take("{\"");
    EXPECT_EQ(constraint_->take(family().ids("b")[0]), !strict);
    EXPECT_TRUE(constraint_->take(family().ids("a")[0]));
  }
  fields["response_format"]["json_schema"]["strict"] = 1;
  EXPECT_TRUE(cause_of([&] { begin(fields); }).starts_with("response_format.json_schema.strict:"));
}

TEST_P(Answer, WrongSchemasAreRefused) {
  Json fields = {{"response_format", {{"type", "json_schema"}, {"json_schema", {{"schema", {{"pattern", "x"}}}}}}}};
  EXPECT_TRUE(cause_of([&] { begin(fields); }).starts_with("response_format.json_schema.schema.pattern:"));
  // The schema may also stand there by itself.
  fields = {{"response_format", {{"type", "json_schema"}, {"json_schema", {{"pattern", "x"}}}}}};
  EXPECT_TRUE(cause_of([&] { begin(fields); }).starts_with("response_format.json_schema.pattern:"));
}

}  // namespace
}  // namespace megalith
