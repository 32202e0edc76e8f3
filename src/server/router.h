#pragma once

// Which handler answers which request, and who may ask.

#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "server/http.h"

namespace megalith {

// Who may use the server from where.
struct Access {
  std::vector<std::string> api_keys;  // none: no key is asked for
  std::vector<std::string> origins = {"*"};  // pages that browsers let use the server (CORS); empty: none
};

// Finds the handler of a path and method. Answers by itself: 404 for an unknown path, 405 with Allow for another method,
// HEAD as GET without a body, OPTIONS (CORS preflight), 401 without a right key on routes that are not open. Handlers'
// exceptions become error replies.
class Router {
 public:
  explicit Router(Access access) : access_(std::move(access)) {}

  // `open` routes need no key. A path may end with "/{}", which stands for the rest of a path.
  void add(std::string_view method, std::vector<std::string> paths, Handler handler, bool open = false);
  // Answers what no route does, instead of a 404.
  void set_fallback(Handler fallback) { fallback_ = std::move(fallback); }
  void operator()(const std::shared_ptr<Exchange>& exchange) const;

 private:
  struct Route {
    Handler handler;
    bool open = false;
  };
  using Methods = std::map<std::string, Route>;

  // The routes of a path, or null.
  const Methods* find(const std::string& path) const;
  // The handler of a request. Throws ApiError where there is none, or no right key.
  const Handler& handler_for(const HttpRequest& request) const;
  void require_key(const HttpRequest& request) const;
  HttpReply preflight(const HttpRequest& request) const;
  // What lets the page that asks read the answer (CORS).
  Headers origin_headers(const HttpRequest& request) const;

  const Access access_;
  Handler fallback_;
  std::map<std::string, Methods> routes_;  // path, method
};

}  // namespace megalith
