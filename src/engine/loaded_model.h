#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/phases.h"
#include "machines/machine.h"
#include "models/draft.h"
#include "models/model.h"
#include "text/chat.h"
#include "text/tokenizer.h"
#include "weights/checkpoint.h"
#include "weights/files.h"

namespace megalith {

struct LoadOptions {
  int ranks = 1;
  bool hidden = false;                     // give the residual stream of every layer as outputs
  std::optional<std::string> chat_format;  // overrides what the chat template says
  bool quiet = false;                      // no progress
  std::function<void(uint64_t done, uint64_t total)> on_progress = {};  // bytes of weights; called by several threads
  std::optional<std::filesystem::path> draft;  // the directory of the draft model
  int block = 0;                               // with a draft: the most rows of a block; 0: as many as it guesses, and one
  MachineOptions machine;
};

// A model directory's text side: what is needed to turn text into tokens and back. No weights.
struct TextModel {
  std::optional<Tokenizer> tokenizer;        // absent where the directory has no vocabulary
  std::unique_ptr<const ChatFormat> format;  // null where there is no chat template, or one of no known format
  std::optional<Error> unknown_format;       // what is wrong with the template, where it is of no known format
  std::optional<int32_t> begin_token;        // that raw texts begin with; absent where they begin with their own first

  // The same, or an Error that says what is missing.
  const Tokenizer& require_tokenizer() const;
  const ChatFormat& require_format() const;
  // A text that is no chat, as a prompt: what texts begin with, then its tokens.
  std::vector<int32_t> prompt_of(std::string_view text, Specials specials = Specials::recognised) const;

  std::filesystem::path directory;
};
TextModel load_text(const std::filesystem::path& directory, const std::optional<std::string>& chat_format,
                    int64_t model_rows = 0);

// A draft model's directory, beside its target.
struct DraftModel {
  std::filesystem::path directory;
  std::unique_ptr<Checkpoint> checkpoint;
  std::unique_ptr<Draft> draft;
};

// All that is known of a model before its weights are read.
struct PreparedModel {
  std::filesystem::path directory;
  std::unique_ptr<Checkpoint> checkpoint;
  std::unique_ptr<Model> model;
  std::optional<DraftModel> draft;
  Program program;
  MachineOptions machine;  // with room for the rows of blocks
  Ignored ignored;  // tensors of the checkpoint that text does not need
  TextModel text;
  GenerationConfig generation;
  std::vector<int32_t> end_tokens;  // of the generation config, and of the chat format
  MemoryNeed memory;                // of the machine that the options describe
};

// Reads configuration, tokenizer and the headers of all tensor files, and checks them. Throws Error for all that is
// wrong with the directory or the options.
PreparedModel prepare_model(const std::filesystem::path& directory, const LoadOptions& options);

// Throws Error, with the numbers, where `need` is more than this process may still have.
void require_memory(const MemoryNeed& need, uint64_t available);

// A model that is ready to run.
struct LoadedModel {
  std::filesystem::path directory;
  std::unique_ptr<Checkpoint> checkpoint;
  std::unique_ptr<Model> model;
  std::optional<DraftModel> draft;
  std::unique_ptr<Machine> machine;
  TextModel text;
  GenerationConfig generation;
  std::vector<int32_t> end_tokens;
};

// Prepares the model, refuses one that does not fit into memory, and loads the weights, with the tokenizer read beside
// them. Throws Error, before weights are read where headers tell, and soon where the tokenizer does. With `phases`,
// says where the time went.
LoadedModel load_model(const std::filesystem::path& directory, const LoadOptions& options, Phases* phases = nullptr);

}  // namespace megalith
