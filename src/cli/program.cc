// megalith program: what a step computes and moves, before anything runs.

#include <fmt/format.h>

#include "cli/options.h"
#include "program/checker.h"
#include "program/print.h"
#include "program/schedule.h"

namespace megalith {

namespace {

struct ShowProgram {
  ModelOptions model;
  std::string draft;
  int ranks = 1;
  double bandwidth = 0;
  CostArgs cost;

  void run() const {
    // Configurations alone will do: no weights are looked at.
    const auto config_of = [](const ModelOptions& of) {
      const bool file = !of.model.empty() && std::filesystem::is_regular_file(of.model);
      return file ? std::filesystem::path(of.model) : of.directory() / "config.json";
    };
    const std::filesystem::path config = config_of(model);
    const auto target = make_model(read_json(config), config.string());
    BuildOptions options = {.ranks = ranks};
    std::unique_ptr<Draft> guesser;
    if (!draft.empty()) {
      const std::filesystem::path draft_config = config_of({.model = draft});
      guesser = make_draft(read_json(draft_config), draft_config.string());
      guesser->require_target(*target);
      options.block = guesser->most_rows();
      options.draft = guesser->builder();
    }
    fmt::print("{}", print_program(target->build(options), cost, bandwidth * 1e9));
  }
};

}  // namespace

void add_program(CLI::App& app) {
  auto show = std::make_shared<ShowProgram>();
  CLI::App* sub = app.add_subcommand("program", "show the ops of a step, what they move, and the least time that takes");
  show->model.add_model(*sub);
  sub->get_option("--model")->description("a directory, org/name, or a config.json (default: tiny-qwen)");
  sub->add_option("--draft", show->draft, "also the draft that follows the step: a directory, org/name, or a config.json");
  sub->add_option("--ranks", show->ranks, "tensor-parallel parts")->capture_default_str()->check(CLI::Range(1, 1024));
  sub->add_option("--bandwidth", show->bandwidth, "memory bandwidth of a rank in GB/s, for the floor")->check(CLI::Range(0.0, 1e9));
  sub->add_option("--sequences", show->cost.sequences, "sequences in the step")->capture_default_str()->check(CLI::Range(1, 65536));
  sub->add_option("--rows", show->cost.rows_each, "rows of each sequence")->capture_default_str()->check(CLI::Range(1, 65536));
  sub->add_option("--context", show->cost.context, "positions of each sequence")->capture_default_str()->check(CLI::Range(1, 1 << 24));
  sub->callback([show] { show->run(); });
}

}  // namespace megalith
