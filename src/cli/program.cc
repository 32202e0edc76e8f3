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
  int ranks = 1;
  double bandwidth = 0;
  CostArgs cost;

  void run() const {
    // A configuration alone will do: no weights are looked at.
    const bool file = !model.model.empty() && std::filesystem::is_regular_file(model.model);
    const std::filesystem::path config = file ? std::filesystem::path(model.model) : model.directory() / "config.json";
    const auto built = make_model(read_json(config), config.string())->build({ranks, false, {}});
    fmt::print("{}", print_program(built, cost, bandwidth * 1e9));
  }
};

}  // namespace

void add_program(CLI::App& app) {
  auto show = std::make_shared<ShowProgram>();
  CLI::App* sub = app.add_subcommand("program", "show the ops of a step, what they move, and the least time that takes");
  show->model.add_model(*sub);
  sub->get_option("--model")->description("a directory, org/name, or a config.json (default: tiny-qwen)");
  sub->add_option("--ranks", show->ranks, "tensor-parallel parts")->capture_default_str()->check(CLI::Range(1, 1024));
  sub->add_option("--bandwidth", show->bandwidth, "memory bandwidth of a rank in GB/s, for the floor")->check(CLI::Range(0.0, 1e9));
  sub->add_option("--sequences", show->cost.sequences, "sequences in the step")->capture_default_str()->check(CLI::Range(1, 65536));
  sub->add_option("--rows", show->cost.rows_each, "rows of each sequence")->capture_default_str()->check(CLI::Range(1, 65536));
  sub->add_option("--context", show->cost.context, "positions of each sequence")->capture_default_str()->check(CLI::Range(1, 1 << 24));
  sub->callback([show] { show->run(); });
}

}  // namespace megalith
