#include "cli/options.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <spdlog/spdlog.h>

#include <charconv>
#include <cstdio>

#include "base/error.h"
#include "cli/embedded.h"
#include "machines/host.h"
#include "text/chat.h"
#include "weights/environment.h"
#include "weights/source.h"

namespace megalith {

namespace {

// CLI::Range lets NaN pass.
CLI::Validator number_in(double least, double most) {
  return CLI::Validator(
      [least, most](std::string& text) {
        double value = 0;
        const bool right = CLI::detail::lexical_cast(text, value) && value >= least && value <= most;
        return right ? std::string() : fmt::format("expected a number from {} to {}, found {}", least, most, text);
      },
      fmt::format("FLOAT in [{} - {}]", least, most));
}

}  // namespace

void ModelOptions::add_model(CLI::App& app) {
  app.add_option("-m,--model", model,
                 "a directory with a Hugging Face checkpoint, or org/name from the hub's cache (default: tiny-qwen; it and "
                 "tiny-kimi come with Megalith)");
  app.add_option("--revision", revision, "of org/name in the hub's cache (default: main)");
}

void ModelOptions::add_chat_format(CLI::App& app) {
  app.add_option("--chat-format", chat_format,
                 fmt::format("{} (default: as the model's chat template says)", fmt::join(chat_format_names(), "|")))
      ->check(CLI::IsMember(chat_format_names()));
}

std::filesystem::path ModelOptions::directory() const {
  if (!revision.empty() && (model.empty() || is_embedded(model))) {
    throw Error({.where = "--revision", .expected = "--model org/name beside it", .found = "the embedded model", .next = {}});
  }
  if (model.empty() || is_embedded(model)) return embedded_model(model.empty() ? kDefaultModel : model);
  return resolve_model(model, revision.empty() ? std::nullopt : std::optional(revision), combined_environment());
}

void DraftFlags::add_draft(CLI::App& app) {
  auto* named = app.add_option("--draft", draft,
                               "the draft model: a directory, or org/name from the hub's cache (default: the one that is known "
                               "for the model, where it is there)");
  app.add_option("--draft-revision", revision, "of the draft in the hub's cache (default: main)");
  app.add_flag("--no-draft", none, "decode without a draft: the same text, one token a step")->excludes(named);
  app.add_option("--draft-width", width,
                 "rows of a block, the newest token and its guesses; auto takes as many, or none, as give most tokens a second")
      ->capture_default_str()
      ->check(CLI::IsMember({"auto"}) | CLI::Range(1, kMaxBlock));
}

void DraftFlags::add(CLI::App& app) {
  add_draft(app);
  app.add_option("--fixed-acceptance-length", fixed_acceptance,
                 "tokens that each step gives, whatever is right: for measurements, the text is not the model's")
      ->check(CLI::Range(1, kMaxBlock));
  app.add_option("--steps-per-call", steps_per_call, "steps after which new text is given out")
      ->capture_default_str()
      ->check(CLI::Range(1, 1 << 16));
  app.add_option("--draft-guess", guess,
                 "where tokens are drawn: guess with the same noise, the likeliest (argmax), or as has been right more often")
      ->capture_default_str()
      ->check(CLI::IsMember({"auto", "noise", "argmax"}));
  app.add_flag("--baseline", baseline, "decode each prompt again without a draft, and compare text and time");
}

std::optional<std::filesystem::path> DraftFlags::directory(const ModelOptions& model) const {
  const auto pick = [&](const std::string& name) {
    if (is_embedded(name)) return embedded_model(name);
    return resolve_model(name, revision.empty() ? std::nullopt : std::optional(revision), combined_environment());
  };
  if (!draft.empty()) return pick(draft);
  const std::optional<std::string> known = known_draft(model.model);
  if (!known) return std::nullopt;
  try {
    return pick(*known);
  } catch (const Error& error) {
    spdlog::warn("no draft, so one token a step: {}", error.cause());
    return std::nullopt;
  }
}

void DraftFlags::apply(const ModelOptions& model, LoadOptions& options) const {
  if (none || width == "1") return;
  options.draft = directory(model);
  if (width != "auto") options.block = std::stoi(width);
}

Speculation DraftFlags::speculation(const LoadedModel& loaded) const {
  if (!loaded.draft && fixed_acceptance > 1) {
    throw Error({.where = "--fixed-acceptance-length",
                 .expected = "a draft (--draft) where it is above 1",
                 .found = "none",
                 .next = {}});
  }
  if (!loaded.draft) return {};
  Speculation how = {.width = loaded.machine->program().block, .automatic = width == "auto" && fixed_acceptance == 0};
  if (fixed_acceptance > how.width) {
    throw Error({.where = "--fixed-acceptance-length",
                 .expected = fmt::format("at most {}, the rows of a block", how.width),
                 .found = std::to_string(fixed_acceptance),
                 .next = {}});
  }
  how.guessing = guess == "noise" ? Guessing::noise : guess == "argmax" ? Guessing::argmax : Guessing::automatic;
  if (fixed_acceptance > 0) how.forced = fixed_acceptance - 1;
  return how;
}

void MachineFlags::add(CLI::App& app) {
  app.add_option("--ranks", ranks, "tensor-parallel parts, as virtual devices in this process")
      ->capture_default_str()
      ->check(CLI::Range(1, 1024));
  app.add_option("--threads", threads, "worker threads (default: one for each core that this process may use, fewer for small models)")
      ->check(CLI::Range(1, 4096));
  app.add_option("--context", context, "positions of a sequence: prompt and answer")
      ->capture_default_str()
      ->check(CLI::Range(1, 1 << 24));
  app.add_option("--rows-per-step", rows_per_step, "the most rows of one step; prompts are cut into pieces of this size")
      ->capture_default_str()
      ->check(CLI::Range(1, 65536));
  app.add_option("--deadline", deadline_s, "seconds that a worker waits for another before the step is given up")
      ->capture_default_str()
      ->check(number_in(0.1, 86400));
  app.add_flag("--quiet", quiet, "no progress, no statistics");
}

LoadOptions MachineFlags::load_options(const ModelOptions& model, int sequences) const {
  LoadOptions options;
  options.ranks = ranks;
  options.chat_format = model.format();
  options.quiet = quiet;
  options.machine = {.threads = threads,
                     .max_rows = rows_per_step,
                     .max_chosen = sequences,
                     .max_sequences = sequences,
                     .context = context,
                     .deadline_s = deadline_s};
  return options;
}

LoadedModel open_model(const ModelOptions& model, const MachineFlags& flags, const LoadOptions& options) {
  Phases phases;
  LoadedModel loaded = open_model(model, flags, options, phases);
  spdlog::info("{}", phases.table());
  return loaded;
}

LoadedModel open_model(const ModelOptions& model, const MachineFlags& flags, const LoadOptions& options, Phases& phases) {
  phases.begin("finding the model");
  const std::filesystem::path directory = model.directory();
  const Host host = describe_host(flags.threads);
  if (!flags.quiet) {
    fmt::print(stderr, "megalith {}; cpu, {}; {}\n", MEGALITH_VERSION, host.instruction_set, directory.string());
  }
  for (const std::string& wish : host.missing_wishes) spdlog::warn("{}", wish);
  LoadedModel loaded = load_model(directory, options, &phases);
  if (loaded.draft && !flags.quiet) {
    fmt::print(stderr, "draft {}, {}: blocks of {}\n", loaded.draft->directory.filename().string(),
               loaded.draft->draft->family(), loaded.machine->program().block);
  }
  return loaded;
}

void SamplingFlags::add(CLI::App& app) {
  add_without_seed(app);
  app.add_option("--seed", seed, "of the noise that draws tokens; the same seed gives the same text")->capture_default_str();
}

void SamplingFlags::add_without_seed(CLI::App& app) {
  app.add_option("--max-tokens", max_tokens, "the most tokens of an answer")
      ->capture_default_str()
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 30));
  const std::string otherwise = as_model ? " (default: as generation_config.json says, else " : " (default: ";
  app.add_option("--temperature", temperature, "0 takes the likeliest token; above, tokens are drawn" + otherwise + "0)")
      ->check(number_in(0, 100));
  app.add_option("--top-k", top_k, "draw from the k likeliest tokens; 0 is off" + otherwise + "0)")->check(CLI::Range(0, 1 << 24));
  app.add_option("--top-p", top_p,
                 "draw from the likeliest tokens that have this much of the probability; 1 is off" + otherwise + "1)")
      ->check(number_in(1e-6, 1));
  app.add_option("--min-p", min_p, "drop tokens less likely than this share of the likeliest; 0 is off" + otherwise + "0)")
      ->check(number_in(0, 1));
  app.add_flag("--ignore-eos", ignore_eos, "go on after end tokens");
}

Sampling SamplingFlags::sampling(const GenerationConfig& model) const {
  Sampling result;
  const bool draws = as_model && model.do_sample;
  const auto pick = [&](const std::optional<double>& flag, const std::optional<float>& file, float otherwise) {
    return flag ? static_cast<float>(*flag) : draws ? file.value_or(otherwise) : otherwise;
  };
  result.temperature = temperature ? static_cast<float>(*temperature) : draws ? model.temperature.value_or(1) : 0;
  result.top_k = top_k.value_or(draws ? model.top_k.value_or(0) : 0);
  result.top_p = pick(top_p, model.top_p, 1);
  result.min_p = pick(min_p, model.min_p, 0);
  result.seed = seed;
  return result;
}

void SamplingFlags::announce(const LoadedModel& loaded) const {
  if (!as_model || !loaded.generation.do_sample || temperature == 0.0) return;
  const Sampling s = sampling(loaded.generation);
  std::vector<std::string> settings;
  if (!temperature) settings.push_back(fmt::format("temperature {}", s.temperature));
  if (!top_k && loaded.generation.top_k) settings.push_back(fmt::format("top-k {}", s.top_k));
  if (!top_p && loaded.generation.top_p) settings.push_back(fmt::format("top-p {}", s.top_p));
  if (!min_p && loaded.generation.min_p) settings.push_back(fmt::format("min-p {}", s.min_p));
  if (settings.empty()) return;
  fmt::print(stderr, "sampling: {} (generation_config.json)\n", fmt::join(settings, ", "));
}

Request SamplingFlags::request(std::vector<int32_t> prompt, const LoadedModel& loaded) const {
  Request request;
  request.prompt = std::move(prompt);
  request.max_tokens = max_tokens;
  request.sampling = sampling(loaded.generation);
  if (!ignore_eos) request.end_tokens = loaded.end_tokens;
  return request;
}

std::vector<int32_t> parse_ids(const std::string& text) {
  std::vector<int32_t> ids;
  const char* p = text.data();
  const char* const end = p + text.size();
  while (true) {
    while (p != end && *p == ' ') ++p;
    int32_t id = 0;
    const auto [next, error] = std::from_chars(p, end, id);
    if (error != std::errc() || id < 0) break;
    ids.push_back(id);
    p = next;
    while (p != end && *p == ' ') ++p;
    if (p == end) return ids;
    if (*p++ != ',') break;
  }
  throw Error({.where = "token ids", .expected = "numbers with commas between, as 1,2,3", .found = text, .next = {}});
}

}  // namespace megalith
