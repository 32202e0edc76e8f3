#pragma once

#include <string>

#include <nlohmann/json.hpp>

#include "server/api_error.h"
#include "server/http.h"

namespace megalith {

// One line of UTF-8; what is not UTF-8 in it becomes U+FFFD.
std::string json_line(const nlohmann::ordered_json& json);
// A whole answer that is the value, or the error.
HttpReply json_reply(const nlohmann::ordered_json& json);
HttpReply error_reply(const ApiError& error);

}  // namespace megalith
