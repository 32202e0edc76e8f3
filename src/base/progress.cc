#include "base/progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <utility>

namespace megalith {

namespace {

constexpr double kSilentSeconds = 0.5;
constexpr double kTerminalInterval = 0.2;
constexpr double kLogInterval = 10.0;
constexpr double kLogShare = 0.05;

}  // namespace

Progress::Progress(std::string what, uint64_t total_bytes, bool quiet, std::function<void(uint64_t, uint64_t)> watcher)
    : what_(std::move(what)),
      total_(total_bytes),
      quiet_(quiet),
      terminal_(isatty(STDERR_FILENO) != 0),
      watcher_(std::move(watcher)),
      start_(std::chrono::steady_clock::now()) {}

Progress::~Progress() {
  if (!printed_) return;
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start_;
  print(seconds.count(), true);
}

void Progress::add(uint64_t bytes) {
  const uint64_t sum = done_.fetch_add(bytes, std::memory_order_relaxed) + bytes;
  if (watcher_) watcher_(sum, total_);
  if (quiet_) return;
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start_;
  const double seconds = elapsed.count();
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock.owns_lock() || seconds < kSilentSeconds) return;
  const double interval = seconds - last_print_s_;
  const bool enough = static_cast<double>(done() - last_print_bytes_) >= kLogShare * static_cast<double>(total_);
  if (terminal_ ? interval >= kTerminalInterval : enough || interval >= kLogInterval) print(seconds, false);
}

void Progress::print(double seconds, bool last) {
  const uint64_t done = this->done();
  const double share = total_ ? static_cast<double>(done) / static_cast<double>(total_) : 1.0;
  const double rate = seconds > 0 ? static_cast<double>(done) / seconds : 0;
  std::string line = fmt::format("{}: {:3.0f}%  {} of {}  {}/s", what_, 100 * share, human_bytes(done),
                                 human_bytes(total_), human_bytes(static_cast<uint64_t>(rate)));
  line += last ? fmt::format("  {:.1f} s", seconds)
               : fmt::format("  {:.0f} s left", rate > 0 ? static_cast<double>(total_ - std::min(done, total_)) / rate : 0);
  if (terminal_) {
    fmt::print(stderr, "\r{:<78}{}", line, last ? "\n" : "");
  } else {
    fmt::print(stderr, "{}\n", line);
  }
  std::fflush(stderr);
  printed_ = true;
  last_print_s_ = seconds;
  last_print_bytes_ = done;
}

std::string human_bytes(uint64_t bytes) {
  const char* const units[] = {"B", "kB", "MB", "GB", "TB"};
  auto value = static_cast<double>(bytes);
  size_t unit = 0;
  while (value >= 999.995 && unit + 1 < std::size(units)) {
    value /= 1000;
    ++unit;
  }
  return unit == 0 ? fmt::format("{} B", bytes) : fmt::format("{:.2f} {}", value, units[unit]);
}

}  // namespace megalith
