#include "text/chatml_qwen_parser.h"

#include <algorithm>

#include <fmt/format.h>

#include "base/error.h"
#include "text/characters.h"
#include "text/utf8_stream.h"

namespace megalith {

namespace {

using Json = nlohmann::ordered_json;
using Kind = OutputEvent::Kind;

int32_t mark(const Tokenizer& tokenizer, const char* text) {
  if (auto id = tokenizer.find_added(text)) return *id;
  throw Error({.where = "tokenizer.json: added_tokens",
               .expected = fmt::format("the token {} of the chat format", text),
               .found = "none",
               .next = "Choose another format with --chat-format."});
}

struct Marks {
  explicit Marks(const Tokenizer& tokenizer)
      : think(mark(tokenizer, "<think>")),
        think_end(mark(tokenizer, "</think>")),
        call(mark(tokenizer, "<tool_call>")),
        call_end(mark(tokenizer, "</tool_call>")),
        turn_end(mark(tokenizer, "<|im_end|>")),
        text_end(mark(tokenizer, "<|endoftext|>")) {}

  int32_t think;
  int32_t think_end;
  int32_t call;
  int32_t call_end;
  int32_t turn_end;
  int32_t text_end;
};

// A text of which the blanks at both ends are left out: those at its end are held until more comes.
class Channel {
 public:
  Channel(Kind kind, bool keep_first_blanks) : kind_(kind), begun_(keep_first_blanks) {}

  void add(std::string_view text, std::vector<OutputEvent>& events) {
    if (!begun_) text = trim_left(text);
    size_t end = trailing_blanks(text);
    if (end > 0) {
      begun_ = true;
      held_ += text.substr(0, end);
      events.push_back({.kind = kind_, .text = std::move(held_)});
      held_.clear();
    }
    held_ += text.substr(end);
  }

  // Gives out the held blanks, for a text that was cut within them.
  void release(std::vector<OutputEvent>& events) {
    if (begun_ && !held_.empty()) events.push_back({.kind = kind_, .text = std::move(held_)});
    held_.clear();
  }

  void drop_held() { held_.clear(); }
  // Something but blanks has come, or the text went on from one before.
  bool begun() const { return begun_; }

 private:
  Kind kind_;
  bool begun_;
  std::string held_;
};

class ChatmlQwenParser : public OutputParser {
 public:
  ChatmlQwenParser(const Tokenizer& tokenizer, const Json& tools, ChatmlQwenStart start)
      : tokenizer_(tokenizer),
        marks_(tokenizer),
        tools_(tools),
        state_(start.thinking ? State::reasoning : State::content),
        reasoning_(Kind::reasoning, start.thinking && start.mid_text),
        content_(Kind::content, !start.thinking && start.mid_text),
        used_call_ids_(std::move(start.used_call_ids)) {}

  std::vector<OutputEvent> feed(std::span<const int32_t> ids) override {
    events_.clear();
    for (int32_t id : ids) {
      std::string_view bytes = tokenizer_.token_bytes(id);
      if (ended_) break;
      if (!take_mark(id) && !tokenizer_.is_special(id)) take_text(utf8_.feed(bytes));
    }
    return std::move(events_);
  }

  std::vector<OutputEvent> finish(FinishReason reason) override {
    events_.clear();
    take_text(utf8_.flush());
    if (state_ == State::call) end_call(false);
    // A text that was cut may go on after its last blanks; one that ended may not.
    if (reason == FinishReason::length && !ended_ && !after_call_) current().release(events_);
    if (reason == FinishReason::stop && n_calls_ > 0) reason = FinishReason::tool_calls;
    events_.push_back({.kind = Kind::finish, .reason = reason});
    ended_ = true;
    return std::move(events_);
  }

 private:
  enum class State { reasoning, content, call };

  Channel& current() { return state_ == State::reasoning ? reasoning_ : content_; }

  void take_text(const std::string& text) {
    if (state_ == State::call) {
      call_text_ += text;
    } else if (!text.empty()) {
      current().add(text, events_);
      after_call_ = after_call_ && trim(text).empty();
    }
  }

  // Whether the id is a mark that means something here. An unfinished character before a mark stays unfinished.
  bool take_mark(int32_t id) {
    bool end = id == marks_.turn_end || id == marks_.text_end;
    bool think = id == marks_.think || id == marks_.think_end;
    if (!end && !think && id != marks_.call && id != marks_.call_end) return false;
    take_text(utf8_.flush());
    if (end) {
      ended_ = true;
      return true;
    }
    if (state_ == State::call) return take_mark_in_call(id);
    if (id == marks_.call) begin_call();
    if (id == marks_.think_end && state_ == State::reasoning) end_reasoning(State::content);
    // A model that was told not to think may do so all the same; later on the mark is stray.
    if (id == marks_.think && state_ == State::content && !content_.begun() && n_calls_ == 0) {
      content_.drop_held();
      state_ = State::reasoning;
    }
    return true;
  }

  // Values may hold any mark as text but the one that ends the call.
  bool take_mark_in_call(int32_t id) {
    if (id == marks_.call_end) {
      end_call(true);
      return true;
    }
    if (id == marks_.call && trim(call_text_).empty()) return true;
    if (id == marks_.call && !parse_calls(call_text_, tools_, false).empty()) {
      end_call(false);
      begin_call();
      return true;
    }
    return false;
  }

  void end_reasoning(State next) {
    reasoning_.drop_held();
    state_ = next;
  }

  void begin_call() {
    if (state_ == State::reasoning) end_reasoning(State::call);
    state_ = State::call;
    call_text_.clear();
  }

  void end_call(bool closed) {
    state_ = State::content;
    std::vector<CallText> calls = parse_calls(call_text_, tools_, closed);
    if (closed && trim(call_text_).empty()) return;
    if (calls.empty()) {
      content_.add("<tool_call>" + call_text_ + (closed ? "</tool_call>" : ""), events_);
      return;
    }
    for (CallText& call : calls) {
      int32_t index = n_calls_++;
      events_.push_back({.kind = Kind::call_begin, .text = std::move(call.name), .call = index, .id = next_call_id()});
      events_.push_back({.kind = Kind::call_arguments, .text = std::move(call.arguments), .call = index});
      events_.push_back({.kind = Kind::call_end, .call = index});
    }
    after_call_ = true;
  }

  // Ids count on over the conversation, so that equal requests get equal answers.
  std::string next_call_id() {
    auto used = [&](const std::string& id) {
      return std::find(used_call_ids_.begin(), used_call_ids_.end(), id) != used_call_ids_.end();
    };
    size_t number = used_call_ids_.size();
    std::string id = fmt::format("call_{}", number);
    while (used(id)) id = fmt::format("call_{}", ++number);
    used_call_ids_.push_back(id);
    return id;
  }

  const Tokenizer tokenizer_;
  const Marks marks_;
  const Json tools_;
  State state_;
  Channel reasoning_;
  Channel content_;
  std::vector<std::string> used_call_ids_;
  Utf8Stream utf8_;
  std::string call_text_;
  int32_t n_calls_ = 0;
  bool after_call_ = false;  // nothing but blanks came since a complete call
  bool ended_ = false;       // by an end token
  std::vector<OutputEvent> events_;
};

}  // namespace

std::unique_ptr<OutputParser> make_chatml_qwen_parser(const Tokenizer& tokenizer, const Json& tools,
                                                      ChatmlQwenStart start) {
  return std::make_unique<ChatmlQwenParser>(tokenizer, tools, std::move(start));
}

}  // namespace megalith
