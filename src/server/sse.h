#pragma once

// Server-sent events.

#include <chrono>
#include <memory>
#include <mutex>
#include <string_view>

#include <nlohmann/json.hpp>

#include "server/api_error.h"
#include "server/http.h"

namespace megalith {

// An answer in events, each sent at once. May be called from any thread; what comes after done() is dropped.
class EventStream {
 public:
  // Sends the headers. A stream that is silent for so long sends a comment, ": ping"; 0: never.
  explicit EventStream(std::shared_ptr<Exchange> exchange, std::chrono::milliseconds ping = {}, Headers headers = {});

  // One event with the value as its data, on one line. What is not UTF-8 in it becomes U+FFFD.
  void event(const nlohmann::ordered_json& value);
  // A line that clients ignore.
  void comment(std::string_view text);
  // An event with the error; done() may follow.
  void error(const ApiError& error);
  // The event [DONE], and the end.
  void done();

 private:
  void send(std::string piece);

  const std::shared_ptr<Exchange> exchange_;
  std::mutex mutex_;
  bool done_ = false;
};

}  // namespace megalith
