#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

namespace megalith {

// Files have a few levels of lists and objects; values are copied and shown by recursion.
inline constexpr size_t kDeepestJson = 100;

struct ParsedJson {
  nlohmann::json value;
  bool too_deep = false;             // more than kDeepestJson levels; the value is then not whole
  std::optional<std::string> twice;  // the first key that an object has twice; the later value counts
};

// Parses JSON in time that grows with its size alone (the library's own callbacks go through all members of an object
// each time that one of them ends, and a header may have hundreds of thousands). Throws nlohmann's exceptions.
ParsedJson parse_json(std::string_view text);

}  // namespace megalith
