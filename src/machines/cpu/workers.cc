#include "machines/cpu/workers.h"

#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <ctime>

namespace megalith {

namespace {

constexpr int kYields = 20;
constexpr size_t kMaxUpcoming = size_t{512} << 10;  // what fits into a core's own cache beside the rest
constexpr long kSleepNs = 1'000'000;

void pause_processor() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

void futex_sleep(std::atomic<uint32_t>& word, uint32_t seen) {
  const timespec time = {0, kSleepNs};
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAIT_PRIVATE, seen, &time, nullptr, 0);
}

void futex_wake_all(std::atomic<uint32_t>& word) {
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
}

void pin(int cpu) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(cpu, &set);
  pthread_setaffinity_np(pthread_self(), sizeof(set), &set);  // a wish; work is the same elsewhere
}

bool reached(const Counter& counter, uint64_t target) { return counter.value.load(std::memory_order_acquire) >= target; }

}  // namespace

bool Waiting::wait(const Counter& counter, uint64_t target, Upcoming upcoming) {
  size_t fetched = 0;
  const size_t to_fetch = std::min(upcoming.bytes, kMaxUpcoming);
  for (int i = 0; i < spins_; ++i) {
    if (reached(counter, target)) return true;
    for (int line = 0; line < 4 && fetched < to_fetch; ++line, fetched += 64) {
      __builtin_prefetch(upcoming.data + fetched, 0, 2);
    }
    if (fetched >= to_fetch) pause_processor();
  }
  for (int i = 0; i < kYields; ++i) {
    if (reached(counter, target)) return true;
    sched_yield();
  }
  return sleep_until(counter, target, false);
}

bool Waiting::sleep_until(const Counter& counter, uint64_t target, bool forever) {
  const auto start = std::chrono::steady_clock::now();
  while (true) {
    // A raiser changes the counter and then looks for sleepers; a sleeper shows itself and then looks at the counter.
    // Both are sequentially consistent, so one of them sees the other; the short sleep bounds any mistake in this.
    sleepers_.fetch_add(1);
    const uint32_t seen = word_.load();
    const bool done = counter.value.load() >= target;
    if (!done && !stopped_.load()) futex_sleep(word_, seen);
    sleepers_.fetch_sub(1);
    if (done) return true;
    if (stopped_.load()) return reached(counter, target);
    const std::chrono::duration<double> waited = std::chrono::steady_clock::now() - start;
    if (!forever && waited.count() > deadline_s_) return reached(counter, target);
  }
}

void Waiting::raise(Counter& counter) {
  counter.value.fetch_add(1);
  if (sleepers_.load() > 0) {
    word_.fetch_add(1);
    futex_wake_all(word_);
  }
}

void Waiting::stop() {
  stopped_.store(true);
  word_.fetch_add(1);
  futex_wake_all(word_);
}

Workers::Workers(int count, const Topology& topology, Waiting& waiting) : waiting_(waiting) {
  const bool enough = count <= static_cast<int>(topology.cpus.size());
  for (int worker = 0; worker < count; ++worker) {
    const int cpu = enough ? topology.cpus[static_cast<size_t>(worker)] : -1;
    threads_.emplace_back([this, worker, cpu] { loop(worker, cpu); });
  }
}

Workers::~Workers() {
  leaving_.store(true);
  waiting_.stop();
  for (std::thread& thread : threads_) thread.join();
}

void Workers::run(Job job, void* argument) {
  job_ = job;
  argument_ = argument;
  ++runs_;
  waiting_.raise(started_);
  const uint64_t target = runs_ * static_cast<uint64_t>(count());
  while (!reached(finished_, target)) {
    waiting_.sleep_until(finished_, target, true);
    // Stopped waits end at once, but workers that are in a task still use the argument and what it points to.
    if (waiting_.stopped() && !reached(finished_, target)) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

void Workers::loop(int worker, int cpu) {
  if (cpu >= 0) pin(cpu);
  for (uint64_t run = 1;; ++run) {
    const auto leaving = [&] { return leaving_.load() && !reached(started_, run); };
    for (int i = 0; i < waiting_.spins_ && !reached(started_, run); ++i) pause_processor();
    while (!reached(started_, run)) {
      waiting_.sleep_until(started_, run, true);
      if (leaving()) return;
      // A stopped machine does not sleep any more.
      if (waiting_.stopped() && !reached(started_, run)) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    job_(argument_, worker);
    waiting_.raise(finished_);
  }
}

}  // namespace megalith
