#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "program/step_args.h"
#include "text/constraint.h"

namespace megalith {

// What tokens that a text already has do to their logits. The defaults do nothing.
struct Penalties {
  float presence = 0;    // taken from the logit of a token that was generated
  float frequency = 0;   // the same, for each time that it was
  float repetition = 1;  // divides a positive logit, and multiplies a negative one, of a token of the prompt or generated
  bool any() const { return presence != 0 || frequency != 0 || repetition != 1; }
};

struct Request;

// What a request changes in the logits that its tokens are picked from, as its text grows.
class LogitRules {
 public:
  LogitRules(const Request& request, int64_t vocabulary);

  // False: nothing, ever.
  bool any() const { return any_; }
  // Forms the changes of the rows that pick what follows the text so far and what follows each of the guesses.
  void form(std::span<const int32_t> guesses);
  // Of row i of those; null: none. A row after a guess that is not allowed has none: its choice cannot count. Valid until the
  // next form().
  const LogitChanges* of(size_t i) const { return any_ && i < rows_.size() ? &rows_[i] : nullptr; }
  // The token that the text goes on with.
  void take(int32_t token);

 private:
  struct Use {
    bool prompt = false;
    int32_t generated = 0;
    float bias = 0;
  };
  void count(int32_t token, int32_t generated);
  size_t place(int32_t token);
  LogitChanges::Change change(int32_t token, const Use& use) const;

  const Penalties penalties_;
  const std::vector<int32_t> end_tokens_;
  const int64_t min_tokens_;
  bool any_ = false;
  int64_t taken_ = 0;
  std::unique_ptr<Constraint> constraint_;
  // Tokens whose logits change, or may: uses_[i] and changes_[i] are of one token, place_ says which. Empty without penalties
  // and biases.
  std::vector<int32_t> place_;  // of each id of the vocabulary: its index, or -1
  std::vector<Use> uses_;
  std::vector<LogitChanges::Change> changes_;
  std::vector<LogitChanges> rows_;
  std::vector<std::shared_ptr<const TokenSet>> sets_;  // that rows_ point into
};

}  // namespace megalith
