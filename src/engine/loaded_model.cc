#include "engine/loaded_model.h"

#include <algorithm>
#include <atomic>
#include <future>
#include <stdexcept>
#include <utility>

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include "base/error.h"
#include "base/system_memory.h"
#include "weights/tape.h"

namespace megalith {

namespace {

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

std::vector<int32_t> TextModel::prompt_of(std::string_view text, Specials specials) const {
  std::vector<int32_t> prompt = require_tokenizer().encode(text, specials);
  if (begin_token) prompt.insert(prompt.begin(), *begin_token);
  return prompt;
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

// The bos_token of tokenizer_config.json, unless add_bos_token is false.
std::optional<int32_t> find_begin_token(const TextModel& text) {
  const auto path = text.directory / "tokenizer_config.json";
  if (!text.tokenizer || !file_exists(path)) return std::nullopt;
  const nlohmann::json config = read_json(path);
  if (!config.is_object() || config.value("add_bos_token", nlohmann::json()) == false) return std::nullopt;
  const auto name = config.value("bos_token", nlohmann::json());
  return name.is_string() ? text.tokenizer->find_added(name.get_ref<const std::string&>()) : std::nullopt;
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
  text.begin_token = find_begin_token(text);
  return text;
}

namespace {

// A directory's text side, and where its answers end.
struct TextSide {
  TextModel text;
  GenerationConfig generation;
  std::vector<int32_t> end_tokens;
};

void add_end_tokens(TextSide& side) {
  side.end_tokens = side.generation.end_tokens;
  if (!side.text.tokenizer || !side.text.format) return;
  for (const std::string& name : side.text.format->end_tokens()) {
    const auto id = side.text.tokenizer->find_added(name);
    if (id && std::find(side.end_tokens.begin(), side.end_tokens.end(), *id) == side.end_tokens.end()) {
      side.end_tokens.push_back(*id);
    }
  }
}

void check_vocabulary(const TextSide& side, int64_t rows) {
  if (side.text.tokenizer && side.text.tokenizer->size() > rows) {
    throw Error({.where = "the tokenizer of " + side.text.directory.string(),
                 .expected = fmt::format("at most {} tokens, as config.json's vocab_size says", rows),
                 .found = fmt::format("{}", side.text.tokenizer->size()),
                 .next = "The tokenizer is of another model: download the directory again."});
  }
  for (const int32_t id : side.end_tokens) {
    if (id >= rows) {
      throw Error({.where = (side.text.directory / "generation_config.json").string() + ": eos_token_id",
                   .expected = fmt::format("ids below {}", rows),
                   .found = fmt::format("{}", id),
                   .next = {}});
    }
  }
}

// Reads the text side on a thread of its own.
class TextReader {
 public:
  TextReader(std::filesystem::path directory, nlohmann::json config, std::optional<std::string> format, int64_t rows)
      : directory_(std::move(directory)), config_(std::move(config)), format_(std::move(format)), rows_(rows) {
    side_ = std::async(std::launch::async, [this] { return read(); });
  }

  // Whether it is known by now that get() will throw.
  bool failed() const { return failed_.load(std::memory_order_relaxed); }
  // Waits for it; throws what is wrong with it. Called once.
  TextSide get() { return side_.get(); }

 private:
  TextSide read() {
    try {
      TextSide side = {load_text(directory_, format_, rows_), load_generation_config(directory_, config_), {}};
      add_end_tokens(side);
      check_vocabulary(side, rows_);
      return side;
    } catch (...) {
      failed_.store(true, std::memory_order_relaxed);
      throw;
    }
  }

  const std::filesystem::path directory_;
  const nlohmann::json config_;
  const std::optional<std::string> format_;
  const int64_t rows_;
  std::atomic<bool> failed_ = false;
  std::future<TextSide> side_;  // waits for its thread when it goes, so it goes first
};

// A tape that ends where the text side turns out to be damaged: a big checkpoint is not read to its end for nothing.
class WatchedTape : public TapeSource {
 public:
  WatchedTape(const TapeSource& tape, const TextReader& text) : tape_(tape), text_(text) {}

  void read_panels(const Weight& weight, int rank, int ranks, int64_t first, int64_t count,
                   std::byte* out) const override {
    watch();
    tape_.read_panels(weight, rank, ranks, first, count, out);
  }
  void read_plain(const Weight& weight, int rank, int ranks, float* out) const override {
    watch();
    tape_.read_plain(weight, rank, ranks, out);
  }

 private:
  void watch() const {
    if (text_.failed()) throw std::runtime_error("the text side is damaged");
  }

  const TapeSource& tape_;
  const TextReader& text_;
};

// A model without its text side, which is being read.
struct Preparation {
  PreparedModel model;
  std::unique_ptr<TextReader> text;

  // Waits for the text side; throws what is wrong with it.
  void add_text() {
    TextSide side = text->get();
    model.text = std::move(side.text);
    model.generation = std::move(side.generation);
    model.end_tokens = std::move(side.end_tokens);
  }
};

// Reads the draft's configuration and tensor headers, and checks that it was made for this target.
DraftModel prepare_draft(const std::filesystem::path& directory, const Model& target) {
  DraftModel draft = {directory, nullptr, nullptr};
  const auto config = directory / "config.json";
  draft.draft = make_draft(read_json(config), config.string());
  draft.draft->require_target(target);
  draft.checkpoint = std::make_unique<Checkpoint>(directory);
  return draft;
}

int block_of(const Draft& draft, const LoadOptions& options) {
  const int most = draft.most_rows();
  if (options.block <= most) return options.block == 0 ? most : options.block;
  throw Error({.where = "--draft-width",
               .expected = fmt::format("at most {}, a token and what the draft guesses", most),
               .found = std::to_string(options.block),
               .next = {}});
}

Program build_program(const PreparedModel& prepared, const LoadOptions& options) {
  BuildOptions build = {options.ranks, options.hidden, prepared.checkpoint->catalog()};
  if (prepared.draft) {
    const Draft& draft = *prepared.draft->draft;
    build.catalog = pair_catalog(*prepared.checkpoint, *prepared.draft->checkpoint);
    build.block = block_of(draft, options);
    build.draft = draft.builder();
  }
  return prepared.model->build(build);
}

Ignored check_all_tensors(const PreparedModel& prepared) {
  const Ignored ignored = check_tensors(*prepared.checkpoint, weights_of(prepared.program.weights, false),
                                        [&](const std::string& name) { return prepared.model->ignores(name); });
  if (prepared.draft) {
    check_tensors(*prepared.draft->checkpoint, weights_of(prepared.program.weights, true),
                  [&](const std::string& name) { return prepared.draft->draft->ignores(name); });
  }
  return ignored;
}

Preparation begin_preparing(const std::filesystem::path& directory, const LoadOptions& options) {
  Preparation preparation;
  PreparedModel& prepared = preparation.model;
  prepared.directory = directory;
  const auto config_path = directory / "config.json";
  const nlohmann::json config = read_json(config_path);
  prepared.model = make_model(config, config_path.string());
  preparation.text = std::make_unique<TextReader>(directory, config, options.chat_format, prepared.model->vocabulary());
  prepared.checkpoint = std::make_unique<Checkpoint>(directory);
  if (options.draft) prepared.draft = prepare_draft(*options.draft, *prepared.model);
  prepared.program = build_program(prepared, options);
  prepared.ignored = check_all_tensors(prepared);
  if (prepared.ignored.tensors > 0) {
    spdlog::info("{} tensors ({}) that text does not need are not read", prepared.ignored.tensors,
                 human_bytes(prepared.ignored.bytes));
  }
  check_context(*prepared.model, options.machine);
  prepared.machine = options.machine;
  prepared.machine.max_chosen *= std::max(prepared.program.block, 1);
  prepared.memory = cpu_memory_need(prepared.program, prepared.machine);
  return preparation;
}

}  // namespace

PreparedModel prepare_model(const std::filesystem::path& directory, const LoadOptions& options) {
  Preparation preparation = begin_preparing(directory, options);
  preparation.add_text();
  return std::move(preparation.model);
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

namespace {

void load_weights(Machine& machine, const Preparation& preparation, Progress& progress) {
  const PreparedModel& prepared = preparation.model;
  const CheckpointTape target(*prepared.checkpoint);
  if (!prepared.draft) return machine.load(WatchedTape(target, *preparation.text), &progress);
  const CheckpointTape draft(*prepared.draft->checkpoint);
  const PairTape pair(target, draft);
  machine.load(WatchedTape(pair, *preparation.text), &progress);
}

}  // namespace

LoadedModel load_model(const std::filesystem::path& directory, const LoadOptions& options, Phases* phases) {
  const auto phase = [&](const char* name) {
    if (phases) phases->begin(name);
  };
  phase("configuration and tensor headers");
  Preparation preparation = begin_preparing(directory, options);
  PreparedModel& prepared = preparation.model;
  std::unique_ptr<Machine> machine;
  try {
    require_memory(prepared.memory, available_memory());
    phase("program and schedule");
    machine = make_cpu_machine(std::move(prepared.program), prepared.machine);
    phase("weights");
    Progress progress("loading weights", static_cast<uint64_t>(prepared.memory.tape), options.quiet, options.on_progress);
    load_weights(*machine, preparation, progress);
  } catch (...) {
    preparation.add_text();  // what is wrong with the text comes first, whichever was met first
    throw;
  }
  phase("tokenizer, beyond the weights");
  preparation.add_text();
  if (phases) phases->end();
  return {
      std::move(prepared.directory), std::move(prepared.checkpoint), std::move(prepared.model),
      std::move(prepared.draft),     std::move(machine),             std::move(prepared.text),
      std::move(prepared.generation), std::move(prepared.end_tokens)};
}

}  // namespace megalith
