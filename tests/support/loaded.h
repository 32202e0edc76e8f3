#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "machines/machine.h"
#include "models/draft.h"
#include "models/model.h"
#include "weights/checkpoint.h"
#include "weights/files.h"
#include "weights/tape.h"

namespace megalith {

// A model of a directory, on the CPU machine; with its draft, where it has one.
struct Loaded {
  std::unique_ptr<Checkpoint> checkpoint, draft_checkpoint;
  std::unique_ptr<Model> model;
  std::unique_ptr<Draft> draft;
  std::unique_ptr<Machine> machine;
};

inline Loaded load_model(const std::filesystem::path& directory, int ranks, const MachineOptions& options, bool hidden = false,
                         int block = 0) {
  Loaded loaded;
  loaded.checkpoint = std::make_unique<Checkpoint>(directory);
  const auto config = directory / "config.json";
  loaded.model = make_model(read_json(config), config.string());
  Program program = loaded.model->build({ranks, hidden, loaded.checkpoint->catalog(), block});
  check_tensors(*loaded.checkpoint, program.weights, [&](const std::string& name) { return loaded.model->ignores(name); });
  loaded.machine = make_cpu_machine(std::move(program), options);
  loaded.machine->load(CheckpointTape(*loaded.checkpoint), nullptr);
  return loaded;
}

// With the draft of another directory, for blocks of all that it guesses. `draft_weights`: in place of its own.
inline Loaded load_pair(const std::filesystem::path& directory, const std::filesystem::path& draft, int ranks,
                        const MachineOptions& options, bool hidden = false, const TapeSource* draft_weights = nullptr) {
  Loaded loaded;
  loaded.checkpoint = std::make_unique<Checkpoint>(directory);
  loaded.draft_checkpoint = std::make_unique<Checkpoint>(draft);
  const auto config = directory / "config.json", draft_config = draft / "config.json";
  loaded.model = make_model(read_json(config), config.string());
  loaded.draft = make_draft(read_json(draft_config), draft_config.string());
  loaded.draft->require_target(*loaded.model);
  Program program = loaded.model->build({ranks, hidden, pair_catalog(*loaded.checkpoint, *loaded.draft_checkpoint),
                                         loaded.draft->most_rows(), loaded.draft->builder()});
  check_tensors(*loaded.checkpoint, weights_of(program.weights, false),
                [&](const std::string& name) { return loaded.model->ignores(name); });
  check_tensors(*loaded.draft_checkpoint, weights_of(program.weights, true),
                [&](const std::string& name) { return loaded.draft->ignores(name); });
  loaded.machine = make_cpu_machine(std::move(program), options);
  const CheckpointTape own(*loaded.draft_checkpoint);
  loaded.machine->load(PairTape(CheckpointTape(*loaded.checkpoint), draft_weights ? *draft_weights : own), nullptr);
  return loaded;
}

}  // namespace megalith
