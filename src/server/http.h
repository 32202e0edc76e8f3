#pragma once

// HTTP/1.1: connections, limits and timeouts; nothing of what is served. Handlers get an Exchange for each request.

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace megalith {

using Headers = std::vector<std::pair<std::string, std::string>>;

struct HttpRequest {
  std::string method;
  std::string path;   // without the query; %XX decoded
  std::string query;  // what follows the question mark
  Headers headers;
  std::string body;
  std::string id;  // X-Request-Id, as the client gave it or made up; the reply carries it

  // The value of a header, whatever its case; empty where there is none.
  std::string_view header(std::string_view name) const;
};

struct HttpReply {
  int status = 200;
  std::string body;
  std::string content_type = "application/json";
  Headers headers = {};
};

// One request and its answer. May be called from any thread; what is sent after the client has gone, or after the answer
// has ended, is dropped. One that is let go without an answer is a 500; with an unfinished stream, a broken connection.
class Exchange {
 public:
  virtual ~Exchange() = default;
  virtual const HttpRequest& request() const = 0;
  // The request's body, for the handler: what is taken does not stay in memory until the answer ends.
  virtual std::string take_body() { return request().body; }

  // A whole answer. Once, and not after begin_stream().
  virtual void reply(HttpReply reply) = 0;
  // Or an answer in pieces: its headers at once, then each piece as one chunk, flushed; end() is the last chunk.
  virtual void begin_stream(int status, std::string content_type, Headers headers) = 0;
  virtual void send(std::string piece) = 0;
  virtual void end() = 0;
  // Sends the piece whenever a stream has been silent for so long, until it ends. Before or after begin_stream().
  virtual void ping_every(std::chrono::milliseconds silence, std::string piece) {
    static_cast<void>(silence), static_cast<void>(piece);
  }

  // `gone` is called once, from any thread, when the client closes its connection before the answer has ended, or takes
  // nothing for so long that too much waits for it; at once where that is so by now. It is let go when the answer ends.
  virtual void on_gone(std::function<void()> gone) = 0;
};

// Answers a request; may keep the exchange and return. An exception becomes a 500.
using Handler = std::function<void(const std::shared_ptr<Exchange>&)>;

struct HttpOptions {
  std::string bind = "127.0.0.1:8000";  // HOST:PORT, [ADDRESS]:PORT, :PORT for all addresses, or unix:PATH; port 0: any
  int threads = 2;
  int64_t max_body = int64_t{32} << 20;     // bytes; more is a 413
  int64_t max_header = int64_t{64} << 10;   // bytes; more is a 431
  std::chrono::milliseconds header_timeout = std::chrono::seconds(30);  // from a request's first byte to its headers' end
  std::chrono::milliseconds body_timeout = std::chrono::seconds(30);    // without another byte of a body
  std::chrono::milliseconds idle_timeout = std::chrono::seconds(75);    // between requests
  std::chrono::milliseconds write_timeout = std::chrono::seconds(120);  // without the client taking anything that waits
  std::chrono::milliseconds linger_timeout = std::chrono::seconds(10);  // for what is still sent when we close
  int64_t max_unsent = int64_t{16} << 20;   // bytes of a stream that wait for the client; more: it has gone
};

// Listens, and runs the handler for every request on its own threads.
class HttpServer {
 public:
  // Listens when this returns. Throws Error for an address that cannot be bound.
  HttpServer(HttpOptions options, Handler handler);
  // Closes all connections at once.
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  // Where it listens, as "127.0.0.1:8000", "[::1]:8000" or "unix:PATH".
  std::string address() const;
  // Takes no more connections and closes idle ones; replies from now on end their connections.
  void stop_accepting();
  // Waits until all answers have been sent, at most so long. Whether they have.
  bool drain(std::chrono::milliseconds most);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace megalith
