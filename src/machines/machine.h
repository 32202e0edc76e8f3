#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/progress.h"
#include "program/program.h"
#include "program/step_args.h"

namespace megalith {

struct MachineOptions {
  int threads = 0;         // 0: as many as the process may use
  int max_rows = 512;      // of one step
  int max_sequences = 1;   // slots for states
  int context = 2048;      // positions of a sequence
  double deadline_s = 60;  // the longest wait of a worker for another
};

// Something that runs a program's steps: load weights, run, read, and nothing else.
class Machine {
 public:
  virtual ~Machine() = default;

  // Reads all weights. Called once, before run().
  virtual void load(const TapeSource& source, Progress* progress) = 0;
  // Runs one step. args must respect the options: rows, sequence slots, positions. Throws std::runtime_error, with who waited
  // for what, when a worker fails to keep its deadline; the machine is then unusable.
  virtual void run(const StepArgs& args) = 0;
  // An output of the last step, [rows, width], of rank 0. Valid until the next run().
  virtual std::span<const float> read(Value output) const = 0;
  // A state of a sequence on a rank: [shape], or [shape[0], positions, shape[1]] for the first `positions` positions.
  virtual std::vector<float> read_state(int state, int rank, int sequence, int positions) const = 0;

  virtual const Program& program() const = 0;
  virtual const MachineOptions& options() const = 0;
  // For reports: "cpu, 2 threads, AVX-512".
  virtual std::string describe() const = 0;
  // Bytes held: weights, states, activations.
  virtual int64_t tape_bytes() const = 0;
  virtual int64_t state_bytes() const = 0;
  virtual int64_t activation_bytes() const = 0;
};

std::unique_ptr<Machine> make_cpu_machine(Program program, const MachineOptions& options);

}  // namespace megalith
