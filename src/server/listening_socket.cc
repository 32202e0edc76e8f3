#include "server/listening_socket.h"

#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <memory>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "base/error.h"

namespace megalith {

namespace {

constexpr std::string_view kUnix = "unix:";

[[noreturn]] void refuse(const std::string& bind, std::string found, std::string next) {
  throw Error({.where = "address " + bind, .expected = {}, .found = std::move(found), .next = std::move(next)});
}

[[noreturn]] void refuse_syntax(const std::string& bind, std::string found) {
  throw Error({.where = "address " + bind,
               .expected = "HOST:PORT, [ADDRESS]:PORT, :PORT or unix:PATH",
               .found = std::move(found),
               .next = "Write it as 127.0.0.1:8000, [::1]:8000, :8000 for all addresses, or unix:/run/megalith.sock."});
}

[[noreturn]] void refuse_system(const std::string& bind, int error) {
  switch (error) {
    case EADDRINUSE:
      refuse(bind, "it is in use", "End the program that listens there, or choose another port; port 0 takes a free one.");
    case EACCES:
    case EPERM:
      refuse(bind, "no permission to listen there", "Choose a port from 1024 on, or a path in a directory of yours.");
    case EADDRNOTAVAIL:
      refuse(bind, "no interface of this machine has this address", "Choose 127.0.0.1, or :PORT for all addresses.");
    case ENOENT:
    case ENOTDIR:
      refuse(bind, "the directory does not exist", "Create it, or choose another path.");
    default:
      refuse(bind, std::strerror(error), "Choose another address.");
  }
}

int open_socket(const std::string& bind, int family) {
  const int descriptor = ::socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (descriptor < 0) refuse_system(bind, errno);
  return descriptor;
}

// 0, or the error.
int listen_at(int descriptor, const sockaddr* address, socklen_t size) {
  if (::bind(descriptor, address, size) != 0 || ::listen(descriptor, SOMAXCONN) != 0) return errno;
  return 0;
}

// Whether anybody listens at a socket file.
bool answers(const std::string& bind, const sockaddr_un& address) {
  const int descriptor = open_socket(bind, AF_UNIX);
  const int connected = ::connect(descriptor, reinterpret_cast<const sockaddr*>(&address), sizeof(address));
  const int error = connected == 0 ? 0 : errno;
  ::close(descriptor);
  return error != ECONNREFUSED && error != ENOENT;
}

// Makes room for a socket file where an old one lies about.
void remove_stale(const std::string& bind, const std::string& path, const sockaddr_un& address) {
  struct stat found = {};
  if (::lstat(path.c_str(), &found) != 0) return;
  if (!S_ISSOCK(found.st_mode)) refuse(bind, "a file that is no socket is there", "Remove it, or choose another path.");
  if (answers(bind, address)) refuse_system(bind, EADDRINUSE);
  ::unlink(path.c_str());
}

std::string numeric_address(int descriptor) {
  sockaddr_storage address = {};
  socklen_t size = sizeof(address);
  char host[NI_MAXHOST] = {};
  char port[NI_MAXSERV] = {};
  ::getsockname(descriptor, reinterpret_cast<sockaddr*>(&address), &size);
  ::getnameinfo(reinterpret_cast<sockaddr*>(&address), size, host, sizeof(host), port, sizeof(port),
                NI_NUMERICHOST | NI_NUMERICSERV);
  return fmt::format(fmt::runtime(address.ss_family == AF_INET6 ? "[{}]:{}" : "{}:{}"), host, port);
}

using Addresses = std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)>;

Addresses addresses_of(const std::string& bind, const std::string& host, const std::string& port) {
  addrinfo hints = {};
  hints.ai_family = host.empty() ? AF_INET : AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const int error = ::getaddrinfo(host.empty() ? nullptr : host.c_str(), port.c_str(), &hints, &found);
  if (error != 0) {
    refuse(bind, "the host " + host + " is not known (" + ::gai_strerror(error) + ")",
           "Check its name, or write its address.");
  }
  return Addresses(found, &::freeaddrinfo);
}

// Splits HOST:PORT.
std::pair<std::string, std::string> host_and_port(const std::string& bind) {
  const size_t colon = bind.rfind(':');
  if (colon == std::string::npos) refuse_syntax(bind, "no port");
  std::string host = bind.substr(0, colon);
  std::string port = bind.substr(colon + 1);
  if (port.empty() || port.size() > 5 || port.find_first_not_of("0123456789") != std::string::npos ||
      std::stoi(port) > 65535) {
    refuse_syntax(bind, "a port that is no number from 0 to 65535");
  }
  if (host.find('\0') != std::string::npos) refuse_syntax(bind, "a zero byte");
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') return {host.substr(1, host.size() - 2), port};
  if (host.find_first_of(":[]") != std::string::npos) refuse_syntax(bind, "colons without brackets");
  return {host, port};
}

}  // namespace

ListeningSocket::ListeningSocket(const std::string& bind) {
  if (bind.starts_with(kUnix)) {
    listen_at_path(bind.substr(kUnix.size()));
  } else {
    const auto [host, port] = host_and_port(bind);
    listen_at_port(bind, host, port);
  }
}

ListeningSocket::~ListeningSocket() {
  remove_file();
  if (descriptor_ >= 0) ::close(descriptor_);
}

void ListeningSocket::listen_at_path(const std::string& path) {
  address_ = std::string(kUnix) + path;
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  if (path.empty() || path.find('\0') != std::string::npos) refuse_syntax(address_, "no path");
  if (path.size() >= sizeof(address.sun_path)) refuse(address_, "a path that is too long", "Choose one of up to 107 bytes.");
  std::memcpy(address.sun_path, path.data(), path.size());

  remove_stale(address_, path, address);
  family_ = AF_UNIX;
  descriptor_ = open_socket(address_, AF_UNIX);
  const int error = listen_at(descriptor_, reinterpret_cast<sockaddr*>(&address), sizeof(address));
  struct stat file = {};
  if (error != 0 || ::lstat(path.c_str(), &file) != 0) {
    ::close(descriptor_);
    refuse_system(address_, error != 0 ? error : errno);
  }
  path_ = path;
  device_ = file.st_dev;
  inode_ = file.st_ino;
}

void ListeningSocket::listen_at_port(const std::string& bind, const std::string& host, const std::string& port) {
  const Addresses addresses = addresses_of(bind, host, port);
  int error = EADDRNOTAVAIL;
  // A name as localhost may have both; most clients know the address of IPv4.
  for (const int family : {AF_INET, AF_INET6}) {
    for (const addrinfo* at = addresses.get(); at != nullptr; at = at->ai_next) {
      if (at->ai_family != family) continue;
      const int descriptor = open_socket(bind, family);
      const int on = 1;
      ::setsockopt(descriptor, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
      error = listen_at(descriptor, at->ai_addr, at->ai_addrlen);
      if (error == 0) {
        descriptor_ = descriptor;
        family_ = family;
        address_ = numeric_address(descriptor);
        return;
      }
      ::close(descriptor);
    }
  }
  refuse_system(bind, error);
}

int ListeningSocket::take() { return std::exchange(descriptor_, -1); }

void ListeningSocket::remove_file() {
  struct stat file = {};
  if (!path_.empty() && ::lstat(path_.c_str(), &file) == 0 && file.st_dev == device_ && file.st_ino == inode_) {
    ::unlink(path_.c_str());
  }
  path_.clear();
}

}  // namespace megalith
