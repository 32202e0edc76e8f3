#pragma once

#include <cstddef>
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
  int threads = 0;         // 0: as many as the process may use, and as the weights give work to
  int max_rows = 512;      // of one step
  int max_chosen = 0;      // rows of one step whose logits may be wanted; 0: all of max_rows
  int max_sequences = 1;   // slots for states
  int context = 2048;      // positions of a sequence
  double deadline_s = 60;  // the longest wait of a worker for another
};

// When a worker did a task of a step, in seconds since the step began: it began to wait for the task's inputs, to work,
// and was done.
struct TaskSpan {
  int32_t op = 0;
  int32_t rank = 0;
  int32_t worker = 0;
  double waiting = 0, working = 0, done = 0;
};

// Bytes that a machine holds for a program.
struct MemoryNeed {
  int64_t tape = 0;         // weights, of all ranks
  int64_t states = 0;       // of all sequences at the whole context
  int64_t activations = 0;  // values and scratch of a step
  int64_t total() const { return tape + states + activations; }
};

// The states that a sequence has one of (without positions), or the entries of positions [first, last).
struct StatePart {
  int first = 0, last = 0;
  bool of_sequence() const { return first == last; }
};

// Something that runs a program's steps: load weights, run, read, and nothing else.
class Machine {
 public:
  virtual ~Machine() = default;

  // Reads all weights; throws what `source` throws. Called once, before run().
  virtual void load(const TapeSource& source, Progress* progress) = 0;
  // Runs one step. args must respect the options: rows, sequence slots, positions. Throws std::runtime_error, with who waited
  // for what, when a worker fails to keep its deadline; the machine is then unusable.
  // With `spans`, says when each task was done.
  virtual void run(const StepArgs& args, std::vector<TaskSpan>* spans = nullptr) = 0;
  // Of the last step, the seconds of its draft.
  virtual double draft_seconds() const = 0;
  // An output of the last step, [rows, width], of rank 0. Valid until the next run().
  virtual std::span<const float> read(Value output) const = 0;
  // A state of a sequence on a rank: [shape], or [shape[0], positions, shape[1]] for the first `positions` positions.
  virtual std::vector<float> read_state(int state, int rank, int sequence, int positions) const = 0;

  // What save() and restore() take for positions is a multiple of this.
  virtual int position_grain() const = 0;
  // A part of a sequence's states, as bytes that restore() of this machine takes, into any slot. Not for a sequence of which
  // the next run has to replay rows.
  virtual std::vector<std::byte> save(int sequence, StatePart part) const = 0;
  virtual void restore(int sequence, StatePart part, std::span<const std::byte> saved) = 0;

  virtual const Program& program() const = 0;
  virtual const MachineOptions& options() const = 0;
  // For reports: "cpu, 2 threads, AVX-512".
  virtual std::string describe() const = 0;
  virtual MemoryNeed memory() const = 0;
  // Does a step again, op after op, and returns the label of the first op with a result that is not finite; empty where
  // all are. For a step that has failed: it changes the states of the step's sequences and the outputs.
  virtual std::string find_non_finite(const StepArgs& args) = 0;
};

std::unique_ptr<Machine> make_cpu_machine(Program program, const MachineOptions& options);
// What the machine above would hold; allocates nothing.
MemoryNeed cpu_memory_need(const Program& program, const MachineOptions& options);

}  // namespace megalith
