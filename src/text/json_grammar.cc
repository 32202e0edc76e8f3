#include "text/json_grammar.h"

#include <algorithm>

namespace megalith {

namespace {

using Kind = JsonRule::Kind;

constexpr uint32_t kDeepest = 64;     // containers inside each other
constexpr size_t kMostReadings = 64;  // of a text; more are dropped

// A long run of blanks is nothing that a document needs, and a model may not find out of it.
constexpr uint8_t kMostBlanks = 2;        // on a line
constexpr uint32_t kMostIndent = 4;       // after a line break, and as many more for each open container
constexpr uint32_t kWidestIndent = 64;
constexpr uint8_t kMostBlanksBefore = 4;  // before the document, line breaks or not
// A number may be as long as any that a double or a 64-bit integer is written as.
constexpr uint32_t kMostDigits = 20;
constexpr uint32_t kMostExponentDigits = 2;

// What a container waits for.
enum At : uint8_t { first, item, name, colon, value, next };
enum Number : uint8_t { sign, minus, zero, whole, point, fraction, exponent, exponent_sign, exponent_digits };

bool is_blank(uint8_t byte) {
  return byte == ' ' || byte == '\t' || byte == '\n';
}

// Blanks of a line are counted from 0; those after a line break go on from here.
constexpr uint8_t kLineBreak = kMostBlanks + 1;

bool take_blank(uint8_t& blanks, uint8_t byte, bool before_document, uint32_t depth) {
  if (before_document) return blanks++ < kMostBlanksBefore;
  if (byte == '\n') {
    if (blanks >= kLineBreak) return false;
    blanks = kLineBreak;
    return true;
  }
  const uint32_t most = blanks < kLineBreak ? kMostBlanks : kLineBreak + std::min(kMostIndent * (depth + 1), kWidestIndent);
  return blanks++ < most;
}

uint64_t mixed(uint64_t hash, uint64_t word) {
  hash = (hash ^ word) * 0x9e3779b97f4a7c15;
  return hash ^ (hash >> 29);
}

uint64_t hash_of(const JsonFrame& frame, uint64_t hash) {
  hash = mixed(hash, uint64_t{frame.rule} << 32 | frame.node);
  return mixed(hash, uint64_t{frame.count} << 24 | uint64_t{frame.at} << 16 | uint64_t{frame.key} << 8 | frame.blanks);
}

bool equal(const JsonStack* a, const JsonStack* b) {
  for (; a != b; a = a->below.get(), b = b->below.get()) {
    if (a == nullptr || b == nullptr || a->hash != b->hash || a->depth != b->depth || a->frame != b->frame)
      return false;
  }
  return true;
}

// The number's automaton; `count` are the digits of its part.
std::optional<uint8_t> number_after(uint8_t at, uint8_t byte, bool integer, uint32_t count) {
  const bool digit = byte >= '0' && byte <= '9';
  switch (at) {
    case sign:
    case minus:
      if (byte == '-' && at == sign) return minus;
      if (digit) return byte == '0' ? zero : whole;
      return std::nullopt;
    case zero:
    case whole:
      if (digit) return at == whole && count < kMostDigits ? std::optional<uint8_t>(whole) : std::nullopt;
      if (integer) return std::nullopt;
      if (byte == '.') return point;
      return byte == 'e' || byte == 'E' ? std::optional<uint8_t>(exponent) : std::nullopt;
    case point:
      return digit ? std::optional<uint8_t>(fraction) : std::nullopt;
    case fraction:
      if (byte == 'e' || byte == 'E') return exponent;
      return digit && count < kMostDigits ? std::optional<uint8_t>(fraction) : std::nullopt;
    case exponent:
      if (byte == '+' || byte == '-') return exponent_sign;
      [[fallthrough]];
    case exponent_sign:
      return digit ? std::optional<uint8_t>(exponent_digits) : std::nullopt;
    default:
      return digit && count < kMostExponentDigits ? std::optional<uint8_t>(exponent_digits) : std::nullopt;
  }
}

bool number_ends(uint8_t at) {
  return at == zero || at == whole || at == fraction || at == exponent_digits;
}

// A count beyond which all are alike.
uint32_t counted(uint32_t count, uint32_t alike_from, uint32_t max) {
  return max == kNoLimit ? std::min(count, alike_from) : count;
}

}  // namespace

bool operator==(const JsonReading& a, const JsonReading& b) {
  return a.top == b.top && equal(a.below.get(), b.below.get());
}

uint64_t hash_of(const JsonState& state) {
  uint64_t hash = state.size();
  for (const JsonReading& reading : state)
    hash = hash_of(reading.top, hash ^ (reading.below ? reading.below->hash : 0));
  return hash;
}

// One byte, for all readings.
class JsonGrammar::Step {
 public:
  Step(const JsonGrammar& grammar, JsonState& after)
      : rules_(grammar.rules_), values_(grammar.values_), after_(after) {}

  void take(const JsonReading& reading, uint8_t byte) {
    switch (rules_[reading.top.rule].kind) {
      case Kind::document:
        return take_in_document(reading, byte);
      case Kind::string:
        return take_in_string(reading, byte);
      case Kind::number:
        return take_in_number(reading, byte);
      case Kind::literal:
        return take_in_literal(reading, byte);
      case Kind::object:
        return take_in_object(reading, byte);
      case Kind::array:
        return take_in_array(reading, byte);
    }
  }

  // What is on top has ended.
  void pop(const JsonReading& reading) { add(reading.below->frame, reading.below->below); }

  // The name of an object's property has ended; `any`: as any string, else as a text of the rule.
  void end_name(const JsonReading& reading, bool any) {
    const JsonRule& rule = rules_[reading.top.rule];
    const uint32_t property = reading.top.node == ByteTrie::kNone ? ByteTrie::kNone : rule.texts.text(reading.top.node);
    JsonFrame frame = reading.top;
    frame.key = kStringDead;
    frame.at = colon;
    if (property != ByteTrie::kNone) {
      if (!may_come(reading, property)) return;
      frame.node = rule.properties[property].value;
      frame.count = property + 1;
    } else {
      if (!any) return;
      frame.node = *rule.others;
      frame.count = static_cast<uint32_t>(rule.properties.size());
    }
    add(frame, reading.below);
  }

 private:
  using Stack = std::shared_ptr<const JsonStack>;

  static uint32_t depth_of(const JsonReading& reading) { return reading.below ? reading.below->depth + 1 : 0; }

  void add(const JsonFrame& frame, const Stack& below) {
    JsonReading reading{frame, below};
    if (after_.size() >= kMostReadings || std::find(after_.begin(), after_.end(), reading) != after_.end()) return;
    after_.push_back(std::move(reading));
  }

  // Whether a value, or a form of one, has room in what is on top of the stack.
  bool fits(uint32_t height, const JsonReading& reading) const {
    return height != kNoLimit && depth_of(reading) + height <= kDeepest;
  }

  bool take_blank(const JsonReading& reading, uint8_t byte) {
    if (!is_blank(byte)) return false;
    JsonFrame frame = reading.top;
    const bool before_document = frame.at == first && rules_[frame.rule].kind == Kind::document;
    if (megalith::take_blank(frame.blanks, byte, before_document, depth_of(reading))) add(frame, reading.below);
    return true;
  }

  // Begins a value in all its forms; `then` is where the container will be behind it.
  void begin(uint32_t index, const JsonReading& reading, JsonFrame then, uint8_t byte) {
    then.blanks = 0;
    Stack below;
    for (uint32_t form : values_[index].rules) {
      const JsonRule& rule = rules_[form];
      JsonFrame frame{.rule = form};
      if (!fits(rule.height, reading) || !begins(rule, byte, frame)) continue;
      if (!below) below = pushed(then, reading.below);
      add(frame, below);
    }
  }

  static Stack pushed(const JsonFrame& frame, const Stack& below) {
    const uint64_t hash = hash_of(frame, below ? below->hash : 0);
    return std::make_shared<const JsonStack>(JsonStack{frame, below, below ? below->depth + 1 : 0, hash});
  }

  static bool begins(const JsonRule& rule, uint8_t byte, JsonFrame& frame) {
    switch (rule.kind) {
      case Kind::string:
        frame.at = kStringText;
        return byte == '"';
      case Kind::number: {
        auto at = number_after(sign, byte, rule.integer, 0);
        frame.at = at.value_or(0);
        frame.count = 1;
        return at.has_value();
      }
      case Kind::literal:
        frame.node = rule.texts.child(0, byte);
        return frame.node != ByteTrie::kNone;
      case Kind::object:
        return byte == '{';
      case Kind::array:
        return byte == '[';
      case Kind::document:
        break;
    }
    return false;
  }

  void take_in_document(const JsonReading& reading, uint8_t byte) {
    if (take_blank(reading, byte) || reading.top.at != first) return;
    JsonFrame then = reading.top;
    then.at = next;
    begin(*rules_[reading.top.rule].others, reading, then, byte);
  }

  void take_in_string(const JsonReading& reading, uint8_t byte) {
    const JsonRule& rule = rules_[reading.top.rule];
    JsonFrame frame = reading.top;
    frame.at = kStringNext[frame.at][byte];
    if (frame.at == kStringDead) return;
    if (frame.at == kStringClosed) {
      if (frame.count >= rule.min) pop(reading);
      return;
    }
    if (begins_character(reading.top.at)) {
      if (frame.count >= rule.max) return;
      frame.count = counted(frame.count + 1, rule.min, rule.max);
    }
    add(frame, reading.below);
  }

  void take_in_number(const JsonReading& reading, uint8_t byte) {
    JsonFrame frame = reading.top;
    auto at = number_after(frame.at, byte, rules_[frame.rule].integer, frame.count);
    if (!at) {
      if (number_ends(frame.at)) take({reading.below->frame, reading.below->below}, byte);
      return;
    }
    frame.count = *at == frame.at ? frame.count + 1 : 1;
    frame.at = *at;
    add(frame, reading.below);
  }

  void take_in_literal(const JsonReading& reading, uint8_t byte) {
    const ByteTrie& texts = rules_[reading.top.rule].texts;
    JsonFrame frame = reading.top;
    frame.node = texts.child(frame.node, byte);
    if (frame.node != ByteTrie::kNone) return add(frame, reading.below);
    if (texts.text(reading.top.node) != ByteTrie::kNone) take({reading.below->frame, reading.below->below}, byte);
  }

  // Whether a property may come next: none that is required may be passed over.
  bool may_come(const JsonReading& reading, uint32_t property) const {
    const JsonRule& rule = rules_[reading.top.rule];
    return property >= reading.top.count && property <= rule.first_required[reading.top.count] &&
           fits(values_[rule.properties[property].value].height, reading);
  }

  bool may_close(const JsonReading& reading) const {
    const JsonRule& rule = rules_[reading.top.rule];
    return rule.first_required[reading.top.count] == rule.properties.size();
  }

  bool others_may_come(const JsonReading& reading) const {
    const JsonRule& rule = rules_[reading.top.rule];
    return rule.others && may_close(reading) && fits(values_[*rule.others].height, reading);
  }

  bool any_may_come(const JsonReading& reading, uint32_t node) const {
    const auto& below = rules_[reading.top.rule].texts.below(node);
    auto begin = std::lower_bound(below.begin(), below.end(), reading.top.count);
    return std::any_of(begin, below.end(), [&](uint32_t property) { return may_come(reading, property); });
  }

  void take_in_object(const JsonReading& reading, uint8_t byte) {
    const JsonRule& rule = rules_[reading.top.rule];
    if (reading.top.at == name) return take_in_name(reading, byte);
    if (take_blank(reading, byte)) return;
    JsonFrame frame = reading.top;
    frame.blanks = 0;
    const bool more = others_may_come(reading) || any_may_come(reading, 0);
    if ((frame.at == first || frame.at == item) && byte == '"' && more) {
      frame.at = name;
      frame.node = 0;
      frame.key = !others_may_come(reading) ? kStringDead : rule.texts.empty() ? kStringText : kStringPlain;
      if (rule.texts.empty()) frame.node = ByteTrie::kNone;
      add(frame, reading.below);
    } else if ((frame.at == first || frame.at == next) && byte == '}' && may_close(reading)) {
      pop(reading);
    } else if (frame.at == next && byte == ',' && more) {
      frame.at = item;
      add(frame, reading.below);
    } else if (frame.at == colon && byte == ':') {
      frame.at = value;
      add(frame, reading.below);
    } else if (frame.at == value) {
      frame.at = next;
      const uint32_t of = std::exchange(frame.node, 0);
      begin(of, reading, frame, byte);
    }
  }

  // A name is followed both as one of those declared and, where others may come, as any string. One that is declared is
  // no other, and so that no escape can hide one, others have none.
  void take_in_name(const JsonReading& reading, uint8_t byte) {
    const ByteTrie& texts = rules_[reading.top.rule].texts;
    JsonFrame frame = reading.top;
    if (frame.key != kStringDead) frame.key = kStringNext[frame.key][byte];
    if (frame.key == kStringClosed) return end_name(reading, true);
    if (frame.node != ByteTrie::kNone) frame.node = texts.child(frame.node, byte);
    const bool declared = frame.node != ByteTrie::kNone && any_may_come(reading, frame.node);
    if (frame.key != kStringDead || declared) return add(frame, reading.below);
    if (byte == '"' && reading.top.node != ByteTrie::kNone) end_name(reading, false);
  }

  void take_in_array(const JsonReading& reading, uint8_t byte) {
    if (take_blank(reading, byte)) return;
    const JsonRule& rule = rules_[reading.top.rule];
    JsonFrame frame = reading.top;
    frame.blanks = 0;
    if (frame.at != item && byte == ']') {
      if (frame.count >= rule.min) pop(reading);
    } else if (frame.at == next) {
      frame.at = item;
      if (byte == ',' && item_at(reading)) add(frame, reading.below);
    } else if (auto of = item_at(reading)) {
      frame.at = next;
      const auto alike_from = std::max(rule.min, static_cast<uint32_t>(rule.first_items.size()));
      frame.count = counted(frame.count + 1, alike_from, rule.max);
      begin(*of, reading, frame, byte);
    }
  }

  // The value of the next item; nothing where none may come.
  std::optional<uint32_t> item_at(const JsonReading& reading) const {
    const JsonRule& rule = rules_[reading.top.rule];
    const uint32_t count = reading.top.count;
    if (count >= rule.max) return std::nullopt;
    auto of = count < rule.first_items.size() ? std::optional(rule.first_items[count]) : rule.others;
    return of && fits(values_[*of].height, reading) ? of : std::nullopt;
  }

  const std::vector<JsonRule>& rules_;
  const std::vector<JsonValue>& values_;
  JsonState& after_;
};

JsonGrammar::JsonGrammar(std::vector<JsonRule> rules, std::vector<JsonValue> values)
    : rules_(std::move(rules)), values_(std::move(values)) {}

bool JsonGrammar::possible() const {
  return values_[*rules_[0].others].height <= kDeepest;
}

JsonState JsonGrammar::start() const {
  return {JsonReading{}};
}

void JsonGrammar::take(const JsonState& state, uint8_t byte, JsonState& after) const {
  after.clear();
  Step step(*this, after);
  for (const JsonReading& reading : state) step.take(reading, byte);
}

bool JsonGrammar::complete(const JsonState& state) const {
  return std::any_of(state.begin(), state.end(), [&](const JsonReading& reading) {
    const JsonRule& rule = rules_[reading.top.rule];
    if (rule.kind == Kind::document) return reading.top.at == next;
    const bool ends = (rule.kind == Kind::number && number_ends(reading.top.at)) ||
                      (rule.kind == Kind::literal && rule.texts.text(reading.top.node) != ByteTrie::kNone);
    return ends && rules_[reading.below->frame.rule].kind == Kind::document;
  });
}

std::optional<JsonGrammar::FreeString> JsonGrammar::free_string(const JsonState& state) const {
  std::optional<FreeString> free;
  for (const JsonReading& reading : state) {
    const JsonRule& rule = rules_[reading.top.rule];
    const bool name_of_other = rule.kind == Kind::object && reading.top.at == name && reading.top.key != kStringDead &&
                               reading.top.node == ByteTrie::kNone;
    if (rule.kind != Kind::string && !name_of_other) return std::nullopt;
    const StringState at = name_of_other ? reading.top.key : reading.top.at;
    if (free && free->state != at) return std::nullopt;
    if (!free) free = {.state = at, .room = 0};
    if (name_of_other) {
      free->room = kNoLimit;
      continue;
    }
    free->room = std::max(free->room, rule.max == kNoLimit ? kNoLimit : rule.max - reading.top.count);
    free->alike = free->alike && rule.max == kNoLimit && reading.top.count >= rule.min;
  }
  return free;
}

JsonState JsonGrammar::closed(const JsonState& state, uint32_t characters) const {
  JsonState after;
  Step step(*this, after);
  for (const JsonReading& reading : state) {
    const JsonRule& rule = rules_[reading.top.rule];
    if (rule.kind == Kind::object) {
      step.end_name(reading, true);
      continue;
    }
    const uint64_t count = uint64_t{reading.top.count} + characters;
    if (count >= rule.min && count <= rule.max) step.pop(reading);
  }
  return after;
}

}  // namespace megalith
