#include "reference/sample.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "program/noise.h"
#include "reference/ops.h"

namespace megalith::reference {

namespace {

// log p but for a constant. Formed in f32, as the contract has it: two logits that f32 cannot tell apart are a tie.
float score(float logit, float largest, float temperature) {
  return (logit - largest) / temperature;
}

}  // namespace

std::vector<int32_t> kept_tokens(const float* logits, int64_t vocabulary, const Sampling& how) {
  const float largest = *std::max_element(logits, logits + vocabulary);
  const auto score_of = [&](int32_t token) { return score(logits[token], largest, how.temperature); };
  std::vector<int32_t> tokens(static_cast<size_t>(vocabulary));
  std::iota(tokens.begin(), tokens.end(), 0);
  std::stable_sort(tokens.begin(), tokens.end(), [&](int32_t a, int32_t b) { return score_of(a) > score_of(b); });

  if (how.top_k > 0 && how.top_k < vocabulary) tokens.resize(static_cast<size_t>(how.top_k));
  if (how.top_p < 1) {
    double total = 0;
    for (const int32_t token : tokens) total += std::exp(double{score_of(token)});
    // A token stays while those before it have less than top_p of the weight; the first always stays.
    double gone = 0;
    size_t kept = 0;
    while (kept < tokens.size() && (kept == 0 || gone < double{how.top_p} * total)) {
      gone += std::exp(double{score_of(tokens[kept++])});
    }
    tokens.resize(kept);
  }
  if (how.min_p > 0) {
    std::erase_if(tokens, [&](int32_t token) { return double{score_of(token)} < std::log(double{how.min_p}); });
  }
  return tokens;
}

int32_t sample_token(const float* logits, int64_t vocabulary, const Sampling& how, int32_t position) {
  const bool broken = std::any_of(logits, logits + vocabulary, [](float x) { return !(x < HUGE_VALF); });
  if (broken) return -1;
  const float* largest = std::max_element(logits, logits + vocabulary);  // the first of equals
  if (*largest == -HUGE_VALF) return -1;
  if (how.temperature == 0 || how.top_k == 1) return static_cast<int32_t>(largest - logits);

  int32_t best = -1;
  double best_score = -HUGE_VAL;
  for (const int32_t token : kept_tokens(logits, vocabulary, how)) {
    const double noise = -std::log(-std::log(double{uniform(how.seed, position, token)}));
    const double noisy = score(logits[token], *largest, how.temperature) + noise;
    if (noisy > best_score || (noisy == best_score && token < best)) {
      best = token;
      best_score = noisy;
    }
  }
  return best;
}

void sample(const Call& c) {
  for (int64_t i = 0; i < c.rows; ++i) {
    const auto row = static_cast<size_t>(c.step.chosen[static_cast<size_t>(i)]);
    c.out[i] = static_cast<float>(sample_token(c.in[0] + i * c.in_width[0], c.in_width[0],
                                               c.step.sampling[static_cast<size_t>(i)], c.step.rows[row].position + 1));
  }
}

}  // namespace megalith::reference
