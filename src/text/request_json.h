#pragma once

// JSON that comes from outside.

#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

namespace megalith {

// Keeps the order of names. Error, naming `where`, for what is not JSON or not UTF-8 (with its byte), for numbers that
// are out of range, and beyond the limits: 100 lists and objects inside each other, since values are walked by
// recursion; 1,000 names in an object, since keeping them in order takes a search for each.
nlohmann::ordered_json parse_request_json(std::string_view text, const std::string& where);

// Whether the whole of a text is one JSON value. The parser by itself takes a zero byte for the end of a text.
bool is_json(std::string_view text);

}  // namespace megalith
