#pragma once

// One call in an answer of Kimi K3, as it comes: its arguments, one by one or as one piece of JSON.

#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace megalith {

class KimiK3Call {
 public:
  // An empty name is one that is missing, which no call may have.
  explicit KimiK3Call(std::string name) : name_(std::move(name)) {}

  const std::string& name() const { return name_; }
  // A value of the type that the model gave it; one that is not of its type is a string. The last of a key counts.
  void add_argument(std::string key, std::string_view type, std::string_view value);
  // All arguments as a JSON object, kept as written where there are no others.
  void add_json(std::string_view text);
  // Text beside the arguments. Alone, it may be the JSON of all arguments.
  void add_text(std::string_view text) { text_ += text; }

  // The arguments as a JSON object; nothing where this has not the form of a call. Reads text() where that was meant.
  std::optional<std::string> arguments();
  // Text that was no argument.
  const std::string& text() const { return text_; }
  // Everything in it, for a reader.
  std::string shown() const;

 private:
  void set(std::string key, std::string json);
  std::string object() const;

  std::string name_;
  std::vector<std::pair<std::string, std::string>> arguments_;  // keys and JSON, in order
  std::unordered_map<std::string, size_t> places_;              // in arguments_, by key
  std::string written_;                                         // the object as written, while it is all there is
  std::string text_;
  std::string shapeless_;  // what should have been an object
};

}  // namespace megalith
