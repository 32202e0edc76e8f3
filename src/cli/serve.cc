// megalith serve: the OpenAI interface over HTTP.

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <csignal>
#include <cstdio>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <future>
#include <optional>

#include "base/error.h"
#include "cli/embedded.h"
#include "cli/options.h"
#include "machines/limits.h"
#include "server/server.h"
#include "weights/environment.h"

namespace megalith {

namespace {

constexpr double kDeadline = 8;  // seconds; a dead worker is known within ten
constexpr int64_t kQuickProbeBytes = int64_t{256} << 20;
constexpr auto kPoll = std::chrono::milliseconds(100);

struct Serve {
  ModelOptions model;
  MachineFlags machine;
  SamplingFlags sampling;
  DraftFlags draft;
  ServeOptions serve;
  int sequences = 8;
  double drain_timeout_s = 30;
  std::vector<std::string> api_keys;
  std::string api_key_file;
  std::vector<std::string> origins = {"*"};
  std::string trace;
  int trace_steps = 100;

  void add(CLI::App& app);
  void add_http(CLI::App& app);
  void run() const;
  ServeOptions options() const;
  std::vector<std::string> keys() const;
  std::string public_name() const;
  ServedModel load(std::function<void(uint64_t, uint64_t)> on_progress, Phases& phases) const;
};

// Signals of all threads come to one that waits for them.
class Signals {
 public:
  Signals() {
    sigemptyset(&set_);
    for (const int signal : {SIGINT, SIGTERM, SIGHUP}) sigaddset(&set_, signal);
    pthread_sigmask(SIG_BLOCK, &set_, nullptr);
    std::signal(SIGPIPE, SIG_IGN);
  }

  // The next signal; nothing when none comes within this time.
  std::optional<int> wait(std::chrono::milliseconds most) const {
    const timespec time = {most.count() / 1000, most.count() % 1000 * 1000000};
    const int signal = sigtimedwait(&set_, nullptr, &time);
    return signal > 0 ? std::optional(signal) : std::nullopt;
  }

 private:
  sigset_t set_;
};

// One key a line; blank lines and lines that begin with # are none.
std::vector<std::string> read_keys(const std::string& path) {
  std::ifstream file(path);
  std::vector<std::string> keys;
  for (std::string line; std::getline(file, line);) {
    while (!line.empty() && (line.back() == '\r' || line.back() == ' ' || line.back() == '\t')) line.pop_back();
    if (!line.empty() && line.front() != '#') keys.push_back(line);
  }
  if (keys.empty()) {
    throw Error({.where = "--api-key-file",
                 .expected = fmt::format("a file with a key in each line, in {}", path),
                 .found = file.is_open() ? "no key" : "no such file",
                 .next = {}});
  }
  return keys;
}

std::vector<std::string> Serve::keys() const {
  std::vector<std::string> keys = api_keys;
  if (!api_key_file.empty()) {
    for (std::string& key : read_keys(api_key_file)) keys.push_back(std::move(key));
  }
  const auto key = combined_environment()("MEGALITH_API_KEY");
  if (keys.empty() && key && !key->empty()) keys.push_back(*key);
  return keys;
}

ServeOptions Serve::options() const {
  ServeOptions options = serve;
  options.access = {.api_keys = keys(), .origins = origins};
  if (origins.size() == 1 && origins[0] == "none") options.access.origins.clear();
  options.version = MEGALITH_VERSION;
  options.rows_per_step = machine.rows_per_step;
  options.defaults.max_tokens = sampling.max_tokens;
  options.defaults.sampling = sampling.sampling({});  // greedy unless a flag says otherwise
  options.defaults.ignore_eos = sampling.ignore_eos;
  if (!trace.empty()) {
    options.decoder.trace_file = trace;
    options.decoder.trace_steps = trace_steps;
  }
  if (options.model_name.empty()) options.model_name = public_name();
  return options;
}

// Of a directory the last name: where it lies is nobody's business.
std::string Serve::public_name() const {
  if (model.model.empty()) return kDefaultModel;
  if (is_embedded(model.model) || !std::filesystem::is_directory(model.model)) return model.model;
  return std::filesystem::canonical(model.model).filename().string();
}

ServedModel Serve::load(std::function<void(uint64_t, uint64_t)> on_progress, Phases& phases) const {
  LoadOptions options = machine.load_options(model, sequences);
  options.on_progress = std::move(on_progress);
  draft.apply(model, options);
  ServedModel served = {open_model(model, machine, options, phases), {}, 0};
  served.speculation = draft.speculation(served.model);
  phases.begin("speed of memory");
  served.memory_rate = CpuLimits(served.model.machine->options().threads, kQuickProbeBytes).read_rate(2);
  phases.end();
  return served;
}

void Serve::run() const {
  const Signals signals;
  const auto start = std::chrono::steady_clock::now();
  Server server(options(), [this](auto on_progress, Phases& phases) { return load(std::move(on_progress), phases); });
  fmt::print(stderr, "listening on {}{}\n", server.address().starts_with("unix:") ? "" : "http://", server.address());
  bool ready = false;
  while (true) {
    const auto signal = signals.wait(kPoll);
    if (!ready && server.wait_ready({})) {
      ready = true;
      const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
      if (!machine.quiet) fmt::print(stderr, "{}", server.phases().table());
      fmt::print(stderr, "ready after {:.2f} s\n", seconds.count());
    }
    if (signal == SIGHUP) server.reopen_log();
    if (signal && signal != SIGHUP) break;
  }
  if (!ready) std::_Exit(0);  // nothing was promised to anybody, and reading on would take long
  fmt::print(stderr, "stopping: waiting up to {} s for open requests; a second signal ends them at once\n", drain_timeout_s);
  auto drained = std::async(std::launch::async, [&] {
    return server.drain(std::chrono::milliseconds(static_cast<int64_t>(drain_timeout_s * 1000)));
  });
  while (drained.wait_for(std::chrono::milliseconds(0)) != std::future_status::ready) {
    const auto signal = signals.wait(kPoll);
    if (signal && signal != SIGHUP) std::_Exit(130);
  }
  if (const int64_t left = drained.get(); left > 0) fmt::print(stderr, "{} texts were ended before their time\n", left);
}

void Serve::add_http(CLI::App& app) {
  app.add_option("--bind", serve.http.bind, "where to listen: HOST:PORT, [ADDRESS]:PORT, :PORT for all addresses, or unix:PATH")
      ->capture_default_str();
  app.add_option("--model-name", serve.model_name, "the model's name in replies (default: as --model, of a directory its last name)");
  app.add_option("--api-key", api_keys,
                 "a key that clients must send; may be given several times (also: MEGALITH_API_KEY)")
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  app.add_option("--api-key-file", api_key_file, "a file with a key in each line");
  app.add_option("--cors-origin", origins, "web pages that may use the server, by origin; * for all, none for none")
      ->capture_default_str()
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  app.add_option("--max-body", serve.http.max_body, "the most bytes of a request's body")
      ->capture_default_str()
      ->check(CLI::Range(int64_t{1} << 10, int64_t{1} << 34));
  app.add_option("--request-log", serve.request_log, "append one JSON object a line for each text; SIGHUP opens the file again");
  app.add_flag("--strict-model", serve.defaults.strict_model, "refuse requests for a model of another name");
  app.add_flag("--early-role-chunk", serve.defaults.early_role_chunk, "begin a chat's stream before its first token");
  app.add_flag("--reasoning-alias", serve.defaults.reasoning_alias, "write \"reasoning\" beside \"reasoning_content\"");
  app.add_option("--sse-ping", serve.defaults.ping_s, "seconds of silence in a stream before a comment is sent; 0: never")
      ->capture_default_str()
      ->check(CLI::Range(0, 86400));
}

void Serve::add(CLI::App& app) {
  add_http(app);
  app.add_option("--max-sequences", sequences, "texts that are decoded at once")->capture_default_str()->check(CLI::Range(1, 4096));
  app.add_option("--max-queue", serve.decoder.max_queue, "texts that may wait; more are refused with 429")
      ->capture_default_str()
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 20));
  app.add_option("--request-timeout", serve.decoder.request_timeout_s, "the most seconds of a text, waiting included; 0: no limit")
      ->capture_default_str()
      ->check(CLI::Range(0.0, 1e6));
  app.add_option("--drain-timeout", drain_timeout_s, "seconds that SIGTERM gives to open requests")
      ->capture_default_str()
      ->check(CLI::Range(0.0, 1e6));
  app.add_option("--prefix-cache", serve.prefix_cache, "bytes of states that are kept of prompts, as 512MB; 0: none")
      ->capture_default_str()
      ->transform(CLI::AsSizeValue(true));
  app.add_option("--prefix-chunk", serve.prefix_chunk, "tokens between two places in a prompt whose states are kept")
      ->capture_default_str()
      ->check(CLI::Range(16, 1 << 20));
  app.add_option("--trace", trace, "write what each worker did when, for Perfetto, in the first --trace-steps steps");
  app.add_option("--trace-steps", trace_steps, "steps with work that are traced")->capture_default_str()->check(CLI::Range(1, 100000));
}

}  // namespace

void add_serve(CLI::App& app) {
  auto serve = std::make_shared<Serve>();
  CLI::App* sub = app.add_subcommand("serve", "answer requests of the OpenAI interface over HTTP");
  serve->model.add_model(*sub);
  serve->model.add_chat_format(*sub);
  serve->machine.deadline_s = kDeadline;
  serve->add(*sub);
  serve->sampling.add_without_seed(*sub);
  serve->draft.add_draft(*sub);
  serve->machine.add(*sub);
  sub->callback([serve] { serve->run(); });
}

}  // namespace megalith
