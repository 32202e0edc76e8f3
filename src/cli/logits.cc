// megalith logits: what the model computes for each token of a text, as safetensors.

#include <fmt/format.h>

#include <algorithm>
#include <span>

#include "base/error.h"
#include "cli/options.h"
#include "engine/forward.h"
#include "weights/safetensors.h"

namespace megalith {

namespace {

constexpr int kLogitsPerStep = 64;  // bounds the memory that logits of a large vocabulary take

struct Logits {
  ModelOptions model;
  MachineFlags machine;
  std::string tokens;
  std::string out;
  bool hidden = false;

  void run() const {
    const std::vector<int32_t> ids = parse_ids(tokens);
    LoadOptions options = machine.load_options(model, 1);
    options.hidden = hidden;
    options.machine.max_chosen = std::min(machine.rows_per_step, kLogitsPerStep);
    const LoadedModel loaded = open_model(model, machine, options);
    const Forward result = forward(*loaded.machine, ids, machine.rows_per_step);
    const auto rows = static_cast<int64_t>(ids.size());
    std::vector<TensorToWrite> tensors = {
        {"logits", "F32", {rows, result.vocabulary}, std::as_bytes(std::span(result.logits))}};
    if (hidden) {
      tensors.push_back({"hidden", "F32", {result.hidden_outputs, rows, result.hidden_size},
                         std::as_bytes(std::span(result.hidden))});
    }
    write_safetensors(out, tensors);
  }
};

}  // namespace

void add_logits(CLI::App& app) {
  auto logits = std::make_shared<Logits>();
  CLI::App* sub = app.add_subcommand("logits", "write the logits of every token of a text");
  logits->model.add_model(*sub);
  sub->add_option("--tokens", logits->tokens, "token ids: 1,2,3")->required();
  sub->add_option("--out", logits->out, "a .safetensors file with \"logits\" [tokens, vocabulary] in f32")->required();
  sub->add_flag("--hidden", logits->hidden,
                "also \"hidden\" [layers + 1, tokens, hidden]: the residual stream after the embedding and every layer");
  logits->machine.add(*sub);
  sub->callback([logits] { logits->run(); });
}

}  // namespace megalith
