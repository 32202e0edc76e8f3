#pragma once

#include <cstdint>
#include <vector>

#include "program/step_args.h"

namespace megalith::reference {

// The tokens that temperature, top_k, top_p and min_p leave, most probable first; ties go to the lower id. Needs finite
// logits (or -inf, but not everywhere) and a temperature above 0.
std::vector<int32_t> kept_tokens(const float* logits, int64_t vocabulary, const Sampling& how);

// The token at `position`, which is that of the new token: argmax, or argmax over the kept set of log p + noise. -1
// where a logit is NaN or +inf, or all are -inf.
int32_t sample_token(const float* logits, int64_t vocabulary, const Sampling& how, int32_t position);

}  // namespace megalith::reference
