#pragma once

#include <gtest/gtest.h>

#include <filesystem>

#include "engine/engine.h"
#include "engine/loaded_model.h"
#include "tests/support/golden.h"

namespace megalith {

// A model that comes with the source; with its draft, where one is named.
inline LoadedModel load_tiny(const std::string& name, int ranks, const std::string& draft = "") {
  const auto models = std::filesystem::path(MEGALITH_SOURCE_DIR) / "models";
  LoadOptions options;
  if (!draft.empty()) options.draft = models / draft;
  options.ranks = ranks;
  options.quiet = true;
  options.machine = {.threads = 2, .max_rows = 64, .max_sequences = 3, .context = 512};
  return load_model(models / name, options);
}

// Greedy continuations of tests/data/NAME.json, all prompts together. With the model's draft, each of its steps must give
// `least_tokens` on average.
inline void expect_reference_text(const std::string& name, const LoadedModel& loaded, double least_tokens = 1) {
  const auto cases = read_json(test_data(name + ".json"));
  const int width = loaded.draft ? loaded.machine->program().block : 1;
  Engine engine(*loaded.machine, loaded.model->vocabulary(), 64, {.width = width});
  std::vector<Engine::Id> ids;
  for (const auto& one : cases) {
    const auto budget = static_cast<int64_t>(one["greedy_ids"].size());
    ids.push_back(engine.add({.prompt = one["prompt_ids"].get<std::vector<int32_t>>(),
                              .max_tokens = budget,
                              .sampling = {},
                              .end_tokens = {}}));
  }
  engine.run();
  for (size_t i = 0; i < ids.size(); ++i) {
    EXPECT_EQ(engine.generation(ids[i]).tokens, cases[i]["greedy_ids"].get<std::vector<int32_t>>())
        << loaded.machine->describe();
    EXPECT_GE(engine.generation(ids[i]).steps.tokens_per_step(), least_tokens);
  }
}

// What the model answers in its chat format.
inline MessageOutput ask(const LoadedModel& loaded, const std::string& question) {
  ChatRequest request;
  request.messages.push_back({.role = Role::user, .content = question});
  const Tokenizer& tokenizer = loaded.text.require_tokenizer();
  const ChatFormat& format = loaded.text.require_format();
  Engine engine(*loaded.machine, loaded.model->vocabulary(), 64);
  const auto id = engine.add({.prompt = tokenizer.encode(format.render(request)),
                              .max_tokens = 256,
                              .sampling = {},
                              .end_tokens = loaded.end_tokens});
  engine.run();
  EXPECT_EQ(engine.generation(id).finish, Finish::end_token);
  return parse_output(*format.parser(tokenizer, request), engine.generation(id).tokens, FinishReason::stop);
}

}  // namespace megalith
