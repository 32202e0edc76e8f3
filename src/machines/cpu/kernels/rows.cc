// Ops that only move rows: no arithmetic, so plain loops at the compiler's vector length.

#include <algorithm>

#include "base/numbers.h"
#include "machines/cpu/kernels/kernel.h"

namespace megalith {

// A token's row of the table, which lies in panels (it may be the head's): one output of each line. Tokens of other
// ranks give zeros; + 0 makes a stored -0 the same for one rank and for many.
void run_embed(const OpContext& c, const StepArgs& step, Part part, Scratch) {
  const Weight& table = *c.weight_info[0];
  const int64_t tokens = table.outputs(c.ranks);
  const int64_t first = table.split.axis == Split::Axis::outputs ? table.split.blocks[0].begin(c.rank, c.ranks) : 0;
  const Range columns = part.of(c.out_width, kLanes);
  for (int64_t row = 0; row < c.rows(step); ++row) {
    const int64_t token = step.rows[static_cast<size_t>(row)].token - first;
    float* out = c.out + row * c.out_width;
    if (token < 0 || token >= tokens) {
      std::fill(out + columns.begin, out + columns.end, 0.0f);
      continue;
    }
    const int64_t at = token / kPanelOutputs * c.out_width * kPanelOutputs + panel_slot(table.dtype, token % kPanelOutputs);
    const auto* half = reinterpret_cast<const uint16_t*>(c.weight[0]) + at;
    const auto* full = reinterpret_cast<const float*>(c.weight[0]) + at;
    for (int64_t i = columns.begin; i < columns.end; ++i) {
      const int64_t line = i * kPanelOutputs;
      out[i] = (table.dtype == DType::bf16 ? bf16_to_f32(half[line]) : full[line]) + 0.0f;
    }
  }
}

void run_choose_rows(const OpContext& c, const StepArgs& step, Part part, Scratch) {
  const Range columns = part.of(c.out_width, kLanes);
  for (size_t i = 0; i < step.chosen.size(); ++i) {
    const float* x = c.in[0] + step.chosen[i] * c.in_width[0];
    std::copy(x + columns.begin, x + columns.end, c.out + static_cast<int64_t>(i) * c.out_width + columns.begin);
  }
}

// Joins ranks' parts of each row in the order of ranks.
void run_all_gather(const OpContext& c, const StepArgs& step, Part part, Scratch) {
  const int64_t width = c.out_width / c.ranks;
  const Range columns = part.of(width, kLanes);
  for (int64_t row = 0; row < c.rows(step); ++row) {
    for (int64_t rank = 0; rank < c.ranks; ++rank) {
      const float* x = c.in_of_ranks[static_cast<size_t>(rank)] + row * width;
      std::copy(x + columns.begin, x + columns.end, c.out + row * c.out_width + rank * width + columns.begin);
    }
  }
}

}  // namespace megalith
