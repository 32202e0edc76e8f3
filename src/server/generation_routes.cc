#include "server/chat.h"
#include "server/completions.h"
#include "server/handlers.h"
#include "text/request_json.h"

namespace megalith {

void add_completion_routes(Router& router, const Service& service) {
  router.add("POST", {"/v1/completions", "/completions"}, [&service](const std::shared_ptr<Exchange>& exchange) {
    const auto body = parse_request_json(exchange->take_body(), "body");
    answer_completion(exchange, parse_completion_request(body, service), service);
  });
}

void add_chat_routes(Router& router, const Service& service) {
  router.add("POST", {"/v1/chat/completions", "/chat/completions"}, [&service](const std::shared_ptr<Exchange>& exchange) {
    const auto body = parse_request_json(exchange->take_body(), "body");
    answer_chat(exchange, parse_chat_completion_request(body, service), service);
  });
}

}  // namespace megalith
