#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "program/draft_steps.h"
#include "program/program.h"
#include "program/schedule.h"
#include "program/step_args.h"
#include "ranks/tree.h"

namespace megalith {

// An op on one rank with the memory that it works on. Made when the machine is built; nothing is looked up in a step.
struct OpContext {
  const Op* op = nullptr;
  int rank = 0;
  int ranks = 1;
  std::vector<const float*> in;  // each [rows, in_width]
  std::vector<int64_t> in_width;
  std::vector<const float*> in_of_ranks;  // a collective's first input on each rank
  std::vector<TreeSum> tree;              // the order of a sum over ranks
  float* out = nullptr;                   // [rows, out_width]
  int64_t out_width = 0;
  int64_t block = 0;         // Program::block
  bool chosen_rows = false;  // the op works on StepArgs::chosen, not on all rows
  DraftSteps* drafts = nullptr;  // of the step, for the ops that begin and advance them
  std::array<const std::byte*, 2> weight = {};
  std::array<const Weight*, 2> weight_info = {};
  std::array<float*, 2> state = {};  // of sequence 0
  std::array<int64_t, 2> state_stride = {};  // floats from a sequence to the next
  std::vector<float> frequencies;  // of a rope: radians a position, [rotary / 2]
  int64_t head_dim = 0;  // of a per-position state
  int64_t slots = 0;     // positions that the op's per-position states hold, a multiple of kPositionBlock
  int64_t context = 0;   // the same of a state without a window

  int64_t rows(const StepArgs& step) const {
    return static_cast<int64_t>(chosen_rows ? step.chosen.size() : step.rows.size());
  }
  const float* plain_weight(size_t i) const { return reinterpret_cast<const float*>(weight[i]); }
  // What a recurrence keeps of a run's speculative rows (its second state), for a head: [rows, floats]. Null where the
  // program has no place for it.
  float* kept_rows(const Run& run, int64_t head, int64_t floats) const {
    return state[1] ? state[1] + run.sequence * state_stride[1] + head * block * floats : nullptr;
  }
};

// Which part of an op a task is.
struct Part {
  int part = 0;
  int parts = 1;
  Range of(int64_t size, int64_t grain = 1) const { return part_of(size, part, parts, grain); }
};

// A worker's own memory, grown before steps, not in them.
struct Scratch {
  float* floats = nullptr;
  int64_t size = 0;
};

using Kernel = void (*)(const OpContext& context, const StepArgs& step, Part part, Scratch scratch);

// Sums run over sixteen lanes, whatever the vector length, and columns are dealt to workers sixteen at a time.
inline constexpr int64_t kLanes = 16;

// The most virtual ranks of a process.
inline constexpr int kMaxLocalRanks = 32;

// Keys lie in blocks of sixteen positions, [block, dim, 16], so that the lanes of a vector are positions and each score
// is one chain over dim. Values lie [position, dim].
inline constexpr int64_t kPositionBlock = 16;

void run_embed(const OpContext&, const StepArgs&, Part, Scratch);
void run_rms_norm(const OpContext&, const StepArgs&, Part, Scratch);
void run_matmul(const OpContext&, const StepArgs&, Part, Scratch);
void run_rope(const OpContext&, const StepArgs&, Part, Scratch);
void run_append_kv(const OpContext&, const StepArgs&, Part, Scratch);
void run_append_latent(const OpContext&, const StepArgs&, Part, Scratch);
void run_attend(const OpContext&, const StepArgs&, Part, Scratch);
void run_join_spans(const OpContext&, const StepArgs&, Part, Scratch);
void run_sigmoid_gate(const OpContext&, const StepArgs&, Part, Scratch);
void run_short_conv(const OpContext&, const StepArgs&, Part, Scratch);
void run_gated_delta(const OpContext&, const StepArgs&, Part, Scratch);
void run_kda(const OpContext&, const StepArgs&, Part, Scratch);
void run_gated_norm(const OpContext&, const StepArgs&, Part, Scratch);
void run_silu_gate(const OpContext&, const StepArgs&, Part, Scratch);
void run_situ_gate(const OpContext&, const StepArgs&, Part, Scratch);
void run_residual_mix(const OpContext&, const StepArgs&, Part, Scratch);
void run_route(const OpContext&, const StepArgs&, Part, Scratch);
void run_expert_gate(const OpContext&, const StepArgs&, Part, Scratch);
void run_expert_down(const OpContext&, const StepArgs&, Part, Scratch);
void run_add(const OpContext&, const StepArgs&, Part, Scratch);
void run_all_reduce(const OpContext&, const StepArgs&, Part, Scratch);
void run_choose_rows(const OpContext&, const StepArgs&, Part, Scratch);
void run_all_gather(const OpContext&, const StepArgs&, Part, Scratch);
void run_sample(const OpContext&, const StepArgs&, Part, Scratch);
void run_accept(const OpContext&, const StepArgs&, Part, Scratch);
void run_concat(const OpContext&, const StepArgs&, Part, Scratch);
void run_append_window(const OpContext&, const StepArgs&, Part, Scratch);
void run_attend_block(const OpContext&, const StepArgs&, Part, Scratch);
void run_block_conv(const OpContext&, const StepArgs&, Part, Scratch);
void run_candidates(const OpContext&, const StepArgs&, Part, Scratch);
void run_lookup(const OpContext&, const StepArgs&, Part, Scratch);
void run_select_path(const OpContext&, const StepArgs&, Part, Scratch);
void run_pick_row(const OpContext&, const StepArgs&, Part, Scratch);
void run_advance(const OpContext&, const StepArgs&, Part, Scratch);

int64_t matmul_scratch_floats(const Matmul& how);
int64_t attend_scratch_floats(const Attend& how);
int64_t delta_scratch_floats(int64_t key_dim);
int64_t gated_delta_scratch_floats(const GatedDelta& how);
int64_t kda_scratch_floats(const Kda& how);
int64_t route_scratch_floats(const Route& how);
int64_t expert_gate_scratch_floats(const ExpertGate& how, int64_t experts, int64_t inputs, int64_t rows);
int64_t expert_down_scratch_floats(const ExpertDown& how, int64_t experts, int64_t inputs, int64_t rows);
int64_t sample_scratch_floats(int64_t vocabulary);
int64_t attend_block_scratch_floats(const AttendBlock& how);
int64_t select_path_scratch_floats(const SelectPath& how);

Kernel kernel(OpKind kind);
// Floats of scratch that a task of the op may need in a step of up to `rows` rows.
int64_t scratch_floats(const Program& program, const Op& op, int64_t rows);

}  // namespace megalith
