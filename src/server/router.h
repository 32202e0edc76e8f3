#pragma once

// Which handler answers which request, and who may ask.

#include <map>
#include <string>
#include <string_view>
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
  void operator()(const std::shared_ptr<Exchange>& exchange) const;

 private:
  struct Route {
    Handler handler;
    bool open = false;
  };
  const Access access_;
  std::map<std::string, std::map<std::string, Route>> routes_;  // path, method
};

}  // namespace megalith
