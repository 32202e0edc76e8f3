#include "text/chatml_qwen.h"

#include <fmt/format.h>

#include "base/error.h"
#include "text/characters.h"
#include "text/chatml_qwen_parser.h"
#include "text/python_json.h"

namespace megalith {

namespace {

using Json = nlohmann::ordered_json;

// Fixed texts of the format.
constexpr std::string_view kToolsBegin = "# Tools\n\nYou have access to the following functions:\n\n<tools>";
constexpr std::string_view kToolsEnd =
    "\n</tools>\n\n"
    "If you choose to call a function ONLY reply in the following format with NO suffix:\n\n"
    "<tool_call>\n<function=example_function_name>\n<parameter=example_parameter_1>\nvalue_1\n</parameter>\n"
    "<parameter=example_parameter_2>\nThis is the value for the second parameter\nthat can span\nmultiple lines\n"
    "</parameter>\n</function>\n</tool_call>\n\n"
    "<IMPORTANT>\nReminder:\n"
    "- Function calls MUST follow the specified format: an inner <function=...></function> block must be nested within "
    "<tool_call></tool_call> XML tags\n"
    "- Required parameters MUST be specified\n"
    "- You may provide optional reasoning for your function call in natural language BEFORE the function call, but NOT "
    "after\n"
    "- If there is no function call available, answer the question like normal with your current knowledge and do not "
    "tell the user about function calls\n"
    "</IMPORTANT>";
constexpr std::string_view kEffortXhigh =
    "Reasoning effort is set to xhigh. Please think carefully through the task, validate key assumptions, consider "
    "plausible alternatives, and prioritize correctness, consistency, and clarity in the final answer.";
constexpr std::string_view kEffortLow =
    "Reasoning effort is set to low. Keep your thinking brief and focused, moving directly to the conclusion without "
    "unnecessary elaboration.";

std::string python_scalar(const Json& value) {
  if (value.is_null()) return "None";
  if (value.is_boolean()) return value.get<bool>() ? "True" : "False";
  return python_json(value);
}

// The prompt so far. Only the format's own texts are control text.
class Prompt {
 public:
  void control(std::string_view text) { append(text, true); }
  void plain(std::string_view text) { append(text, false); }
  std::vector<Segment> take() { return std::move(segments_); }

 private:
  void append(std::string_view text, bool control) {
    if (text.empty()) return;
    if (segments_.empty() || segments_.back().control != control) segments_.push_back({"", control});
    segments_.back().text += text;
  }

  std::vector<Segment> segments_;
};

struct Turn {
  std::string reasoning;
  std::string content;
};

std::string_view strip_newlines_left(std::string_view text) {
  size_t begin = text.find_first_not_of('\n');
  return begin == std::string_view::npos ? "" : text.substr(begin);
}

// Thoughts and content apart; where the form has thoughts inline, those in the content count if no others are given.
Turn turn_of(const ChatmlQwen& form, const Message& message) {
  std::string_view content = trim(message.content);
  if (message.reasoning_content || !form.inline_thoughts) {
    return {std::string(trim(message.reasoning_content.value_or(""))), std::string(content)};
  }
  constexpr std::string_view kOpen = "<think>";
  constexpr std::string_view kClose = "</think>";
  size_t close = content.find(kClose);
  if (close == std::string_view::npos) return {"", std::string(content)};
  std::string_view thoughts = content.substr(0, close);
  if (size_t open = thoughts.rfind(kOpen); open != std::string_view::npos) thoughts.remove_prefix(open + kOpen.size());
  content.remove_prefix(content.rfind(kClose) + kClose.size());
  return {std::string(trim(thoughts)), std::string(strip_newlines_left(content))};
}

class Renderer {
 public:
  Renderer(const ChatmlQwen& form, const ChatRequest& request, bool thinks)
      : form_(form), request_(request), messages_(request.messages), thinks_(thinks) {}

  std::vector<Segment> render() {
    check();
    render_system();
    for (size_t i = systems_; i < messages_.size(); ++i) render_message(i);
    if (request_.add_generation_prompt && !request_.continue_final_message) {
      prompt_.control(thinks_ ? "<|im_start|>assistant\n<think>\n" : "<|im_start|>assistant\n<think>\n\n</think>\n\n");
    }
    return prompt_.take();
  }

 private:
  static Error refused(std::string where, std::string expected, std::string found, std::string next) {
    return Error({std::move(where), std::move(expected), std::move(found), std::move(next)});
  }

  // Counts the leading system messages and finds the last message that the user wrote.
  void check() {
    if (messages_.empty()) throw refused("messages", "at least one message", "an empty list", "");
    while (systems_ < messages_.size() && messages_[systems_].role == Role::system) ++systems_;
    bool query = false;
    for (size_t i = systems_; i < messages_.size(); ++i) {
      if (messages_[i].role == Role::system) {
        throw refused(fmt::format("messages[{}].role", i), "system and developer messages before all others",
                      "one after another message", "Move it to the beginning, or send it as a user message.");
      }
      if (messages_[i].role != Role::user) continue;
      std::string_view content = trim(messages_[i].content);
      if (content.starts_with("<tool_response>") && content.ends_with("</tool_response>")) continue;
      last_query_ = i;
      query = true;
    }
    if (!query) throw refused("messages", "at least one user message", "none", "");
  }

  std::string_view effort_sentence() const {
    if (!form_.effort) return "";
    std::string effort = request_.reasoning_effort.value_or("xhigh");
    if (effort != "xhigh" && effort != "medium" && effort != "low") {
      throw refused("reasoning_effort", "none, low, medium or xhigh", fmt::format("\"{}\"", shortened(effort)), "");
    }
    if (!thinks_ || effort == "medium") return "";
    return effort == "xhigh" ? kEffortXhigh : kEffortLow;
  }

  // One turn for the effort, the tools and all leading system messages, with blank lines between them.
  void render_system() {
    std::string_view effort = effort_sentence();
    std::string text;
    for (size_t i = 0; i < systems_; ++i) {
      std::string_view content = trim(messages_[i].content);
      if (!text.empty() && !content.empty()) text += "\n\n";
      text += content;
    }
    bool tools = !request_.tools.empty();
    // The 3.5 template keeps the turn of an empty system message.
    bool empty_turn = systems_ > 0 && !form_.effort;
    if (effort.empty() && !tools && text.empty() && !empty_turn) return;
    prompt_.control("<|im_start|>system\n");
    prompt_.control(effort);
    if (tools) {
      if (!effort.empty()) prompt_.control("\n\n");
      render_tools();
    }
    if (!text.empty() && (tools || !effort.empty())) prompt_.control("\n\n");
    prompt_.plain(text);
    prompt_.control("<|im_end|>\n");
  }

  void render_tools() {
    prompt_.control(kToolsBegin);
    for (const Json& tool : request_.tools) {
      prompt_.control("\n");
      prompt_.plain(python_json(tool));
    }
    prompt_.control(kToolsEnd);
  }

  void render_message(size_t index) {
    const Message& message = messages_[index];
    if (message.role == Role::user) {
      prompt_.control("<|im_start|>user\n");
      prompt_.plain(trim(message.content));
      prompt_.control("<|im_end|>\n");
    } else if (message.role == Role::assistant) {
      render_assistant(index);
    } else {
      render_result(index);
    }
  }

  // Results next to each other share a user turn.
  void render_result(size_t index) {
    if (index == 0 || messages_[index - 1].role != Role::tool) prompt_.control("<|im_start|>user");
    prompt_.control("\n<tool_response>\n");
    prompt_.plain(trim(messages_[index].content));
    prompt_.control("\n</tool_response>");
    if (index + 1 == messages_.size() || messages_[index + 1].role != Role::tool) prompt_.control("<|im_end|>\n");
  }

  void render_assistant(size_t index) {
    const Message& message = messages_[index];
    bool open = request_.continue_final_message && index + 1 == messages_.size();
    Turn turn = turn_of(form_, message);
    prompt_.control("<|im_start|>assistant\n");
    if (index > last_query_ || request_.preserve_thinking.value_or(form_.preserve_thinking)) {
      prompt_.control("<think>\n");
      prompt_.plain(turn.reasoning);
      // A message to be continued that has no content yet is still at its thoughts.
      if (open && thinks_ && turn.content.empty()) return;
      prompt_.control("\n</think>\n\n");
    }
    prompt_.plain(turn.content);
    if (open) return;
    for (size_t i = 0; i < message.tool_calls.size(); ++i) {
      if (i > 0 || !trim(turn.content).empty()) prompt_.control(i > 0 ? "\n" : "\n\n");
      render_call(message.tool_calls[i]);
    }
    prompt_.control("<|im_end|>\n");
  }

  void render_call(const ToolCall& call) {
    prompt_.control("<tool_call>\n<function=");
    prompt_.plain(call.name);
    prompt_.control(">\n");
    for (const auto& [key, value] : call.arguments.items()) {
      prompt_.control("<parameter=");
      prompt_.plain(key);
      prompt_.control(">\n");
      prompt_.plain(argument(value));
      prompt_.control("\n</parameter>\n");
    }
    prompt_.control("</function>\n</tool_call>");
  }

  std::string argument(const Json& value) const {
    if (value.is_string()) return value.get<std::string>();
    return form_.python_scalars && !value.is_structured() ? python_scalar(value) : python_json(value);
  }

  const ChatmlQwen& form_;
  const ChatRequest& request_;
  const std::vector<Message>& messages_;
  bool thinks_;
  size_t systems_ = 0;     // leading system messages
  size_t last_query_ = 0;  // index of the last message that a user wrote
  Prompt prompt_;
};

class ChatmlQwenFormat : public ChatFormat {
 public:
  explicit ChatmlQwenFormat(const ChatmlQwen& form) : form_(form) {}

  std::string_view name() const override { return form_.name; }
  std::vector<Segment> render(const ChatRequest& request) const override {
    return Renderer(form_, request, request.enable_thinking.value_or(form_.thinking)).render();
  }
  std::vector<std::string> end_tokens() const override { return {"<|im_end|>", "<|endoftext|>"}; }

  bool thinks(const ChatRequest& request) const override {
    bool on = request.enable_thinking.value_or(form_.thinking);
    if (!request.continue_final_message || request.messages.empty()) return on && request.add_generation_prompt;
    return on && turn_of(form_, request.messages.back()).content.empty();
  }

  ChannelMarks marks(const Tokenizer& tokenizer) const override {
    auto mark = [&](std::string_view text) { return find_mark(tokenizer, text, "tokenizer.json: added_tokens"); };
    mark("</think>");
    return {.thoughts_end = tokenizer.encode("</think>\n\n", Specials::recognised),
            .leaves_thoughts = {mark("<tool_call>"), mark("<|im_end|>"), mark("<|endoftext|>")},
            .content_begin = {},
            .content_end = {},
            .calls_begin = {mark("<tool_call>")},
            .call_opening_end = {},
            .call_end = {mark("</tool_call>")},
            .calls_end = {}};
  }

  std::string call_opening(std::string_view function) const override {
    return fmt::format("\n<function={}>\n", function);
  }

  std::unique_ptr<OutputParser> parser(const Tokenizer& tokenizer, const ChatRequest& request) const override {
    ChatmlQwenStart start{.thinking = thinks(request), .mid_text = request.continue_final_message};
    for (const Message& message : request.messages) {
      for (const ToolCall& call : message.tool_calls) start.used_call_ids.push_back(call.id);
    }
    return make_chatml_qwen_parser(tokenizer, request.tools, std::move(start));
  }

 private:
  ChatmlQwen form_;
};

}  // namespace

bool recognises_chatml_qwen(const ChatmlQwen& form, std::string_view text) {
  auto has = [&](std::string_view part) { return text.find(part) != std::string_view::npos; };
  // The tags of calls tell the family's templates from those of the models before it, which write calls as JSON.
  bool family = has("<|im_start|>") && has("enable_thinking") && has("<function=");
  return family && form.effort == has("reasoning_effort");
}

std::unique_ptr<const ChatFormat> make_chatml_qwen(ChatmlQwen form) {
  return std::make_unique<const ChatmlQwenFormat>(form);
}

}  // namespace megalith
