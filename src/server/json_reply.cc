#include "server/json_reply.h"

namespace megalith {

std::string json_line(const nlohmann::ordered_json& json) {
  return json.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

HttpReply json_reply(const nlohmann::ordered_json& json) {
  return {.body = json_line(json)};
}

HttpReply error_reply(const ApiError& error) {
  return {.status = error.status, .body = json_line(error.json()), .headers = error.headers};
}

}  // namespace megalith
