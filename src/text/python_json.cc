#include "text/python_json.h"

#include <algorithm>
#include <vector>

#include <fmt/format.h>

namespace megalith {

namespace {

using Json = nlohmann::ordered_json;

struct Style {
  std::string_view comma;
  std::string_view colon;
  bool sorted;
};

// Python's repr of a float; the shortest digits, as JSON libraries have them, differ in form only.
std::string python_float(double value) {
  std::string text = fmt::format("{}", value);
  return text.find_first_of(".en") == std::string::npos ? text + ".0" : text;
}

std::string written(const Json& value, const Style& style);

std::string written_object(const Json& object, const Style& style) {
  std::vector<const Json::object_t::value_type*> members;
  for (const auto& member : object.get_ref<const Json::object_t&>()) members.push_back(&member);
  if (style.sorted) std::sort(members.begin(), members.end(), [](auto* a, auto* b) { return a->first < b->first; });
  std::string text;
  for (const auto* member : members) {
    if (!text.empty()) text += style.comma;
    text += json_string(member->first);
    text += style.colon;
    text += written(member->second, style);
  }
  return "{" + text + "}";
}

std::string written(const Json& value, const Style& style) {
  if (value.is_object()) return written_object(value, style);
  if (value.is_array()) {
    std::string text;
    for (const Json& part : value) {
      if (!text.empty()) text += style.comma;
      text += written(part, style);
    }
    return "[" + text + "]";
  }
  if (value.is_number_float()) return python_float(value.get<double>());
  if (value.is_string()) return json_string(value.get_ref<const std::string&>());
  return value.dump();
}

}  // namespace

std::string json_string(std::string_view text) {
  return Json(text).dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::string python_json(const Json& value) {
  return written(value, {", ", ": ", false});
}

std::string sorted_json(const Json& value) {
  return written(value, {",", ":", true});
}

}  // namespace megalith
