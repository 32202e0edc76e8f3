#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "engine/logit_rules.h"
#include "engine/logprobs.h"
#include "engine/prefix_cache.h"
#include "engine/speculation.h"
#include "engine/width.h"
#include "machines/machine.h"
#include "text/constraint.h"

namespace megalith {

// One text to be continued.
struct Request {
  std::vector<int32_t> prompt;  // at least one token
  int64_t max_tokens = 512;     // that may be generated
  Sampling sampling;
  std::vector<int32_t> end_tokens;  // generation ends after one of these; empty: only at the budget
  int64_t min_tokens = 0;           // no end token is picked before so many others
  Penalties penalties;
  std::vector<std::pair<int32_t, float>> logit_bias;  // added to the logits of tokens
  std::shared_ptr<const Constraint> constraint;       // that the generated text obeys; null: none. It is copied.
  // The log-probabilities of generated tokens are wanted, and of so many of the likeliest at their places.
  std::optional<int> logprobs;
  // The same of the prompt's tokens; needs `logprobs`. No state of an earlier text is reused then.
  bool score_prompt = false;
};

// Why a generation ended. `failed`: the logits were not finite, or fail() said so; Generation::error says why.
enum class Finish { running, end_token, length, cancelled, failed };

// "stop", "length", "cancelled", "error"; "running" before the end.
const char* finish_name(Finish finish);

struct Generation {
  std::vector<int32_t> prompt;
  std::vector<int32_t> tokens;  // generated, the end token included
  Finish finish = Finish::running;
  std::string error;
  std::vector<Logprobs> logprobs;         // of `tokens`, where asked for
  std::vector<Logprobs> prompt_logprobs;  // of the prompt's tokens from the second on, where asked for
  int64_t cached = 0;    // tokens of the prompt whose states were kept from an earlier text
  double queue_s = 0;    // from add() to the first step
  double prefill_s = 0;  // from the first step until the first token
  double decode_s = 0;   // from then to the last token
  SpeculationReport steps;  // after the first token
};

// Decodes several sequences at once. Each step takes the next token of every running sequence (with a block of guesses
// where it speculates) and, in the order of arrival, as many prompt tokens of new ones as there are rows left. Requests
// beyond the machine's slots wait. Not for use from several threads at once.
//
// Verification is equality: at every row of a block the target makes its own choice, and the longest prefix of guesses
// that equals those choices stays; the choice after it comes free. So the text is that of plain decoding, greedy or drawn.
class Engine {
 public:
  using Id = int64_t;

  // `rows_per_step`: at most the machine's max_rows. `prefixes`, of the same machine, may be shared with later engines.
  Engine(Machine& machine, int64_t vocabulary, int rows_per_step, Speculation speculation = {},
         PrefixCache* prefixes = nullptr);

  // Throws Error for an empty or too long prompt, ids outside the vocabulary, or values out of range.
  Id add(Request request);
  // Throws what add() would.
  void check(const Request& request) const;
  // Runs one step; returns false when there was nothing to do. With `spans`, says when each task was done.
  bool step(std::vector<TaskSpan>* spans = nullptr);
  // Ends a generation after the current step; its slot is free at once.
  void cancel(Id id);
  // The same, as one that failed.
  void fail(Id id, std::string error);
  // What a request has come to. Valid until forget().
  const Generation& generation(Id id) const;
  void forget(Id id);

  // Requests with a slot, and those that wait for one.
  int64_t running() const { return static_cast<int64_t>(running_.size()); }
  int64_t waiting() const { return static_cast<int64_t>(waiting_.size()); }

  // Steps until all requests have ended.
  void run();

 private:
  using Clock = std::chrono::steady_clock;
  struct Sequence {
    Request request;
    Generation generation;
    LogitRules rules;
    int slot = -1;     // of the machine's states; -1 while waiting
    int64_t done = 0;    // tokens whose rows the machine has done, and that stay
    int32_t replay = 0;  // of these, the last ones that wait to become permanent (Run)
    std::vector<int32_t> guesses;  // of the block in this step
    std::vector<int32_t> drafted;  // by the program, in the step before
    int width = 1;                 // of the block that they are for, where it is automatic
    // How these and those were guessed: 0 with noise, 1 the likeliest.
    int way = 0, drafted_way = 0;
    WayChooser ways;
    Pace pace;
    Clock::time_point added, start, first_token;
  };
  // Rows of a step whose logits are wanted: of one sequence, side by side.
  struct Chosen {
    Id id;
    int64_t rows = 1;  // one, a block, or rows of a prompt that is scored
  };

  // A text whose logits were not finite.
  struct Failure {
    Generation* generation;
    int slot;
    int64_t position;
  };

  void check_logit_rules(const Request& request) const;
  void admit();
  void add_rows();
  void add_rows_of(Sequence& sequence, Id id, int64_t rows);
  void add_prompt_rows(Sequence& sequence, Id id, int64_t rows);
  void add_block(Sequence& sequence, Id id, int64_t rows);
  void choose(Sequence& sequence, Id id, int32_t first, int64_t rows);
  WidthChooser::Others others_of(const Sequence& sequence) const;
  std::vector<int32_t> guesses_for(Sequence& sequence, int64_t most);
  void score_prompt(Sequence& sequence, int64_t rows, size_t first_chosen);
  void take_block(Sequence& sequence, size_t first_chosen);
  std::span<const float> logits_of(size_t chosen) const;
  void take_drafts();
  void keep_prefixes();
  int way_of_guessing(const Sequence& sequence) const;
  void account(double seconds);
  void take_token(Sequence& sequence, int32_t token, size_t chosen);
  void settle();
  void explain_failures();
  std::string origin_of_failure(int slot);
  void finish(Sequence& sequence, Finish how);

  Machine& machine_;
  const int64_t vocabulary_;
  const int rows_per_step_;
  Id next_id_ = 1;
  std::map<Id, Sequence> sequences_;
  std::deque<Id> waiting_;
  std::vector<Id> running_;  // in the order of arrival
  std::vector<int> free_slots_;
  const Speculation speculation_;
  PrefixCache* const prefixes_;  // null: none are kept
  StepArgs step_;
  std::vector<Chosen> chosen_;   // in order
  std::vector<Id> drafting_;     // for whom the step guesses what follows
  const WidthChooser chooser_;
  StepTimes times_;
  double step_s_ = 0, plain_s_ = 0;  // of the last step, and of one without guesses; 0 where it had rows of prompts
  std::vector<int32_t> tokens_;  // of each chosen row
  std::vector<Failure> failures_;  // of the last step
  std::vector<Run> ended_;       // runs that would make the states of ended sequences permanent
  int64_t steps_ = 0;
};

}  // namespace megalith
