#pragma once

#include <cstdint>
#include <span>
#include <string_view>

namespace megalith {

// What one step can do. Every kind has a row in the op table (op.cc), a function in reference/ and a file in each
// machine. A rank's part of a value is [rows, width]; "heads" view a row as [heads, dim].
enum class OpKind : uint8_t {
  embed,
  rms_norm,
  matmul,
  rope,
  append_kv,
  append_latent,
  attend,
  join_spans,
  sigmoid_gate,
  short_conv,
  gated_delta,
  kda,
  gated_norm,
  silu_gate,
  situ_gate,
  residual_mix,
  route,
  expert_gate,
  expert_down,
  add,
  all_reduce,
  choose_rows,
  all_gather,
  sample,
  accept,
  concat,
  append_window,
  attend_block,
  block_conv,
  candidates,
  lookup,
  select_path,
  pick_row,
  advance,
};

// The axis along which a schedule cuts an op into tasks. Each element of the output is formed by one task, in an order of
// sums that the cut does not change.
enum class Cut : uint8_t {
  panels,   // panels of the weight matrix
  columns,  // columns of the output, 16 at a time
  heads,    // (sequence, head) or (row, head) pairs
  experts,  // panels of the experts that the step's rows chose
  rows,     // rows of the output
};

struct OpInfo {
  OpKind kind;
  std::string_view name;
  Cut cut;
  std::string_view doc;    // one line: the formula
  std::string_view bytes;  // one line: what it must move
};

const OpInfo& op_info(OpKind kind);
std::span<const OpInfo> op_table();

}  // namespace megalith
