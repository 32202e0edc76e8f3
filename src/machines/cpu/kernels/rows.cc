// Ops that only move rows: no arithmetic, so plain loops at the compiler's vector length.

#include <algorithm>

#include "base/numbers.h"
#include "machines/cpu/kernels/kernel.h"

namespace megalith {

namespace {

// Columns of a token's row of a table that lies in panels (it may be the head's): one output of each line. Tokens of other
// ranks give zeros; + 0 makes a stored -0 the same for one rank and for many.
void copy_row(const OpContext& c, int64_t token, Range columns, float* out) {
  const Weight& table = *c.weight_info[0];
  const int64_t width = table.inputs(c.ranks);
  const bool by_token = table.split.axis == Split::Axis::outputs;
  const int64_t index = token - (by_token ? table.split.blocks[0].begin(c.rank, c.ranks) : 0);
  if (index < 0 || index >= table.outputs(c.ranks)) {
    std::fill(out + columns.begin, out + columns.end, 0.0f);
    return;
  }
  const int64_t at = index / kPanelOutputs * width * kPanelOutputs + panel_slot(table.dtype, index % kPanelOutputs);
  const auto* half = reinterpret_cast<const uint16_t*>(c.weight[0]) + at;
  const auto* full = reinterpret_cast<const float*>(c.weight[0]) + at;
  for (int64_t i = columns.begin; i < columns.end; ++i) {
    const int64_t line = i * kPanelOutputs;
    out[i] = (table.dtype == DType::bf16 ? bf16_to_f32(half[line]) : full[line]) + 0.0f;
  }
}

}  // namespace

void run_embed(const OpContext& c, const StepArgs& step, Part part, Scratch) {
  const Range columns = part.of(c.out_width, kLanes);
  for (int64_t row = 0; row < c.rows(step); ++row) {
    copy_row(c, step.rows[static_cast<size_t>(row)].token, columns, c.out + row * c.out_width);
  }
}

void run_lookup(const OpContext& c, const StepArgs& step, Part part, Scratch) {
  const int64_t count = c.op->get<Lookup>().count, width = c.out_width / count;
  const Range range = part.of(c.rows(step) * count);
  for (int64_t i = range.begin; i < range.end; ++i) {
    const int64_t row = i / count, which = i % count;
    const auto id = static_cast<int64_t>(c.in[0][row * c.in_width[0] + which]);
    copy_row(c, id, {0, width}, c.out + row * c.out_width + which * width);
  }
}

void run_choose_rows(const OpContext& c, const StepArgs& step, Part part, Scratch) {
  const Range columns = part.of(c.out_width, kLanes);
  for (size_t i = 0; i < step.chosen.size(); ++i) {
    const float* x = c.in[0] + step.chosen[i] * c.in_width[0];
    std::copy(x + columns.begin, x + columns.end, c.out + static_cast<int64_t>(i) * c.out_width + columns.begin);
  }
}

void run_concat(const OpContext& c, const StepArgs& step, Part part, Scratch) {
  const Range columns = part.of(c.out_width, kLanes);
  for (int64_t row = 0; row < c.rows(step); ++row) {
    int64_t first = 0;  // column of the output
    for (size_t i = 0; i < c.in.size(); first += c.in_width[i++]) {
      const int64_t begin = std::max(columns.begin, first), end = std::min(columns.end, first + c.in_width[i]);
      if (begin >= end) continue;
      const float* x = c.in[i] + row * c.in_width[i] - first;
      std::copy(x + begin, x + end, c.out + row * c.out_width + begin);
    }
  }
}

// Draft rows lie block after block.
void run_pick_row(const OpContext& c, const StepArgs& step, Part part, Scratch) {
  const Range columns = part.of(c.out_width, kLanes);
  for (size_t j = 0; j < step.rows.size(); ++j) {
    const int64_t row = c.drafts->rows.runs[j].first_row + c.op->get<PickRow>().row;
    const float* x = c.in[0] + row * c.in_width[0];
    std::copy(x + columns.begin, x + columns.end, c.out + static_cast<int64_t>(j) * c.out_width + columns.begin);
  }
}

void run_accept(const OpContext& c, const StepArgs& step, Part part, Scratch) {
  if (part.part == 0) c.drafts->begin(step, c.in[0], c.op->get<Accept>().mask, c.out);
}

void run_advance(const OpContext& c, const StepArgs& step, Part part, Scratch) {
  if (part.part != 0) return;
  for (size_t j = 0; j < step.rows.size(); ++j) {
    const float token = c.in[0][j];
    c.out[j] = c.weight[0] && token >= 0 ? token + c.plain_weight(0)[static_cast<int64_t>(token)] : token;
  }
  c.drafts->advance(c.out);
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
