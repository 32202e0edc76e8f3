#pragma once

// A JSON object one level deep, with its values as they were written.

#include <string>
#include <string_view>
#include <vector>

namespace megalith {

struct JsonMember {
  std::string name;
  std::string_view value;  // JSON, as written
};

// The members in order; a name that comes twice is there twice. Needs the text of a JSON object.
std::vector<JsonMember> json_members(std::string_view object);

// The text of a value that is a string; else the value as written.
std::string text_of_value(std::string_view value);

}  // namespace megalith
