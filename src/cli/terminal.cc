#include "cli/terminal.h"

#include <fmt/format.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>

namespace megalith {

namespace {

std::atomic<int> n_interrupts{0};
static_assert(std::atomic<int>::is_always_lock_free);

void on_interrupt(int) { n_interrupts.fetch_add(1, std::memory_order_relaxed); }

}  // namespace

Style terminal_style() {
  if (!isatty(STDOUT_FILENO) || std::getenv("NO_COLOR")) return {};
  return {"\x1b[2m", "\x1b[1m", "\x1b[0m"};
}

void catch_interrupts() {
  struct sigaction action = {};
  action.sa_handler = on_interrupt;  // without SA_RESTART, so that reading a line ends
  sigaction(SIGINT, &action, nullptr);
}

int interrupts() { return n_interrupts.load(std::memory_order_relaxed); }
void reset_interrupts() { n_interrupts.store(0, std::memory_order_relaxed); }

bool read_line(const std::string& prompt, std::string& line) {
  fmt::print("{}", prompt);
  std::fflush(stdout);
  line.clear();
  while (true) {
    char c = 0;
    const ssize_t n = read(STDIN_FILENO, &c, 1);
    if (n < 0 && errno == EINTR) {
      line.clear();
      return true;
    }
    if (n <= 0) return !line.empty();
    if (c == '\n') return true;
    line.push_back(c);
  }
}

}  // namespace megalith
