#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "engine/loaded_model.h"

namespace megalith {

// Flags that several subcommands share. add_… puts them on a subcommand, with their defaults in --help.
struct ModelOptions {
  std::string model;  // empty: the embedded tiny-qwen
  std::string revision;
  std::string chat_format;

  void add_model(CLI::App& app);
  void add_chat_format(CLI::App& app);
  // The model's directory; throws Error when there is none.
  std::filesystem::path directory() const;
  std::optional<std::string> format() const { return chat_format.empty() ? std::nullopt : std::optional(chat_format); }
};

// How a model speculates.
struct DraftFlags {
  std::string draft, revision;
  bool none = false;
  std::string width = "auto";
  int fixed_acceptance = 0;  // tokens of each step; 0: what is right
  bool baseline = false;
  std::string guess = "auto";
  int steps_per_call = 1;

  void add(CLI::App& app);
  void add_draft(CLI::App& app);  // of these, only which draft, and how many rows
  // Adds what is loaded to the options: the draft that was asked for, or the one that is known for the model. Says so where
  // a known one is not there.
  void apply(const ModelOptions& model, LoadOptions& options) const;
  Speculation speculation(const LoadedModel& loaded) const;

 private:
  std::optional<std::filesystem::path> directory(const ModelOptions& model) const;
};

struct MachineFlags {
  int ranks = 1;
  int threads = 0;
  int context = 2048;
  int rows_per_step = 512;
  bool quiet = false;
  double deadline_s = 60;

  void add(CLI::App& app);
  LoadOptions load_options(const ModelOptions& model, int sequences) const;
};

// Loads a model as the flags say. Says first what is loaded where, unless --quiet was given; with -v, where the time went.
LoadedModel open_model(const ModelOptions& model, const MachineFlags& flags, const LoadOptions& options);
// The same; the phases of the start go to `phases`.
LoadedModel open_model(const ModelOptions& model, const MachineFlags& flags, const LoadOptions& options, Phases& phases);

struct SamplingFlags {
  // What is not given is greedy; where `as_model`, it is as generation_config.json says, if that asks for sampling.
  bool as_model = false;
  std::optional<double> temperature, top_p, min_p;
  std::optional<int> top_k;
  uint64_t seed = 0;
  int64_t max_tokens = 512;
  bool ignore_eos = false;

  void add(CLI::App& app);
  void add_without_seed(CLI::App& app);
  // A request to this model with these settings.
  Request request(std::vector<int32_t> prompt, const LoadedModel& loaded) const;
  // Says on stderr which settings come from the model's files, where some do.
  void announce(const LoadedModel& loaded) const;
  // How tokens are drawn where a model's file says this.
  Sampling sampling(const GenerationConfig& model) const;
};

// "1,2,3" as token ids; throws Error.
std::vector<int32_t> parse_ids(const std::string& text);

// A subcommand: adds itself to the program's command line. run() is called after parsing, if it was chosen.
using Subcommand = void (*)(CLI::App& app);
void add_chat(CLI::App& app);
void add_generate(CLI::App& app);
void add_tokenize(CLI::App& app);
void add_detokenize(CLI::App& app);
void add_render(CLI::App& app);
void add_logits(CLI::App& app);
void add_program(CLI::App& app);
void add_bench(CLI::App& app);
void add_check(CLI::App& app);
void add_serve(CLI::App& app);

}  // namespace megalith
