#include "text/kimi_k3.h"

#include <algorithm>
#include <array>
#include <unordered_map>
#include <utility>

#include <fmt/format.h>

#include "base/error.h"
#include "text/characters.h"
#include "text/json_members.h"
#include "text/kimi_k3_parser.h"
#include "text/python_json.h"

namespace megalith {

namespace {

using Json = nlohmann::ordered_json;

// Fixed texts of the format.
constexpr std::string_view kTools = "# Tools\nHere are the available tools, described in JSONSchema.\n\n";
constexpr std::string_view kMoreTools =
    "## New Tools Available\nThe system dynamically extends the toolset via lazy-loading.\n"
    "You have access to all existing and extended tools.\nHere are the specs for the extended tools.\n\n";
constexpr std::string_view kEffort =
    "`thinking_effort` guides on how much to think in your thinking channel (not including the response channel), "
    "supported values include `low`, `medium`, `high`, and `max`.\nNow the system is invoked with "
    "`thinking_effort={}`.";
constexpr std::string_view kMustCall =
    "The system is invoked with `tool_choice=required`.\nYou MUST call tools in the next message.";
constexpr std::string_view kMustNotCall =
    "The system is invoked with `tool_choice=none`.\nYou MUST NOT call any tools in the next message.";
constexpr std::string_view kRawJson =
    "The system is invoked with `response_format={}`.\nYour response must be raw JSON data without markdown code "
    "blocks "
    "(```json) or any additional formatting.";
constexpr std::string_view kSchema = "\nThe JSON data must match the following schema:\n";

[[noreturn]] void refuse(std::string where, std::string expected, std::string found, std::string next = "") {
  throw Error({std::move(where), std::move(expected), std::move(found), std::move(next)});
}

std::string fenced(const Json& value) {
  return fmt::format("```json\n{}\n```", sorted_json(value));
}

std::string escaped(std::string_view value) {
  std::string text;
  for (char c : value) {
    if (c == '&') {
      text += "&amp;";
    } else if (c == '"') {
      text += "&quot;";
    } else {
      text += c;
    }
  }
  return text;
}

std::string_view type_of(std::string_view json) {
  switch (json[0]) {
    case '"':
      return "string";
    case '{':
      return "object";
    case '[':
      return "array";
    case 't':
    case 'f':
      return "boolean";
    case 'n':
      return "null";
    default:
      return "number";
  }
}

// The prompt so far. The ids depend on where its texts are apart, so no two are joined.
class Prompt {
 public:
  using Attributes = std::vector<std::pair<std::string_view, std::string>>;

  void open(std::string_view tag, const Attributes& attributes = {}) {
    mark(kKimiK3Open);
    text(tag);
    for (const auto& [key, value] : attributes) {
      text(fmt::format(" {}", key));
      text("=\"");
      text(escaped(value));
      text("\"");
    }
    mark(kKimiK3Sep);
  }

  void close(std::string_view tag) {
    mark(kKimiK3Close);
    text(tag);
    mark(kKimiK3Sep);
  }

  void text(std::string_view text) {
    if (!text.empty()) segments_.push_back({std::string(text), false});
  }

  void end_message() {
    close("message");
    mark(kKimiK3End);
  }

  std::vector<Segment> take() { return std::move(segments_); }

 private:
  void mark(std::string_view mark) { segments_.push_back({std::string(mark), true}); }

  std::vector<Segment> segments_;
};

// A message where the prompt has it.
struct Turn {
  size_t index = 0;       // in the request
  std::string tool = {};  // of a result
  size_t result = 0;      // its number since the last answer, from 1
};

// Results next to each other follow the order of the calls that they name, if all of them name one; a named call gives
// its result the tool's name.
class Turns {
 public:
  explicit Turns(const std::vector<Message>& messages) : messages_(messages) {}

  std::vector<Turn> in_order() {
    for (size_t i = 0; i < messages_.size();) {
      if (messages_[i].role == Role::tool) {
        size_t end = i;
        while (end < messages_.size() && messages_[end].role == Role::tool) ++end;
        add_results(i, end);
        i = end;
        continue;
      }
      if (messages_[i].role == Role::assistant) begin_calls(messages_[i].tool_calls);
      turns_.push_back({.index = i++});
    }
    return std::move(turns_);
  }

 private:
  void begin_calls(const std::vector<ToolCall>& calls) {
    calls_ = &calls;
    results_ = 0;
    places_.clear();
    for (size_t i = 0; i < calls.size(); ++i) {
      if (!calls[i].id.empty()) places_.emplace(calls[i].id, i);
    }
  }

  void add_results(size_t begin, size_t end) {
    std::vector<std::pair<size_t, size_t>> run;  // the call's place, the message's index
    for (size_t i = begin; i < end; ++i) {
      auto place = places_.find(messages_[i].tool_call_id);
      if (place != places_.end()) run.emplace_back(place->second, i);
    }
    if (run.size() == end - begin) {
      std::sort(run.begin(), run.end());
      for (const auto& [place, index] : run) add_result(index, (*calls_)[place].name);
      return;
    }
    for (size_t i = begin; i < end; ++i) add_result(i, messages_[i].name);
  }

  void add_result(size_t index, std::string tool) {
    ++results_;
    if (tool.empty() && calls_ != nullptr && results_ <= calls_->size()) tool = (*calls_)[results_ - 1].name;
    if (tool.empty()) {
      refuse(fmt::format("messages[{}]", index), "the result of a call in the assistant message before it",
             "neither its tool_call_id nor a tool's name");
    }
    turns_.push_back({index, std::move(tool), results_});
  }

  const std::vector<Message>& messages_;
  const std::vector<ToolCall>* calls_ = nullptr;         // of the last answer
  std::unordered_map<std::string_view, size_t> places_;  // of its calls, by id
  size_t results_ = 0;                                   // since the last answer
  std::vector<Turn> turns_;
};

class Renderer {
 public:
  Renderer(const ChatRequest& request, bool thinks) : request_(request), thinks_(thinks) {}

  std::vector<Segment> render() {
    if (request_.messages.empty()) refuse("messages", "at least one message", "an empty list");
    if (!request_.tools.empty()) declare(kTools, request_.tools);
    render_effort();
    std::vector<Turn> turns = Turns(request_.messages).in_order();
    size_t whole = turns.size() - (request_.continue_final_message ? 1 : 0);
    for (size_t i = 0; i < whole; ++i) render_turn(turns[i]);
    render_tool_choice();
    render_response_format();
    if (whole < turns.size()) {
      render_answer(request_.messages[turns[whole].index], true);
    } else if (request_.add_generation_prompt) {
      prompt_.open("message", {{"role", "assistant"}});
      prompt_.open(thinks_ ? "think" : "response");
    }
    return prompt_.take();
  }

 private:
  void system(std::string_view type, std::string_view text) {
    prompt_.open("message", {{"role", "system"}, {"type", std::string(type)}});
    prompt_.text(text);
    prompt_.end_message();
  }

  void declare(std::string_view introduction, const Json& tools) {
    system("tool-declare", std::string(introduction) + fenced(tools));
  }

  void render_effort() {
    std::string effort = request_.reasoning_effort.value_or("max");
    if (effort != "low" && effort != "high" && effort != "max") {
      refuse("reasoning_effort", "none, low, high or max", fmt::format("\"{}\"", shortened(effort)));
    }
    if (thinks_) system("thinking-effort", fmt::format(kEffort, effort));
  }

  void render_turn(const Turn& turn) {
    const Message& message = request_.messages[turn.index];
    switch (message.role) {
      case Role::system:
        if (message.tools.empty()) return render_text("system", message);
        return render_more_tools(turn.index);
      case Role::user:
        return render_text("user", message);
      case Role::assistant:
        return render_answer(message, false);
      case Role::tool:
        prompt_.open("message", {{"role", "tool"}, {"tool", turn.tool}, {"index", std::to_string(turn.result)}});
        prompt_.text(message.content);
        prompt_.end_message();
    }
  }

  void open_message(std::string role, const Message& message) {
    Prompt::Attributes attributes = {{"role", std::move(role)}};
    if (!message.name.empty()) attributes.emplace_back("name", message.name);
    prompt_.open("message", attributes);
  }

  void render_text(const char* role, const Message& message) {
    open_message(role, message);
    prompt_.text(message.content);
    prompt_.end_message();
  }

  void render_more_tools(size_t index) {
    const Message& message = request_.messages[index];
    if (!message.content.empty()) {
      refuse(fmt::format("messages[{}].content", index), "nothing next to tools", "a text",
             "Send it as a system message of its own.");
    }
    declare(kMoreTools, message.tools);
  }

  // An answer to be continued that has no content yet is still at its thoughts.
  void render_answer(const Message& message, bool open) {
    open_message("assistant", message);
    if (thinks_) {
      prompt_.open("think");
      prompt_.text(message.reasoning_content.value_or(""));
      if (open && message.content.empty()) return;
      prompt_.close("think");
    }
    prompt_.open("response");
    prompt_.text(message.content);
    if (open) return;
    prompt_.close("response");
    render_calls(message.tool_calls);
    prompt_.end_message();
  }

  void render_calls(const std::vector<ToolCall>& calls) {
    if (calls.empty()) return;
    prompt_.open("tools");
    for (size_t i = 0; i < calls.size(); ++i) {
      prompt_.open("call", {{"tool", calls[i].name}, {"index", std::to_string(i + 1)}});
      render_arguments(calls[i]);
      prompt_.close("call");
    }
    prompt_.close("tools");
  }

  // Values given as text keep their digits and blanks.
  void render_arguments(const ToolCall& call) {
    if (!call.arguments_text.empty()) {
      for (const JsonMember& member : json_members(call.arguments_text)) render_argument(member.name, member.value);
      return;
    }
    for (const auto& [name, value] : call.arguments.items()) render_argument(name, python_json(value));
  }

  void render_argument(const std::string& name, std::string_view json) {
    prompt_.open("argument", {{"key", name}, {"type", std::string(type_of(json))}});
    prompt_.text(text_of_value(json));
    prompt_.close("argument");
  }

  void render_tool_choice() {
    switch (request_.tool_choice.kind) {
      case ToolChoice::Kind::automatic:
        return;
      case ToolChoice::Kind::none:
        return system("tool-choice", kMustNotCall);
      case ToolChoice::Kind::required:
      case ToolChoice::Kind::function:  // which one, the format has no words for
        return system("tool-choice", kMustCall);
    }
  }

  void render_response_format() {
    switch (request_.response_format.kind) {
      case ResponseFormat::Kind::text:
        return;
      case ResponseFormat::Kind::json_object:
        return system("response-format", fmt::format(kRawJson, "json_object"));
      case ResponseFormat::Kind::json_schema:
        return system("response-format", fmt::format(kRawJson, "json_schema") + std::string(kSchema) +
                                             fenced(request_.response_format.schema));
    }
  }

  const ChatRequest& request_;
  bool thinks_;
  Prompt prompt_;
};

constexpr std::array kMarks = {kKimiK3Open, kKimiK3Close, kKimiK3Sep, kKimiK3End};

class KimiK3Format : public ChatFormat {
 public:
  explicit KimiK3Format(KimiK3 form) : form_(form) {}

  std::string_view name() const override { return KimiK3::kName; }
  std::vector<Segment> render(const ChatRequest& request) const override {
    return Renderer(request, thinking(request)).render();
  }
  std::vector<std::string> end_tokens() const override {
    return {std::string(kKimiK3End), std::string(kKimiK3TextEnd)};
  }

  bool thinks(const ChatRequest& request) const override {
    bool open = request.continue_final_message && !request.messages.empty();
    return thinking(request) && (open ? request.messages.back().content.empty() : request.add_generation_prompt);
  }

  // A response comes before the tools, empty where there is none.
  ChannelMarks marks(const Tokenizer& tokenizer) const override {
    auto ids = [&](std::initializer_list<std::string_view> parts) {
      std::vector<int32_t> all;
      for (std::string_view part : parts) {
        bool mark = std::find(kMarks.begin(), kMarks.end(), part) != kMarks.end();
        if (mark) find_mark(tokenizer, part, "tokenizer_config.json: added_tokens_decoder");
        for (int32_t id : tokenizer.encode(part, mark ? Specials::recognised : Specials::plain_text)) all.push_back(id);
      }
      return all;
    };
    constexpr auto open = kKimiK3Open, close = kKimiK3Close, sep = kKimiK3Sep;
    return {.thoughts_end = ids({close, "think", sep}),
            .leaves_thoughts = ids({open, kKimiK3End}),
            .content_begin = ids({open, "response", sep}),
            .content_end = ids({close, "response", sep, close, "message", sep}),
            .calls_begin = ids({close, "response", sep, open, "tools", sep, open}),
            .call_opening_end = ids({sep}),
            .call_end = ids({close, "call", sep}),
            .calls_end = ids({close, "tools", sep, close, "message", sep})};
  }

  std::string call_opening(std::string_view function) const override {
    return fmt::format("call tool=\"{}\" index=\"1\"", escaped(function));
  }

  std::unique_ptr<OutputParser> parser(const Tokenizer& tokenizer, const ChatRequest& request) const override {
    KimiK3Start start;
    if (thinks(request)) {
      start.channel = KimiK3Start::Channel::think;
    } else if (request.add_generation_prompt || request.continue_final_message) {
      start.channel = KimiK3Start::Channel::response;
    }
    for (const Message& message : request.messages) {
      for (const ToolCall& call : message.tool_calls) start.used_call_ids.push_back(call.id);
    }
    return make_kimi_k3_parser(tokenizer, std::move(start));
  }

 private:
  bool thinking(const ChatRequest& request) const { return request.enable_thinking.value_or(form_.thinking); }

  KimiK3 form_;
};

}  // namespace

bool recognises_kimi_k3(std::string_view text) {
  return std::all_of(kMarks.begin(), kMarks.end(),
                     [&](auto mark) { return text.find(mark) != std::string_view::npos; });
}

bool has_kimi_k3_marks(const Tokenizer& tokenizer) {
  return std::all_of(kMarks.begin(), kMarks.end(), [&](auto mark) { return tokenizer.find_added(mark).has_value(); });
}

std::unique_ptr<const ChatFormat> make_kimi_k3(KimiK3 form) {
  return std::make_unique<const KimiK3Format>(form);
}

}  // namespace megalith
