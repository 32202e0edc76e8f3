#include "engine/logprobs.h"

#include <algorithm>
#include <cmath>

namespace megalith {

namespace {

std::vector<TokenLogprob> largest(std::span<const float> logits, int count) {
  std::vector<TokenLogprob> top;
  if (count <= 0) return top;
  for (size_t id = 0; id < logits.size(); ++id) {
    const bool full = top.size() == static_cast<size_t>(count);
    if (full && !(logits[id] > top.back().logprob)) continue;
    if (full) top.pop_back();
    const auto place = std::upper_bound(top.begin(), top.end(), logits[id],
                                        [](float x, const TokenLogprob& t) { return x > t.logprob; });
    top.insert(place, {static_cast<int32_t>(id), logits[id]});
  }
  return top;
}

}  // namespace

Logprobs logprobs_of(std::span<const float> logits, int32_t token, int top) {
  const float most = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float x : logits) sum += std::exp(double{x} - most);
  const double log_sum = double{most} + std::log(sum);
  const auto logprob = [&](float x) { return static_cast<float>(x - log_sum); };
  Logprobs result = {logprob(logits[static_cast<size_t>(token)]), largest(logits, top)};
  for (TokenLogprob& one : result.top) one.logprob = logprob(one.logprob);
  return result;
}

}  // namespace megalith
