#include "machines/cpu/workers.h"

#include <atomic>
#include <chrono>
#include <stdexcept>
#include <string>
#include <thread>

#include <gtest/gtest.h>

#include "tests/machines/harness.h"

namespace megalith {
namespace {

double seconds_of(const auto& f) {
  const auto start = std::chrono::steady_clock::now();
  f();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

TEST(Waiting, AWaitForNobodyEndsAtTheDeadline) {
  Waiting waiting(100, 0.05);
  Counter counter;
  bool reached = true;
  const double waited = seconds_of([&] { reached = waiting.wait(counter, 1); });
  EXPECT_FALSE(reached);
  EXPECT_GE(waited, 0.05);
  EXPECT_LT(waited, 5);
}

TEST(Waiting, ASleeperIsWokenByTheRaise) {
  Waiting waiting(0, 30);
  Counter counter;
  std::thread raiser([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(30));
    waiting.raise(counter);
  });
  EXPECT_TRUE(waiting.wait(counter, 1));
  raiser.join();
}

TEST(Waiting, StopEndsAllWaits) {
  Waiting waiting(0, 30);
  Counter counter;
  std::thread stopper([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(30));
    waiting.stop();
  });
  EXPECT_FALSE(waiting.wait(counter, 1));
  stopper.join();
  EXPECT_FALSE(waiting.wait(counter, 1));
}

TEST(Workers, FourWorkersFinishManyQuickRuns) {
  Waiting waiting(0, 30);
  std::atomic<int> done = 0;
  Workers workers(4, read_topology(), waiting);
  auto job = [&](int) { ++done; };
  for (int run = 0; run < 200; ++run) workers.run(job);
  EXPECT_EQ(done, 800);
}

TEST(Workers, AStoppedRunStillWaitsForWorkersInATask) {
  Waiting waiting(0, 30);
  std::atomic<int> done = 0;
  Workers workers(3, read_topology(), waiting);
  auto job = [&](int worker) {
    if (worker == 0) waiting.stop();
    std::this_thread::sleep_for(std::chrono::milliseconds(worker * 20));
    ++done;
  };
  workers.run(job);
  EXPECT_EQ(done, 3);
}

TEST(Workers, IdleWorkersLeave) {
  Waiting waiting(2000, 30);
  EXPECT_LT(seconds_of([&] { Workers workers(8, read_topology(), waiting); }), 5);
}

// Matrices of one panel, so that one of two workers has nothing to do but wait, again and again: on a loaded machine a
// single wait may be over before the worker comes to sleep.
Program slow_program() {
  Builder b({}, 1);
  const Value x = b.embed(b.matrix("table", 8, 4096, {}));
  Value sum = b.matmul(x, b.matrix("w", 32, 4096, {}));
  for (int i = 0; i < 40; ++i) sum = b.add(sum, b.matmul(x, b.matrix("w" + std::to_string(i), 32, 4096, {})));
  b.output("y", sum);
  return std::move(b).build();
}

TEST(CpuMachine, AMissedDeadlineIsAnErrorThatNamesTheWaitAndNoHang) {
  const auto machine =
      make_cpu_machine(slow_program(), {.threads = 2, .max_rows = 4096, .context = 4096, .deadline_s = 1e-6});
  RandomWeights weights;
  machine->load(weights, nullptr);
  StepArgs step;
  add_tokens(step, 0, 0, 4096, 0, 8);
  std::string error;
  try {
    machine->run(step);
  } catch (const std::runtime_error& e) {
    error = e.what();
  }
  EXPECT_NE(error.find(" waited 1e-06 s at "), std::string::npos) << error;
  EXPECT_NE(error.find("of 2 workers"), std::string::npos) << error;
}

TEST(CpuMachine, FourWorkersFinishSixtyFourQuickSteps) {
  const auto machine =
      make_cpu_machine(slow_program(), {.threads = 4, .max_rows = 4, .context = 4096, .deadline_s = 30});
  RandomWeights weights;
  machine->load(weights, nullptr);
  const double seconds = seconds_of([&] {
    for (int position = 0; position < 64; ++position) {
      StepArgs step;
      add_tokens(step, 0, position, 1, position, 8);
      machine->run(step);
    }
  });
  EXPECT_LT(seconds, 20);
}

TEST(CpuMachine, EightRanksOnTwoWorkersAndOneOnEight) {
  for (const int threads : {1, 2, 5, 8, 16}) {
    Builder b({.ranks = 8}, 8);
    const Value x = b.embed(b.matrix("table", 8, 48, {}));
    const Value h = b.matmul(x, b.matrix("up", 64, 48, Builder::split_outputs({{64, 8}})));
    b.output("y", b.matmul(h, b.matrix("down", 48, 64, Builder::split_inputs({64, 8}))));
    const auto machine = make_cpu_machine(std::move(b).build(), {.threads = threads, .max_rows = 4, .deadline_s = 30});
    RandomWeights weights;
    machine->load(weights, nullptr);
    StepArgs step;
    add_tokens(step, 0, 0, 2, 0, 8);
    for (int i = 0; i < 3; ++i) machine->run(step);
    EXPECT_EQ(machine->options().threads, threads);
  }
}

}  // namespace
}  // namespace megalith
