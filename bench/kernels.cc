// The matrix product of one worker: bytes of weights and floating-point operations a second, by rows.
//
//   build/release/bench_kernels

#include <benchmark/benchmark.h>

#include <vector>

#include "machines/cpu/kernels/kernel.h"
#include "program/builder.h"

namespace megalith {
namespace {

constexpr int64_t kInputs = 4096;
constexpr int64_t kOutputs = 16384;  // 134 MB of bf16: far beyond the caches

// state.range(0) rows, state.range(1) segments.
void matmul(benchmark::State& state) {
  const int64_t rows = state.range(0);
  const auto segments = static_cast<int>(state.range(1));
  Builder builder({}, segments);
  const Value x = builder.embed(builder.matrix("table", 32, kInputs, {}));
  const Split split = segments > 1 ? Builder::split_inputs({kInputs, segments}) : Split{};
  builder.matmul(x, builder.matrix("w", kOutputs, kInputs, split));
  const Program program = std::move(builder).build();
  const Op& op = program.ops[1];

  std::vector<uint16_t> weights(static_cast<size_t>(kInputs * kOutputs), 0x3c00);
  std::vector<float> input(static_cast<size_t>(rows * kInputs), 0.5f), output(static_cast<size_t>(rows * kOutputs));
  std::vector<float> scratch(static_cast<size_t>(scratch_floats(program, op, rows)));
  OpContext context;
  context.op = &op;
  context.in = {input.data()};
  context.in_width = {kInputs};
  context.out = output.data();
  context.out_width = kOutputs;
  context.weight = {reinterpret_cast<const std::byte*>(weights.data())};
  context.weight_info = {&program.weights[1]};
  StepArgs step;
  step.add_run(0, 0, std::vector<int32_t>(static_cast<size_t>(rows), 0));

  for (auto _ : state) {
    run_matmul(context, step, {}, {scratch.data(), static_cast<int64_t>(scratch.size())});
    benchmark::DoNotOptimize(output.data());
  }
  const auto rate = [&](double amount) {
    return benchmark::Counter(amount, benchmark::Counter::kIsIterationInvariantRate, benchmark::Counter::kIs1000);
  };
  state.counters["weights_B/s"] = rate(2.0 * kInputs * kOutputs);
  state.counters["flop/s"] = rate(2.0 * kInputs * kOutputs * static_cast<double>(rows));
}

BENCHMARK(matmul)->ArgNames({"rows", "segments"})->Args({1, 1})->Args({1, 8})->Args({2, 1})->Args({4, 1})->Args({8, 1})->Args({8, 8})->Args({64, 1})->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace megalith
