#include "server/sse.h"

#include <algorithm>
#include <string>
#include <utility>

#include "server/json_reply.h"

namespace megalith {

EventStream::EventStream(std::shared_ptr<Exchange> exchange, std::chrono::milliseconds ping, Headers headers)
    : exchange_(std::move(exchange)) {
  headers.emplace_back("Cache-Control", "no-cache");
  // Proxies as nginx would hold events back.
  headers.emplace_back("X-Accel-Buffering", "no");
  exchange_->begin_stream(200, "text/event-stream", std::move(headers));
  if (ping.count() > 0) exchange_->ping_every(ping, ": ping\n\n");
}

void EventStream::event(const nlohmann::ordered_json& value) {
  send("data: " + json_line(value) + "\n\n");
}

void EventStream::comment(std::string_view text) {
  std::string line(text);
  std::replace_if(line.begin(), line.end(), [](char c) { return c == '\n' || c == '\r'; }, ' ');
  send(": " + line + "\n\n");
}

void EventStream::error(const ApiError& error) { event(error.json()); }

void EventStream::done() {
  std::lock_guard lock(mutex_);
  if (std::exchange(done_, true)) return;
  exchange_->send("data: [DONE]\n\n");
  exchange_->end();
}

void EventStream::send(std::string piece) {
  std::lock_guard lock(mutex_);
  if (!done_) exchange_->send(std::move(piece));
}

}  // namespace megalith
