#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <filesystem>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "engine/engine.h"
#include "server/generator.h"
#include "server/metrics.h"
#include "server/request_log.h"

namespace megalith {

struct DecoderOptions {
  int64_t max_queue = 256;     // texts that may wait for a slot before more are refused
  double request_timeout_s = 0;  // the longest that a text may take; 0: as long as it needs
  // Steps whose workers are traced into a file, the first ones with work; 0: none.
  int64_t trace_steps = 0;
  std::filesystem::path trace_file = {};
  double memory_rate = 0;  // bytes a second that memory gives, for the share of it that decoding uses; 0: not known
};

// Runs an engine on a thread of its own: takes new texts between steps, and tells listeners what the steps gave.
class Decoder : public Generator {
 public:
  // Borrows all; `log` may be null.
  Decoder(Engine& engine, Machine& machine, Metrics& metrics, RequestLog* log, DecoderOptions options);
  // Ends all texts, as cancelled.
  ~Decoder() override;

  std::vector<Ticket> submit(std::vector<Job> jobs) override;
  void cancel(Ticket ticket) override;
  int64_t abort(const std::string& request_id) override;

  // From now on submit() throws 503.
  void stop_accepting();
  // Waits until no text is open, at most so long; then ends those that are left, and waits until they have ended. How many
  // were left.
  int64_t drain(std::chrono::milliseconds most);
  // Why the engine can do no more steps; nothing while it can.
  std::optional<std::string> failure() const;
  // Texts that have ended without an error.
  int64_t served() const { return served_; }
  // Texts with a slot, and texts that wait for one.
  std::pair<int64_t, int64_t> load() const;

 private:
  using Clock = std::chrono::steady_clock;
  struct Text;

  void run();
  // Between two steps. False: the thread shall end.
  bool take_orders();
  void start(Ticket ticket, Text text);
  bool step();
  void tell();
  void tell(Text& text);
  void end(Ticket ticket, const Generation& generation);
  void end_all(Finish how, const std::string& error);
  void report(const Text& text, const Generation& generation);
  void measure(double step_s);
  void keep_trace(std::vector<TaskSpan> spans);

  Engine& engine_;
  Machine& machine_;
  Metrics& metrics_;
  RequestLog* const log_;
  const DecoderOptions options_;

  mutable std::mutex mutex_;
  std::condition_variable wake_, idle_;
  // Guarded by the mutex.
  Ticket next_ticket_ = 1;
  std::map<Ticket, Text> arrived_;
  std::vector<Ticket> to_cancel_;
  std::map<Ticket, std::string> open_;  // all texts that have not ended, with the ids of their requests
  int64_t running_ = 0, waiting_ = 0;
  bool accepting_ = true, stopping_ = false;
  std::optional<std::string> failure_;

  std::atomic<int64_t> served_ = 0;
  // The thread's own.
  std::map<Ticket, Text> texts_;
  std::vector<std::vector<TaskSpan>> trace_;
  bool trace_kept_ = false;
  int64_t steps_ = 0;
  std::thread thread_;
};

}  // namespace megalith
