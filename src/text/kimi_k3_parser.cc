#include "text/kimi_k3_parser.h"

#include <algorithm>
#include <array>
#include <set>

#include <fmt/format.h>

#include "text/characters.h"
#include "text/kimi_k3_call.h"

namespace megalith {

namespace {

using Kind = OutputEvent::Kind;

constexpr std::array<std::string_view, 7> kTags = {"message", "think", "response", "tools", "call", "argument", "json"};

// A longer text after <|open|> or <|close|> is no tag, unless it begins with the name of one.
constexpr size_t kLongestTag = 256;

int32_t mark(const Tokenizer& tokenizer, std::string_view text) {
  return find_mark(tokenizer, text, "tokenizer_config.json: added_tokens_decoder");
}

struct Marks {
  explicit Marks(const Tokenizer& tokenizer)
      : open(mark(tokenizer, kKimiK3Open)),
        close(mark(tokenizer, kKimiK3Close)),
        sep(mark(tokenizer, kKimiK3Sep)),
        turn_end(mark(tokenizer, kKimiK3End)),
        text_end(mark(tokenizer, kKimiK3TextEnd)) {}

  int32_t open;
  int32_t close;
  int32_t sep;
  int32_t turn_end;
  int32_t text_end;
};

std::string unescaped(std::string_view value) {
  std::string text;
  while (!value.empty()) {
    constexpr std::pair<std::string_view, char> kEntities[] = {{"&quot;", '"'}, {"&amp;", '&'}};
    auto entity = std::find_if(std::begin(kEntities), std::end(kEntities),
                               [&](const auto& one) { return value.starts_with(one.first); });
    bool found = entity != std::end(kEntities);
    text += found ? entity->second : value[0];
    value.remove_prefix(found ? entity->first.size() : 1);
  }
  return text;
}

// What stands between <|open|> or <|close|> and <|sep|>.
struct Tag {
  explicit Tag(std::string_view text) {
    text = trim(text);
    size_t end = std::min(text.find_first_of(" \n\t"), text.size());
    name = text.substr(0, end);
    known = std::find(kTags.begin(), kTags.end(), name) != kTags.end();
    alone = end == text.size();
    text = trim(text.substr(end));
    while (well_formed && !text.empty()) text = trim(text.substr(read_attribute(text)));
  }

  std::string value_of(std::string_view key) const {
    auto same = [&](const auto& attribute) { return attribute.first == key; };
    auto found = std::find_if(attributes.begin(), attributes.end(), same);
    return found == attributes.end() ? "" : found->second;
  }

  std::string_view name;
  bool known = false;
  bool alone = false;       // nothing follows the name
  bool well_formed = true;  // what follows the name are attributes
  std::vector<std::pair<std::string_view, std::string>> attributes;

 private:
  // Returns the length of what it read.
  size_t read_attribute(std::string_view text) {
    size_t equals = text.find("=\"");
    size_t end = equals == std::string_view::npos ? equals : text.find('"', equals + 2);
    if (end == std::string_view::npos || text.substr(0, equals).find_first_of(" \"") != std::string_view::npos) {
      well_formed = false;
      return text.size();
    }
    attributes.emplace_back(text.substr(0, equals), unescaped(text.substr(equals + 2, end - equals - 2)));
    return end + 1;
  }
};

class KimiK3Parser : public OutputParser {
 public:
  KimiK3Parser(const Tokenizer& tokenizer, KimiK3Start start)
      : OutputParser(tokenizer),
        marks_(tokenizer),
        n_calls_before_(start.used_call_ids.size()),
        used_call_ids_(start.used_call_ids.begin(), start.used_call_ids.end()) {
    if (start.channel == KimiK3Start::Channel::think) state_ = State::think;
    if (start.channel == KimiK3Start::Channel::response) state_ = State::response;
  }

 private:
  // Within a call: `call` beside its values, `argument` and `json` in one.
  enum class State { none, think, response, tools, call, argument, json };

  struct UnreadTag {
    bool opens = false;
    std::string text = {};
  };

  bool take_mark(int32_t id) override {
    bool end = id == marks_.turn_end || id == marks_.text_end;
    bool begins_tag = id == marks_.open || id == marks_.close;
    if (!end && !begins_tag && id != marks_.sep) return false;
    end_character();
    if (tag_) end_tag(id == marks_.sep);
    if (end) {
      if (call_) end_call(true);
      end_answer();
    } else if (begins_tag && !ended()) {
      tag_ = {.opens = id == marks_.open};
    }
    return true;
  }

  void take_text(std::string_view text) override {
    if (text.empty()) return;
    if (tag_) {
      tag_->text += text;
      if (tag_->text.size() > kLongestTag && !Tag(std::string_view(tag_->text).substr(0, kLongestTag)).known) {
        take_channel_text(give_up_tag());
      }
      return;
    }
    take_channel_text(text);
  }

  void end_text(bool) override {
    if (tag_) end_unfinished_tag();
    if (call_) end_call(false);
  }

  void take_channel_text(std::string_view text) {
    switch (state_) {
      case State::think:
        return give(Kind::reasoning, std::string(text));
      case State::response:
        return give_content(text);
      case State::call:
        return call_->add_text(text);
      case State::argument:
      case State::json:
        value_ += text;
        return;
      case State::none:
      case State::tools:
        if (!outside_begun_) text = trim_left(text);
        outside_begun_ = outside_begun_ || !text.empty();
        return give_content(text);
    }
  }

  void give_content(std::string_view text) {
    content_begun_ = content_begun_ || !text.empty();
    give(Kind::content, std::string(text));
  }

  std::string give_up_tag() {
    std::string text = std::move(tag_->text);
    tag_.reset();
    return text;
  }

  // The tag ends with <|sep|> or, where that was forgotten, before another mark. What is no tag is text, but a name
  // that nobody knows is never shown: it may be meant as one.
  void end_tag(bool complete) {
    bool opens = tag_->opens;
    std::string text = give_up_tag();
    Tag tag(text);
    bool structure = complete ? tag.known || tag.well_formed : tag.known && tag.well_formed;
    if (!structure) return take_channel_text(text);
    if (!tag.known) return;
    if (opens) {
      open(tag);
    } else {
      close(tag.name);
    }
  }

  // Where the answer was cut within a tag.
  void end_unfinished_tag() {
    std::string text = give_up_tag();
    Tag tag(text);
    auto begins = [&](std::string_view name) { return name.starts_with(tag.name); };
    bool beginning = tag.alone && std::any_of(kTags.begin(), kTags.end(), begins);
    if (!tag.known && !beginning) take_channel_text(text);
  }

  void open(const Tag& tag) {
    if (tag.name == "argument" || tag.name == "json") {
      if (call_) begin_value(tag);
      return;
    }
    if (call_) end_call(true);
    outside_begun_ = false;
    if (tag.name == "think") state_ = State::think;
    if (tag.name == "response") state_ = State::response;
    if (tag.name == "tools") state_ = State::tools;
    if (tag.name == "message") state_ = State::none;
    if (tag.name == "call") {
      state_ = State::call;
      call_.emplace(tag.value_of("tool"));
    }
  }

  // One that is not open is stray.
  void close(std::string_view name) {
    if (name == "message") {
      if (call_) end_call(true);
      end_answer();
    } else if (name == "argument" || name == "json") {
      end_value();
    } else if (call_ && (name == "call" || name == "tools")) {
      end_call(true);
    }
    if ((name == "think" && state_ == State::think) || (name == "response" && state_ == State::response) ||
        (name == "tools" && state_ == State::tools)) {
      outside_begun_ = false;
      state_ = State::none;
    }
  }

  void begin_value(const Tag& tag) {
    end_value();
    state_ = tag.name == "json" ? State::json : State::argument;
    key_ = tag.value_of("key");
    type_ = tag.value_of("type");
  }

  void end_value() {
    if (state_ == State::argument) call_->add_argument(std::move(key_), type_, value_);
    if (state_ == State::json) call_->add_json(value_);
    if (state_ == State::argument || state_ == State::json) state_ = State::call;
    value_.clear();
  }

  void end_call(bool complete) {
    end_value();
    state_ = State::tools;
    outside_begun_ = false;
    KimiK3Call call = std::move(*call_);
    call_.reset();
    auto arguments = complete ? call.arguments() : std::nullopt;
    if (!arguments) {
      if (content_begun_) give_content("\n");
      return give_content(call.shown());
    }
    give_call(next_call_id(call.name()), call.name(), std::move(*arguments));
    give_content(trim(call.text()));
  }

  // Ids tell the function and count on over the conversation, as the family's older models need them.
  std::string next_call_id(const std::string& name) {
    size_t number = n_calls_before_ + static_cast<size_t>(n_calls());
    std::string id = fmt::format("functions.{}:{}", name, number);
    while (!used_call_ids_.insert(id).second) id = fmt::format("functions.{}:{}", name, ++number);
    return id;
  }

  const Marks marks_;
  const size_t n_calls_before_;
  std::set<std::string> used_call_ids_;
  State state_ = State::none;
  std::optional<UnreadTag> tag_;
  std::optional<KimiK3Call> call_;
  std::string key_;  // of the value that is being read
  std::string type_;
  std::string value_;
  bool outside_begun_ = false;  // something but blanks came outside all channels
  bool content_begun_ = false;
};

}  // namespace

std::unique_ptr<OutputParser> make_kimi_k3_parser(const Tokenizer& tokenizer, KimiK3Start start) {
  return std::make_unique<KimiK3Parser>(tokenizer, std::move(start));
}

}  // namespace megalith
