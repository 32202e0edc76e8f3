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
  DraftFlags draft;
  std::vector<int> acceptance;  // tokens that speculative steps keep; empty: every number up to the block
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
  std::vector<int> lengths(int block) const;
  int max_sequences() const { return *std::max_element(sequences.begin(), sequences.end()); }
  void check_flags(bool drafted) const;
  void print_profile(const LoadedModel& loaded, int n) const;
  void print_profile(const LoadedModel& loaded, const BlockSteps& how) const;
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

// The same of steps that speculate and keep as many tokens of each sequence.
struct BlockResult {
  BlockSteps how;
  std::vector<double> seconds, draft_s, experts;
  std::vector<double> ratio;  // to a plain step of as many sequences, before and after
};

// Speculation of some sequences, measured in turns with plain decoding of them.
class SpeculationResult {
 public:
  SpeculationResult(int sequences, int block, const std::vector<int>& kept) : sequences_(sequences) {
    verify_ = {.how = {sequences, block, 1, false}};
    for (const int n : kept) forced_.push_back({.how = {sequences, block, n, true}});
  }

  void round(const LoadedModel& loaded, int position, int steps);
  void print() const;
  nlohmann::ordered_json json() const;

 private:
  static double speed_up(const BlockResult& r) { return r.how.kept / spread_of(r.ratio).median; }
  static double rate(const BlockResult& r) { return r.how.sequences * r.how.kept / spread_of(r.seconds).median; }

  const int sequences_;
  std::vector<double> plain_;  // seconds of a step
  BlockResult verify_;         // steps without drafts
  std::vector<BlockResult> forced_;
};

void SpeculationResult::round(const LoadedModel& loaded, int position, int steps) {
  Machine& machine = *loaded.machine;
  const int64_t vocabulary = loaded.model->vocabulary();
  const auto plain = [&] {
    return plain_.emplace_back(time_decode(machine, vocabulary, sequences_, position, steps).seconds);
  };
  double before = plain();
  const auto measure = [&](BlockResult& r) {
    const DecodeTime time = time_blocks(machine, vocabulary, r.how, position, steps);
    const double after = plain();
    r.seconds.push_back(time.seconds);
    r.draft_s.push_back(time.draft_s);
    r.experts.push_back(time.experts);
    r.ratio.push_back(2 * time.seconds / (before + after));
    before = after;
  };
  measure(verify_);
  for (BlockResult& r : forced_) measure(r);
}

nlohmann::ordered_json SpeculationResult::json() const {
  nlohmann::ordered_json forced = nlohmann::ordered_json::array();
  for (const BlockResult& r : forced_) {
    forced.push_back({{"acceptance_length", r.how.kept},
                      {"ms_per_step", 1e3 * spread_of(r.seconds).median},
                      {"draft_ms_per_step", 1e3 * spread_of(r.draft_s).median},
                      {"tokens_per_s", rate(r)},
                      {"speed_up", speed_up(r)}});
  }
  nlohmann::ordered_json result = {{"sequences", sequences_},
                                   {"plain_tokens_per_s", sequences_ / spread_of(plain_).median},
                                   {"verify_ms", 1e3 * spread_of(verify_.seconds).median},
                                   {"step_ratio", spread_of(verify_.ratio).median},
                                   {"forced", std::move(forced)}};
  if (const double experts = spread_of(verify_.experts).median; experts > 0) result["experts_of_a_layer"] = experts;
  return result;
}

void SpeculationResult::print() const {
  fmt::print("{:>9} {:>10} {:>10.2f} {:>10} {:>10.1f}  plain\n", sequences_, 1, 1e3 * spread_of(plain_).median, "",
             sequences_ / spread_of(plain_).median);
  for (const BlockResult& r : forced_) {
    fmt::print("{:>9} {:>10} {:>10.2f} {:>10.2f} {:>10.1f}  {:.2f} of plain\n", sequences_, r.how.kept,
               1e3 * spread_of(r.seconds).median, 1e3 * spread_of(r.draft_s).median, rate(r), speed_up(r));
  }
  fmt::print("{:>9} without a draft in it, the step takes {:.2f} ms, {:.2f} of one without guesses\n", "",
             1e3 * spread_of(verify_.seconds).median, spread_of(verify_.ratio).median);
  if (const double experts = spread_of(verify_.experts).median; experts > 0) {
    fmt::print("{:>9} {:.1f} experts of a layer were read\n", "", experts);
  }
}

// Everything that one run measures. Repetitions go round through all measurements, so that what else the machine does
// falls on all of them alike.
class Measurements {
 public:
  Measurements(const Bench& bench, const LoadedModel& loaded)
      : bench_(bench), loaded_(loaded), limits_(loaded.machine->options().threads, kProbeBytes) {
    for (const int n : bench.sequences) decode_.push_back({.sequences = n});
    if (!loaded.draft) return;
    const std::vector<int> kept = bench.lengths(program().block);
    speculation_.emplace_back(1, program().block, kept);
    if (bench.max_sequences() > 1) speculation_.emplace_back(bench.max_sequences(), program().block, kept);
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
  std::vector<SpeculationResult> speculation_;  // of one sequence, and of the most
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
  for (SpeculationResult& s : speculation_) s.round(loaded_, bench_.position, bench_.steps);
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
  if (!speculation_.empty()) {
    result["speculation"] = {{"draft", loaded_.draft->directory.filename().string()},
                             {"family", loaded_.draft->draft->family()},
                             {"block", program().block}};
    result["speculation"].update(speculation_[0].json());
    if (speculation_.size() > 1) result["speculation"]["together"] = speculation_[1].json();
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
                        {"streamed_bytes", streamed_bytes(program(), {.draft = false})},
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
  if (!speculation_.empty()) {
    fmt::print("\nsteps with blocks of {} rows and a draft ({}):\n{:>9} {:>10} {:>10} {:>10} {:>10}\n", program().block,
               loaded_.draft->draft->family(), "sequences", "tokens", "ms a step", "draft, ms", "tokens/s");
    for (const SpeculationResult& s : speculation_) s.print();
  }
  fmt::print("\n{} ({}, {}); {}; {}; commit {}\nmedian of {}; decode from position {}, {} steps each\n",
             loaded_.directory.filename().string(), loaded_.model->family(), loaded_.checkpoint->formats(),
             loaded_.machine->describe(), describe_host(0).processor, MEGALITH_COMMIT, bench_.repeat, bench_.position,
             bench_.steps);
}

// The lengths that were asked for.
std::vector<int> Bench::lengths(int block) const {
  std::vector<int> all = acceptance;
  for (int n = 1; acceptance.empty() && n <= block; ++n) all.push_back(n);
  const int most = *std::max_element(all.begin(), all.end());
  if (most <= block) return all;
  throw Error({.where = "--acceptance",
               .expected = fmt::format("at most {}, the rows of a block", block),
               .found = fmt::format("{}", most),
               .next = {}});
}

void Bench::check_flags(bool drafted) const {
  if (!acceptance.empty() && !drafted) {
    throw Error(
        {.where = "--acceptance", .expected = "a draft", .found = "none", .next = "Give one: --draft DIRECTORY."});
  }
  const int64_t each = drafted ? kMaxBlock : 1;  // the most tokens of a step; of these steps, one is not timed
  const int64_t positions = std::max<int64_t>(position + (steps + (drafted ? 2 : 0)) * each, prompt);
  if (positions <= machine.context) return;
  throw Error({.where = "--context",
               .expected = fmt::format("at least {} for these steps", positions),
               .found = fmt::format("{}", machine.context),
               .next = {}});
}

void Bench::print_profile(const LoadedModel& loaded, int n) const {
  Machine& m = *loaded.machine;
  Profile result(m.program(), {.sequences = n, .rows_each = 1, .context = position + 1, .draft = false},
                 m.options().threads);
  for (int i = 0; i < steps; ++i) result.add(traced_decode(m, loaded.model->vocabulary(), n, position + i));
  fmt::print("\na step of {} sequence{}, mean of {}\n{}", n, n == 1 ? "" : "s", steps, result.table());
}

void Bench::print_profile(const LoadedModel& loaded, const BlockSteps& how) const {
  Machine& m = *loaded.machine;
  CostArgs args = {.sequences = how.sequences, .rows_each = how.rows, .context = position + how.rows};
  std::vector<std::vector<TaskSpan>> spans;
  for (int i = 0; i < steps; ++i) spans.push_back(traced_blocks(m, loaded.model->vocabulary(), how, position));
  args.experts = experts_of_step(m);
  Profile result(m.program(), args, m.options().threads);
  for (const auto& step : spans) result.add(step);
  fmt::print("\na step of {} sequence{} with a block of {} rows and a draft, mean of {}\n{}", how.sequences,
             how.sequences == 1 ? "" : "s", how.rows, steps, result.table());
}

void Bench::write_trace(const LoadedModel& loaded) const {
  std::vector<std::vector<TaskSpan>> spans;
  for (int i = 0; i < trace_steps; ++i) {
    spans.push_back(traced_decode(*loaded.machine, loaded.model->vocabulary(), sequences.front(), position + i));
  }
  write_file(trace, trace_json(loaded.machine->program(), spans));
}

void Bench::run() const {
  LoadOptions options = machine.load_options(model, max_sequences());
  draft.apply(model, options);
  check_flags(options.draft.has_value());
  const int rows = max_sequences() * (options.draft ? kMaxBlock : 1);
  options.machine.max_rows = std::max({options.machine.max_rows, prompt, rows});
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
    if (const int block = loaded.machine->program().block; block > 0) {
      print_profile(loaded, {.sequences = 1, .rows = block, .kept = block, .draft = true});
    }
  }
  if (!trace.empty()) write_trace(loaded);
}

}  // namespace

void add_bench(CLI::App& app) {
  auto bench = std::make_shared<Bench>();
  CLI::App* sub = app.add_subcommand("bench", "measure speed beside what memory and arithmetic allow");
  bench->model.add_model(*sub);
  bench->machine.add(*sub);
  bench->draft.add_draft(*sub);
  sub->add_option("--acceptance", bench->acceptance,
                  "with a draft: how many tokens of a block are kept, whatever is right: 1,4,6 (default: every number)")
      ->delimiter(',')
      ->check(CLI::Range(1, kMaxBlock));
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
