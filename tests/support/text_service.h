#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "engine/loaded_model.h"
#include "server/service.h"

namespace megalith {

// A model of the source without its weights: all that reading requests needs.
inline LoadedModel text_of_model(const std::string& name) {
  LoadOptions options;
  options.quiet = true;
  PreparedModel prepared = prepare_model(std::filesystem::path(MEGALITH_SOURCE_DIR) / "models" / name, options);
  LoadedModel loaded;
  loaded.directory = prepared.directory;
  loaded.model = std::move(prepared.model);
  loaded.text = std::move(prepared.text);
  loaded.generation = prepared.generation;
  loaded.end_tokens = prepared.end_tokens;
  return loaded;
}

// A service for readers of requests. It generates nothing.
class TextService {
 public:
  explicit TextService(const std::string& model, int64_t context = 512) : TextService(text_of_model(model), context) {}
  explicit TextService(LoadedModel model, int64_t context = 512) : model_(std::move(model)) {
    service.model_name = "served";
    service.context = context;
  }
  TextService(const TextService&) = delete;

 private:
  struct NoGenerator : Generator {
    std::vector<Ticket> submit(std::vector<Job>) override {
      CHECK(false, "a reader of requests submits a text");
      return {};
    }
    void cancel(Ticket) override {}
    int64_t abort(const std::string&) override { return 0; }
  };

  LoadedModel model_;
  NoGenerator generator_;

 public:
  Service service{.model = model_, .generator = generator_};
};

}  // namespace megalith
