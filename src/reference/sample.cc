#include "reference/sample.h"

#include <algorithm>
#include <cmath>

#include "program/noise.h"
#include "reference/ops.h"

namespace megalith::reference {

namespace {

// log p but for a constant. Formed in f32, as the contract has it: two logits that f32 cannot tell apart are a tie.
float score(float logit, float largest, float temperature) {
  return (logit - largest) / temperature;
}

// The order of a greater number and, of equals, the lower id.
bool before(float a, int32_t a_token, float b, int32_t b_token) {
  return a > b || (a == b && a_token < b_token);
}

// The choice of the largest logit.
const Choice& largest_of(const std::vector<Choice>& choices) {
  return *std::min_element(choices.begin(), choices.end(),
                           [](const Choice& a, const Choice& b) { return before(a.logit, a.token, b.logit, b.token); });
}

std::vector<Choice> choices_of(const float* logits, int64_t vocabulary) {
  std::vector<Choice> choices;
  for (int64_t i = 0; i < vocabulary; ++i) choices.push_back({static_cast<int32_t>(i), logits[i]});
  return choices;
}

}  // namespace

std::vector<Choice> kept_choices(std::vector<Choice> choices, const Sampling& how) {
  const float largest = largest_of(choices).logit;
  const auto score_of = [&](const Choice& c) { return score(c.logit, largest, how.temperature); };
  std::sort(choices.begin(), choices.end(),
            [&](const Choice& a, const Choice& b) { return before(score_of(a), a.token, score_of(b), b.token); });

  if (how.top_k > 0 && static_cast<size_t>(how.top_k) < choices.size()) choices.resize(static_cast<size_t>(how.top_k));
  if (how.top_p < 1) {
    double total = 0;
    for (const Choice& c : choices) total += std::exp(double{score_of(c)});
    // A token stays while those before it have less than top_p of the weight; the first always stays.
    double gone = 0;
    size_t kept = 0;
    while (kept < choices.size() && (kept == 0 || gone < double{how.top_p} * total)) {
      gone += std::exp(double{score_of(choices[kept++])});
    }
    choices.resize(kept);
  }
  if (how.min_p > 0) {
    std::erase_if(choices, [&](const Choice& c) { return double{score_of(c)} < std::log(double{how.min_p}); });
  }
  return choices;
}

std::vector<int32_t> kept_tokens(const float* logits, int64_t vocabulary, const Sampling& how) {
  std::vector<int32_t> tokens;
  for (const Choice& c : kept_choices(choices_of(logits, vocabulary), how)) tokens.push_back(c.token);
  return tokens;
}

int32_t pick_token(const std::vector<Choice>& choices, const Sampling& how, int32_t position) {
  const Choice& largest = largest_of(choices);
  if (how.temperature == 0 || how.top_k == 1) return largest.token;
  int32_t best = -1;
  double best_score = -HUGE_VAL;
  for (const Choice& c : kept_choices(choices, how)) {
    const double noise = -std::log(-std::log(double{uniform(how.seed, position, c.token)}));
    const double noisy = score(c.logit, largest.logit, how.temperature) + noise;
    if (noisy > best_score || (noisy == best_score && c.token < best)) {
      best = c.token;
      best_score = noisy;
    }
  }
  return best;
}

int32_t sample_token(const float* logits, int64_t vocabulary, const Sampling& how, int32_t position) {
  const bool broken = std::any_of(logits, logits + vocabulary, [](float x) { return !(x < HUGE_VALF); });
  if (broken || *std::max_element(logits, logits + vocabulary) == -HUGE_VALF) return -1;
  return pick_token(choices_of(logits, vocabulary), how, position);
}

void sample(const Call& c) {
  for (int64_t i = 0; i < c.rows; ++i) {
    const auto index = static_cast<size_t>(i);
    const float* row = c.in[0] + i * c.in_width[0];
    std::vector<float> logits(row, row + c.in_width[0]);
    if (c.step.changes[index] != nullptr) c.step.changes[index]->apply(logits.data(), c.in_width[0]);
    const int32_t position = c.step.rows[static_cast<size_t>(c.step.chosen[index])].position + 1;
    c.out[i] = static_cast<float>(sample_token(logits.data(), c.in_width[0], c.step.sampling[index], position));
  }
}

}  // namespace megalith::reference
