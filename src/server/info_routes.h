#pragma once

// What a server says about itself.

#include <filesystem>
#include <functional>
#include <string>
#include <utility>

#include "server/lifecycle.h"
#include "server/metrics.h"
#include "server/router.h"
#include "server/service.h"

namespace megalith {

// /health, /ready, /ping, /version, /metrics and the page at /, which are there while the model is being loaded, too.
struct StatusRoutes {
  const Lifecycle& lifecycle;
  std::string version;
  std::function<int64_t()> served;       // texts that have ended without an error
  std::function<std::string()> metrics;  // the text of /metrics; empty: not there yet
};
void add_status_routes(Router& router, StatusRoutes status);

// /v1/models, /props, /slots and /abort_request.
struct ModelRoutes {
  const Service& service;
  std::string version;
  std::function<std::pair<int64_t, int64_t>()> load;  // texts that run, and that wait
};
void add_model_routes(Router& router, ModelRoutes model);

}  // namespace megalith
