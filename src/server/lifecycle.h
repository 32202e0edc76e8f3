#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <string>

#include "server/api_error.h"

namespace megalith {

// Where a server is between its start and its end. May be used from any thread.
class Lifecycle {
 public:
  enum class State { loading, ready, draining };

  // Bytes of weights that have been read, and of how many.
  void progress(uint64_t done, uint64_t total);
  // `failure` says why the engine can do no more steps, nothing while it can.
  void ready(std::function<std::optional<std::string>()> failure);
  void drain() { state_ = State::draining; }

  State state() const { return state_; }
  // Why requests are not served, as a 503; nothing where they are.
  std::optional<ApiError> refusal() const;

 private:
  std::atomic<State> state_ = State::loading;
  std::atomic<uint64_t> done_ = 0, total_ = 0;
  mutable std::mutex mutex_;
  std::function<std::optional<std::string>()> failure_;  // guarded by the mutex
};

}  // namespace megalith
