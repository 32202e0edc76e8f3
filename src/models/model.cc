#include "models/model.h"

#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/error.h"

namespace megalith {

std::vector<int> Model::allowed_ranks() const {
  std::vector<int> ranks;
  for (int r = 1; r <= segments(); r *= 2) ranks.push_back(r);
  return ranks;
}

void Model::require_ranks(int ranks, const std::string& file) const {
  const std::vector<int> allowed = allowed_ranks();
  if (std::find(allowed.begin(), allowed.end(), ranks) != allowed.end()) return;
  throw Error({.where = "--ranks",
               .expected = fmt::format("one of {} for {}", fmt::join(allowed, ", "), file),
               .found = std::to_string(ranks),
               .next = "Heads, channels and experts are dealt to ranks whole."});
}

void Model::finish(Builder& b, const BuildOptions& options, const DraftInputs& made, Value logits) {
  for (size_t i = 0; i < made.streams.size() && options.hidden; ++i) b.output(fmt::format("hidden.{}", i), made.streams[i]);
  b.output("logits", logits);
  b.output("tokens", made.tokens);
  if (!options.draft) return;
  b.begin_draft();
  options.draft(b, made);
}

}  // namespace megalith
