#pragma once

// A client that sends any bytes, and reads what comes back.

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <map>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace megalith {

struct RawReply {
  int status = 0;
  std::map<std::string, std::string> headers;  // names in lower case
  std::string body;
  std::vector<std::string> chunks;
  bool complete = false;  // as its length or its last chunk says

  nlohmann::json json() const { return nlohmann::json::parse(body); }
  std::string header(const std::string& name) const {
    const auto found = headers.find(name);
    return found == headers.end() ? "" : found->second;
  }
};

class RawClient {
 public:
  // `receive_buffer` bounds what the kernel takes for a client that does not read.
  explicit RawClient(const std::string& address, int receive_buffer = 0) {
    const bool is_unix = address.starts_with("unix:");
    socket_ = ::socket(is_unix ? AF_UNIX : AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (receive_buffer > 0) ::setsockopt(socket_, SOL_SOCKET, SO_RCVBUF, &receive_buffer, sizeof(receive_buffer));
    if ((is_unix ? connect_unix(address.substr(5)) : connect_tcp(address)) != 0) {
      ::close(socket_);
      throw std::runtime_error("no connection to " + address + ": " + std::strerror(errno));
    }
  }
  ~RawClient() { close(); }
  RawClient(const RawClient&) = delete;

  // Whether all of it was taken.
  bool send(std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t sent = ::send(socket_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (sent <= 0) return false;
      bytes.remove_prefix(static_cast<size_t>(sent));
    }
    return true;
  }
  void half_close() { ::shutdown(socket_, SHUT_WR); }
  void close() {
    if (socket_ >= 0) ::close(socket_);
    socket_ = -1;
  }
  // Closes so that the other side gets an error.
  void reset() {
    const linger now{.l_onoff = 1, .l_linger = 0};
    ::setsockopt(socket_, SOL_SOCKET, SO_LINGER, &now, sizeof(now));
    close();
  }

  RawReply get(const std::string& path, const std::string& headers = "") {
    send(fmt::format("GET {} HTTP/1.1\r\nHost: x\r\n{}\r\n", path, headers));
    return read();
  }
  RawReply post(const std::string& path, const std::string& body, const std::string& headers = "") {
    send(fmt::format("POST {} HTTP/1.1\r\nContent-Length: {}\r\n{}\r\n", path, body.size(), headers) + body);
    return read();
  }

  // The next reply; `head`: of a HEAD request. Status 0 where the connection ends before its headers do.
  RawReply read(bool head = false) {
    RawReply reply;
    const std::string lines = read_until("\r\n\r\n");
    if (lines.size() < 12) return reply;
    reply.status = std::stoi(lines.substr(9, 3));
    read_headers(lines, reply);
    if (head || reply.status == 204 || reply.status == 100) {
      reply.complete = true;
    } else if (reply.header("transfer-encoding") == "chunked") {
      read_chunks(reply);
    } else if (!reply.header("content-length").empty()) {
      const size_t length = std::stoul(reply.header("content-length"));
      reply.body = read_bytes(length);
      reply.complete = reply.body.size() == length;
    } else {
      reply.body = read_to_end();
      reply.complete = true;
    }
    return reply;
  }
  std::string read_until(const std::string& end) {
    size_t at = 0;
    while ((at = buffer_.find(end)) == std::string::npos) {
      if (!more()) return "";
    }
    return take(at + end.size());
  }
  std::string read_bytes(size_t count) {
    while (buffer_.size() < count && more()) {
    }
    return take(std::min(count, buffer_.size()));
  }
  std::string read_to_end() {
    while (more()) {
    }
    return take(buffer_.size());
  }
  // Whether the server ends the connection, with nothing more sent.
  bool ended() { return read_to_end().empty() && !timed_out_; }
  // Whether nothing comes for so long.
  bool silent(std::chrono::milliseconds time) {
    pollfd poll{.fd = socket_, .events = POLLIN, .revents = 0};
    return buffer_.empty() && ::poll(&poll, 1, static_cast<int>(time.count())) == 0;
  }

 private:
  int connect_unix(const std::string& path) const {
    sockaddr_un address = {};
    address.sun_family = AF_UNIX;
    std::strncpy(address.sun_path, path.c_str(), sizeof(address.sun_path) - 1);
    return ::connect(socket_, reinterpret_cast<sockaddr*>(&address), sizeof(address));
  }
  int connect_tcp(const std::string& text) const {
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(std::stoi(text.substr(text.rfind(':') + 1))));
    ::inet_pton(AF_INET, "127.0.0.1", &address.sin_addr);
    return ::connect(socket_, reinterpret_cast<sockaddr*>(&address), sizeof(address));
  }

  // Whether more bytes have come.
  bool more() {
    pollfd poll{.fd = socket_, .events = POLLIN, .revents = 0};
    timed_out_ = ::poll(&poll, 1, 20'000) <= 0;
    if (timed_out_) return false;
    char bytes[65536];
    const ssize_t count = ::recv(socket_, bytes, sizeof(bytes), 0);
    if (count <= 0) return false;
    buffer_.append(bytes, static_cast<size_t>(count));
    return true;
  }
  std::string take(size_t count) {
    std::string bytes = buffer_.substr(0, count);
    buffer_.erase(0, count);
    return bytes;
  }
  static void read_headers(const std::string& lines, RawReply& reply) {
    size_t at = lines.find("\r\n") + 2;
    for (size_t end; (end = lines.find("\r\n", at)) != at; at = end + 2) {
      const size_t colon = lines.find(": ", at);
      std::string name = lines.substr(at, colon - at);
      std::transform(name.begin(), name.end(), name.begin(), [](unsigned char c) { return std::tolower(c); });
      reply.headers[name] = lines.substr(colon + 2, end - colon - 2);
    }
  }
  void read_chunks(RawReply& reply) {
    for (;;) {
      const std::string line = read_until("\r\n");
      if (line.empty()) return;
      const size_t size = std::stoul(line, nullptr, 16);
      const std::string chunk = read_bytes(size);
      if (chunk.size() != size || read_bytes(2) != "\r\n") return;
      reply.complete = size == 0;
      if (reply.complete) return;
      reply.chunks.push_back(chunk);
      reply.body += chunk;
    }
  }

  int socket_ = -1;
  std::string buffer_;
  bool timed_out_ = false;
};

// Whether it comes true in good time.
template <typename Condition>
bool eventually(Condition condition) {
  for (int i = 0; i < 2000; ++i) {
    if (condition()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return false;
}

}  // namespace megalith
