// megalith bench: how fast this machine runs a model, beside what its memory and its arithmetic allow.

#include <algorithm>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/pending_file.h"
#include "cli/commit.h"
#include "cli/options.h"
#include "engine/measure.h"
#include "engine/profile.h"
#include "machines/host.h"
#include "machines/limits.h"

namespace megalith {

namespace {

constexpr int64_t kProbeBytes = int64_t{1} << 30;  // far beyond the caches
constexpr int kProbePasses = 3;

struct Bench {
  ModelOptions model;
  MachineFlags machine;
  std::vector<int> sequences = {1, 2, 4, 8};
  int prompt = 512;
  int position = 16;
  int steps = 16;
  int repeat = 5;
  bool json = false;
  bool profile = false;
  std::string trace;
  int trace_steps = 3;

  void run() const;
  int max_sequences() const { return *std::max_element(sequences.begin(), sequences.end()); }
  void check_flags() const;
  void print_profile(const LoadedModel& loaded, int n) const;
  void write_trace(const LoadedModel& loaded) const;
};

// What was measured of decoding some number of sequences: a value for each repetition.
struct DecodeResult {
  int sequences = 1;
  std::vector<double> bytes;    // of a step
  std::vector<double> seconds;  // of a step
  std::vector<double> share;    // of the bandwidth measured just before
  std::vector<double> experts;  // different ones of a layer that a step chose
};

// Everything that one run measures. Repetitions go round through all measurements, so that what else the machine does
// falls on all of them alike.
class Measurements {
 public:
  Measurements(const Bench& bench, const LoadedModel& loaded)
      : bench_(bench), loaded_(loaded), limits_(loaded.machine->options().threads, kProbeBytes) {
    for (const int n : bench.sequences) decode_.push_back({.sequences = n});
  }

  void round();
  void print() const;
  nlohmann::ordered_json json() const;

 private:
  const Program& program() const { return loaded_.machine->program(); }
  double probe() { return bandwidth_.emplace_back(limits_.read_rate(kProbePasses)); }

  const Bench& bench_;
  const LoadedModel& loaded_;
  CpuLimits limits_;
  std::vector<double> bandwidth_, fma_, prefill_, prefill_share_;
  std::vector<DecodeResult> decode_;
};

void Measurements::round() {
  const int64_t vocabulary = loaded_.model->vocabulary();
  for (DecodeResult& d : decode_) {
    const double bandwidth = probe();
    const DecodeTime time = time_decode(*loaded_.machine, vocabulary, d.sequences, bench_.position, bench_.steps);
    d.seconds.push_back(time.seconds);
    d.experts.push_back(time.experts);
    d.bytes.push_back(decode_bytes(program(), d.sequences, bench_.position + bench_.steps / 2, time.experts));
    d.share.push_back(d.bytes.back() / time.seconds / bandwidth);
  }
  if (bench_.prompt == 0) return;
  fma_.push_back(limits_.fma_rate(1));
  prefill_.push_back(prefill_seconds(*loaded_.machine, vocabulary, bench_.prompt));
  prefill_share_.push_back(prefill_flops(program(), bench_.prompt) / prefill_.back() / fma_.back());
}

nlohmann::ordered_json rate_json(double amount, const std::vector<double>& seconds) {
  const Spread s = spread_of(seconds);
  return {{"tokens_per_s", amount / s.median},
          {"tokens_per_s_least", amount / s.most},
          {"tokens_per_s_most", amount / s.least},
          {"ms_per_step", 1e3 * s.median}};
}

nlohmann::ordered_json Measurements::json() const {
  nlohmann::ordered_json result = {{"bandwidth_gb_s", spread_of(bandwidth_).median / 1e9}};
  if (!prefill_.empty()) {
    result["fma_gflops"] = spread_of(fma_).median / 1e9;
    result["prefill"] = {{"rows", bench_.prompt}};
    result["prefill"].update(rate_json(bench_.prompt, prefill_));
    result["prefill"]["gflops"] = prefill_flops(program(), bench_.prompt) / spread_of(prefill_).median / 1e9;
    result["prefill"]["fma_share"] = spread_of(prefill_share_).median;
  }
  result["decode"] = nlohmann::ordered_json::array();
  for (const DecodeResult& d : decode_) {
    nlohmann::ordered_json line = {{"sequences", d.sequences}};
    line.update(rate_json(d.sequences, d.seconds));
    line["gb_s"] = spread_of(d.bytes).median / spread_of(d.seconds).median / 1e9;
    line["bandwidth_share"] = spread_of(d.share).median;
    if (const double experts = spread_of(d.experts).median; experts > 0) line["experts_of_a_layer"] = experts;
    result["decode"].push_back(std::move(line));
  }
  const MachineOptions& options = loaded_.machine->options();
  const MemoryNeed memory = loaded_.machine->memory();
  result["settings"] = {{"model", loaded_.directory.filename().string()},
                        {"family", loaded_.model->family()},
                        {"format", loaded_.checkpoint->formats()},
                        {"machine", loaded_.machine->describe()},
                        {"processor", describe_host(0).processor},
                        {"threads", options.threads},
                        {"ranks", program().ranks},
                        {"position", bench_.position},
                        {"steps", bench_.steps},
                        {"repeat", bench_.repeat},
                        {"streamed_bytes", streamed_bytes(program())},
                        {"tape_bytes", memory.tape},
                        {"state_bytes", memory.states},
                        {"version", MEGALITH_VERSION},
                        {"commit", MEGALITH_COMMIT}};
  return result;
}

void Measurements::print() const {
  const Spread bandwidth = spread_of(bandwidth_);
  fmt::print("memory      {:8.1f} GB/s read  ({:.1f}-{:.1f})\n", bandwidth.median / 1e9, bandwidth.least / 1e9,
             bandwidth.most / 1e9);
  if (!prefill_.empty()) {
    const Spread fma = spread_of(fma_);
    const Spread s = spread_of(prefill_);
    fmt::print("arithmetic  {:8.1f} GFLOPS f32 ({:.1f}-{:.1f})\n\n", fma.median / 1e9, fma.least / 1e9, fma.most / 1e9);
    fmt::print("prefill of {} rows: {:.1f} tokens/s ({:.1f}-{:.1f}), {:.1f} GFLOPS, {:.0f}% of the arithmetic\n",
               bench_.prompt, bench_.prompt / s.median, bench_.prompt / s.most, bench_.prompt / s.least,
               prefill_flops(program(), bench_.prompt) / s.median / 1e9, 100 * spread_of(prefill_share_).median);
  }
  fmt::print("\n{:>9} {:>10} {:>10} {:>17} {:>8} {:>9}\n", "sequences", "ms a step", "tokens/s", "least-most", "GB/s",
             "of memory");
  for (const DecodeResult& d : decode_) {
    const Spread s = spread_of(d.seconds);
    fmt::print("{:>9} {:>10.2f} {:>10.1f} {:>17} {:>8.1f} {:>8.0f}%\n", d.sequences, 1e3 * s.median,
               d.sequences / s.median, fmt::format("{:.1f}-{:.1f}", d.sequences / s.most, d.sequences / s.least),
               spread_of(d.bytes).median / s.median / 1e9, 100 * spread_of(d.share).median);
    if (const double experts = spread_of(d.experts).median; experts > 0) {
      fmt::print("{:>9} {:.1f} experts of a layer were read, and only they are counted\n", "", experts);
    }
  }
  fmt::print("\n{} ({}, {}); {}; {}; commit {}\nmedian of {}; decode from position {}, {} steps each\n",
             loaded_.directory.filename().string(), loaded_.model->family(), loaded_.checkpoint->formats(),
             loaded_.machine->describe(), describe_host(0).processor, MEGALITH_COMMIT, bench_.repeat, bench_.position,
             bench_.steps);
}

void Bench::check_flags() const {
  const int64_t positions = std::max(position + steps, prompt);
  if (positions <= machine.context) return;
  throw Error({.where = "--context",
               .expected = fmt::format("at least {} for these steps", positions),
               .found = fmt::format("{}", machine.context),
               .next = {}});
}

void Bench::print_profile(const LoadedModel& loaded, int n) const {
  Machine& m = *loaded.machine;
  Profile result(m.program(), {.sequences = n, .rows_each = 1, .context = position + 1}, m.options().threads);
  for (int i = 0; i < steps; ++i) result.add(traced_decode(m, loaded.model->vocabulary(), n, position + i));
  fmt::print("\na step of {} sequence{}, mean of {}\n{}", n, n == 1 ? "" : "s", steps, result.table());
}

void Bench::write_trace(const LoadedModel& loaded) const {
  std::vector<std::vector<TaskSpan>> spans;
  for (int i = 0; i < trace_steps; ++i) {
    spans.push_back(traced_decode(*loaded.machine, loaded.model->vocabulary(), sequences.front(), position + i));
  }
  write_file(trace, trace_json(loaded.machine->program(), spans));
}

void Bench::run() const {
  check_flags();
  LoadOptions options = machine.load_options(model, max_sequences());
  options.machine.max_rows = std::max(options.machine.max_rows, prompt);
  const LoadedModel loaded = open_model(model, machine, options);
  Measurements measurements(*this, loaded);
  for (int i = 0; i < repeat; ++i) measurements.round();
  if (json) {
    fmt::print("{}\n", measurements.json().dump());
  } else {
    measurements.print();
  }
  if (profile) {
    for (const int n : sequences) print_profile(loaded, n);
  }
  if (!trace.empty()) write_trace(loaded);
}

}  // namespace

void add_bench(CLI::App& app) {
  auto bench = std::make_shared<Bench>();
  CLI::App* sub = app.add_subcommand("bench", "measure speed beside what memory and arithmetic allow");
  bench->model.add_model(*sub);
  bench->machine.add(*sub);
  sub->add_option("--sequences", bench->sequences, "numbers of sequences to decode together: 1,2,4,8")
      ->delimiter(',')
      ->capture_default_str()
      ->check(CLI::Range(1, 1024));
  sub->add_option("--prompt-rows", bench->prompt, "rows of the prefill; 0 leaves it out")
      ->capture_default_str()
      ->check(CLI::Range(0, 1 << 20));
  sub->add_option("--position", bench->position, "tokens that each sequence has before")
      ->capture_default_str()
      ->check(CLI::Range(0, 1 << 24));
  sub->add_option("--steps", bench->steps, "decode steps of a measurement")
      ->capture_default_str()
      ->check(CLI::Range(1, 1 << 20));
  sub->add_option("--repeat", bench->repeat, "measurements, of which the median is given")
      ->capture_default_str()
      ->check(CLI::Range(1, 1000));
  sub->add_flag("--json", bench->json, "one JSON object");
  sub->add_flag("--profile", bench->profile, "also time by op beside its bytes, and where workers waited");
  sub->add_option("--trace", bench->trace, "write a trace of some decode steps for Perfetto to this file");
  sub->add_option("--trace-steps", bench->trace_steps, "steps of the trace")
      ->capture_default_str()
      ->check(CLI::Range(1, 1000));
  sub->callback([bench] { bench->run(); });
}

}  // namespace megalith
