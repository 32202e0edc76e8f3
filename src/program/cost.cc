#include "program/cost.h"

#include <algorithm>
#include <functional>
#include <numeric>

namespace megalith {

namespace {

int64_t rows_of(const Program& program, Value v, const CostArgs& args) {
  // One row of each sequence is chosen: the logits of its last token.
  return program.info(v).rows == Rows::chosen ? args.sequences : args.rows();
}

int64_t value_bytes(const Program& program, Value v, const CostArgs& args) {
  return rows_of(program, v, args) * program.info(v).width * 4;
}

// Σ over the rows of a sequence of the positions that each can see.
int64_t visible(const CostArgs& args) {
  const int64_t first = std::max<int64_t>(args.context - args.rows_each, 0);
  return args.sequences * (args.rows_each * first + args.rows_each * (args.rows_each + 1) / 2);
}

void add_state(const Program& program, const Op& op, const CostArgs& args, Cost& cost) {
  for (const int index : op.states) {
    const StateInfo& state = program.states[static_cast<size_t>(index)];
    const int64_t bytes = state.elements() * 4;
    if (state.kind == StateInfo::Kind::per_sequence) {
      cost.state_bytes += 2 * bytes * args.sequences;
    } else {
      // Rows of a sequence share what they read of its cache.
      cost.state_bytes += bytes * (op.kind == OpKind::attend ? args.context * args.sequences : args.rows());
    }
  }
}

double op_flops(const Program& program, const Op& op, const CostArgs& args) {
  const auto rows = static_cast<double>(args.rows());
  switch (op.kind) {
    case OpKind::matmul: {
      const Weight& w = program.weights[static_cast<size_t>(op.weights[0])];
      return 2.0 * static_cast<double>(rows_of(program, op.output, args) * w.outputs(program.ranks) *
                                       w.inputs(program.ranks));
    }
    case OpKind::attend: {
      const auto& how = op.get<Attend>();
      return 4.0 * static_cast<double>(how.heads * how.dim * visible(args));
    }
    case OpKind::gated_delta: {
      const auto& how = op.get<GatedDelta>();
      return 7.0 * rows * static_cast<double>(how.value_heads * how.key_dim * how.value_dim);
    }
    case OpKind::short_conv: return 2.0 * rows * static_cast<double>(op.get<ShortConv>().channels * op.get<ShortConv>().taps);
    default: return op.output.valid() ? static_cast<double>(value_bytes(program, op.output, args)) / 4 : 0;
  }
}

}  // namespace

Cost& Cost::operator+=(const Cost& other) {
  weight_bytes += other.weight_bytes;
  state_bytes += other.state_bytes;
  wire_bytes += other.wire_bytes;
  activation_bytes += other.activation_bytes;
  flops += other.flops;
  return *this;
}

Cost op_cost(const Program& program, const Op& op, const CostArgs& args) {
  Cost cost;
  for (const int index : op.weights) {
    const Weight& w = program.weights[static_cast<size_t>(index)];
    if (op.kind == OpKind::embed) {
      cost.weight_bytes += args.rows() * w.inputs(program.ranks) * dtype_bytes(w.stored) / program.ranks;
    } else {
      cost.weight_bytes += w.bytes(program.ranks);
    }
  }
  add_state(program, op, args, cost);
  for (const Value input : op.inputs) cost.activation_bytes += value_bytes(program, input, args);
  if (op.output.valid()) cost.activation_bytes += value_bytes(program, op.output, args);
  if (op.collective()) cost.wire_bytes = (program.ranks - 1) * value_bytes(program, op.inputs[0], args);
  cost.flops = op_flops(program, op, args);
  return cost;
}

int64_t streamed_bytes(const Program& program) {
  std::vector<bool> streamed(program.weights.size());
  for (const Op& op : program.ops) {
    if (op.kind == OpKind::embed) continue;
    for (const int index : op.weights) streamed[static_cast<size_t>(index)] = true;
  }
  int64_t bytes = 0;
  for (size_t i = 0; i < streamed.size(); ++i) {
    const Weight& w = program.weights[i];
    const auto elements = std::accumulate(w.shape.begin(), w.shape.end(), int64_t{1}, std::multiplies<>());
    if (streamed[i]) bytes += elements * dtype_bytes(w.stored);
  }
  return bytes;
}

Cost program_cost(const Program& program, const CostArgs& args) {
  Cost total;
  for (const Op& op : program.ops) total += op_cost(program, op, args);
  return total;
}

}  // namespace megalith
