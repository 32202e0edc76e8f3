#include "text/chatml_qwen_parser.h"

#include <algorithm>

#include <fmt/format.h>

#include "text/characters.h"

namespace megalith {

namespace {

using Json = nlohmann::ordered_json;
using Kind = OutputEvent::Kind;

int32_t mark(const Tokenizer& tokenizer, const char* text) {
  return find_mark(tokenizer, text, "tokenizer.json: added_tokens");
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

  // Returns what can be given out.
  std::string add(std::string_view text) {
    if (!begun_) text = trim_left(text);
    size_t end = trailing_blanks(text);
    std::string shown;
    if (end > 0) {
      begun_ = true;
      shown = std::exchange(held_, "");
      shown += text.substr(0, end);
    }
    held_ += text.substr(end);
    return shown;
  }

  // The held blanks, for a text that was cut within them.
  std::string release() { return begun_ ? std::exchange(held_, "") : ""; }

  void drop_held() { held_.clear(); }
  Kind kind() const { return kind_; }
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
      : OutputParser(tokenizer),
        marks_(tokenizer),
        tools_(tools),
        state_(start.thinking ? State::reasoning : State::content),
        reasoning_(Kind::reasoning, start.thinking && start.mid_text),
        content_(Kind::content, !start.thinking && start.mid_text),
        used_call_ids_(std::move(start.used_call_ids)) {}

 private:
  enum class State { reasoning, content, call };

  Channel& current() { return state_ == State::reasoning ? reasoning_ : content_; }

  void take_text(std::string_view text) override {
    if (state_ == State::call) {
      call_text_ += text;
    } else if (!text.empty()) {
      give(current().kind(), current().add(text));
      after_call_ = after_call_ && trim(text).empty();
    }
  }

  void end_text(bool cut) override {
    if (state_ == State::call) end_call(false);
    // A text that was cut may go on after its last blanks; one that ended may not.
    if (cut && !after_call_) give(current().kind(), current().release());
  }

  bool take_mark(int32_t id) override {
    bool end = id == marks_.turn_end || id == marks_.text_end;
    bool think = id == marks_.think || id == marks_.think_end;
    if (!end && !think && id != marks_.call && id != marks_.call_end) return false;
    end_character();
    if (end) {
      end_answer();
      return true;
    }
    if (state_ == State::call) return take_mark_in_call(id);
    if (id == marks_.call) begin_call();
    if (id == marks_.think_end && state_ == State::reasoning) end_reasoning(State::content);
    // A model that was told not to think may do so all the same; later on the mark is stray.
    if (id == marks_.think && state_ == State::content && !content_.begun() && n_calls() == 0) {
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
      give(Kind::content, content_.add("<tool_call>" + call_text_ + (closed ? "</tool_call>" : "")));
      return;
    }
    for (CallText& call : calls) give_call(next_call_id(), std::move(call.name), std::move(call.arguments));
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

  const Marks marks_;
  const Json tools_;
  State state_;
  Channel reasoning_;
  Channel content_;
  std::vector<std::string> used_call_ids_;
  std::string call_text_;
  bool after_call_ = false;  // nothing but blanks came since a complete call
};

}  // namespace

std::unique_ptr<OutputParser> make_chatml_qwen_parser(const Tokenizer& tokenizer, const Json& tools,
                                                      ChatmlQwenStart start) {
  return std::make_unique<ChatmlQwenParser>(tokenizer, tools, std::move(start));
}

}  // namespace megalith
