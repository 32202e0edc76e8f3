#include "server/server.h"

#include <ctime>
#include <utility>

#include <fmt/format.h>

#include "server/handlers.h"
#include "server/info_routes.h"

namespace megalith {

// All that there is once the model is loaded. Members are in the order in which they need each other.
struct Server::Loaded {
  Loaded(ServedModel served, const ServeOptions& options, RequestLog* log, Phases& phases)
      : model(std::move(served.model)),
        metrics(options.model_name, model.machine->options().context, served.speculation.width - 1),
        prefixes(*model.machine, options.prefix_chunk, options.prefix_cache),
        engine(*model.machine, model.model->vocabulary(), options.rows_per_step, served.speculation, &prefixes) {
    phases.begin("warm-up");
    warm_up();
    phases.end();
    metrics.set_start(phases.total_s(), phases.seconds("weights"));
    DecoderOptions decoding = options.decoder;
    decoding.memory_rate = served.memory_rate;
    decoder = std::make_unique<Decoder>(engine, *model.machine, metrics, log, std::move(decoding));
    service = std::make_unique<Service>(Service{.model = model,
                                                .model_name = options.model_name,
                                                .fingerprint = fingerprint(options),
                                                .created = std::time(nullptr),
                                                .context = model.machine->options().context,
                                                .draft_guesses = served.speculation.width - 1,
                                                .defaults = options.defaults,
                                                .generator = *decoder});
  }

  // A few tokens, so that the first request finds everything touched.
  void warm_up() {
    const auto id = engine.add({.prompt = {0}, .max_tokens = 4, .sampling = {}, .end_tokens = {}});
    engine.run();
    engine.forget(id);
  }

  // Tells one setup from another.
  std::string fingerprint(const ServeOptions& options) const {
    uint64_t hash = 0xcbf29ce484222325;
    const auto mix = [&hash](std::string_view text) {
      for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
    };
    for (const Weight& weight : model.machine->program().weights) mix(weight.name);
    mix(model.directory.filename().string());
    return fmt::format("{}-{}-tp{}-{:08x}", options.model_name, options.version, model.machine->program().ranks,
                       static_cast<uint32_t>(hash ^ (hash >> 32)));
  }

  LoadedModel model;
  Metrics metrics;
  PrefixCache prefixes;
  Engine engine;
  std::unique_ptr<Decoder> decoder;
  std::unique_ptr<Service> service;
};

Server::Server(ServeOptions options, ModelLoader load) : options_(std::move(options)) {
  if (!options_.request_log.empty()) log_ = std::make_unique<RequestLog>(options_.request_log);
  use(loading_router());
  http_ = std::make_unique<HttpServer>(options_.http,
                                       [this](const std::shared_ptr<Exchange>& exchange) { (*router())(exchange); });
  loader_ = std::thread([this, load = std::move(load)] { this->load(load); });
}

Server::~Server() {
  loader_.join();
  // Texts that are open hold on to exchanges, and handlers to the service.
  if (loaded_) loaded_->decoder.reset();
  http_.reset();
}

void Server::use(Router router) {
  auto shared = std::make_shared<const Router>(std::move(router));
  const std::lock_guard lock(mutex_);
  router_ = std::move(shared);
}

std::shared_ptr<const Router> Server::router() {
  const std::lock_guard lock(mutex_);
  return router_;
}

Router Server::loading_router() {
  Router router(options_.access);
  add_status_routes(router, {lifecycle_, options_.version, [] { return int64_t{0}; }, [] { return std::string(); }});
  router.set_fallback([this](const std::shared_ptr<Exchange>&) {
    throw lifecycle_.refusal().value_or(ApiError::unavailable("The model has just been loaded. Try again."));
  });
  return router;
}

Router Server::ready_router(const Loaded& loaded) {
  Router router(options_.access);
  const Decoder& decoder = *loaded.decoder;
  const Metrics& metrics = loaded.metrics;
  add_status_routes(router, {lifecycle_, options_.version, [&decoder] { return decoder.served(); },
                             [&metrics] { return metrics.text(); }});
  add_model_routes(router, {*loaded.service, options_.version, [&decoder] { return decoder.load(); }});
  add_completion_routes(router, *loaded.service);
  add_chat_routes(router, *loaded.service);
  add_text_routes(router, *loaded.service);
  return router;
}

void Server::load(const ModelLoader& loader) {
  std::unique_ptr<Loaded> loaded;
  std::exception_ptr problem;
  try {
    ServedModel served = loader([this](uint64_t done, uint64_t total) { lifecycle_.progress(done, total); }, phases_);
    loaded = std::make_unique<Loaded>(std::move(served), options_, log_.get(), phases_);
    use(ready_router(*loaded));
    lifecycle_.ready([&decoder = *loaded->decoder] { return decoder.failure(); });
  } catch (...) {
    problem = std::current_exception();
  }
  const std::lock_guard lock(mutex_);
  loaded_ = std::move(loaded);
  problem_ = problem;
  done_ = true;
  loaded_changed_.notify_all();
}

bool Server::wait_ready(std::chrono::milliseconds most) {
  std::unique_lock lock(mutex_);
  if (!loaded_changed_.wait_for(lock, most, [this] { return done_; })) return false;
  if (problem_) std::rethrow_exception(problem_);
  return true;
}

int64_t Server::drain(std::chrono::milliseconds most) {
  lifecycle_.drain();
  Decoder* decoder = nullptr;
  {
    const std::lock_guard lock(mutex_);
    if (loaded_) decoder = loaded_->decoder.get();
  }
  int64_t left = 0;
  if (decoder != nullptr) {
    decoder->stop_accepting();
    left = decoder->drain(most);
  }
  http_->stop_accepting();
  // What the last texts gave is on its way.
  http_->drain(std::chrono::seconds(2));
  return left;
}

void Server::reopen_log() {
  if (log_) log_->reopen();
}

}  // namespace megalith
