#pragma once

// JSON as Python's json.dumps writes it, letters without escapes. Chat templates are Python's, and prompts show JSON.

#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

namespace megalith {

std::string json_string(std::string_view text);

// ", " and ": " between the parts.
std::string python_json(const nlohmann::ordered_json& value);

// No blanks, and the names of all objects in order.
std::string sorted_json(const nlohmann::ordered_json& value);

}  // namespace megalith
