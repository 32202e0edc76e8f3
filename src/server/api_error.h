#pragma once

#include <exception>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "base/error.h"

namespace megalith {

// A request that is refused, or that failed, as clients of the OpenAI interface read it.
class ApiError : public std::exception {
 public:
  int status = 400;
  std::string type = "invalid_request_error";
  std::string message;
  std::optional<std::string> param;
  std::optional<std::string> code;
  std::vector<std::pair<std::string, std::string>> headers;  // of the reply, as Retry-After
  nlohmann::ordered_json more = nlohmann::ordered_json::object();  // that the reply says beside these, or instead

  ApiError(int status, std::string type, std::string message, std::optional<std::string> param = {},
           std::optional<std::string> code = {})
      : status(status), type(std::move(type)), message(std::move(message)), param(std::move(param)), code(std::move(code)) {}
  // 400; the field is that of the fault.
  explicit ApiError(const Error& error);

  const char* what() const noexcept override { return message.c_str(); }
  // {"error": {"message", "type", "param", "code"}}
  nlohmann::ordered_json json() const;

  static ApiError unavailable(std::string message) { return {503, "unavailable_error", std::move(message)}; }
  static ApiError internal(std::string message) { return {500, "server_error", std::move(message)}; }
};

// What any exception comes to: an Error is the client's mistake, anything else our failure.
ApiError api_error(const std::exception& error);

}  // namespace megalith
