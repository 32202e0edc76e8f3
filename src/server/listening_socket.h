#pragma once

// Addresses to listen at.

#include <sys/types.h>

#include <string>

namespace megalith {

// A socket that listens; closed by whoever takes it, else at the end.
class ListeningSocket {
 public:
  // HOST:PORT, [ADDRESS]:PORT, :PORT for all addresses of IPv4, or unix:PATH. A socket file that nobody listens at is
  // replaced. Throws Error for an address that cannot be listened at.
  explicit ListeningSocket(const std::string& bind);
  ~ListeningSocket();
  ListeningSocket(const ListeningSocket&) = delete;
  ListeningSocket& operator=(const ListeningSocket&) = delete;

  // Where it listens, with the port that it has got.
  const std::string& address() const { return address_; }
  int family() const { return family_; }
  // The descriptor, which is the caller's from here on.
  int take();
  // Removes the file of a unix socket if it is still this one's. Call it while the socket still listens.
  void remove_file();

 private:
  void listen_at_path(const std::string& path);
  void listen_at_port(const std::string& bind, const std::string& host, const std::string& port);

  int descriptor_ = -1;
  int family_ = 0;
  std::string address_;
  std::string path_;  // of the file; empty: none
  dev_t device_ = 0;  // which file it is
  ino_t inode_ = 0;
};

}  // namespace megalith
