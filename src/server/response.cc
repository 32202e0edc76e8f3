#include "server/response.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <ctime>
#include <iterator>
#include <map>
#include <utility>

#include "server/json_reply.h"

namespace megalith {

namespace {

std::string_view reason(int status) {
  static const std::map<int, std::string_view> reasons = {
      {200, "OK"},
      {204, "No Content"},
      {400, "Bad Request"},
      {401, "Unauthorized"},
      {403, "Forbidden"},
      {404, "Not Found"},
      {405, "Method Not Allowed"},
      {408, "Request Timeout"},
      {413, "Content Too Large"},
      {422, "Unprocessable Content"},
      {429, "Too Many Requests"},
      {431, "Request Header Fields Too Large"},
      {500, "Internal Server Error"},
      {501, "Not Implemented"},
      {503, "Service Unavailable"},
  };
  const auto found = reasons.find(status);
  return found == reasons.end() ? "Status" : found->second;
}

// A header's value may hold what a client sent; a line's end in it would be another header.
std::string one_line(std::string value) {
  for (char& c : value) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = ' ';
  }
  return value;
}

class ResponseExchange final : public Exchange {
 public:
  explicit ResponseExchange(std::shared_ptr<Response> response) : response_(std::move(response)) {}
  ~ResponseExchange() override { response_->fail(ApiError::internal("The request was given up without an answer.")); }

  const HttpRequest& request() const override { return response_->request(); }
  std::string take_body() override { return response_->take_body(); }
  void reply(HttpReply reply) override { response_->reply(std::move(reply)); }
  void begin_stream(int status, std::string content_type, Headers headers) override {
    response_->begin_stream(status, content_type, headers);
  }
  void send(std::string piece) override { response_->send(piece); }
  void end() override { response_->end(); }
  void ping_every(std::chrono::milliseconds silence, std::string piece) override {
    response_->ping_every(silence, std::move(piece));
  }
  void on_gone(std::function<void()> gone) override { response_->on_gone(std::move(gone)); }

 private:
  const std::shared_ptr<Response> response_;
};

}  // namespace

void Response::reply(HttpReply reply) {
  Lock lock(mutex_);
  if (phase_ != Phase::waiting) return;
  append_reply(reply);
  finish(std::move(lock));
}

void Response::begin_stream(int status, const std::string& content_type, const Headers& headers) {
  Lock lock(mutex_);
  if (phase_ != Phase::waiting) return;
  phase_ = Phase::streaming;
  append_head(status, content_type, -1, headers);
  wake();
}

void Response::send(std::string_view piece) {
  Lock lock(mutex_);
  if (phase_ != Phase::streaming || piece.empty()) return;
  append_chunk(piece);
  wake();
}

void Response::end() {
  Lock lock(mutex_);
  if (phase_ != Phase::streaming) return;
  if (chunked_ && sink_ && !overfull_ && request_.method != "HEAD") queue_ += "0\r\n\r\n";
  finish(std::move(lock));
}

void Response::fail(const ApiError& error) {
  Lock lock(mutex_);
  if (phase_ == Phase::ended) return;
  if (phase_ == Phase::waiting) {
    append_reply(error_reply(error));
  } else {
    broken_ = true;
  }
  finish(std::move(lock));
}

void Response::ping_every(std::chrono::milliseconds silence, std::string piece) {
  Lock lock(mutex_);
  silence_ = silence;
  ping_ = std::move(piece);
  wake();
}

void Response::on_gone(std::function<void()> gone) {
  Lock lock(mutex_);
  if (phase_ == Phase::ended) return;
  if (sink_) {
    gone_.push_back(std::move(gone));
    return;
  }
  lock.unlock();
  gone();
}

Response::Output Response::take() {
  Lock lock(mutex_);
  noted_ = false;
  const bool last = phase_ == Phase::ended;
  taken_ += queue_.size();
  return {.bytes = std::exchange(queue_, {}), .last = last, .reusable = last && !closing_ && !broken_ && !overfull_};
}

void Response::sent(size_t bytes) {
  Lock lock(mutex_);
  taken_ -= bytes;
}

bool Response::overfull() const {
  Lock lock(mutex_);
  return overfull_;
}

bool Response::ended() const {
  Lock lock(mutex_);
  return phase_ == Phase::ended;
}

std::optional<std::chrono::milliseconds> Response::silence() const {
  Lock lock(mutex_);
  if (phase_ != Phase::streaming || silence_.count() <= 0 || ping_.empty()) return std::nullopt;
  return silence_;
}

void Response::ping() {
  Lock lock(mutex_);
  if (phase_ == Phase::streaming && queue_.empty()) append_chunk(ping_);
}

void Response::detach() {
  Lock lock(mutex_);
  if (!sink_) return;
  sink_ = nullptr;
  queue_ = {};
  auto gone = std::exchange(gone_, {});
  const bool ended = phase_ == Phase::ended;
  lock.unlock();
  if (ended) return;
  for (const auto& call : gone) call();
}

void Response::append_head(int status, const std::string& content_type, int64_t length, const Headers& headers) {
  if (!sink_) return;
  const bool stream = length < 0;
  chunked_ = stream && client_.http11;
  closing_ = !client_.keep_alive || sink_->stopping() || (stream && !chunked_);
  auto out = std::back_inserter(queue_);
  fmt::format_to(out, "HTTP/1.1 {} {}\r\n", status, reason(status));
  fmt::format_to(out, "Date: {:%a, %d %b %Y %H:%M:%S} GMT\r\n", fmt::gmtime(std::time(nullptr)));
  if (!content_type.empty() && status != 204) fmt::format_to(out, "Content-Type: {}\r\n", one_line(content_type));
  if (!stream && status != 204) fmt::format_to(out, "Content-Length: {}\r\n", length);
  if (chunked_) queue_ += "Transfer-Encoding: chunked\r\n";
  if (closing_) {
    queue_ += "Connection: close\r\n";
  } else if (!client_.http11) {
    queue_ += "Connection: keep-alive\r\n";
  }
  fmt::format_to(out, "X-Request-Id: {}\r\n", request_.id);
  for (const auto& [name, value] : headers) fmt::format_to(out, "{}: {}\r\n", one_line(name), one_line(value));
  queue_ += "\r\n";
}

void Response::append_reply(const HttpReply& reply) {
  append_head(reply.status, reply.content_type, static_cast<int64_t>(reply.body.size()), reply.headers);
  if (sink_ && request_.method != "HEAD" && reply.status != 204) queue_ += reply.body;
}

void Response::append_chunk(std::string_view piece) {
  if (!sink_ || overfull_ || request_.method == "HEAD") return;
  if (taken_ + queue_.size() + piece.size() > static_cast<size_t>(max_unsent_)) {
    overfull_ = true;
    queue_ = {};
    noted_ = false;  // the sink is busy sending, and must hear of this
    return;
  }
  if (!chunked_) {
    queue_ += piece;
    return;
  }
  fmt::format_to(std::back_inserter(queue_), "{:x}\r\n", piece.size());
  queue_.append(piece).append("\r\n");
}

void Response::wake() {
  if (!sink_ || noted_) return;
  noted_ = true;
  sink_->wake();
}

void Response::finish(Lock lock) {
  phase_ = Phase::ended;
  wake();
  const auto gone = std::exchange(gone_, {});
  lock.unlock();
}

std::shared_ptr<Exchange> make_exchange(std::shared_ptr<Response> response) {
  return std::make_shared<ResponseExchange>(std::move(response));
}

}  // namespace megalith
