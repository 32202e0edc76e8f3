#include "engine/logit_rules.h"

#include <cmath>

#include "engine/engine.h"

namespace megalith {

LogitRules::LogitRules(const Request& request, int64_t vocabulary)
    : penalties_(request.penalties),
      end_tokens_(request.end_tokens),
      min_tokens_(request.min_tokens),
      constraint_(request.constraint ? request.constraint->clone() : nullptr) {
  const bool counts = penalties_.any() || !request.logit_bias.empty();
  any_ = counts || constraint_ || (min_tokens_ > 0 && !end_tokens_.empty());
  if (!counts) return;
  place_.assign(static_cast<size_t>(vocabulary), -1);
  for (const auto& [token, bias] : request.logit_bias) uses_[place(token)].bias += bias;
  for (const int32_t token : request.prompt) {
    if (penalties_.repetition != 1) uses_[place(token)].prompt = true;
  }
  for (size_t i = 0; i < uses_.size(); ++i) changes_[i] = change(changes_[i].token, uses_[i]);
}

size_t LogitRules::place(int32_t token) {
  int32_t& place = place_[static_cast<size_t>(token)];
  if (place < 0) {
    place = static_cast<int32_t>(uses_.size());
    uses_.emplace_back();
    changes_.push_back({.token = token});
  }
  return static_cast<size_t>(place);
}

LogitChanges::Change LogitRules::change(int32_t token, const Use& use) const {
  const bool seen = use.prompt || use.generated > 0;
  const float penalty = (use.generated > 0 ? penalties_.presence : 0) +
                        penalties_.frequency * static_cast<float>(use.generated);
  return {token, seen ? penalties_.repetition : 1, use.bias - penalty};
}

// The token is generated so many times more.
void LogitRules::count(int32_t token, int32_t generated) {
  if (place_.empty() || !penalties_.any()) return;
  const size_t i = place(token);
  uses_[i].generated += generated;
  changes_[i] = change(token, uses_[i]);
}

void LogitRules::form(std::span<const int32_t> guesses) {
  if (!any_) return;
  rows_.clear();
  sets_.clear();
  const std::unique_ptr<Constraint> ahead = constraint_ && !guesses.empty() ? constraint_->clone() : nullptr;
  Constraint* constraint = ahead ? ahead.get() : constraint_.get();
  size_t counted = 0;
  for (size_t i = 0; i <= guesses.size(); ++i) {
    LogitChanges& row = rows_.emplace_back();
    row.tokens = changes_;
    if (taken_ + static_cast<int64_t>(i) < min_tokens_) {
      for (const int32_t token : end_tokens_) row.tokens.push_back({.token = token, .add = -HUGE_VALF});
    }
    if (constraint != nullptr) {
      sets_.push_back(constraint->allowed());
      if (sets_.back()) row.allowed = sets_.back()->words();
    }
    if (i == guesses.size() || (constraint != nullptr && !constraint->take(guesses[i]))) break;
    count(guesses[i], 1);
    ++counted;
  }
  for (const int32_t guess : guesses.first(counted)) count(guess, -1);
}

void LogitRules::take(int32_t token) {
  ++taken_;
  count(token, 1);
  if (constraint_) constraint_->take(token);
}

}  // namespace megalith
