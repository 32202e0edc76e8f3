#pragma once

#include <cstdint>
#include <vector>

#include "program/step_args.h"

namespace megalith::reference {

// A token that may be picked.
struct Choice {
  int32_t token;
  float logit;
};

// The choices that temperature, top_k, top_p and min_p leave, most probable first; ties go to the lower id. Needs
// finite logits (or -inf, but not everywhere) and a temperature above 0.
std::vector<Choice> kept_choices(std::vector<Choice> choices, const Sampling& how);
// The same of a whole vocabulary: tokens.
std::vector<int32_t> kept_tokens(const float* logits, int64_t vocabulary, const Sampling& how);

// The token at `position`, which is that of the new token: argmax, or argmax over the kept set of log p + noise.
int32_t pick_token(const std::vector<Choice>& choices, const Sampling& how, int32_t position);
// The same of a whole vocabulary: -1 where a logit is NaN or +inf, or all are -inf.
int32_t sample_token(const float* logits, int64_t vocabulary, const Sampling& how, int32_t position);

}  // namespace megalith::reference
