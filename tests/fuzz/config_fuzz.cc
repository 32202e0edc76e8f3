// The JSON files of a model directory, as they are read before any weight is: config.json, and after each line of "---"
// generation_config.json and tokenizer_config.json. A configuration that is accepted can be built for every rank count
// that it allows, and its cost can be told. A configuration may also be a draft's: one that is accepted for a target can be
// built at the end of its program.

#include <array>

#include "base/check.h"
#include "models/draft.h"
#include "models/model.h"
#include "program/cost.h"
#include "program/program.h"
#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/input_directory.h"
#include "text/chat.h"
#include "weights/files.h"

namespace megalith {
namespace {

constexpr std::array kFiles = {"config.json", "generation_config.json", "tokenizer_config.json"};
constexpr std::string_view kBetween = "\n---\n";
constexpr int64_t kMostLayers = 4;  // of programs that are built; more of them only take longer

void write_files(const InputDirectory& directory, std::string_view input) {
  for (const char* name : kFiles) {
    const size_t end = input.find(kBetween);
    const std::string_view text = input.substr(0, end);
    directory.write(name, text.empty() ? "{}" : text);
    input.remove_prefix(end == input.npos ? input.size() : end + kBetween.size());
  }
}

void build(const Model& model) {
  for (const int ranks : model.allowed_ranks()) {
    const Program program = model.build({.ranks = ranks, .hidden = true, .catalog = {}});
    CHECK(program.ranks == ranks && program.output("logits").valid(), "{} ranks", program.ranks);
    CHECK(tape_layout(program).bytes > 0, "{} ops", program.ops.size());
    CHECK(program_cost(program, {}).memory_bytes() > 0, "{} ops", program.ops.size());
  }
}

// The targets that the corpus's drafts were made for.
void build_with_target(const Draft& draft) {
  static const auto targets = [] {
    std::vector<std::unique_ptr<Model>> made;
    for (const char* name : {"qwen-a", "kimi-a"}) {
      const auto path = std::filesystem::path(MEGALITH_SOURCE_DIR) / "tests/data" / name / "target/config.json";
      made.push_back(make_model(read_json(path), path.string()));
    }
    return made;
  }();
  for (const auto& target : targets) {
    refuse_with_error_only([&] {
      draft.require_target(*target);
      for (const int ranks : target->allowed_ranks()) {
        const Program program = target->build({.ranks = ranks, .block = draft.most_rows(), .draft = draft.builder()});
        CHECK(program.output("guesses").valid() && program_cost(program, {}).memory_bytes() > 0, "{} ranks", ranks);
      }
    });
  }
}

}  // namespace
}  // namespace megalith

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace megalith;
  static const InputDirectory directory;
  write_files(directory, text_of(data, size));
  const auto config_path = directory.path() / "config.json";
  refuse_with_error_only([&] { load_generation_config(directory.path(), read_json(config_path)); });
  refuse_with_error_only([&] { detect_chat_format(load_chat_template(directory.path()).value_or("")); });
  refuse_with_error_only([&] {
    const auto model = make_model(read_json(config_path), config_path.string());
    if (model->layers() <= kMostLayers) build(*model);
  });
  refuse_with_error_only([&] { build_with_target(*make_draft(read_json(config_path), config_path.string())); });
  return 0;
}
