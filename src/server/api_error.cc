#include "server/api_error.h"

#include <algorithm>

namespace megalith {

namespace {

// A path of fields as messages[0].content, not a phrase. Names within it may be anything: those of a schema are.
bool is_field(const std::string& where) {
  const auto in_name = [](char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_'; };
  const auto end = std::find_if_not(where.begin(), where.end(), in_name);
  return end != where.begin() && (end == where.end() || *end == '.' || *end == '[');
}

std::string message_of(const Error& error) {
  const std::string cause = error.cause();
  const std::string& next = error.fault().next;
  if (next.empty()) return cause;
  return cause + (cause.ends_with('.') ? " " : ". ") + next;
}

}  // namespace

ApiError::ApiError(const Error& error) : message(message_of(error)) {
  if (is_field(error.fault().where)) param = error.fault().where;
}

nlohmann::ordered_json ApiError::json() const {
  auto value = [](const std::optional<std::string>& text) {
    return text ? nlohmann::ordered_json(*text) : nlohmann::ordered_json(nullptr);
  };
  nlohmann::ordered_json error = {{"message", message}, {"type", type}, {"param", value(param)}, {"code", value(code)}};
  error.update(more);
  return {{"error", error}};
}

ApiError api_error(const std::exception& error) {
  if (auto* refused = dynamic_cast<const ApiError*>(&error)) return *refused;
  if (auto* mistake = dynamic_cast<const Error*>(&error)) return ApiError(*mistake);
  return ApiError::internal(error.what());
}

}  // namespace megalith
