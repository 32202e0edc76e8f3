#include "server/info_routes.h"

#include <string_view>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "server/api_error.h"
#include "server/json_reply.h"
#include "server/page.h"
#include "server/request_fields.h"
#include "text/request_json.h"

namespace megalith {

namespace {

using Json = nlohmann::ordered_json;

// A handler that only looks at the request.
Handler answer(std::function<HttpReply(const HttpRequest&)> make) {
  return [make = std::move(make)](const std::shared_ptr<Exchange>& exchange) { exchange->reply(make(exchange->request())); };
}

HttpReply health(const StatusRoutes& status) {
  if (auto refusal = status.lifecycle.refusal()) throw std::move(*refusal);
  return json_reply({{"status", "ok"}, {"served", status.served()}});
}

// People get the page, programs what they would get at /health.
HttpReply front(const StatusRoutes& status, const HttpRequest& request) {
  if (request.header("accept").find("text/html") == std::string_view::npos) return health(status);
  return {.body = std::string(page_html()),
          .content_type = "text/html; charset=utf-8",
          .headers = {{"Vary", "Accept"},
                      {"Cache-Control", "no-cache"},
                      {"X-Content-Type-Options", "nosniff"},
                      {"Referrer-Policy", "no-referrer"},
                      {"Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
                                                  "img-src data:; connect-src 'self'; base-uri 'none'; form-action 'none'; "
                                                  "frame-ancestors 'none'"}}};
}

HttpReply metrics(const StatusRoutes& status) {
  std::string text = status.metrics();
  if (text.empty()) throw ApiError::unavailable("There are no metrics before the model is loaded.");
  return {.body = std::move(text), .content_type = "text/plain; version=0.0.4; charset=utf-8"};
}

Json model_card(const Service& service) {
  return {{"id", service.model_name}, {"object", "model"},        {"created", service.created},
          {"owned_by", "megalith"},   {"root", service.model_name}, {"parent", nullptr},
          {"max_model_len", service.context}};
}

HttpReply one_model(const Service& service, const std::string& path) {
  const std::string id = path.substr(path.find("/models/") + std::string_view("/models/").size());
  if (id == service.model_name) return json_reply(model_card(service));
  throw ApiError(404, "not_found_error", fmt::format("There is no model \"{}\" here, only \"{}\".", id, service.model_name),
                 "model", "model_not_found");
}

HttpReply props(const ModelRoutes& model) {
  const Service& service = model.service;
  const RequestDefaults& d = service.defaults;
  const MachineOptions& machine = service.model.machine->options();
  return json_reply({{"default_generation_settings",
                      {{"n_ctx", service.context},
                       {"params",
                        {{"max_tokens", d.max_tokens},
                         {"temperature", d.sampling.temperature},
                         {"top_k", d.sampling.top_k},
                         {"top_p", d.sampling.top_p},
                         {"min_p", d.sampling.min_p},
                         {"ignore_eos", d.ignore_eos}}}}},
                     {"total_slots", machine.max_sequences},
                     {"model_path", service.model_name},
                     {"chat_format", service.model.text.format ? Json(service.model.text.format->name()) : Json(nullptr)},
                     {"draft_guesses", service.draft_guesses},
                     {"machine", service.model.machine->describe()},
                     {"build_info", "megalith " + model.version}});
}

HttpReply slots(const ModelRoutes& model, const HttpRequest& request) {
  const auto [running, waiting] = model.load();
  const int64_t total = model.service.model.machine->options().max_sequences;
  if (running >= total && request.query.find("fail_on_no_slot=1") != std::string::npos) {
    throw ApiError::unavailable("No slot is free.");
  }
  Json list = Json::array();
  for (int64_t i = 0; i < total; ++i) {
    list.push_back({{"id", i}, {"n_ctx", model.service.context}, {"is_processing", i < running}});
  }
  return json_reply(list);
}

HttpReply abort_request(const Service& service, const HttpRequest& request) {
  const Json body = parse_request_json(request.body, "request");
  const RequestFields fields(body);
  const bool all = fields.flag("abort_all").value_or(false);
  std::string id = fields.text("request_id").value_or("");
  if (id.empty()) id = fields.text("rid").value_or("");
  if (!all && id.empty()) {
    throw ApiError(400, "invalid_request_error",
                   "request_id: expected the X-Request-Id of a request, or \"abort_all\": true.", "request_id");
  }
  return json_reply({{"aborted", service.generator.abort(all ? "" : id)}});
}

}  // namespace

void add_status_routes(Router& router, StatusRoutes status) {
  router.add("GET", {"/health", "/v1/health", "/ping", "/ready"}, answer([status](const HttpRequest&) { return health(status); }),
             true);
  router.add("GET", {"/"}, answer([status](const HttpRequest& request) { return front(status, request); }), true);
  router.add("GET", {"/version"}, answer([status](const HttpRequest&) { return json_reply({{"version", status.version}}); }));
  router.add("GET", {"/metrics"}, answer([status](const HttpRequest&) { return metrics(status); }), true);
}

void add_model_routes(Router& router, ModelRoutes model) {
  const Service& service = model.service;
  router.add("GET", {"/v1/models", "/models"}, answer([&service](const HttpRequest&) {
               return json_reply({{"object", "list"}, {"data", Json::array({model_card(service)})}});
             }));
  router.add("GET", {"/v1/models/{}", "/models/{}"},
             answer([&service](const HttpRequest& request) { return one_model(service, request.path); }));
  router.add("GET", {"/props"}, answer([model](const HttpRequest&) { return props(model); }));
  router.add("GET", {"/slots"}, answer([model](const HttpRequest& request) { return slots(model, request); }));
  router.add("POST", {"/abort_request", "/v1/abort_request"},
             answer([&service](const HttpRequest& request) { return abort_request(service, request); }));
}

}  // namespace megalith
