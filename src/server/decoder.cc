#include "server/decoder.h"

#include <algorithm>
#include <exception>
#include <utility>

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include "base/pending_file.h"
#include "engine/measure.h"
#include "engine/profile.h"
#include "server/api_error.h"

namespace megalith {

namespace {

constexpr int64_t kMeasuredEvery = 64;  // steps between two looks at how well memory is used

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace

struct Decoder::Text {
  std::shared_ptr<Listener> listener;
  Request request;  // until the engine has it
  std::string request_id;
  const char* kind = "";
  bool scored = false;
  float temperature = 0, top_p = 1;
  int64_t max_tokens = 0;
  Clock::time_point arrived, last_tokens;
  Engine::Id id = 0;
  size_t seen = 0;  // tokens that the listener knows
  bool wished = false;  // the listener has ended it
};

Decoder::Decoder(Engine& engine, Machine& machine, Metrics& metrics, RequestLog* log, DecoderOptions options)
    : engine_(engine), machine_(machine), metrics_(metrics), log_(log), options_(std::move(options)) {
  metrics_.set_queue_limit(options_.max_queue);
  thread_ = std::thread([this] { run(); });
}

Decoder::~Decoder() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    accepting_ = false;
  }
  wake_.notify_all();
  thread_.join();
}

std::vector<Generator::Ticket> Decoder::submit(std::vector<Job> jobs) {
  for (const Job& job : jobs) engine_.check(job.request);
  const std::lock_guard lock(mutex_);
  if (failure_) throw ApiError::unavailable("The engine has stopped working: " + *failure_);
  if (!accepting_) throw ApiError::unavailable("The server is stopping.");
  const int64_t waiting = waiting_ + static_cast<int64_t>(arrived_.size());
  if (waiting >= options_.max_queue) {
    ApiError full(429, "rate_limit_error",
                  fmt::format("{} texts are waiting, which is the limit (--max-queue). Try again soon.", waiting));
    full.headers.emplace_back("Retry-After", "1");
    throw full;
  }
  std::vector<Ticket> tickets;
  for (Job& job : jobs) {
    const Ticket ticket = next_ticket_++;
    tickets.push_back(ticket);
    open_.emplace(ticket, job.request_id);
    const Sampling& sampling = job.request.sampling;
    Text text = {.listener = std::move(job.listener),
                 .request_id = std::move(job.request_id),
                 .kind = job.kind,
                 .scored = job.request.score_prompt,
                 .temperature = sampling.temperature,
                 .top_p = sampling.top_p,
                 .max_tokens = job.request.max_tokens,
                 .arrived = Clock::now()};
    text.request = std::move(job.request);
    arrived_.emplace(ticket, std::move(text));
  }
  wake_.notify_all();
  return tickets;
}

void Decoder::cancel(Ticket ticket) {
  const std::lock_guard lock(mutex_);
  if (!open_.contains(ticket)) return;
  to_cancel_.push_back(ticket);
  wake_.notify_all();
}

int64_t Decoder::abort(const std::string& request_id) {
  const std::lock_guard lock(mutex_);
  int64_t count = 0;
  for (const auto& [ticket, id] : open_) {
    if (!request_id.empty() && id != request_id) continue;
    to_cancel_.push_back(ticket);
    ++count;
  }
  wake_.notify_all();
  return count;
}

void Decoder::stop_accepting() {
  const std::lock_guard lock(mutex_);
  accepting_ = false;
}

int64_t Decoder::drain(std::chrono::milliseconds most) {
  std::unique_lock lock(mutex_);
  idle_.wait_for(lock, most, [this] { return open_.empty(); });
  const auto left = static_cast<int64_t>(open_.size());
  for (const auto& [ticket, id] : open_) to_cancel_.push_back(ticket);
  wake_.notify_all();
  idle_.wait(lock, [this] { return open_.empty(); });
  return left;
}

std::optional<std::string> Decoder::failure() const {
  const std::lock_guard lock(mutex_);
  return failure_;
}

std::pair<int64_t, int64_t> Decoder::load() const {
  const std::lock_guard lock(mutex_);
  return {running_, waiting_ + static_cast<int64_t>(arrived_.size())};
}

void Decoder::run() {
  while (take_orders()) {
    if (!step()) continue;
    tell();
  }
  end_all(Finish::cancelled, "");
}

bool Decoder::take_orders() {
  std::map<Ticket, Text> arrived;
  std::vector<Ticket> to_cancel;
  {
    std::unique_lock lock(mutex_);
    running_ = engine_.running();
    waiting_ = engine_.waiting();
    metrics_.set_queue(running_, waiting_);
    const auto awake = [this] { return stopping_ || !arrived_.empty() || !to_cancel_.empty(); };
    if (texts_.empty()) {
      metrics_.set_cache_usage(0);
      wake_.wait(lock, awake);
    }
    if (stopping_) return false;
    arrived.swap(arrived_);
    to_cancel.swap(to_cancel_);
    waiting_ += static_cast<int64_t>(arrived.size());
  }
  for (auto& [ticket, text] : arrived) start(ticket, std::move(text));
  for (const Ticket ticket : to_cancel) {
    const auto at = texts_.find(ticket);
    if (at == texts_.end()) continue;
    engine_.cancel(at->second.id);
    end(ticket, engine_.generation(at->second.id));
  }
  return true;
}

void Decoder::start(Ticket ticket, Text text) {
  Text& kept = texts_.emplace(ticket, std::move(text)).first->second;
  try {
    kept.id = engine_.add(std::move(kept.request));
  } catch (const std::exception& error) {
    Generation failed;
    failed.finish = Finish::failed;
    failed.error = error.what();
    end(ticket, failed);
  }
}

// False where the engine had nothing to do, or can do no more.
bool Decoder::step() {
  const auto start = Clock::now();
  std::vector<TaskSpan> spans;
  const bool traced = !trace_kept_ && options_.trace_steps > 0;
  try {
    if (!engine_.step(traced ? &spans : nullptr)) return false;
  } catch (const std::exception& error) {
    spdlog::error("the engine has stopped working: {}", error.what());
    {
      const std::lock_guard lock(mutex_);
      failure_ = error.what();
    }
    end_all(Finish::failed, error.what());
    return false;
  }
  if (traced) keep_trace(std::move(spans));
  measure(seconds_since(start));
  return true;
}

void Decoder::tell() {
  std::vector<Ticket> ended;
  for (auto& [ticket, text] : texts_) {
    tell(text);
    if (engine_.generation(text.id).finish != Finish::running) ended.push_back(ticket);
  }
  for (const Ticket ticket : ended) end(ticket, engine_.generation(texts_.at(ticket).id));
}

// What is new in a text; may cancel it.
void Decoder::tell(Text& text) {
  const Generation& generation = engine_.generation(text.id);
  const size_t count = generation.tokens.size();
  if (count > text.seen) {
    const auto now = Clock::now();
    if (text.seen == 0) metrics_.first_token(seconds_since(text.arrived));
    if (text.seen > 0) {
      metrics_.tokens(static_cast<int64_t>(count - text.seen), std::chrono::duration<double>(now - text.last_tokens).count());
    }
    text.last_tokens = now;
    const size_t first = std::exchange(text.seen, count);
    try {
      text.wished = !text.listener->on_tokens(generation, first);
    } catch (const std::exception& error) {
      engine_.fail(text.id, error.what());
      return;
    }
    if (text.wished) engine_.cancel(text.id);
  }
  if (options_.request_timeout_s > 0 && generation.finish == Finish::running &&
      seconds_since(text.arrived) > options_.request_timeout_s) {
    engine_.fail(text.id, fmt::format("The request took longer than {} s (--request-timeout).", options_.request_timeout_s));
  }
}

void Decoder::end(Ticket ticket, const Generation& generation) {
  const auto at = texts_.find(ticket);
  Text& text = at->second;
  report(text, generation);  // so that it is counted when its client knows
  try {
    text.listener->on_end(generation);
  } catch (const std::exception& error) {
    spdlog::error("request {}: {}", text.request_id, error.what());
  }
  if (text.id != 0) engine_.forget(text.id);
  texts_.erase(at);
  const std::lock_guard lock(mutex_);
  running_ = engine_.running();
  waiting_ = engine_.waiting();
  open_.erase(ticket);
  if (open_.empty()) idle_.notify_all();
}

void Decoder::end_all(Finish how, const std::string& error) {
  std::map<Ticket, Text> arrived;
  {
    const std::lock_guard lock(mutex_);
    arrived.swap(arrived_);
  }
  for (auto& [ticket, text] : arrived) texts_.emplace(ticket, std::move(text));
  while (!texts_.empty()) {
    const auto& [ticket, text] = *texts_.begin();
    Generation generation;
    if (text.id != 0) generation = engine_.generation(text.id);
    generation.finish = how;
    generation.error = error;
    end(ticket, generation);
  }
}

void Decoder::report(const Text& text, const Generation& generation) {
  const bool failed = generation.finish == Finish::failed;
  const bool aborted = generation.finish == Finish::cancelled && !text.wished;
  if (!failed && !aborted) ++served_;
  const char* finish = failed ? "error" : aborted ? "abort" : generation.finish == Finish::length ? "length" : "stop";
  const auto prompt = static_cast<int64_t>(generation.prompt.size());
  const auto tokens = static_cast<int64_t>(generation.tokens.size());
  metrics_.finished({.finish = finish,
                     .prompt_tokens = prompt,
                     .cached_tokens = generation.cached,
                     .generation_tokens = tokens,
                     .max_tokens = text.max_tokens,
                     .queue_s = generation.queue_s,
                     .prefill_s = generation.prefill_s,
                     .decode_s = generation.decode_s,
                     .e2e_s = seconds_since(text.arrived),
                     .steps = &generation.steps});
  if (log_ == nullptr) return;
  log_->write({.id = text.request_id,
               .kind = text.kind,
               .prompt_tokens = prompt,
               .cached_tokens = generation.cached,
               .completion_tokens = tokens,
               .queue_s = generation.queue_s,
               .prefill_s = generation.prefill_s,
               .decode_s = generation.decode_s,
               .steps = static_cast<int64_t>(generation.steps.guesses.size()),
               .guesses = generation.steps.tried(),
               .accepted = generation.steps.kept(),
               .finish = finish,
               .scored = text.scored,
               .temperature = text.temperature,
               .top_p = text.top_p,
               .status = failed ? 500 : aborted ? 499 : 200});
}

// Now and then, how many positions are held, and what share of the memory's speed decoding uses.
void Decoder::measure(double step_s) {
  metrics_.step(step_s);
  if (steps_++ % kMeasuredEvery != 0) return;
  int64_t positions = 0, decoding = 0, others = 0;
  for (const auto& [ticket, text] : texts_) {
    const Generation& g = engine_.generation(text.id);
    const bool decodes = g.tokens.size() > text.seen && text.seen > 0;
    (decodes ? decoding : others) += 1;
    if (g.prefill_s > 0) positions += static_cast<int64_t>(g.prompt.size() + g.tokens.size());
  }
  const auto& options = machine_.options();
  const auto slots = static_cast<double>(options.max_sequences) * options.context;
  metrics_.set_cache_usage(std::min(1.0, static_cast<double>(positions) / slots));
  if (options_.memory_rate == 0 || decoding == 0 || others > 0) return;
  const auto mean = static_cast<int>(positions / decoding);
  const double bytes = decode_bytes(machine_.program(), static_cast<int>(decoding), mean);
  metrics_.set_memory_bandwidth_share(bytes / step_s / options_.memory_rate);
}

void Decoder::keep_trace(std::vector<TaskSpan> spans) {
  trace_.push_back(std::move(spans));
  if (static_cast<int64_t>(trace_.size()) < options_.trace_steps) return;
  trace_kept_ = true;
  try {
    write_file(options_.trace_file, trace_json(machine_.program(), trace_));
    spdlog::warn("the trace of {} steps is in {}", trace_.size(), options_.trace_file.string());
  } catch (const std::exception& error) {
    spdlog::error("{}", error.what());
  }
  trace_ = {};
}

}  // namespace megalith
