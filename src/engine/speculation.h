#pragma once

#include <cstdint>
#include <functional>
#include <vector>

namespace megalith {

struct Generation;

// Guesses what comes next in a text that has at least one generated token: up to `most` tokens, which are verified all
// at once. Guesses cost time when they are wrong, and never change the text.
using Drafter = std::function<std::vector<int32_t>(const Generation& text, int64_t most)>;

// How a draft guesses where a request draws its tokens: with the same noise, which is right more often the more its
// distribution is the target's; or the likeliest tokens, which is right more often where the target is sure of its own.
// Automatic: as has been right more often in the text so far.
enum class Guessing : uint8_t { noise, argmax, automatic };

// How an engine speculates.
struct Speculation {
  int width = 1;  // rows of a block: the newest token, and width - 1 guesses; 1 is plain decoding
  bool automatic = false;  // take fewer rows, or none, where tokens come faster so; for the program's own draft
  Drafter drafter;         // empty: the draft of the machine's program guesses
  Guessing guessing = Guessing::automatic;
  // Not negative: so many guesses are taken for right, whatever was chosen. For measurements: the text is not the model's.
  int forced = -1;
  // Makes the states of a sequence permanent when it ends, so that they are those of plain decoding.
  bool settle = false;
};

// What the steps of a sequence came to, after its first token. A step verifies some guesses, or none, and keeps those that
// are right.
struct SpeculationReport {
  std::vector<int32_t> guesses, accepted;  // of each step
  double step_s = 0;   // of all steps
  double draft_s = 0;  // of that, the drafts in them

  int64_t tried() const;  // guesses in all
  int64_t kept() const;   // those of them that were right
  // Of steps with a guess at position 0, 1, …: the share in which it was kept.
  std::vector<double> acceptance_by_position() const;
  double tokens_per_step() const;  // one, and the guesses that were kept
};

// How many of the guesses are what the target chose at their places: row i chooses what guess i should have been.
int64_t accepted(const std::vector<int32_t>& guesses, const int32_t* choices);

}  // namespace megalith
