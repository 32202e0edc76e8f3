#pragma once

// Random schemas, documents of them, and a plain reading of what a schema means, to hold the grammar against.

#include <algorithm>
#include <cmath>
#include <random>
#include <set>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "text/json_grammar.h"

namespace megalith {

using Json = nlohmann::ordered_json;

inline size_t characters_of(const std::string& text) {
  return static_cast<size_t>(std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xc0) != 0x80; }));
}

// Whether a value satisfies a schema, keyword by keyword.
class Validator {
 public:
  explicit Validator(const Json& root) : root_(root) {}

  bool valid(const Json& value) const { return valid(root_, value); }

 private:
  static bool is_integer(const Json& value) {
    return value.is_number() && std::trunc(value.get<double>()) == value.get<double>();
  }

  static bool has_type(const Json& type, const Json& value) {
    if (type.is_array())
      return std::any_of(type.begin(), type.end(), [&](const Json& one) { return has_type(one, value); });
    if (type == "integer") return is_integer(value);
    if (type == "number") return value.is_number();
    return type == value.type_name();
  }

  size_t count(const Json& schemas, const Json& value) const {
    return static_cast<size_t>(
        std::count_if(schemas.begin(), schemas.end(), [&](const Json& one) { return valid(one, value); }));
  }

  bool valid(const Json& schema, const Json& value) const {
    if (schema.is_boolean()) return schema.get<bool>();
    if (value.is_null() && schema.value("nullable", false)) return true;
    if (schema.contains("$ref")) {
      return valid(root_.at(Json::json_pointer(schema["$ref"].get<std::string>().substr(1))), value);
    }
    if (schema.contains("anyOf") && count(schema["anyOf"], value) == 0) return false;
    if (schema.contains("allOf") && count(schema["allOf"], value) != schema["allOf"].size()) return false;
    if (schema.contains("oneOf") && count(schema["oneOf"], value) != 1) return false;
    if (schema.contains("const") && schema["const"] != value) return false;
    if (schema.contains("enum") &&
        std::find(schema["enum"].begin(), schema["enum"].end(), value) == schema["enum"].end()) {
      return false;
    }
    if (schema.contains("type") && !has_type(schema["type"], value)) return false;
    if (value.is_string()) return in_limits(schema, "minLength", "maxLength", characters_of(value.get<std::string>()));
    if (value.is_array()) return valid_array(schema, value);
    return !value.is_object() || valid_object(schema, value);
  }

  static bool in_limits(const Json& schema, const char* min, const char* max, size_t n) {
    return n >= schema.value(min, size_t{0}) && n <= schema.value(max, SIZE_MAX);
  }

  bool valid_array(const Json& schema, const Json& value) const {
    if (!in_limits(schema, "minItems", "maxItems", value.size())) return false;
    const Json first = schema.value("prefixItems", Json::array());
    for (size_t i = 0; i < value.size(); ++i) {
      if (!valid(i < first.size() ? first[i] : schema.value("items", Json(true)), value[i])) return false;
    }
    return true;
  }

  bool valid_object(const Json& schema, const Json& value) const {
    for (const Json& name : schema.value("required", Json::array())) {
      if (!value.contains(name.get<std::string>())) return false;
    }
    const Json declared = schema.value("properties", Json::object());
    for (const auto& [name, of] : value.items()) {
      const bool known = declared.contains(name);
      if (!valid(known ? declared[name] : schema.value("additionalProperties", Json(true)), of)) return false;
    }
    return true;
  }

  const Json& root_;
};

// Random schemas of the supported keywords; of each there is a document.
class SchemaWriter {
 public:
  explicit SchemaWriter(std::mt19937& random) : random_(random) {}

  Json write() {
    Json root = schema(3);
    root["$defs"] = {{"leaf", chance(2) ? string() : constants()},
                     {"list",
                      {{"type", "object"},
                       {"properties",
                        {{"value", {{"$ref", "#/$defs/leaf"}}},
                         {"next", {{"anyOf", {{{"type", "null"}}, {{"$ref", "#/$defs/list"}}}}}}}},
                       {"required", {"next"}},
                       {"additionalProperties", false}}}};
    return root;
  }

 private:
  size_t below(size_t n) { return random_() % n; }
  bool chance(size_t n) { return below(n) == 0; }

  Json schema(int depth) {
    switch (below(depth == 0 ? 6 : 12)) {
      case 0:
        return string();
      case 1:
        return {{"type", "number"}, {"description", "n"}};
      case 2:
        return {{"type", "integer"}};
      case 3:
        return {{"type", {"boolean", "null"}}, {"title", "t"}};
      case 4:
        return constants();
      case 5:
        return depth < 3 ? Json{{"$ref", "#/$defs/list"}} : Json{{"type", "null"}};
      case 6:
      case 7:
      case 8:
        return object(depth - 1);
      case 9:
        return array(depth - 1);
      case 10:
        return {{chance(3) ? "allOf" : "anyOf", Json::array({schema(depth - 1)})}};
      default:
        return {{"anyOf", {schema(depth - 1), schema(depth - 1), schema(depth - 1)}}};
    }
  }

  Json string() {
    Json schema = {{"type", "string"}};
    if (chance(2)) schema["minLength"] = below(4);
    if (chance(2)) schema["maxLength"] = 3 + below(5);
    if (chance(4)) schema["nullable"] = true;
    return schema;
  }

  Json constants() {
    static const Json kPool = {"a", "ab", "a\"b\\", "é",  "👍x",    "",       1,           12,
                               -3,  0.5,  1e30,     true, nullptr, {1, "x"}, {{"k", "v"}}};
    if (chance(3)) return {{"const", kPool[below(kPool.size())]}};
    Json list = Json::array();
    for (size_t i = 0; i <= below(6); ++i) list.push_back(kPool[below(kPool.size())]);
    return {{"enum", list}};
  }

  Json object(int depth) {
    static const std::vector<std::string> kNames = {"a", "ab", "abc", "b", "q\"q", "é", "👍", "line\n", ""};
    Json schema = {{"type", "object"}};
    if (chance(8)) return schema;
    Json required = Json::array();
    std::vector<std::string> names = kNames;
    std::shuffle(names.begin(), names.end(), random_);
    names.resize(below(5));
    for (const auto& name : names) {
      schema["properties"][name] = this->schema(depth);
      if (chance(2)) required.push_back(name);
    }
    if (!required.empty()) schema["required"] = required;
    if (chance(2)) schema["additionalProperties"] = false;
    if (chance(4)) schema["additionalProperties"] = string();
    return schema;
  }

  Json array(int depth) {
    Json schema = {{"type", "array"}};
    if (!chance(4)) schema["items"] = this->schema(depth);
    if (chance(3)) schema["prefixItems"] = {this->schema(depth), string()};
    if (chance(2)) schema["minItems"] = below(3);
    if (chance(2)) schema["maxItems"] = 2 + below(3);
    return schema;
  }

  std::mt19937& random_;
};

// Random documents of a schema, in the form that the grammar asks for.
class DocumentWriter {
 public:
  DocumentWriter(const Json& root, std::mt19937& random) : root_(root), random_(random) {}

  std::string write() { return blanks() + value(root_, 8) + blanks(); }

 private:
  size_t below(size_t n) { return random_() % n; }
  bool chance(size_t n) { return below(n) == 0; }

  std::string blanks() {
    static const std::vector<std::string> kBlanks = {"", "", "", " ", "\n", "\n  ", " \n\t", "  "};
    return kBlanks[below(kBlanks.size())];
  }

  std::string value(const Json& schema, int depth) {
    if (schema.value("nullable", false) && chance(2)) return "null";
    if (schema.contains("$ref")) {
      return value(root_.at(Json::json_pointer(schema["$ref"].get<std::string>().substr(1))), depth);
    }
    for (const char* choice : {"anyOf", "oneOf", "allOf"}) {
      if (!schema.contains(choice)) continue;
      // The first alternative of a recursion is the one that ends it.
      return value(depth <= 0 ? schema[choice][0] : schema[choice][below(schema[choice].size())], depth - 1);
    }
    if (schema.contains("const")) return schema["const"].dump();
    if (schema.contains("enum")) return schema["enum"][below(schema["enum"].size())].dump();
    if (!schema.contains("type")) return chance(2) ? "[{\"x\":[]}, 1e5]" : "{ }";
    const Json& type = schema["type"].is_array() ? schema["type"][below(schema["type"].size())] : schema["type"];
    if (type == "string") return string(schema);
    if (type == "number") return number().append(chance(2) ? "" : ".25").append(chance(3) ? "e-7" : "");
    if (type == "integer") return number();
    if (type == "boolean") return chance(2) ? "true" : "false";
    if (type == "null") return "null";
    return type == "array" ? array(schema, depth) : object(schema, depth);
  }

  std::string number() {
    std::string text = chance(3) ? "-" : "";
    return text += std::to_string(chance(3) ? 0 : random_());
  }

  std::string string(const Json& schema) {
    static const std::vector<std::string> kCharacters = {
        "a", " ", "é", "国", "👍", "\\n", "\\\"", "\\u00e9", "\\uD83D\\ude00", "\x7f"};
    const size_t min = schema.value("minLength", size_t{0});
    const size_t max = schema.value("maxLength", min + 9);
    std::string text = "\"";
    for (size_t n = min + below(max - min + 1); n > 0; --n) text += kCharacters[below(kCharacters.size())];
    return text + "\"";
  }

  std::string array(const Json& schema, int depth) {
    const Json first = schema.value("prefixItems", Json::array());
    const size_t min = schema.value("minItems", size_t{0});
    const size_t max = std::max(min, std::min(schema.value("maxItems", min + 3), depth > 0 ? size_t{100} : 0));
    std::string text = "[";
    text += blanks();
    const size_t n = min + below(max - min + 1);
    for (size_t i = 0; i < n; ++i) {
      if (i > 0) text.append(",").append(blanks());
      text += value(i < first.size() ? first[i] : schema.value("items", Json(Json::object())), depth - 1) + blanks();
    }
    return text + "]";
  }

  std::string object(const Json& schema, int depth) {
    const Json required = schema.value("required", Json::array());
    std::string text = "{";
    text += blanks();
    bool begun = false;
    auto add = [&](const std::string& name, const std::string& of) {
      if (begun) text.append(",").append(blanks());
      begun = true;
      text += name + blanks() + ":" + blanks() + of + blanks();
    };
    const Json declared = schema.value("properties", Json::object());
    for (const auto& [name, of] : declared.items()) {
      const bool must = std::find(required.begin(), required.end(), name) != required.end();
      if (must || (depth > 0 && chance(2))) add(Json(name).dump(), value(of, depth - 1));
    }
    const Json others = schema.value("additionalProperties", Json(true));
    if (others != false && chance(3)) {
      add("\"abcd\"", others == true ? "[null]" : value(others, depth - 1));
      add("\"other é\"", others == true ? "0" : value(others, depth - 1));
    }
    return text + "}";
  }

  const Json& root_;
  std::mt19937& random_;
};

// The state after a text; empty where it begins no document.
inline JsonState state_after(const JsonGrammar& grammar, std::string_view text) {
  JsonState state = grammar.start();
  JsonState after;
  for (char byte : text) {
    grammar.take(state, static_cast<uint8_t>(byte), after);
    std::swap(state, after);
  }
  return state;
}

inline bool accepts(const JsonGrammar& grammar, std::string_view text) {
  return grammar.complete(state_after(grammar, text));
}

}  // namespace megalith
