#pragma once

#include <cstdint>
#include <vector>

#include "program/draft_steps.h"
#include "program/program.h"
#include "program/step_args.h"

namespace megalith::reference {

// An op on one rank, with the memory that it works on. Matrices and values are row-major.
struct Call {
  const Op& op;
  const StepArgs& step;
  int rank = 0;
  int ranks = 1;
  int64_t rows = 0;                   // of the output
  int64_t width = 0;                  // of the output
  std::vector<const float*> in = {};  // each [rows, in_width]
  std::vector<int64_t> in_width = {};
  std::vector<const float*> in_of_ranks = {};  // of a collective: its input on each rank
  std::vector<const float*> weights = {};      // each [outputs, inputs], of experts [experts, outputs, inputs]
  std::vector<const Weight*> weight_info = {};
  std::vector<float*> states = {};       // of sequence 0
  std::vector<int64_t> state_size = {};  // floats from a sequence to the next
  int64_t slots = 0;                     // positions that a per-position state holds
  int64_t head_dim = 0;                  // of a per-position state
  DraftSteps* drafts = nullptr;          // of the step
  float* out = nullptr;
};

// One function for each OpKind; the formulas are in the op table (program/op.cc).
void embed(const Call& c);
void rms_norm(const Call& c);
void matmul(const Call& c);
void rope(const Call& c);
void append_kv(const Call& c);
void append_latent(const Call& c);
void attend(const Call& c);
void join_spans(const Call& c);
void sigmoid_gate(const Call& c);
void short_conv(const Call& c);
void gated_delta(const Call& c);
void kda(const Call& c);
void gated_norm(const Call& c);
void silu_gate(const Call& c);
void situ_gate(const Call& c);
void residual_mix(const Call& c);
void route(const Call& c);
void expert_gate(const Call& c);
void expert_down(const Call& c);
void add(const Call& c);
void all_reduce(const Call& c);
void choose_rows(const Call& c);
void all_gather(const Call& c);
void sample(const Call& c);
void accept(const Call& c);
void concat(const Call& c);
void append_window(const Call& c);
void attend_block(const Call& c);
void block_conv(const Call& c);
void candidates(const Call& c);
void lookup(const Call& c);
void select_path(const Call& c);
void pick_row(const Call& c);
void advance(const Call& c);

// A token's row of the op's table, or zeros on a rank that does not hold it.
void copy_table_row(const Call& c, int64_t token, int64_t width, float* out);

}  // namespace megalith::reference
