#include "engine/loaded_model.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>

#include "base/error.h"
#include "weights/tape.h"

namespace megalith {

namespace {

void add_end_tokens(LoadedModel& loaded) {
  loaded.end_tokens = loaded.generation.end_tokens;
  if (!loaded.text.tokenizer || !loaded.text.format) return;
  for (const std::string& name : loaded.text.format->end_tokens()) {
    const auto id = loaded.text.tokenizer->find_added(name);
    if (id && std::find(loaded.end_tokens.begin(), loaded.end_tokens.end(), *id) == loaded.end_tokens.end()) {
      loaded.end_tokens.push_back(*id);
    }
  }
}

void check_vocabulary(const LoadedModel& loaded) {
  const int64_t rows = loaded.model->vocabulary();
  if (loaded.text.tokenizer && loaded.text.tokenizer->size() > rows) {
    throw Error({.where = (loaded.directory / "tokenizer.json").string(),
                 .expected = fmt::format("at most {} tokens, as config.json's vocab_size says", rows),
                 .found = fmt::format("{}", loaded.text.tokenizer->size()),
                 .next = "The tokenizer is of another model: download the directory again."});
  }
  for (const int32_t id : loaded.end_tokens) {
    if (id >= rows) {
      throw Error({.where = (loaded.directory / "generation_config.json").string() + ": eos_token_id",
                   .expected = fmt::format("ids below {}", rows),
                   .found = fmt::format("{}", id),
                   .next = {}});
    }
  }
}

}  // namespace

const Tokenizer& TextModel::require_tokenizer() const {
  if (!tokenizer) {
    throw Error({.where = directory.string(),
                 .expected = "tokenizer.json",
                 .found = "none",
                 .next = "Download it, or give token ids (--tokens)."});
  }
  return *tokenizer;
}

const ChatFormat& TextModel::require_format() const {
  if (unknown_format) throw *unknown_format;
  if (!format) {
    throw Error({.where = directory.string(),
                 .expected = "chat_template.jinja, or chat_template in tokenizer_config.json",
                 .found = "neither",
                 .next = fmt::format("Name the format: --chat-format {}; or use --chat none.",
                                     fmt::join(chat_format_names(), "|"))});
  }
  return *format;
}

TextModel load_text(const std::filesystem::path& directory, const std::optional<std::string>& name, int64_t model_rows) {
  TextModel text;
  text.directory = directory;
  const auto path = directory / "tokenizer.json";
  if (std::filesystem::exists(path)) text.tokenizer = Tokenizer::from_file(path.string(), static_cast<int32_t>(model_rows));
  const auto chat_template = load_chat_template(directory);
  if (name) {
    text.format = chat_format(*name);
  } else if (chat_template) {
    // Raw prompts need no format, so a template of another family is a mistake only where a chat is asked for.
    try {
      const DetectedFormat detected = detect_chat_format(*chat_template);
      text.format = chat_format(detected.name, detected.thinking);
    } catch (const Error& error) {
      text.unknown_format = error;
      spdlog::info("{}: {}", directory.string(), error.cause());
    }
  }
  return text;
}

LoadedModel load_model(const std::filesystem::path& directory, const LoadOptions& options) {
  LoadedModel loaded;
  loaded.directory = directory;
  const auto config_path = directory / "config.json";
  const nlohmann::json config = read_json(config_path);
  loaded.model = make_model(config, config_path.string());
  loaded.checkpoint = std::make_unique<Checkpoint>(directory);
  Program program = loaded.model->build({options.ranks, options.hidden, loaded.checkpoint->catalog()});
  const Ignored ignored = check_tensors(*loaded.checkpoint, program.weights,
                                        [&](const std::string& name) { return loaded.model->ignores(name); });
  if (ignored.tensors > 0) {
    spdlog::info("{} tensors ({}) that text does not need are not read", ignored.tensors, human_bytes(ignored.bytes));
  }
  if (options.machine.context > loaded.model->max_positions()) {
    throw Error({.where = "--context",
                 .expected = fmt::format("at most {}, the model's max_position_embeddings", loaded.model->max_positions()),
                 .found = fmt::format("{}", options.machine.context),
                 .next = {}});
  }
  loaded.text = load_text(directory, options.chat_format, loaded.model->vocabulary());
  loaded.generation = load_generation_config(directory, config);
  add_end_tokens(loaded);
  check_vocabulary(loaded);

  loaded.machine = make_cpu_machine(std::move(program), options.machine);
  Progress progress("loading weights", static_cast<uint64_t>(loaded.machine->tape_bytes()), options.quiet);
  loaded.machine->load(CheckpointTape(*loaded.checkpoint), &progress);
  return loaded;
}

}  // namespace megalith
