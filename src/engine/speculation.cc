#include "engine/speculation.h"

namespace megalith {

int64_t accepted(const std::vector<int32_t>& guesses, const int32_t* choices) {
  size_t count = 0;
  while (count < guesses.size() && guesses[count] == choices[count]) ++count;
  return static_cast<int64_t>(count);
}

}  // namespace megalith
