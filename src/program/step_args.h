#pragma once

#include <cstdint>
#include <vector>

namespace megalith {

// A token in a step. `sequence` is the slot that holds the sequence's states.
struct Row {
  int32_t sequence = 0;
  int32_t position = 0;
  int32_t token = 0;
};

// Consecutive rows of one sequence, at consecutive positions.
//
// The rows of a speculative run may be refused, so what they would do to the states of the sequence's recurrences is kept
// aside. The next run of the sequence first makes `replay` of them permanent, from the first on: those before its own
// first position. (Entries of per-position states are written at once; refused ones are written over.) A run that begins,
// replay included, at position 0 starts from zero states. A run may have no rows of its own.
struct Run {
  int32_t sequence = 0;
  int32_t first_row = 0;
  int32_t rows = 0;
  int32_t first_position = 0;
  int32_t replay = 0;
  bool speculative = false;  // at most Program::block rows
  // What follows shall be guessed; its last row, and all rows where it is speculative, must be chosen.
  bool draft = false;
  bool draft_argmax = false;  // by the likeliest tokens, also where the request draws
  // Not negative: take as many of a speculative run's guesses for right, whatever was chosen. For measurements.
  int32_t forced = -1;

  bool from_zero() const { return first_position == replay; }
};

// How the token after a chosen row is picked. temperature 0 is argmax. top_k 0, top_p 1 and min_p 0 are off. The noise
// depends on (seed, position of the new token, token id) only.
struct Sampling {
  float temperature = 0;
  int32_t top_k = 0;
  float top_p = 1;
  float min_p = 0;
  uint64_t seed = 0;
};

// What is changed in the logits of a row before a token is picked: first those of single tokens, in order, then those that
// are not allowed become -inf.
struct LogitChanges {
  // x becomes x / divisor where it is positive, else x · divisor; then `add` is added.
  struct Change {
    int32_t token = 0;
    float divisor = 1;
    float add = 0;
  };
  std::vector<Change> tokens;
  const uint64_t* allowed = nullptr;  // bit id mod 64 of word ⌊id / 64⌋; null: all

  void apply(float* logits, int64_t vocabulary) const;
};

// All that changes from step to step.
struct StepArgs {
  std::vector<Row> rows;
  std::vector<Run> runs;          // covers rows, in order; a sequence has at most one
  std::vector<int32_t> chosen;    // rows whose logits are wanted, ascending
  std::vector<Sampling> sampling;  // one for each chosen row
  std::vector<const LogitChanges*> changes;  // one for each chosen row; null: none. Not of a draft's rows.

  // Appends a run of tokens of a sequence; returns the index of its first row.
  int32_t add_run(int32_t sequence, int32_t first_position, const std::vector<int32_t>& tokens, int32_t replay = 0,
                  bool speculative = false);
  void choose(int32_t row, const Sampling& how, const LogitChanges* change = nullptr);
  void clear();
};

}  // namespace megalith
