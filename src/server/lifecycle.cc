#include "server/lifecycle.h"

#include <fmt/format.h>

#include "base/progress.h"

namespace megalith {

void Lifecycle::progress(uint64_t done, uint64_t total) {
  total_ = total;
  done_ = done;
}

void Lifecycle::ready(std::function<std::optional<std::string>()> failure) {
  const std::lock_guard lock(mutex_);
  failure_ = std::move(failure);
  State loading = State::loading;
  state_.compare_exchange_strong(loading, State::ready);
}

std::optional<ApiError> Lifecycle::refusal() const {
  ApiError refusal = ApiError::unavailable("The server is stopping.");
  refusal.more["code"] = 503;
  if (state_ == State::loading) {
    const uint64_t done = done_, total = total_;
    refusal.message = total == 0 ? "The model is being loaded."
                                 : fmt::format("The model is being loaded: {}% of the weights ({} of {}).",
                                               100 * done / total, human_bytes(done), human_bytes(total));
    refusal.more["progress"] = total == 0 ? 0 : static_cast<double>(done) / static_cast<double>(total);
    refusal.headers.emplace_back("Retry-After", "1");
    return refusal;
  }
  if (state_ == State::draining) return refusal;
  const std::lock_guard lock(mutex_);
  const auto failure = failure_ ? failure_() : std::nullopt;
  if (!failure) return std::nullopt;
  refusal.message = "The engine has stopped working: " + *failure;
  return refusal;
}

}  // namespace megalith
