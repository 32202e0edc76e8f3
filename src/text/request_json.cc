#include "text/request_json.h"

#include <vector>

#include <fmt/format.h>

#include "base/error.h"
#include "text/utf8_stream.h"

namespace megalith {

namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kDeepest = 100;
constexpr size_t kMostNames = 1000;

[[noreturn]] void refuse(const std::string& where, std::string expected, std::string found) {
  throw Error({.where = where, .expected = std::move(expected), .found = std::move(found), .next = {}});
}

}  // namespace

bool is_json(std::string_view text) {
  return text.find('\0') == std::string_view::npos && Json::accept(text);
}

Json parse_request_json(std::string_view text, const std::string& where) {
  if (size_t at = invalid_utf8(text); at != std::string_view::npos) {
    refuse(where, "UTF-8", fmt::format("byte {:#04x} at offset {}", static_cast<unsigned char>(text[at]), at));
  }
  // The parser takes a zero byte for the end of a text.
  if (size_t at = text.find('\0'); at != std::string_view::npos) {
    refuse(where, "JSON", fmt::format("a syntax error at byte {}", at + 1));
  }
  std::vector<size_t> names;  // of each open list or object
  auto watch = [&](int, Json::parse_event_t event, Json&) {
    using Event = Json::parse_event_t;
    if (event == Event::object_start || event == Event::array_start) names.push_back(0);
    if (event == Event::object_end || event == Event::array_end) names.pop_back();
    if (names.size() > kDeepest) {
      refuse(where, fmt::format("at most {} lists and objects inside each other", kDeepest), "more");
    }
    if (event == Event::key && ++names.back() > kMostNames) {
      refuse(where, fmt::format("at most {} names in an object", kMostNames), "more");
    }
    return true;
  };
  try {
    return Json::parse(text.begin(), text.end(), watch);
  } catch (const nlohmann::json::parse_error& error) {
    refuse(where, "JSON",
           error.byte > text.size() ? fmt::format("an end after {} bytes", text.size())
                                    : fmt::format("a syntax error at byte {}", error.byte));
  } catch (const nlohmann::json::exception&) {
    refuse(where, "JSON", "a number that is out of range");
  }
}

}  // namespace megalith
