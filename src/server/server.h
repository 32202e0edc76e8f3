#pragma once

#include <chrono>
#include <condition_variable>
#include <exception>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "base/phases.h"
#include "engine/engine.h"
#include "engine/loaded_model.h"
#include "server/decoder.h"
#include "server/lifecycle.h"
#include "server/router.h"
#include "server/service.h"

namespace megalith {

struct ServeOptions {
  HttpOptions http;
  Access access;
  std::string model_name;  // as clients read it
  std::string version;
  RequestDefaults defaults;
  int rows_per_step = 512;
  DecoderOptions decoder;
  int64_t prefix_cache = int64_t{512} << 20;  // bytes of states that are kept of prompts; 0: none
  int prefix_chunk = 256;                     // tokens
  std::filesystem::path request_log = {};     // empty: none
};

struct ServedModel {
  LoadedModel model;
  Speculation speculation;
  double memory_rate = 0;  // bytes a second that memory gives; 0: not measured
};

// Loads a model; `on_progress` gets the bytes of weights that were read and their sum. Ends the phase that it is in.
using ModelLoader = std::function<ServedModel(std::function<void(uint64_t, uint64_t)> on_progress, Phases& phases)>;

// A server from its first connection to its last. It answers 503 until the model is loaded and has made a token.
class Server {
 public:
  // Listens when this returns, and loads in the background. Throws Error for an address or a log that cannot be opened.
  Server(ServeOptions options, ModelLoader load);
  // Ends all connections and texts at once.
  ~Server();

  std::string address() const { return http_->address(); }
  // Waits until the model is ready; throws what loading threw. False: not within this time.
  bool wait_ready(std::chrono::milliseconds most);
  // Where the time of the start went; once it is ready.
  const Phases& phases() const { return phases_; }
  // Takes no more requests, and waits for those that are open, at most so long; ends the others. How many those were.
  int64_t drain(std::chrono::milliseconds most);
  // For a log that was moved away.
  void reopen_log();

 private:
  struct Loaded;
  void load(const ModelLoader& loader);
  void use(Router router);
  std::shared_ptr<const Router> router();
  // What is answered before the model is loaded, and then.
  Router loading_router();
  Router ready_router(const Loaded& loaded);

  const ServeOptions options_;
  Lifecycle lifecycle_;
  Phases phases_;
  std::unique_ptr<RequestLog> log_;
  std::mutex mutex_;
  std::condition_variable loaded_changed_;
  std::exception_ptr problem_;      // of loading
  std::unique_ptr<Loaded> loaded_;
  bool done_ = false;
  std::shared_ptr<const Router> router_;  // all of these are guarded by the mutex
  std::unique_ptr<HttpServer> http_;
  std::thread loader_;
};

}  // namespace megalith
