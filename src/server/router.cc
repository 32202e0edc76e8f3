#include "server/router.h"

#include <atomic>
#include <exception>
#include <utility>

#include "base/check.h"
#include "server/api_error.h"
#include "server/json_reply.h"

namespace megalith {

namespace {

constexpr std::string_view kRest = "/{}";
constexpr const char* kPreflightSeconds = "86400";

// An exchange whose answers carry more headers.
class RoutedExchange final : public Exchange {
 public:
  RoutedExchange(std::shared_ptr<Exchange> inner, Headers headers)
      : inner_(std::move(inner)), headers_(std::move(headers)) {}
  ~RoutedExchange() override {
    if (!started_) fail(ApiError::internal("The request was given up without an answer."));
  }

  const HttpRequest& request() const override { return inner_->request(); }
  std::string take_body() override { return inner_->take_body(); }
  void reply(HttpReply reply) override {
    started_ = true;
    append(reply.headers);
    inner_->reply(std::move(reply));
  }
  void begin_stream(int status, std::string content_type, Headers headers) override {
    started_ = true;
    append(headers);
    inner_->begin_stream(status, std::move(content_type), std::move(headers));
  }
  void send(std::string piece) override { inner_->send(std::move(piece)); }
  void end() override { inner_->end(); }
  void ping_every(std::chrono::milliseconds silence, std::string piece) override {
    inner_->ping_every(silence, std::move(piece));
  }
  void on_gone(std::function<void()> gone) override { inner_->on_gone(std::move(gone)); }

  // Answers with an error; an answer that has begun can only be ended.
  void fail(const ApiError& error) {
    if (started_) return end();
    reply(error_reply(error));
  }

 private:
  void append(Headers& headers) const { headers.insert(headers.end(), headers_.begin(), headers_.end()); }

  const std::shared_ptr<Exchange> inner_;
  const Headers headers_;
  std::atomic<bool> started_ = false;
};

// Takes as long for a wrong key as for a right one.
bool equal_keys(std::string_view given, std::string_view key) {
  size_t difference = given.size() ^ key.size();
  for (size_t i = 0; i < given.size(); ++i) {
    difference |= static_cast<unsigned char>(given[i]) ^ static_cast<unsigned char>(key[i % key.size()]);
  }
  volatile size_t result = difference;
  return result == 0;
}

// The key of "Bearer KEY", or nothing.
std::string_view bearer(std::string_view header) {
  constexpr std::string_view scheme = "bearer ";
  if (header.size() < scheme.size()) return {};
  for (size_t i = 0; i < scheme.size(); ++i) {
    const char c = header[i];
    if ((c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c) != scheme[i]) return {};
  }
  header.remove_prefix(scheme.size());
  const size_t begin = header.find_first_not_of(' ');
  return begin == std::string_view::npos ? std::string_view() : header.substr(begin);
}

template <typename Methods>
std::string allowed(const Methods& methods) {
  std::string list;
  for (const auto& [method, route] : methods) {
    list += method + ", ";
    if (method == "GET") list += "HEAD, ";
  }
  return list + "OPTIONS";
}

}  // namespace

void Router::add(std::string_view method, std::vector<std::string> paths, Handler handler, bool open) {
  for (const auto& path : paths) {
    const bool is_new = routes_[path].emplace(method, Route{handler, open}).second;
    CHECK(is_new, "two routes for {} {}", method, path);
  }
}

void Router::operator()(const std::shared_ptr<Exchange>& exchange) const {
  const HttpRequest& request = exchange->request();
  const auto routed = std::make_shared<RoutedExchange>(exchange, origin_headers(request));
  try {
    if (request.method == "OPTIONS" && find(request.path)) return routed->reply(preflight(request));
    handler_for(request)(routed);
  } catch (const std::exception& error) {
    routed->fail(api_error(error));
  } catch (...) {
    routed->fail(ApiError::internal("The request failed."));
  }
}

const Router::Methods* Router::find(const std::string& path) const {
  if (const auto exact = routes_.find(path); exact != routes_.end()) return &exact->second;
  for (size_t slash = path.rfind('/'); slash != std::string::npos; slash = path.rfind('/', slash - 1)) {
    const bool has_rest = slash + 1 < path.size();
    const auto found = has_rest ? routes_.find(path.substr(0, slash).append(kRest)) : routes_.end();
    if (found != routes_.end()) return &found->second;
    if (slash == 0) break;
  }
  return nullptr;
}

const Handler& Router::handler_for(const HttpRequest& request) const {
  const Methods* methods = find(request.path);
  if (!methods && fallback_) return fallback_;
  if (!methods) {
    throw ApiError(404, "not_found_error", "There is nothing at " + request.path + ". Try /v1/models.");
  }
  const auto found = methods->find(request.method == "HEAD" ? "GET" : request.method);
  if (found == methods->end()) {
    const std::string allow = allowed(*methods);
    ApiError error(405, "invalid_request_error",
                   request.path + " does not take " + request.method + ". Use one of: " + allow + ".");
    error.headers = {{"Allow", allow}};
    throw error;
  }
  if (!found->second.open) require_key(request);
  return found->second.handler;
}

void Router::require_key(const HttpRequest& request) const {
  if (access_.api_keys.empty()) return;
  const std::string_view given = bearer(request.header("Authorization"));
  // All keys are compared, so that the time does not tell which one it was.
  bool known = false;
  for (const auto& key : access_.api_keys) known |= !key.empty() && equal_keys(given, key);
  if (known) return;
  ApiError error(
      401, "authentication_error",
      given.empty() ? "An API key is needed. Send it as Authorization: Bearer KEY." : "The API key is not known.", {},
      "invalid_api_key");
  error.headers = {{"WWW-Authenticate", "Bearer"}};
  throw error;
}

HttpReply Router::preflight(const HttpRequest& request) const {
  const std::string methods = allowed(*find(request.path));
  HttpReply reply{.status = 204, .body = {}, .content_type = {}, .headers = {{"Allow", methods}}};
  if (access_.origins.empty()) return reply;
  reply.headers.emplace_back("Access-Control-Allow-Methods", methods);
  const std::string_view asked = request.header("Access-Control-Request-Headers");
  if (!asked.empty()) reply.headers.emplace_back("Access-Control-Allow-Headers", asked);
  reply.headers.emplace_back("Access-Control-Max-Age", kPreflightSeconds);
  return reply;
}

Headers Router::origin_headers(const HttpRequest& request) const {
  constexpr const char* allow = "Access-Control-Allow-Origin";
  Headers headers;
  const std::string_view origin = request.header("Origin");
  for (const auto& known : access_.origins) {
    if (known == "*" || (known == origin && !origin.empty())) {
      headers = {{allow, known}, {"Access-Control-Expose-Headers", "X-Request-Id, Retry-After"}};
      if (known == "*") return headers;
      break;
    }
  }
  if (!access_.origins.empty()) headers.emplace_back("Vary", "Origin");
  return headers;
}

}  // namespace megalith
