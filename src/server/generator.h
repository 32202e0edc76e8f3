#pragma once

// Texts to be continued, from any thread, and what becomes of them.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "engine/engine.h"

namespace megalith {

// Who is told about one text. Called on the engine's thread, never by two threads at once; what it throws ends the text.
class Listener {
 public:
  virtual ~Listener() = default;
  // generation.tokens from `first` on are new. Where finish is end_token, the last of them is that token; else the text
  // may still be running. False: the text shall end here (it has come to a stop string); on_end follows.
  virtual bool on_tokens(const Generation& generation, size_t first) = 0;
  // The end, once: by on_tokens' wish or cancel() (Finish::cancelled), by the engine, or by a failure (Finish::failed, with
  // an error). The listener is let go after it.
  virtual void on_end(const Generation& generation) = 0;
};

struct Job {
  Request request;
  std::shared_ptr<Listener> listener;
  std::string request_id = {};      // of the HTTP request that it belongs to
  const char* kind = "completion";  // or "chat"
};

// The engine as handlers of requests see it.
class Generator {
 public:
  using Ticket = int64_t;

  virtual ~Generator() = default;
  // Queues texts, in order, all or none; does not wait. Throws ApiError: 429 where the queue is full, 503 where the server
  // is stopping or the engine has died; and Error where a request is wrong.
  virtual std::vector<Ticket> submit(std::vector<Job> jobs) = 0;
  // Ends a text after the current step. No matter if it has already ended.
  virtual void cancel(Ticket ticket) = 0;
  // The same for all texts of a request; with an empty id, for all texts. How many there are.
  virtual int64_t abort(const std::string& request_id) = 0;
};

}  // namespace megalith
