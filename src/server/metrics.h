#pragma once

// What /metrics tells: series with the names that vLLM gave them, which dashboards and benchmarks know, and our own.

#include <cstdint>
#include <memory>
#include <string>

#include "engine/speculation.h"

namespace megalith {

// A text that has ended, for the counts.
struct FinishedText {
  const char* finish = "stop";  // "stop", "length", "abort" (by its client, or as the server stopped) or "error"
  int64_t prompt_tokens = 0, cached_tokens = 0;
  int64_t generation_tokens = 0, max_tokens = 0;
  double queue_s = 0, prefill_s = 0, decode_s = 0;
  double e2e_s = 0;  // from its arrival to its end
  const SpeculationReport* steps = nullptr;  // null: it never ran
};

// Counts what the engine does. May be called from any thread; a call takes a microsecond or less for each series it
// counts in, and waits for no one but text() while that copies the series.
class Metrics {
 public:
  // `context` is how long a text may be; `draft_guesses` how many guesses a step verifies, 0 where there is no draft.
  Metrics(const std::string& model_name, int64_t context, int draft_guesses);
  ~Metrics();
  Metrics(const Metrics&) = delete;
  Metrics& operator=(const Metrics&) = delete;

  // Texts that run, and that wait for a slot.
  void set_queue(int64_t running, int64_t waiting);
  // How many texts may wait.
  void set_queue_limit(int64_t limit);
  // The share of the positions of all slots that texts hold, from 0 to 1.
  void set_cache_usage(double share);
  // Of the memory limit: the bytes that decode steps read in a second over what the memory was measured to give.
  void set_memory_bandwidth_share(double share);
  // The whole start, and the reading of weights in it.
  void set_start(double start_s, double weights_s);

  // A step of the engine.
  void step(double seconds);
  // A text has its first token, so long after it arrived.
  void first_token(double seconds_since_arrival);
  // A text has `count` more, which came together, so long after those before.
  void tokens(int64_t count, double seconds_since_the_last_ones);
  // A text has ended, whether or not it ever ran.
  void finished(const FinishedText& text);

  // All series in Prometheus' text format, version 0.0.4.
  std::string text() const;

 private:
  struct Series;
  const std::unique_ptr<Series> series_;
};

}  // namespace megalith
