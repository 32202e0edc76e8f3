#include "engine/engine.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include <fmt/format.h>

#include "base/check.h"
#include "base/error.h"

namespace megalith {

namespace {

double seconds(std::chrono::steady_clock::duration duration) {
  return std::chrono::duration<double>(duration).count();
}

void require(bool right, const char* where, const std::string& expected, auto found) {
  if (!right) throw Error({.where = where, .expected = expected, .found = fmt::format("{}", found), .next = {}});
}

void require_token(int32_t token, const char* where, int64_t vocabulary) {
  if (token >= 0 && token < vocabulary) return;  // without forming a text for each token of a prompt
  require(false, where, fmt::format("token ids from 0 to {}", vocabulary - 1), token);
}

void check_sampling(const Sampling& s) {
  require(std::isfinite(s.temperature) && s.temperature >= 0, "temperature", "a number of 0 or more", s.temperature);
  require(s.top_k >= -1, "top_k", "0 or -1 (off), or a number of tokens", s.top_k);
  require(s.top_p > 0 && s.top_p <= 1, "top_p", "a number above 0, up to 1", s.top_p);
  require(s.min_p >= 0 && s.min_p <= 1, "min_p", "a number from 0 to 1", s.min_p);
}

}  // namespace

const char* finish_name(Finish finish) {
  switch (finish) {
    case Finish::running:
      return "running";
    case Finish::end_token:
      return "stop";
    case Finish::length:
      return "length";
    case Finish::cancelled:
      return "cancelled";
    case Finish::failed:
      return "error";
  }
  return "?";
}

Engine::Engine(Machine& machine, int64_t vocabulary, int rows_per_step, Speculation speculation, PrefixCache* prefixes)
    : machine_(machine),
      vocabulary_(vocabulary),
      rows_per_step_(rows_per_step),
      speculation_(std::move(speculation)),
      prefixes_(prefixes),
      chooser_(speculation_.width) {
  CHECK(rows_per_step >= 1 && rows_per_step <= machine.options().max_rows, "{} rows per step", rows_per_step);
  const int width = speculation_.width;
  CHECK(width == 1 || (width <= machine.program().block && (speculation_.drafter || machine.program().draft_block > 0)),
        "blocks of {} rows", width);
  CHECK(machine.options().max_chosen >= machine.options().max_sequences * width, "chosen rows for each sequence");
  for (int slot = machine.options().max_sequences - 1; slot >= 0; --slot) free_slots_.push_back(slot);
}

void Engine::check(const Request& request) const {
  const auto context = static_cast<size_t>(machine_.options().context);
  if (request.prompt.empty())
    throw Error({.where = "prompt", .expected = "at least one token", .found = "none", .next = {}});
  if (request.prompt.size() > context || (request.prompt.size() == context && request.max_tokens > 0)) {
    throw Error({.where = "prompt",
                 .expected = fmt::format("fewer than {} tokens, the context", context),
                 .found = fmt::format("{}", request.prompt.size()),
                 .next = "Shorten the prompt, or raise --context."});
  }
  for (const int32_t token : request.prompt) require_token(token, "prompt", vocabulary_);
  require(request.max_tokens >= 0, "max_tokens", "0 or more", request.max_tokens);
  check_sampling(request.sampling);
  check_logit_rules(request);
}

void Engine::check_logit_rules(const Request& request) const {
  const Penalties& p = request.penalties;
  require(std::isfinite(p.presence), "presence_penalty", "a number", p.presence);
  require(std::isfinite(p.frequency), "frequency_penalty", "a number", p.frequency);
  require(std::isfinite(p.repetition) && p.repetition > 0, "repetition_penalty", "a number above 0", p.repetition);
  for (const auto& [token, bias] : request.logit_bias) {
    require_token(token, "logit_bias", vocabulary_);
    require(std::isfinite(bias), "logit_bias", "numbers", bias);
  }
  for (const int32_t token : request.end_tokens) require_token(token, "end tokens", vocabulary_);
  const int top = request.logprobs.value_or(0);
  require(top >= 0 && top <= vocabulary_, "logprobs", "0 or more tokens, of those that there are", top);
  CHECK(!request.score_prompt || request.logprobs, "a prompt is scored without logprobs");
}

Engine::Id Engine::add(Request request) {
  check(request);
  const Id id = next_id_++;
  LogitRules rules(request, vocabulary_);
  Generation generation;
  generation.prompt = request.prompt;
  sequences_.emplace(id, Sequence{.request = std::move(request),
                                  .generation = std::move(generation),
                                  .rules = std::move(rules),
                                  .added = Clock::now()});
  waiting_.push_back(id);
  return id;
}

const Generation& Engine::generation(Id id) const {
  return sequences_.at(id).generation;
}

void Engine::forget(Id id) {
  cancel(id);
  sequences_.erase(id);
}

void Engine::fail(Id id, std::string error) {
  Sequence& sequence = sequences_.at(id);
  if (sequence.generation.finish != Finish::running) return;
  finish(sequence, Finish::failed);
  sequence.generation.error = std::move(error);
  cancel(id);
}

void Engine::cancel(Id id) {
  Sequence& sequence = sequences_.at(id);
  if (sequence.generation.finish == Finish::running) finish(sequence, Finish::cancelled);
  std::erase(waiting_, id);
  std::erase(running_, id);
  settle();
}

void Engine::finish(Sequence& sequence, Finish how) {
  sequence.generation.finish = how;
  if (sequence.replay > 0 && how != Finish::failed) {
    ended_.push_back({.sequence = sequence.slot, .first_position = static_cast<int32_t>(sequence.done), .replay = sequence.replay});
  }
  if (sequence.slot >= 0) free_slots_.push_back(sequence.slot);
  sequence.slot = -1;
  if (!sequence.generation.tokens.empty()) sequence.generation.decode_s = seconds(Clock::now() - sequence.first_token);
}

void Engine::admit() {
  while (!waiting_.empty() && !free_slots_.empty()) {
    Sequence& sequence = sequences_.at(waiting_.front());
    sequence.slot = free_slots_.back();
    sequence.start = Clock::now();
    sequence.generation.queue_s = seconds(sequence.start - sequence.added);
    free_slots_.pop_back();
    if (prefixes_ != nullptr && !sequence.request.score_prompt) {
      sequence.done = sequence.generation.cached = prefixes_->restore(sequence.request.prompt, sequence.slot);
    }
    running_.push_back(waiting_.front());
    waiting_.pop_front();
  }
}

void Engine::add_rows_of(Sequence& sequence, Id id, int64_t rows) {
  if (sequence.done < static_cast<int64_t>(sequence.request.prompt.size())) {
    add_prompt_rows(sequence, id, rows);
  } else {
    add_block(sequence, id, rows);
  }
}

// The next tokens of a prompt, up to where its states are to be kept. The last one's choice is the first of the text.
void Engine::add_prompt_rows(Sequence& sequence, Id id, int64_t rows) {
  const auto& prompt = sequence.request.prompt;
  const auto size = static_cast<int64_t>(prompt.size());
  const int64_t choices = machine_.options().max_chosen - static_cast<int64_t>(step_.chosen.size());
  int64_t end = std::min(size, sequence.done + rows);
  if (prefixes_ != nullptr) end = std::min(end, prefixes_->next_border(sequence.done));
  if (sequence.request.score_prompt) end = std::min(end, sequence.done + choices);
  if (choices == 0) end = std::min(end, size - 1);
  if (end == sequence.done) return;
  const std::vector<int32_t> tokens(prompt.begin() + sequence.done, prompt.begin() + end);
  const int32_t first = step_.add_run(sequence.slot, static_cast<int32_t>(sequence.done), tokens);
  const auto count = static_cast<int64_t>(tokens.size());
  sequence.done = end;
  if (sequence.request.score_prompt) {
    choose(sequence, id, first, count);
  } else if (end == size) {
    choose(sequence, id, first + static_cast<int32_t>(count) - 1, 1);
  }
}

// The newest token, and guesses of what follows it.
void Engine::add_block(Sequence& sequence, Id id, int64_t rows) {
  const Generation& g = sequence.generation;
  const int64_t budget = sequence.request.max_tokens - static_cast<int64_t>(g.tokens.size());
  const int64_t room = machine_.options().context - sequence.done;
  const int64_t most = std::min({int64_t{speculation_.width}, rows, budget, room}) - 1;
  sequence.guesses = guesses_for(sequence, most);
  std::vector<int32_t> tokens = {g.tokens.back()};
  tokens.insert(tokens.end(), sequence.guesses.begin(), sequence.guesses.end());
  const bool block = !sequence.guesses.empty();
  const int32_t first =
      step_.add_run(sequence.slot, static_cast<int32_t>(sequence.done), tokens, sequence.replay, block);
  if (!block) {
    ++sequence.done;
    sequence.replay = 0;
  }
  choose(sequence, id, first, static_cast<int64_t>(tokens.size()));
}

// Rows of the step's last run, whose logits are wanted, with those of the prompt's end or of a block last.
void Engine::choose(Sequence& sequence, Id id, int32_t first, int64_t rows) {
  chosen_.push_back({id, rows});
  const auto picked = static_cast<int64_t>(sequence.guesses.size()) + 1;  // rows whose choices may count
  sequence.rules.form(sequence.guesses);
  for (int64_t i = 0; i < rows; ++i) {
    const int64_t place = i - (rows - picked);
    const LogitChanges* changes = place >= 0 ? sequence.rules.of(static_cast<size_t>(place)) : nullptr;
    step_.choose(first + static_cast<int32_t>(i), sequence.request.sampling, changes);
  }
  if (sequence.done < static_cast<int64_t>(sequence.request.prompt.size())) return;
  Run& run = step_.runs.back();
  run.forced = speculation_.forced;
  // The next step must have room for a guess beside its own token.
  const int64_t after = sequence.request.max_tokens - static_cast<int64_t>(sequence.generation.tokens.size()) - 1;
  run.draft = speculation_.width > 1 && !speculation_.drafter && after > 1;
  if (run.draft && speculation_.automatic) {
    // Decided with the draft, so that what was paid for is used.
    sequence.width = chooser_.best(sequence.pace, others_of(sequence), times_);
    run.draft = sequence.width > 1;
  }
  if (!run.draft) return;
  drafting_.push_back(id);
  sequence.drafted_way = way_of_guessing(sequence);
  run.draft_argmax = sequence.drafted_way == 1;
}

// How what follows this step is guessed. Where nothing is drawn there is only one way.
int Engine::way_of_guessing(const Sequence& sequence) const {
  if (sequence.request.sampling.temperature == 0 || speculation_.guessing == Guessing::noise) return 0;
  return speculation_.guessing == Guessing::argmax ? 1 : sequence.ways.next();
}

// What the other sequences that decode add to a step.
WidthChooser::Others Engine::others_of(const Sequence& sequence) const {
  WidthChooser::Others others;
  for (const Id id : running_) {
    const Sequence& other = sequences_.at(id);
    if (&other == &sequence || other.generation.tokens.empty()) continue;
    const auto rows = static_cast<int64_t>(other.guesses.size()) + 1;
    others.rows += rows;
    others.tokens += other.pace.expected(rows);
  }
  return others;
}

// Up to `most` guesses of what follows, as many as are worth their rows.
std::vector<int32_t> Engine::guesses_for(Sequence& sequence, int64_t most) {
  if (most <= 0) return {};
  if (speculation_.drafter) return speculation_.drafter(sequence.generation, most);
  std::vector<int32_t> guesses = std::exchange(sequence.drafted, {});
  sequence.way = sequence.drafted_way;
  if (speculation_.automatic && !guesses.empty()) {
    most = std::min<int64_t>(most, sequence.width - 1);
  }
  if (static_cast<int64_t>(guesses.size()) > most) guesses.resize(static_cast<size_t>(most));
  return guesses;
}

// Running sequences first, so that a long prompt never stalls them; then prompts, in the order of arrival.
void Engine::add_rows() {
  step_.clear();
  chosen_.clear();
  drafting_.clear();
  for (const bool prefill : {false, true}) {
    for (const Id id : running_) {
      Sequence& sequence = sequences_.at(id);
      const auto left = rows_per_step_ - static_cast<int64_t>(step_.rows.size());
      const bool in_prompt = sequence.done < static_cast<int64_t>(sequence.request.prompt.size());
      if (left > 0 && in_prompt == prefill && (prefill || !sequence.generation.tokens.empty()))
        add_rows_of(sequence, id, left);
    }
    // A sequence that has come to its prompt's end above waits for the next step.
    if (!prefill && static_cast<int64_t>(step_.rows.size()) == rows_per_step_) break;
  }
}

bool Engine::step(std::vector<TaskSpan>* spans) {
  admit();
  if (running_.empty()) return false;
  add_rows();
  const auto start = Clock::now();
  machine_.run(step_, spans);
  ++steps_;
  account(seconds(Clock::now() - start));
  take_drafts();
  const auto output = machine_.read(machine_.program().output("tokens"));
  tokens_.assign(output.begin(), output.end());
  keep_prefixes();
  size_t first = 0;
  for (const auto& [id, rows] : chosen_) {
    Sequence& sequence = sequences_.at(id);
    const bool in_prompt = sequence.generation.tokens.empty();
    if (in_prompt && sequence.request.score_prompt) score_prompt(sequence, rows, first);
    first += static_cast<size_t>(rows);
    const bool picked = sequence.done >= static_cast<int64_t>(sequence.request.prompt.size());
    if (picked) take_block(sequence, first - (in_prompt ? 1 : static_cast<size_t>(rows)));
  }
  explain_failures();
  std::erase_if(running_, [&](Id id) { return sequences_.at(id).generation.finish != Finish::running; });
  settle();
  return true;
}

// Last, since to find out why a sequence has failed is to do its step again, which changes the outputs.
void Engine::explain_failures() {
  for (const Failure& failure : failures_) {
    failure.generation->error =
        fmt::format("step {}: the logits after position {} are not finite; the first values that are not come from {}",
                    steps_, failure.position, origin_of_failure(failure.slot));
  }
  failures_.clear();
}

// The states of sequences that have come to a border in their prompts.
void Engine::keep_prefixes() {
  if (prefixes_ == nullptr) return;
  for (const Id id : running_) {
    const Sequence& sequence = sequences_.at(id);
    if (sequence.generation.tokens.empty()) prefixes_->keep(sequence.request.prompt, sequence.done, sequence.slot);
  }
}

std::span<const float> Engine::logits_of(size_t chosen) const {
  const auto logits = machine_.read(machine_.program().output("logits"));
  const size_t width = logits.size() / step_.chosen.size();
  return logits.subspan(chosen * width, width);
}

// Of rows up to sequence.done, those that have a token of the prompt after them.
void Engine::score_prompt(Sequence& sequence, int64_t rows, size_t first_chosen) {
  const auto& prompt = sequence.request.prompt;
  for (int64_t i = 0; i < rows; ++i) {
    const auto next = static_cast<size_t>(sequence.done - rows + i + 1);
    if (next >= prompt.size()) break;
    sequence.generation.prompt_logprobs.push_back(
        logprobs_of(logits_of(first_chosen + static_cast<size_t>(i)), prompt[next], *sequence.request.logprobs));
  }
}

// What the step's draft guesses for the next one.
void Engine::take_drafts() {
  if (drafting_.empty()) return;
  const auto guesses = machine_.read(machine_.program().output("guesses"));
  const size_t count = guesses.size() / drafting_.size();
  for (size_t j = 0; j < drafting_.size(); ++j) {
    const auto* first = guesses.data() + j * count;
    sequences_.at(drafting_[j]).drafted.assign(first, first + count);
  }
}

// The time of a step counts for every sequence that decodes in it. Steps with a prompt's rows tell nothing of decoding.
void Engine::account(double seconds) {
  int64_t decoding = 0;
  bool prefill = false;
  for (const auto& [id, rows] : chosen_) decoding += sequences_.at(id).generation.tokens.empty() ? 0 : 1;
  prefill = decoding < static_cast<int64_t>(step_.runs.size());
  if (!prefill) times_.add(static_cast<int64_t>(step_.rows.size()), !drafting_.empty(), seconds);
  step_s_ = prefill ? 0 : seconds;
  plain_s_ = times_.at(decoding, false).value_or(seconds);
  for (const auto& [id, rows] : chosen_) {
    Generation& g = sequences_.at(id).generation;
    if (g.tokens.empty()) continue;
    g.steps.step_s += seconds;
    if (!drafting_.empty()) g.steps.draft_s += machine_.draft_seconds();
  }
}

// What a row chose, or what the rows of a block did.
void Engine::take_block(Sequence& sequence, size_t first_chosen) {
  const int32_t* choices = tokens_.data() + first_chosen;
  Generation& g = sequence.generation;
  const std::vector<int32_t> guesses = std::exchange(sequence.guesses, {});
  const auto count = static_cast<int64_t>(guesses.size());
  const int64_t right = speculation_.forced < 0 ? accepted(guesses, choices) : std::min<int64_t>(speculation_.forced, count);
  if (!g.tokens.empty()) {
    g.steps.guesses.push_back(static_cast<int32_t>(count));
    g.steps.accepted.push_back(static_cast<int32_t>(right));
    if (step_s_ > 0) sequence.pace.add(count, right, step_s_, plain_s_);
    if (count > 0) sequence.ways.add(sequence.way, right);
  }
  if (!guesses.empty()) sequence.replay = 0;  // of the block before: done in this step
  for (int64_t i = 0; i <= right && g.finish == Finish::running; ++i) {
    // The row that chose this token stays.
    if (!guesses.empty()) {
      ++sequence.done;
      ++sequence.replay;
    }
    // A guess that was taken for right is what the text goes on with.
    take_token(sequence, i < right ? guesses[static_cast<size_t>(i)] : choices[i], first_chosen + static_cast<size_t>(i));
  }
}

// The slots of ended sequences may be given away before the next step.
void Engine::settle() {
  if (speculation_.settle && !ended_.empty()) {
    step_.clear();
    step_.runs = ended_;
    machine_.run(step_);
  }
  ended_.clear();
}

// The op that gave the first value that is not finite in the last step's rows of a sequence. Only this sequence's rows
// are done again, since doing so changes states.
std::string Engine::origin_of_failure(int slot) {
  StepArgs again;
  for (const Run& run : step_.runs) {
    if (run.sequence != slot) continue;
    std::vector<int32_t> tokens;
    for (int32_t row = run.first_row; row < run.first_row + run.rows; ++row) {
      tokens.push_back(step_.rows[static_cast<size_t>(row)].token);
    }
    again.add_run(slot, run.first_position, tokens);
    again.choose(run.rows - 1, {});
  }
  const std::string label = machine_.find_non_finite(again);
  return label.empty() ? "a step before" : label;
}

void Engine::take_token(Sequence& sequence, int32_t token, size_t chosen) {
  Generation& g = sequence.generation;
  const auto now = Clock::now();
  if (g.tokens.empty()) {
    sequence.first_token = now;
    g.prefill_s = seconds(now - sequence.start);
  }
  if (sequence.request.max_tokens == 0) return finish(sequence, Finish::length);
  if (token < 0) {
    failures_.push_back({&g, sequence.slot, sequence.done - 1});
    return finish(sequence, Finish::failed);
  }
  g.tokens.push_back(token);
  sequence.rules.take(token);
  if (sequence.request.logprobs) g.logprobs.push_back(logprobs_of(logits_of(chosen), token, *sequence.request.logprobs));
  const auto& ends = sequence.request.end_tokens;
  if (std::find(ends.begin(), ends.end(), token) != ends.end()) return finish(sequence, Finish::end_token);
  const bool full = static_cast<int64_t>(g.prompt.size() + g.tokens.size()) >= machine_.options().context;
  if (static_cast<int64_t>(g.tokens.size()) >= sequence.request.max_tokens || full) finish(sequence, Finish::length);
}

void Engine::run() {
  while (step()) {
  }
}

}  // namespace megalith
