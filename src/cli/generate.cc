// megalith generate: prompts in, text or JSON out.

#include <fmt/format.h>

#include <cstdio>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "cli/answer.h"
#include "cli/options.h"
#include "text/utf8_stream.h"

namespace megalith {

namespace {

struct Generate {
  ModelOptions model;
  MachineFlags machine;
  SamplingFlags sampling;
  DraftFlags draft;
  std::vector<std::string> prompts;
  std::vector<std::string> ids;
  std::string chat;
  std::string system;
  bool json = false;

  void run() const;
  void check_flags() const;
  std::vector<int32_t> prompt_tokens(const LoadedModel& loaded, const std::string& prompt) const;
  std::vector<std::vector<int32_t>> all_prompts(const LoadedModel& loaded) const;
  void stream(const LoadedModel& loaded, Engine& engine, const std::vector<int32_t>& prompt) const;
  void together(const LoadedModel& loaded, Engine& engine, const std::vector<std::vector<int32_t>>& prompts) const;
  void print(const LoadedModel& loaded, const Generation& generation, const Generation* plain) const;
  std::vector<Generation> decode(const LoadedModel& loaded, Engine& engine, const std::vector<std::vector<int32_t>>& prompts) const;
  Request request(const std::vector<int32_t>& prompt, const LoadedModel& loaded) const;
};

constexpr int kMaxTogether = 8;

std::vector<int32_t> Generate::prompt_tokens(const LoadedModel& loaded, const std::string& prompt) const {
  if (chat == "none" || (chat.empty() && !loaded.text.format)) return loaded.text.prompt_of(prompt);
  ChatRequest request;
  if (!system.empty()) request.messages.push_back({.role = Role::system, .content = system});
  request.messages.push_back({.role = Role::user, .content = prompt});
  if (!chat.empty()) request.enable_thinking = chat == "think";
  return loaded.text.require_tokenizer().encode(loaded.text.require_format().render(request));
}

std::vector<std::vector<int32_t>> Generate::all_prompts(const LoadedModel& loaded) const {
  std::vector<std::vector<int32_t>> all;
  for (const std::string& prompt : prompts) all.push_back(prompt_tokens(loaded, prompt));
  for (const std::string& list : ids) all.push_back(parse_ids(list));
  return all;
}

// What speculation came to: of each step the guesses that were kept, and means of all.
nlohmann::ordered_json steps_json(const SpeculationReport& report) {
  const double steps = std::max<double>(static_cast<double>(report.accepted.size()), 1);
  return {{"steps", report.accepted.size()},
          {"accepted", report.accepted},
          {"guesses", report.guesses},
          {"tokens_per_step", report.tokens_per_step()},
          {"acceptance_by_position", report.acceptance_by_position()},
          {"ms_per_step", 1e3 * report.step_s / steps},
          {"draft_ms_per_step", 1e3 * report.draft_s / steps}};
}

// `plain`: the same prompt decoded without a draft, or null.
void Generate::print(const LoadedModel& loaded, const Generation& g, const Generation* plain) const {
  const auto& tokenizer = loaded.text.tokenizer;
  const std::string text = tokenizer ? tokenizer->decode(text_tokens(g), true) : "";
  if (json) {
    nlohmann::ordered_json object = {{"prompt_tokens", g.prompt},       {"tokens", g.tokens},
                                     {"text", text},                    {"finish_reason", finish_name(g.finish)},
                                     {"prefill_ms", 1e3 * g.prefill_s}, {"decode_ms", 1e3 * g.decode_s}};
    if (loaded.draft) object.update(steps_json(g.steps));
    if (plain) {
      object["baseline"] = {{"decode_ms", 1e3 * plain->decode_s},
                            {"speed_up", decode_rate(g) / decode_rate(*plain)},
                            {"leading_equal", leading_equal(g.tokens, plain->tokens)}};
    }
    fmt::print("{}\n", object.dump());
    return;
  }
  fmt::print("{}\n", tokenizer ? text : fmt::format("{}", fmt::join(text_tokens(g), ",")));
  if (!machine.quiet) fmt::print(stderr, "{}\n", statistics(g));
  if (plain) fmt::print(stderr, "[{}]\n", comparison(g, *plain));
}

void Generate::stream(const LoadedModel& loaded, Engine& engine, const std::vector<int32_t>& prompt) const {
  TextStream text(*loaded.text.tokenizer, true);
  const auto put = [](const std::string& piece) {
    std::fwrite(piece.data(), 1, piece.size(), stdout);
    std::fflush(stdout);
  };
  const Generation g = answer(engine, request(prompt, loaded), draft.steps_per_call,
                              [&](std::span<const int32_t> tokens) { put(text.feed(tokens)); });
  put(text.flush() + "\n");
  require_success(g);
  if (!machine.quiet) fmt::print(stderr, "{}\n", statistics(g));
}

// A forced acceptance goes through the model's end tokens.
Request Generate::request(const std::vector<int32_t>& prompt, const LoadedModel& loaded) const {
  Request request = sampling.request(prompt, loaded);
  if (draft.fixed_acceptance > 0) request.end_tokens.clear();
  return request;
}

void Generate::together(const LoadedModel& loaded, Engine& engine, const std::vector<std::vector<int32_t>>& all) const {
  std::vector<Engine::Id> requests;
  for (const auto& prompt : all) requests.push_back(engine.add(request(prompt, loaded)));
  for (const Engine::Id id : requests) {
    while (engine.generation(id).finish == Finish::running && engine.step()) {
    }
    require_success(engine.generation(id));
    print(loaded, engine.generation(id), nullptr);
  }
}

std::vector<Generation> Generate::decode(const LoadedModel& loaded, Engine& engine,
                                         const std::vector<std::vector<int32_t>>& prompts) const {
  std::vector<Engine::Id> requests;
  for (const auto& prompt : prompts) requests.push_back(engine.add(request(prompt, loaded)));
  engine.run();
  std::vector<Generation> generations;
  for (const Engine::Id id : requests) {
    require_success(engine.generation(id));
    generations.push_back(engine.generation(id));
  }
  return generations;
}

// Flags that contradict each other are refused before anything loads.
void Generate::check_flags() const {
  const auto refuse = [](const char* where, const char* expected, const char* found) {
    throw Error({.where = where, .expected = expected, .found = found, .next = {}});
  };
  if (prompts.empty() && ids.empty()) refuse("generate", "--prompt TEXT or --tokens IDS", "neither");
  if (chat == "none" && !system.empty()) refuse("--system", "a chat (--chat response or think)", "--chat none");
  if (prompts.empty() && !chat.empty()) refuse("--chat", "a --prompt to put into a chat", "--tokens only");
  if (prompts.empty() && !system.empty()) refuse("--system", "a --prompt to put into a chat", "--tokens only");
}

void Generate::run() const {
  check_flags();
  const int n = static_cast<int>(std::min<size_t>(prompts.size() + ids.size(), kMaxTogether));
  LoadOptions options = machine.load_options(model, n);
  draft.apply(model, options);
  LoadedModel loaded = open_model(model, machine, options);
  const auto all = all_prompts(loaded);
  Engine engine(*loaded.machine, loaded.model->vocabulary(), machine.rows_per_step, draft.speculation(loaded));
  if (draft.baseline) {
    const auto drafted = decode(loaded, engine, all);
    Engine without(*loaded.machine, loaded.model->vocabulary(), machine.rows_per_step);
    const auto plain = decode(loaded, without, all);
    for (size_t i = 0; i < all.size(); ++i) print(loaded, drafted[i], &plain[i]);
    return;
  }
  if (all.size() == 1 && !json && loaded.text.tokenizer) return stream(loaded, engine, all[0]);
  together(loaded, engine, all);
}

}  // namespace

void add_generate(CLI::App& app) {
  auto generate = std::make_shared<Generate>();
  CLI::App* sub = app.add_subcommand("generate", "continue prompts");
  generate->model.add_model(*sub);
  generate->model.add_chat_format(*sub);
  auto* prompt = sub->add_option("-p,--prompt", generate->prompts, "a prompt; several are decoded together")->expected(1);
  prompt->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  auto* ids = sub->add_option("--tokens", generate->ids, "a prompt as token ids: 1,2,3")->expected(1);
  ids->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  auto* chat = sub->add_option("--chat", generate->chat,
                               "none: the prompt as it is; response, think: as a user's turn, thinking off or on (default: as "
                               "the model's chat template says; none where it has none of a known format)");
  chat->check(CLI::IsMember({"none", "response", "think"}));
  sub->add_option("--system", generate->system, "a system message before each prompt");
  sub->add_flag("--json", generate->json, "one JSON object a prompt");
  generate->sampling.add(*sub);
  generate->draft.add(*sub);
  generate->machine.add(*sub);
  sub->callback([generate] { generate->run(); });
}

}  // namespace megalith
