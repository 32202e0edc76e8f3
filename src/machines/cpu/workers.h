#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <thread>
#include <vector>

#include "machines/cpu/topology.h"

namespace megalith {

// A number that only grows, alone on its cache line. raise() releases: all that the raiser wrote before is visible to
// whoever has seen the new number (acquire).
struct alignas(64) Counter {
  std::atomic<uint64_t> value{0};
};

// Memory that a waiting worker will read next; it is fetched meanwhile, a line at a time.
struct Upcoming {
  const std::byte* data = nullptr;
  size_t bytes = 0;
};

// How workers wait for each other: spin a little, yield, then sleep on a futex; never longer than the deadline.
class Waiting {
 public:
  // `spins`: pauses before the first yield; 0 where there are more workers than processors.
  Waiting(int spins, double deadline_s) : spins_(spins), deadline_s_(deadline_s) {}

  // Returns false when the deadline has passed, or stop() was called.
  bool wait(const Counter& counter, uint64_t target, Upcoming upcoming = {});
  void raise(Counter& counter);
  // Ends all waits, now and later.
  void stop();
  bool stopped() const { return stopped_.load(std::memory_order_relaxed); }

 private:
  bool sleep_until(const Counter& counter, uint64_t target, bool forever);
  friend class Workers;

  const int spins_;
  const double deadline_s_;
  std::atomic<uint32_t> word_{0};  // what sleepers sleep on
  std::atomic<int32_t> sleepers_{0};
  std::atomic<bool> stopped_{false};
};

// Persistent threads, each pinned to a processor where there are enough of them. run() lets every one do job(argument,
// worker) and returns when all are done. Between runs they wait.
class Workers {
 public:
  Workers(int count, const Topology& topology, Waiting& waiting);
  ~Workers();
  Workers(const Workers&) = delete;

  using Job = void (*)(void* argument, int worker);
  void run(Job job, void* argument);

  template <class F>
  void run(F& f) {
    run([](void* argument, int worker) { (*static_cast<F*>(argument))(worker); }, &f);
  }

  int count() const { return static_cast<int>(threads_.size()); }

 private:
  void loop(int worker, int cpu);

  Waiting& waiting_;
  Counter started_, finished_;
  uint64_t runs_ = 0;
  std::atomic<bool> leaving_{false};
  Job job_ = nullptr;
  void* argument_ = nullptr;
  std::vector<std::thread> threads_;
};

}  // namespace megalith
