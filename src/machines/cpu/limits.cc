#include "machines/limits.h"

#include <algorithm>
#include <atomic>
#include <chrono>

#include "base/memory.h"
#include "machines/cpu/kernels/limits.h"
#include "machines/cpu/workers.h"

namespace megalith {

namespace {

constexpr size_t kGrain = size_t{2} << 20;  // of a worker's share: whole huge pages
constexpr int64_t kRounds = 10'000'000;     // of multiply-adds: some tens of milliseconds

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace

struct CpuLimits::Workforce {
  Workforce(int threads, int64_t bytes)
      : topology(read_topology()),
        waiting(2000, 60),
        workers(threads > 0 ? threads : topology.default_threads(), topology, waiting),
        share(std::max<size_t>(static_cast<size_t>(bytes) / static_cast<size_t>(workers.count()) / kGrain, 1) * kGrain),
        memory(share * static_cast<size_t>(workers.count())) {
    auto touch = [this](int worker) {
      std::byte* mine = memory.data() + share * static_cast<size_t>(worker);
      std::fill(mine, mine + share, std::byte{1});
    };
    workers.run(touch);
  }

  Topology topology;
  Waiting waiting;
  Workers workers;
  size_t share;
  Pages memory;
  std::atomic<uint64_t> sink{0};
};

CpuLimits::CpuLimits(int threads, int64_t bytes) : workforce_(std::make_unique<Workforce>(threads, bytes)) {}
CpuLimits::~CpuLimits() = default;

double CpuLimits::read_rate(int times) {
  Workforce& w = *workforce_;
  auto read = [&w](int worker) {
    w.sink += read_bytes(w.memory.data() + w.share * static_cast<size_t>(worker), w.share);
  };
  double best = 0;
  for (int i = 0; i < times; ++i) {
    const auto start = std::chrono::steady_clock::now();
    w.workers.run(read);
    best = std::max(best, static_cast<double>(w.memory.size()) / seconds_since(start));
  }
  return best;
}

double CpuLimits::fma_rate(int times) {
  Workforce& w = *workforce_;
  std::atomic<double> done{0};
  auto work = [&done](int) { done += multiply_add(kRounds); };
  double best = 0;
  for (int i = 0; i < times; ++i) {
    done = 0;
    const auto start = std::chrono::steady_clock::now();
    w.workers.run(work);
    best = std::max(best, done / seconds_since(start));
  }
  return best;
}

}  // namespace megalith
