#pragma once

// Which JSON documents a text may be, and a text on its way to one: a pushdown automaton over bytes.
//
// Readings of a text differ in the schemas that they hold against it, where those leave a choice. So a state is a set
// of stacks.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "text/byte_trie.h"
#include "text/json_string.h"

namespace megalith {

inline constexpr uint32_t kNoLimit = UINT32_MAX;

// One of the forms that a value may have. Which members count depends on the kind.
struct JsonRule {
  enum class Kind : uint8_t { document, string, number, literal, object, array };
  struct Property {
    uint32_t value = 0;
    bool required = false;
  };

  Kind kind = Kind::document;
  uint32_t height = 0;                   // containers that it has at least inside each other; kNoLimit: it has no end
  uint32_t min = 0, max = kNoLimit;      // string: characters; array: items
  bool integer = false;                  // number
  ByteTrie texts;                        // literal: spelled out; object: the properties' names, without quotes
  std::vector<Property> properties;      // object: in the order in which they come
  std::vector<uint32_t> first_required;  // object: the first required property from each on, and one more
  std::vector<uint32_t> first_items;     // array: values of the first items
  std::optional<uint32_t> others;  // values of other properties or items; none: there are none. document: the value
};

// The forms that a value may have; none: there is no such value.
struct JsonValue {
  std::vector<uint32_t> rules;
  uint32_t height = 0;
};

// Where a text is in one rule.
struct JsonFrame {
  uint32_t rule = 0;
  uint8_t at = 0;                 // string and number: the automaton's state; containers: what may come next
  StringState key = kStringDead;  // object: where its name is as any string
  uint8_t blanks = 0;             // just before
  uint32_t node = 0;              // in the rule's texts; object behind a name: the value that it announces
  uint32_t count = 0;             // characters, digits, items; object: the first property that may still come
  bool operator==(const JsonFrame&) const = default;
};

// Frames below another, shared by all stacks that have them.
struct JsonStack {
  JsonFrame frame;  // where it will be when what is on it has ended
  std::shared_ptr<const JsonStack> below;
  uint32_t depth = 0;  // frames below
  uint64_t hash = 0;
};

struct JsonReading {
  JsonFrame top;
  std::shared_ptr<const JsonStack> below;
};

bool operator==(const JsonReading& a, const JsonReading& b);

// All readings of a text; none: it is not the beginning of a document.
using JsonState = std::vector<JsonReading>;

uint64_t hash_of(const JsonState& state);

// Immutable.
class JsonGrammar {
 public:
  // The rule 0 is the document.
  JsonGrammar(std::vector<JsonRule> rules, std::vector<JsonValue> values);

  // Whether there is a document at all.
  bool possible() const;
  JsonState start() const;
  // The state after one more byte. A text that has a reading can always be completed.
  void take(const JsonState& state, uint8_t byte, JsonState& after) const;
  // Whether the text is a document.
  bool complete(const JsonState& state) const;

  // Where every reading is in a string that may be of any characters, all that differs is how many.
  struct FreeString {
    StringState state = kStringText;
    uint32_t room = kNoLimit;  // characters that may still begin
    bool alike = true;         // the string may end at any character
  };
  std::optional<FreeString> free_string(const JsonState& state) const;
  // Of a free string: the state when it ends after so many characters more.
  JsonState closed(const JsonState& state, uint32_t characters) const;

 private:
  class Step;

  std::vector<JsonRule> rules_;
  std::vector<JsonValue> values_;
};

}  // namespace megalith
