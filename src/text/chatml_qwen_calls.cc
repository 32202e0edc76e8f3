// The text form of a call: <function=NAME> <parameter=KEY> VALUE </parameter> ... </function>.

#include <algorithm>
#include <set>

#include <fmt/format.h>

#include "text/characters.h"
#include "text/chatml_qwen_parser.h"
#include "text/python_json.h"
#include "text/request_json.h"

namespace megalith {

namespace {

using Json = nlohmann::ordered_json;

constexpr std::string_view kFunction = "<function=";
constexpr std::string_view kFunctionEnd = "</function>";
constexpr std::string_view kParameter = "<parameter=";
constexpr std::string_view kParameterEnd = "</parameter>";

const Json* find(const Json* object, const char* name) {
  if (object == nullptr || !object->is_object()) return nullptr;
  auto found = object->find(name);
  return found == object->end() ? nullptr : &*found;
}

// The declared parameters of a function, or null.
const Json* properties_of(const Json& tools, const std::string& name) {
  for (const Json& tool : tools) {
    const Json* function = find(&tool, "function");
    const Json* own = find(function, "name");
    if (own != nullptr && *own == name) return find(find(function, "parameters"), "properties");
  }
  return nullptr;
}

// Adds the types that a schema allows.
void collect_types(const Json* schema, std::set<std::string>& types) {
  if (const Json* type = find(schema, "type")) {
    if (type->is_string()) types.insert(type->get<std::string>());
    if (type->is_array()) {
      for (const Json& one : *type) {
        if (one.is_string()) types.insert(one.get<std::string>());
      }
    }
  }
  for (const char* choice : {"anyOf", "oneOf"}) {
    const Json* branches = find(schema, choice);
    if (branches == nullptr || !branches->is_array()) continue;
    for (const Json& branch : *branches) collect_types(&branch, types);
  }
}

// A value as JSON. Numbers keep their digits, which a parsed double would not.
std::string typed(std::string_view value, const Json* schema) {
  std::set<std::string> types;
  collect_types(schema, types);
  std::string_view bare = trim(value);
  bool null = bare == "null" || bare == "None";
  if (types.contains("string") || types.empty()) return null && types.contains("null") ? "null" : json_string(value);
  if (null) return "null";
  if (is_json(bare)) return std::string(bare);
  // Prompts of the 3.5 form show booleans as Python writes them.
  if (types.contains("boolean") && (bare == "True" || bare == "False")) return bare == "True" ? "true" : "false";
  return json_string(value);
}

class CallReader {
 public:
  CallReader(std::string_view text, const Json& tools, bool closed) : rest_(text), tools_(tools), closed_(closed) {}

  std::vector<CallText> read() {
    std::vector<CallText> calls;
    for (skip_blanks(); !rest_.empty(); skip_blanks()) {
      if (!read_function()) return {};
      calls.push_back(std::move(call_));
    }
    return calls;
  }

 private:
  void skip_blanks() { rest_ = trim_left(rest_); }

  bool take(std::string_view tag) {
    if (!rest_.starts_with(tag)) return false;
    rest_.remove_prefix(tag.size());
    return true;
  }

  // What stands up to the end of a tag, on one line.
  bool take_name(std::string& name) {
    size_t end = rest_.find('>');
    if (end == std::string_view::npos) return false;
    name = trim(rest_.substr(0, end));
    rest_.remove_prefix(end + 1);
    return !name.empty() && name.find('\n') == std::string::npos;
  }

  bool read_function() {
    call_ = {};
    arguments_.clear();
    if (!take(kFunction) || !take_name(call_.name)) return false;
    const Json* properties = properties_of(tools_, call_.name);
    while (true) {
      skip_blanks();
      if (take(kFunctionEnd) || (rest_.empty() && closed_)) break;
      if (!read_parameter(properties)) return false;
    }
    for (const auto& [key, value] : arguments_) {
      call_.arguments += fmt::format("{}{}: {}", call_.arguments.empty() ? "" : ", ", json_string(key), value);
    }
    call_.arguments = "{" + call_.arguments + "}";
    return true;
  }

  bool read_parameter(const Json* properties) {
    std::string key;
    std::string_view value;
    if (!take(kParameter) || !take_name(key) || !take_value(value)) return false;
    std::string json = typed(value, find(properties, key.c_str()));
    auto same = std::find_if(arguments_.begin(), arguments_.end(), [&](const auto& a) { return a.first == key; });
    if (same == arguments_.end()) {
      arguments_.emplace_back(key, json);
    } else {
      same->second = json;
    }
    return true;
  }

  // A value ends at </parameter>; where that was forgotten, before the next tag at the beginning of a line.
  bool take_value(std::string_view& value) {
    size_t end = rest_.find(kParameterEnd);
    size_t next = rest_.substr(0, end).find("\n<parameter=");
    bool forgotten = end == std::string_view::npos || next != std::string_view::npos;
    if (end == std::string_view::npos) next = std::min(next, rest_.find("\n</function>"));
    if (forgotten) end = next;
    if (end == std::string_view::npos) {
      if (!closed_) return false;
      end = rest_.size();
    }
    value = rest_.substr(0, end);
    rest_.remove_prefix(end + (forgotten ? 0 : kParameterEnd.size()));
    if (value.starts_with('\n')) value.remove_prefix(1);
    if (!forgotten && value.ends_with('\n')) value.remove_suffix(1);
    return true;
  }

  std::string_view rest_;
  const Json& tools_;
  bool closed_;
  CallText call_;
  std::vector<std::pair<std::string, std::string>> arguments_;  // in order; the last value of a name counts
};

}  // namespace

std::vector<CallText> parse_calls(std::string_view text, const Json& tools, bool closed) {
  return CallReader(text, tools, closed).read();
}

}  // namespace megalith
