#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace megalith {

struct TokenLogprob {
  int32_t token = 0;
  float logprob = 0;
};

// Of one place in a text: natural logarithms of the softmax of the model's logits, before anything changes them.
struct Logprobs {
  float logprob = 0;              // of the token that is there
  std::vector<TokenLogprob> top;  // the likeliest, in order; ties to the lower id
};

// Of `token` and of the `top` likeliest tokens. A token has the same bits in both places.
Logprobs logprobs_of(std::span<const float> logits, int32_t token, int top);

}  // namespace megalith
