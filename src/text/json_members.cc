#include "text/json_members.h"

#include <algorithm>

#include <nlohmann/json.hpp>

#include "base/check.h"

namespace megalith {

namespace {

constexpr std::string_view kBlanks = " \t\n\r";

size_t after_string(std::string_view text, size_t at) {
  for (++at; at < text.size() && text[at] != '"'; ++at) {
    if (text[at] == '\\') ++at;
  }
  return at + 1;
}

size_t after_value(std::string_view text, size_t at) {
  if (text[at] == '"') return after_string(text, at);
  if (text[at] != '{' && text[at] != '[') return std::min(text.find_first_of(",]} \t\n\r", at), text.size());
  size_t depth = 0;
  while (at < text.size()) {
    char c = text[at];
    if (c == '{' || c == '[') ++depth;
    if (c == '}' || c == ']') --depth;
    at = c == '"' ? after_string(text, at) : at + 1;
    if (depth == 0) break;
  }
  return at;
}

}  // namespace

std::string text_of_value(std::string_view value) {
  if (!value.starts_with('"')) return std::string(value);
  return nlohmann::json::parse(value).get<std::string>();
}

std::vector<JsonMember> json_members(std::string_view object) {
  std::vector<JsonMember> members;
  size_t at = 0;
  auto next = [&](std::string_view skipped) {
    at = std::min(object.find_first_not_of(skipped, at), object.size());
    CHECK(at < object.size(), "not the text of an object");
  };
  next(kBlanks);
  CHECK(object[at] == '{', "not the text of an object");
  ++at;
  for (next(kBlanks); object[at] != '}'; next(" \t\n\r,")) {
    size_t end = after_string(object, at);
    std::string name = text_of_value(object.substr(at, end - at));
    at = end;
    next(" \t\n\r:");
    end = after_value(object, at);
    members.push_back({std::move(name), object.substr(at, end - at)});
    at = end;
  }
  return members;
}

}  // namespace megalith
