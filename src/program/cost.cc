#include "program/cost.h"

#include <algorithm>
#include <cmath>

namespace megalith {

namespace {

// One row of each sequence is chosen, the logits of its last token.
int64_t rows_of(const Program& program, Value v, const CostArgs& args) {
  switch (program.info(v).rows) {
    case Rows::all: return args.rows();
    case Rows::chosen:
    case Rows::blocks: return args.sequences;
    case Rows::draft: return args.sequences * program.draft_block;
  }
  return 0;
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
      const int64_t seen = state.window > 0 ? std::min(args.context, state.window) : args.context;
      cost.state_bytes += bytes * (op.reads_states() ? seen * args.sequences : args.rows());
    }
  }
}

// Of its table, only rows are read.
bool looked_up(const Op& op) { return op.kind == OpKind::embed || op.kind == OpKind::lookup; }

bool of_experts(const Op& op) { return op.kind == OpKind::expert_gate || op.kind == OpKind::expert_down; }

// The share of an expert op's matrices that the step reads.
double chosen_share(const Program& program, const Op& op, const CostArgs& args) {
  if (!of_experts(op)) return 1;
  const auto all = static_cast<double>(program.weights[static_cast<size_t>(op.weights[0])].experts.count);
  return std::min(chosen_experts(program, args) / all, 1.0);
}

// Of all rows' choices, those that fall on this rank's experts on average.
double expert_flops(const Program& program, const Op& op, int64_t rows) {
  const Weight& w = program.weights[static_cast<size_t>(op.weights[0])];
  const int64_t top_k =
      op.kind == OpKind::expert_gate ? op.get<ExpertGate>().top_k : op.get<ExpertDown>().top_k;
  const double choices = static_cast<double>(rows * top_k * w.matrices(program.ranks)) / static_cast<double>(w.experts.count);
  return 2.0 * choices * static_cast<double>(op.weights.size()) *
         static_cast<double>(w.outputs(program.ranks) * w.inputs(program.ranks));
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
      return 2.0 * static_cast<double>(how.heads * (how.key_dim + how.value_dim) * visible(args));
    }
    case OpKind::attend_block: {
      const auto& how = op.get<AttendBlock>();
      const int64_t seen = (how.window > 0 ? std::min(args.context, how.window) : args.context) + program.draft_block;
      return 4.0 * static_cast<double>(how.heads * how.dim * seen * rows_of(program, op.output, args));
    }
    case OpKind::gated_delta: {
      const auto& how = op.get<GatedDelta>();
      return 7.0 * rows * static_cast<double>(how.value_heads * how.key_dim * how.value_dim);
    }
    case OpKind::kda: {
      const auto& how = op.get<Kda>();
      return 7.0 * rows * static_cast<double>(how.heads * how.dim * how.dim);
    }
    case OpKind::expert_gate:
    case OpKind::expert_down: return expert_flops(program, op, args.rows());
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

bool idle(const Program& program, const Op& op, const CostArgs& args) {
  const Rows rows = program.rows_of(op);
  return !args.draft && (rows == Rows::draft || rows == Rows::blocks);
}

Cost op_cost(const Program& program, const Op& op, const CostArgs& args) {
  Cost cost;
  if (idle(program, op, args)) return cost;
  for (const int index : op.weights) {
    const Weight& w = program.weights[static_cast<size_t>(index)];
    if (looked_up(op)) {
      cost.weight_bytes += dtype_bytes(w.stored, value_bytes(program, op.output, args) / 4) / program.ranks;
    } else {
      const double share = chosen_share(program, op, args);
      cost.weight_bytes += std::llround(share * static_cast<double>(w.bytes(program.ranks)));
    }
  }
  add_state(program, op, args, cost);
  for (const Value input : op.inputs) cost.activation_bytes += value_bytes(program, input, args);
  if (op.output.valid()) cost.activation_bytes += value_bytes(program, op.output, args);
  if (op.collective()) cost.wire_bytes = (program.ranks - 1) * value_bytes(program, op.inputs[0], args);
  cost.flops = op_flops(program, op, args);
  return cost;
}

int64_t streamed_bytes(const Program& program, const CostArgs& args) {
  std::vector<bool> counted(program.weights.size());
  int64_t bytes = 0;
  for (const Op& op : program.ops) {
    if (looked_up(op) || idle(program, op, args)) continue;
    const double share = chosen_share(program, op, args);
    for (const int index : op.weights) {
      if (counted[static_cast<size_t>(index)]) continue;
      counted[static_cast<size_t>(index)] = true;
      bytes += std::llround(share * static_cast<double>(program.weights[static_cast<size_t>(index)].whole_bytes()));
    }
  }
  return bytes;
}

double chosen_experts(const Program& program, const CostArgs& args) {
  if (args.experts > 0) return args.experts;
  for (const Op& op : program.ops) {
    if (op.kind != OpKind::route) continue;
    const auto experts = static_cast<double>(op.get<Route>().experts);
    const double left_out = 1 - static_cast<double>(op.get<Route>().top_k) / experts;
    return experts * (1 - std::pow(left_out, static_cast<double>(args.rows())));
  }
  return 0;
}

Cost program_cost(const Program& program, const CostArgs& args) {
  Cost total;
  for (const Op& op : program.ops) total += op_cost(program, op, args);
  return total;
}

}  // namespace megalith
