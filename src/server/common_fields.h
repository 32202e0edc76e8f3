#pragma once

#include <array>

#include "server/generation_request.h"
#include "server/request_fields.h"

namespace megalith {

// How the two routes differ in what they have in common.
struct CommonRules {
  std::array<const char*, 2> budgets;  // fields of the budget; the first that is there counts
  // The answer has a form (a JSON schema, a call that must come) that its constraint leads to the end of: end tokens end
  // it, and none is put off.
  bool formed = false;
};

CommonFields read_common_fields(const RequestFields& fields, const Service& service, const CommonRules& rules);

inline constexpr int64_t kMostChoicesOfPrompt = 16;
inline constexpr int64_t kMostLogprobs = 20;

}  // namespace megalith
