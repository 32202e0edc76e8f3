#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>

namespace megalith {

// Reports long work with its rate and the time left: one moving line on a terminal, else a line every 5% or 10 s.
// add() may be called from any thread. Writes to standard error; silent work that ends within half a second stays silent.
class Progress {
 public:
  // `what` as in "loading weights"; the total is in bytes.
  // `watcher` gets what is done and the total after each add().
  Progress(std::string what, uint64_t total_bytes, bool quiet = false,
           std::function<void(uint64_t, uint64_t)> watcher = {});
  ~Progress();  // ends the line
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void add(uint64_t bytes);
  uint64_t done() const { return done_.load(std::memory_order_relaxed); }

 private:
  void print(double seconds, bool last);

  const std::string what_;
  const uint64_t total_;
  const bool quiet_;
  const bool terminal_;
  const std::function<void(uint64_t, uint64_t)> watcher_;
  const std::chrono::steady_clock::time_point start_;
  std::atomic<uint64_t> done_{0};
  std::mutex mutex_;
  double last_print_s_ = 0;
  uint64_t last_print_bytes_ = 0;
  bool printed_ = false;
};

// "1.50 GB", "750.00 kB", "12 B": decimal units, as disks and memory bandwidths are given.
std::string human_bytes(uint64_t bytes);

}  // namespace megalith
