#include "engine/loaded_model.h"

#include <algorithm>

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include "base/error.h"
#include "base/system_memory.h"
#include "weights/tape.h"

namespace megalith {

namespace {

void add_end_tokens(PreparedModel& loaded) {
  loaded.end_tokens = loaded.generation.end_tokens;
  if (!loaded.text.tokenizer || !loaded.text.format) return;
  for (const std::string& name : loaded.text.format->end_tokens()) {
    const auto id = loaded.text.tokenizer->find_added(name);
    if (id && std::find(loaded.end_tokens.begin(), loaded.end_tokens.end(), *id) == loaded.end_tokens.end()) {
      loaded.end_tokens.push_back(*id);
    }
  }
}

void check_vocabulary(const PreparedModel& loaded) {
  const int64_t rows = loaded.model->vocabulary();
  if (loaded.text.tokenizer && loaded.text.tokenizer->size() > rows) {
    throw Error({.where = "the tokenizer of " + loaded.directory.string(),
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

void check_context(const Model& model, const MachineOptions& machine) {
  if (machine.context <= model.max_positions()) return;
  throw Error({.where = "--context",
               .expected = fmt::format("at most {}, the model's max_position_embeddings", model.max_positions()),
               .found = fmt::format("{}", machine.context),
               .next = {}});
}

}  // namespace

const Tokenizer& TextModel::require_tokenizer() const {
  if (!tokenizer) {
    throw Error({.where = directory.string(),
                 .expected = "tokenizer.json or tiktoken.model",
                 .found = "neither",
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

namespace {

// The format that the directory's template, or the vocabulary's own marks, speak for. Raw prompts need none, so a
// template of another family is a mistake only where a chat is asked for.
void detect_format(TextModel& text) {
  std::optional<DetectedFormat> detected;
  if (const auto chat_template = load_chat_template(text.directory)) {
    try {
      detected = detect_chat_format(*chat_template);
    } catch (const Error& error) {
      text.unknown_format = error;
    }
  }
  if (!detected && text.tokenizer) detected = detect_chat_format(*text.tokenizer);
  if (detected) {
    text.unknown_format.reset();
    text.format = chat_format(detected->name, detected->thinking);
  } else if (text.unknown_format) {
    spdlog::info("{}: {}", text.directory.string(), text.unknown_format->cause());
  }
}

}  // namespace

TextModel load_text(const std::filesystem::path& directory, const std::optional<std::string>& name,
                    int64_t model_rows) {
  TextModel text;
  text.directory = directory;
  text.tokenizer = Tokenizer::from_directory(directory, static_cast<int32_t>(model_rows));
  if (name) {
    text.format = chat_format(*name);
  } else {
    detect_format(text);
  }
  return text;
}

PreparedModel prepare_model(const std::filesystem::path& directory, const LoadOptions& options, Phases* phases) {
  const auto phase = [&](const char* name) {
    if (phases) phases->begin(name);
  };
  PreparedModel prepared;
  prepared.directory = directory;
  phase("configuration and tensor headers");
  const auto config_path = directory / "config.json";
  const nlohmann::json config = read_json(config_path);
  prepared.model = make_model(config, config_path.string());
  prepared.checkpoint = std::make_unique<Checkpoint>(directory);
  prepared.program = prepared.model->build({options.ranks, options.hidden, prepared.checkpoint->catalog()});
  prepared.ignored = check_tensors(*prepared.checkpoint, prepared.program.weights,
                                   [&](const std::string& name) { return prepared.model->ignores(name); });
  if (prepared.ignored.tensors > 0) {
    spdlog::info("{} tensors ({}) that text does not need are not read", prepared.ignored.tensors,
                 human_bytes(prepared.ignored.bytes));
  }
  check_context(*prepared.model, options.machine);
  prepared.memory = cpu_memory_need(prepared.program, options.machine);
  phase("tokenizer");
  prepared.text = load_text(directory, options.chat_format, prepared.model->vocabulary());
  prepared.generation = load_generation_config(directory, config);
  add_end_tokens(prepared);
  check_vocabulary(prepared);
  if (phases) phases->end();
  return prepared;
}

void require_memory(const MemoryNeed& need, uint64_t available) {
  const auto total = static_cast<uint64_t>(need.total());
  if (total <= available) return;
  throw Error({.where = "memory",
               .expected = fmt::format("{} free: weights {}, states {}, activations {}", human_bytes(total),
                                       human_bytes(static_cast<uint64_t>(need.tape)),
                                       human_bytes(static_cast<uint64_t>(need.states)),
                                       human_bytes(static_cast<uint64_t>(need.activations))),
               .found = human_bytes(available),
               .next = need.states > need.total() / 2 ? "Choose a smaller --context, or fewer sequences."
                                                      : "Choose a smaller model, or a machine with more memory."});
}

LoadedModel load_model(const std::filesystem::path& directory, const LoadOptions& options, Phases* phases) {
  PreparedModel prepared = prepare_model(directory, options, phases);
  require_memory(prepared.memory, available_memory());
  if (phases) phases->begin("program and schedule");
  LoadedModel loaded = {std::move(prepared.directory), std::move(prepared.checkpoint),
                        std::move(prepared.model),     make_cpu_machine(std::move(prepared.program), options.machine),
                        std::move(prepared.text),      std::move(prepared.generation),
                        std::move(prepared.end_tokens)};
  if (phases) phases->begin("weights");
  {
    Progress progress("loading weights", static_cast<uint64_t>(prepared.memory.tape), options.quiet);
    loaded.machine->load(CheckpointTape(*loaded.checkpoint), &progress);
  }
  if (phases) phases->end();
  return loaded;
}

}  // namespace megalith
