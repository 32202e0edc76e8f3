#pragma once

// The answer to one request, on its way from handlers (any thread) to the connection.

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "server/api_error.h"
#include "server/http.h"

namespace megalith {

// A connection as its response sees it, from any thread.
class ResponseSink {
 public:
  virtual ~ResponseSink() = default;
  // Says that there is something to take. Called with the response locked, so it may only leave a note.
  virtual void wake() = 0;
  // Whether the connection shall end with this response.
  virtual bool stopping() const = 0;
};

// What the client speaks.
struct ClientProtocol {
  bool http11 = true;  // else HTTP/1.0, which has no chunks
  bool keep_alive = true;
};

// The bytes of an answer, put in by handlers and taken out by the connection.
class Response {
 public:
  // The sink is used until detach().
  Response(HttpRequest request, ClientProtocol client, int64_t max_unsent, ResponseSink& sink)
      : request_(std::move(request)), client_(client), max_unsent_(max_unsent), sink_(&sink) {}

  const HttpRequest& request() const { return request_; }
  std::string take_body() { return std::exchange(request_.body, {}); }

  // For the handlers: as Exchange says.
  void reply(HttpReply reply);
  void begin_stream(int status, const std::string& content_type, const Headers& headers);
  void send(std::string_view piece);
  void end();
  void ping_every(std::chrono::milliseconds silence, std::string piece);
  void on_gone(std::function<void()> gone);
  // Answers with the error, or breaks the stream off where one has begun.
  void fail(const ApiError& error);

  // For the connection.
  struct Output {
    std::string bytes;
    bool last = false;      // nothing follows
    bool reusable = false;  // and the connection may take another request
  };
  Output take();
  // So many of the bytes taken have been sent.
  void sent(size_t bytes);
  // Whether more of a stream waits than may.
  bool overfull() const;
  bool ended() const;
  // How long a silence lasts until ping() is due; nothing where it never is.
  std::optional<std::chrono::milliseconds> silence() const;
  void ping();
  // The connection has no more use for it; where the answer has not ended, the client has gone.
  void detach();

 private:
  enum class Phase { waiting, streaming, ended };
  using Lock = std::unique_lock<std::mutex>;

  // All with the mutex held. append_head: length < 0 for a stream.
  void append_head(int status, const std::string& content_type, int64_t length, const Headers& headers);
  void append_chunk(std::string_view piece);
  void append_reply(const HttpReply& reply);
  void wake();
  // Unlocks, and lets the callbacks go.
  void finish(Lock lock);

  HttpRequest request_;
  const ClientProtocol client_;
  const int64_t max_unsent_;

  mutable std::mutex mutex_;
  ResponseSink* sink_;  // null: detached
  Phase phase_ = Phase::waiting;
  bool broken_ = false;    // the stream ends without its end
  bool closing_ = false;   // no other request may follow
  bool chunked_ = false;
  bool overfull_ = false;
  bool noted_ = false;     // the sink knows that there is something to take
  std::string queue_;      // not taken
  size_t taken_ = 0;       // bytes taken and not sent
  std::chrono::milliseconds silence_{0};
  std::string ping_;
  std::vector<std::function<void()>> gone_;
};

// The handlers' end of a response. A response is failed when its exchange is let go before it has ended.
std::shared_ptr<Exchange> make_exchange(std::shared_ptr<Response> response);

}  // namespace megalith
