#include "server/http.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <atomic>
#include <condition_variable>
#include <cstdlib>
#include <exception>
#include <limits>
#include <mutex>
#include <new>
#include <optional>
#include <set>
#include <thread>
#include <utility>

#include <boost/asio/awaitable.hpp>
#include <boost/asio/basic_socket_acceptor.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/generic/stream_protocol.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/strand.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/error.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>
#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include "server/api_error.h"
#include "server/listening_socket.h"
#include "server/random_hex.h"
#include "server/response.h"

namespace megalith {

namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = boost::beast::http;
using beast::error_code;
using Protocol = asio::generic::stream_protocol;
using Parser = http::request_parser<http::string_body>;
using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr size_t kReadSize = size_t{16} << 10;
constexpr int64_t kLingerBytes = int64_t{1} << 30;    // read and thrown away after the last reply, at most
constexpr auto kAcceptPause = milliseconds(100);      // where no descriptor is left for another connection
constexpr int kDeadPeerTimeout = 120'000;             // ms until a client that acknowledges nothing has gone

auto into(error_code& error) { return asio::redirect_error(asio::use_awaitable, error); }

ApiError refusal(int status, std::string message) { return {status, "invalid_request_error", std::move(message)}; }

bool is_sane_id(std::string_view id) {
  if (id.empty() || id.size() > 128) return false;
  for (const char c : id) {
    if (c < 0x20 || c > 0x7e) return false;
  }
  return true;
}

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

// What is no %XX stays as it is.
std::string percent_decoded(std::string_view text) {
  std::string decoded;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '%' && i + 2 < text.size() && hex_digit(text[i + 1]) >= 0 && hex_digit(text[i + 2]) >= 0) {
      decoded += static_cast<char>(hex_digit(text[i + 1]) * 16 + hex_digit(text[i + 2]));
      i += 2;
    } else {
      decoded += text[i];
    }
  }
  return decoded;
}

void set_target(HttpRequest& request, std::string_view target) {
  // Proxies may send the whole address.
  if (target.starts_with("http://") || target.starts_with("https://")) {
    const size_t path = target.find('/', target.find("//") + 2);
    target = path == std::string_view::npos ? "/" : target.substr(path);
  }
  const size_t mark = target.find('?');
  request.path = percent_decoded(target.substr(0, mark));
  if (mark != std::string_view::npos) request.query = target.substr(mark + 1);
}

bool equal_ignoring_case(std::string_view a, std::string_view b) {
  return beast::iequals({a.data(), a.size()}, {b.data(), b.size()});
}

std::string_view view(beast::string_view text) { return {text.data(), text.size()}; }

// A request as it was read, or why it could not be.
struct Incoming {
  HttpRequest request;
  ClientProtocol client;
  std::optional<ApiError> fault;
};

// Takes the message out of the parser, as far as it has been read.
Incoming incoming(Parser& parser, std::optional<ApiError> fault) {
  Incoming in;
  auto& message = parser.get();
  in.client = {.http11 = message.version() >= 11, .keep_alive = !fault && message.keep_alive()};
  in.request.method = view(message.method_string());
  set_target(in.request, view(message.target()));
  for (const auto& field : message) in.request.headers.emplace_back(view(field.name_string()), view(field.value()));
  in.request.body = std::move(message.body());
  const std::string_view id = in.request.header("X-Request-Id");
  in.request.id = is_sane_id(id) ? std::string(id) : random_hex(32);
  in.fault = std::move(fault);
  return in;
}

class Session;

// What the sessions of a server have in common.
struct Shared {
  HttpOptions options;
  Handler handler;
  std::atomic<bool> stopping{false};

  std::mutex mutex;
  std::condition_variable idle;
  int64_t answering = 0;                                                     // requests whose answer is not sent
  std::set<std::weak_ptr<Session>, std::owner_less<std::weak_ptr<Session>>> sessions;  // that have not ended
};

// One connection. Everything of it runs on its strand but for what ResponseSink says.
class Session final : public ResponseSink, public std::enable_shared_from_this<Session> {
 public:
  Session(Shared& shared, Protocol::socket socket)
      : shared_(shared), socket_(std::move(socket)), deadline_(socket_.get_executor()), wake_(socket_.get_executor()) {}

  void start() {
    asio::co_spawn(socket_.get_executor(), [self = shared_from_this()] { return self->run(); }, asio::detached);
  }
  // From any thread: closes the connection, or only does so if it waits for a request.
  void post_close(bool only_idle) {
    asio::post(socket_.get_executor(), [self = shared_from_this(), only_idle] {
      if (!only_idle || (self->idle_ && self->buffer_.size() == 0)) self->close();
    });
  }

  void wake() override {
    asio::post(socket_.get_executor(), [self = shared_from_this()] {
      if (self->response_ && self->response_->overfull()) self->close();
      self->wake_.cancel();
    });
  }
  bool stopping() const override { return shared_.stopping; }

 private:
  asio::awaitable<void> run();
  asio::awaitable<void> serve();
  void finish();
  void close();

  // Reading. nullopt, or false: the connection is to be closed, with nothing more to say.
  asio::awaitable<std::optional<Incoming>> read_request();
  asio::awaitable<bool> wait_for_request();
  asio::awaitable<std::optional<ApiError>> read_header(Parser& parser);
  asio::awaitable<std::optional<ApiError>> read_body(Parser& parser);
  asio::awaitable<std::optional<ApiError>> read_some();
  ApiError fault_of(error_code error) const;

  // Answering. Whether another request may follow.
  asio::awaitable<bool> answer(Incoming in);
  asio::awaitable<bool> send_response();
  asio::awaitable<void> wait_for_more();
  asio::awaitable<bool> write(std::string_view bytes);
  void handle(const std::optional<ApiError>& fault);
  void watch();
  void look();
  asio::awaitable<void> linger();

  // Cancels what the socket does after so long.
  void set_deadline(milliseconds after);
  void clear_deadline();

  Shared& shared_;
  Protocol::socket socket_;
  asio::steady_timer deadline_;
  asio::steady_timer wake_;  // cancelled when the response has something to take
  beast::flat_buffer buffer_;
  std::shared_ptr<Response> response_;
  bool idle_ = true;  // no request has begun
  bool timed_out_ = false;
  bool closed_ = false;
};

asio::awaitable<void> Session::run() {
  try {
    co_await serve();
  } catch (const std::exception& error) {
    spdlog::error("a connection failed: {}", error.what());
  }
  finish();
}

asio::awaitable<void> Session::serve() {
  bool more = true;
  while (more && !closed_) {
    std::optional<Incoming> in = co_await read_request();
    more = in.has_value();
    if (more) more = co_await answer(std::move(*in));
  }
  if (!closed_) co_await linger();
}

void Session::finish() {
  close();
  if (response_) {
    // What is told that the client has gone may be the handler's code.
    try {
      response_->detach();
    } catch (const std::exception& error) {
      spdlog::error("what was to be done for a client that left failed: {}", error.what());
    }
    response_.reset();
    std::lock_guard lock(shared_.mutex);
    if (--shared_.answering == 0) shared_.idle.notify_all();
  }
  std::lock_guard lock(shared_.mutex);
  shared_.sessions.erase(weak_from_this());
}

void Session::close() {
  closed_ = true;
  error_code ignored;
  socket_.close(ignored);
  wake_.cancel();
  deadline_.cancel();
}

void Session::set_deadline(milliseconds after) {
  timed_out_ = false;
  deadline_.expires_after(after);
  deadline_.async_wait([self = shared_from_this()](error_code error) {
    // A wait that had ended when its deadline was moved comes here too.
    if (error || self->deadline_.expiry() > steady_clock::now()) return;
    self->timed_out_ = true;
    error_code ignored;
    self->socket_.cancel(ignored);
  });
}

void Session::clear_deadline() {
  deadline_.expires_at(steady_clock::time_point::max());
  timed_out_ = false;
}

asio::awaitable<std::optional<Incoming>> Session::read_request() {
  if (!co_await wait_for_request()) co_return std::nullopt;
  Parser parser;
  std::optional<ApiError> fault = co_await read_header(parser);
  if (!fault) fault = co_await read_body(parser);
  clear_deadline();
  if (closed_) co_return std::nullopt;
  co_return incoming(parser, std::move(fault));
}

asio::awaitable<bool> Session::wait_for_request() {
  idle_ = true;
  set_deadline(shared_.options.idle_timeout);
  for (;;) {
    // Some clients end a body with one more line.
    const auto* bytes = static_cast<const char*>(buffer_.data().data());
    size_t blank = 0;
    while (blank < buffer_.size() && (bytes[blank] == '\r' || bytes[blank] == '\n')) ++blank;
    buffer_.consume(blank);
    if (buffer_.size() > 0) break;
    if (shared_.stopping) co_return false;
    const auto fault = co_await read_some();
    if (fault) co_return false;
  }
  idle_ = false;
  co_return true;
}

asio::awaitable<std::optional<ApiError>> Session::read_header(Parser& parser) {
  const size_t most = static_cast<size_t>(shared_.options.max_header);
  parser.header_limit(static_cast<uint32_t>(most));
  parser.body_limit(static_cast<uint64_t>(shared_.options.max_body));
  set_deadline(shared_.options.header_timeout);
  for (size_t parsed = 0;;) {
    error_code error;
    const size_t used = parser.put(buffer_.data(), error);
    buffer_.consume(used);
    parsed += used;
    if (error && error != http::error::need_more) co_return fault_of(error);
    const bool done = parser.is_header_done();
    if (parsed > most || (!done && parsed + buffer_.size() > most)) co_return fault_of(http::error::header_limit);
    if (done) break;
    auto fault = co_await read_some();
    if (fault) co_return fault;
  }
  const auto& message = parser.get();
  if (message.count(http::field::transfer_encoding) > 0 && !view(message[http::field::transfer_encoding]).empty() &&
      !equal_ignoring_case(view(message[http::field::transfer_encoding]), "chunked")) {
    co_return refusal(501, "The body has a Transfer-Encoding other than chunked. Send it with Content-Length.");
  }
  co_return std::nullopt;
}

asio::awaitable<std::optional<ApiError>> Session::read_body(Parser& parser) {
  if (parser.is_done()) co_return std::nullopt;
  if (parser.get().version() >= 11 && equal_ignoring_case(view(parser.get()[http::field::expect]), "100-continue")) {
    if (!co_await write("HTTP/1.1 100 Continue\r\n\r\n")) co_return refusal(400, "The client has gone.");
  }
  parser.eager(true);
  for (;;) {
    if (buffer_.size() > 0) {
      error_code error;
      buffer_.consume(parser.put(buffer_.data(), error));
      if (error && error != http::error::need_more) co_return fault_of(error);
    }
    if (parser.is_done()) co_return std::nullopt;
    // Only lines between chunks are kept until they are whole.
    if (buffer_.size() > static_cast<size_t>(shared_.options.max_header)) co_return fault_of(http::error::header_limit);
    set_deadline(shared_.options.body_timeout);
    auto fault = co_await read_some();
    if (fault) co_return fault;
  }
}

// Waits for more bytes. Where none come, says why; closes the connection if the client has.
asio::awaitable<std::optional<ApiError>> Session::read_some() {
  if (!timed_out_ && !closed_) {
    error_code error;
    const size_t bytes = co_await socket_.async_read_some(buffer_.prepare(kReadSize), into(error));
    buffer_.commit(bytes);
    if (!error) co_return std::nullopt;
  }
  if (!timed_out_) close();
  co_return refusal(408, "The request did not arrive in time. Send it again.");
}

ApiError Session::fault_of(error_code error) const {
  if (error == http::error::body_limit) {
    return refusal(413, fmt::format("The body has more than {} bytes. Send a shorter one.", shared_.options.max_body));
  }
  if (error == http::error::header_limit) {
    return refusal(431, fmt::format("The headers have more than {} bytes. Send fewer.", shared_.options.max_header));
  }
  return refusal(400, "The request is not HTTP/1.1: " + error.message() + ".");
}

asio::awaitable<bool> Session::answer(Incoming in) {
  response_ = std::make_shared<Response>(std::move(in.request), in.client, shared_.options.max_unsent, *this);
  {
    std::lock_guard lock(shared_.mutex);
    ++shared_.answering;
  }
  handle(in.fault);
  if (!response_->ended()) watch();
  const bool more = co_await send_response();
  if (closed_) co_return false;
  response_->detach();
  response_.reset();
  error_code ignored;
  socket_.cancel(ignored);  // the watch
  std::lock_guard lock(shared_.mutex);
  if (--shared_.answering == 0) shared_.idle.notify_all();
  co_return more;
}

void Session::handle(const std::optional<ApiError>& fault) {
  if (fault) return response_->fail(*fault);
  const auto exchange = make_exchange(response_);
  try {
    shared_.handler(exchange);
  } catch (const std::exception& error) {
    response_->fail(api_error(error));
  } catch (...) {
    response_->fail(ApiError::internal("The request failed."));
  }
}

// Waits until the client sends something or closes.
void Session::watch() {
  socket_.async_wait(Protocol::socket::wait_read, [self = shared_from_this(), response = response_](error_code error) {
    if (!error && self->response_ == response) self->look();
  });
}

void Session::look() {
  char byte = 0;
  const ssize_t bytes = ::recv(socket_.native_handle(), &byte, 1, MSG_PEEK | MSG_DONTWAIT);
  if (bytes > 0) return;  // the next request
  if (bytes < 0 && (errno == EAGAIN || errno == EINTR)) return watch();
  // One that only sends no more can still take what is complete.
  if (bytes < 0 || !response_->ended()) close();
}

asio::awaitable<bool> Session::send_response() {
  while (!closed_) {
    const Response::Output output = response_->take();
    if (!co_await write(output.bytes)) break;
    if (output.last) co_return output.reusable;
    if (output.bytes.empty()) co_await wait_for_more();
  }
  close();
  co_return false;
}

// Until the response has more to take, or has been silent for so long that it is pinged.
asio::awaitable<void> Session::wait_for_more() {
  const auto silence = response_->silence();
  if (silence) {
    wake_.expires_after(*silence);
  } else {
    wake_.expires_at(steady_clock::time_point::max());
  }
  error_code error;
  co_await wake_.async_wait(into(error));
  if (!error) response_->ping();
}

// False where the client has gone, or takes nothing.
asio::awaitable<bool> Session::write(std::string_view bytes) {
  while (!bytes.empty()) {
    if (closed_) co_return false;
    set_deadline(shared_.options.write_timeout);
    error_code error;
    const size_t written = co_await socket_.async_write_some(asio::buffer(bytes.data(), bytes.size()), into(error));
    if (error) co_return false;
    if (response_) response_->sent(written);
    bytes.remove_prefix(written);
  }
  clear_deadline();
  co_return true;
}

// Ends the connection so that the client can read the last reply: closing while bytes of it lie unread would reset it.
asio::awaitable<void> Session::linger() {
  error_code error;
  socket_.shutdown(Protocol::socket::shutdown_send, error);
  set_deadline(shared_.options.linger_timeout);
  for (int64_t left = kLingerBytes; left > 0 && !error && !timed_out_ && !closed_;) {
    buffer_.clear();
    left -= static_cast<int64_t>(co_await socket_.async_read_some(buffer_.prepare(kReadSize), into(error)));
  }
}

void set_options(Protocol::socket& socket, int family) {
  if (family == AF_UNIX) return;
  const int on = 1;
  const int descriptor = socket.native_handle();
  ::setsockopt(descriptor, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  ::setsockopt(descriptor, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on));
  ::setsockopt(descriptor, IPPROTO_TCP, TCP_USER_TIMEOUT, &kDeadPeerTimeout, sizeof(kDeadPeerTimeout));
}

}  // namespace

std::string_view HttpRequest::header(std::string_view name) const {
  for (const auto& [key, value] : headers) {
    if (equal_ignoring_case(key, name)) return value;
  }
  return {};
}

class HttpServer::Impl {
 public:
  Impl(HttpOptions options, Handler handler);
  ~Impl();

  const std::string& address() const { return listening_.address(); }
  void stop_accepting();
  bool drain(milliseconds most);

 private:
  using Acceptor = asio::basic_socket_acceptor<Protocol>;

  asio::awaitable<void> accept();
  void run();
  // On the acceptor's strand.
  void add_session(Protocol::socket socket);
  void close_acceptor();
  void close_sessions(bool only_idle);

  Shared shared_;
  ListeningSocket listening_;
  asio::io_context io_;
  asio::executor_work_guard<asio::io_context::executor_type> work_;
  Acceptor acceptor_;
  asio::steady_timer pause_;
  std::vector<std::thread> threads_;
};

HttpServer::Impl::Impl(HttpOptions options, Handler handler)
    : shared_{.options = std::move(options), .handler = std::move(handler)},
      listening_(shared_.options.bind),
      work_(asio::make_work_guard(io_)),
      acceptor_(asio::make_strand(io_)),
      pause_(acceptor_.get_executor()) {
  acceptor_.assign(Protocol(listening_.family(), 0), listening_.take());
  asio::co_spawn(acceptor_.get_executor(), [this] { return accept(); }, asio::detached);
  for (int i = 0; i < std::max(shared_.options.threads, 1); ++i) threads_.emplace_back([this] { run(); });
}

HttpServer::Impl::~Impl() {
  shared_.stopping = true;
  asio::post(acceptor_.get_executor(), [this] {
    close_acceptor();
    close_sessions(false);
  });
  work_.reset();
  for (auto& thread : threads_) thread.join();
}

// What a thread runs: everything, until the server ends and all connections have.
void HttpServer::Impl::run() {
  for (;;) {
    try {
      io_.run();
      return;
    } catch (const std::exception& error) {
      spdlog::error("a handler of the server failed: {}", error.what());
    }
  }
}

asio::awaitable<void> HttpServer::Impl::accept() {
  bool refused = false;
  while (!shared_.stopping) {
    error_code error;
    Protocol::socket socket(asio::make_strand(io_));
    co_await acceptor_.async_accept(socket, into(error));
    if (shared_.stopping) break;
    if (error) {
      if (!refused) spdlog::warn("connections cannot be accepted: {}", error.message());
      refused = true;
      pause_.expires_after(kAcceptPause);
      co_await pause_.async_wait(into(error));
      continue;
    }
    refused = false;
    set_options(socket, listening_.family());
    add_session(std::move(socket));
  }
}

void HttpServer::Impl::add_session(Protocol::socket socket) {
  try {
    const auto session = std::make_shared<Session>(shared_, std::move(socket));
    {
      std::lock_guard lock(shared_.mutex);
      shared_.sessions.insert(session);
    }
    session->start();
  } catch (const std::bad_alloc&) {
    spdlog::error("there is no memory for another connection");
  }
}

void HttpServer::Impl::close_acceptor() {
  if (!acceptor_.is_open()) return;
  listening_.remove_file();
  error_code ignored;
  acceptor_.close(ignored);
  pause_.cancel();
}

void HttpServer::Impl::close_sessions(bool only_idle) {
  std::lock_guard lock(shared_.mutex);
  for (const auto& weak : shared_.sessions) {
    if (const auto session = weak.lock()) session->post_close(only_idle);
  }
}

void HttpServer::Impl::stop_accepting() {
  shared_.stopping = true;
  asio::post(acceptor_.get_executor(), [this] {
    close_acceptor();
    close_sessions(true);
  });
}

bool HttpServer::Impl::drain(milliseconds most) {
  std::unique_lock lock(shared_.mutex);
  return shared_.idle.wait_for(lock, most, [this] { return shared_.answering == 0; });
}

HttpServer::HttpServer(HttpOptions options, Handler handler)
    : impl_(std::make_unique<Impl>(std::move(options), std::move(handler))) {}

HttpServer::~HttpServer() = default;

std::string HttpServer::address() const { return impl_->address(); }

void HttpServer::stop_accepting() { impl_->stop_accepting(); }

bool HttpServer::drain(milliseconds most) { return impl_->drain(most); }

}  // namespace megalith
