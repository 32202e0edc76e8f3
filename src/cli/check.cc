// megalith check: whether a model can run here, and what that takes. Reads no weights.

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/progress.h"
#include "base/system_memory.h"
#include "cli/options.h"

namespace megalith {

namespace {

std::string amount(int64_t bytes) {
  return human_bytes(static_cast<uint64_t>(bytes));
}

struct Check {
  ModelOptions model;
  MachineFlags machine;
  DraftFlags draft;
  int sequences = 1;

  void run() const;
  void print(const PreparedModel& prepared, uint64_t available) const;
};

std::string format_line(const TextModel& text) {
  if (text.unknown_format) return "none that is known: " + text.unknown_format->cause();
  if (!text.format) return "none (no chat template; --chat-format names one)";
  return std::string(text.format->name());
}

void Check::print(const PreparedModel& p, uint64_t available) const {
  const Checkpoint& files = *p.checkpoint;
  const int ranks = p.program.ranks;
  const auto line = [](const char* what, const std::string& value) { fmt::print("{:<14} {}\n", what, value); };
  line("model", fmt::format("{}: {}, {} layers, vocabulary {}, {} positions at most", p.directory.string(),
                            p.model->family(), p.model->layers(), p.model->vocabulary(), p.model->max_positions()));
  line("files", fmt::format("{} with {} tensors, {}, {}; all complete", files.files(), files.tensors().size(),
                            amount(static_cast<int64_t>(files.bytes())), files.formats()));
  line("not needed", fmt::format("{} tensors, {}", p.ignored.tensors, human_bytes(p.ignored.bytes)));
  line("tokenizer",
       p.text.tokenizer ? fmt::format("{} tokens", p.text.tokenizer->size()) : "none (prompts by token ids only)");
  line("chat format", format_line(p.text));
  line("ranks", fmt::format("{} asked for; {} allowed", ranks, fmt::join(p.model->allowed_ranks(), ", ")));
  if (p.draft) {
    const Checkpoint& own = *p.draft->checkpoint;
    line("draft", fmt::format("{}: {}, {} tensors, {}; blocks of {} rows", p.draft->directory.string(), p.draft->draft->family(),
                              own.tensors().size(), amount(static_cast<int64_t>(own.bytes())), p.program.block));
  } else {
    line("draft", "none: one token a step");
  }
  line("a rank", fmt::format("weights {}, states {} for {} sequence{} of {} positions", amount(p.memory.tape / ranks),
                             amount(p.memory.states / ranks), sequences, sequences == 1 ? "" : "s", machine.context));
  line("memory", fmt::format("{} while loading and after (weights {}, states {}, activations {} at most); {} free",
                             amount(p.memory.total()), amount(p.memory.tape), amount(p.memory.states),
                             amount(p.memory.activations), human_bytes(available)));
}

void Check::run() const {
  LoadOptions options = machine.load_options(model, sequences);
  draft.apply(model, options);
  const PreparedModel prepared = prepare_model(model.directory(), options);
  const uint64_t available = available_memory();
  print(prepared, available);
  require_memory(prepared.memory, available);
  fmt::print("ready to run\n");
}

}  // namespace

void add_check(CLI::App& app) {
  auto check = std::make_shared<Check>();
  CLI::App* sub = app.add_subcommand("check", "say whether a model can run here and what that takes; reads no weights");
  check->model.add_model(*sub);
  check->model.add_chat_format(*sub);
  check->machine.add(*sub);
  check->draft.add(*sub);
  sub->add_option("--max-sequences", check->sequences, "sequences at the same time")
      ->capture_default_str()
      ->check(CLI::Range(1, 65536));
  sub->callback([check] { check->run(); });
}

}  // namespace megalith
