#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "machines/machine.h"
#include "models/model.h"
#include "weights/checkpoint.h"
#include "weights/files.h"
#include "weights/tape.h"

namespace megalith {

// A model of a directory, on the CPU machine.
struct Loaded {
  std::unique_ptr<Checkpoint> checkpoint;
  std::unique_ptr<Model> model;
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

}  // namespace megalith
