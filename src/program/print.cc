#include "program/print.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/progress.h"

namespace megalith {

namespace {

std::string amount(int64_t bytes) { return bytes == 0 ? "-" : human_bytes(static_cast<uint64_t>(bytes)); }

std::string shape_of(const Program& program, const Op& op) {
  if (op.kind == OpKind::matmul || op.kind == OpKind::expert_gate || op.kind == OpKind::expert_down) {
    const Weight& w = program.weights[static_cast<size_t>(op.weights[0])];
    const int64_t matrices = w.matrices(program.ranks);
    return fmt::format("{}{} x {}", matrices > 1 ? fmt::format("{} x ", matrices) : "", w.outputs(program.ranks),
                       w.inputs(program.ranks));
  }
  return op.output.valid() ? fmt::format("{}", program.info(op.output).width) : "-";
}

// How often ranks must meet in a step.
std::string wire_summary(const Program& program) {
  if (program.ranks == 1) return "";
  const auto count = [&](OpKind kind) {
    return std::count_if(program.ops.begin(), program.ops.end(), [&](const Op& op) { return op.kind == kind; });
  };
  return fmt::format("collectives: {} all_reduce, {} all_gather\n", count(OpKind::all_reduce), count(OpKind::all_gather));
}

std::string split_of(const Program& program, const Op& op) {
  if (op.weights.empty()) return "-";
  switch (program.weights[static_cast<size_t>(op.weights[0])].split.axis) {
    case Split::Axis::outputs: return "outputs";
    case Split::Axis::inputs: return "inputs";
    case Split::Axis::none:
      return program.weights[static_cast<size_t>(op.weights[0])].experts.groups > 1 ? "experts" : "whole";
  }
  return "-";
}

}  // namespace

std::string print_program(const Program& program, const CostArgs& args, double bandwidth) {
  const Cost total = program_cost(program, args);
  std::string text = fmt::format("{:<13} {:<28} {:>15}  {:<8} {:>10} {:>10} {:>10} {:>7}\n", "op", "where", "shape",
                                 "split", "weights", "states", "wire", "share");
  for (const Op& op : program.ops) {
    const Cost cost = op_cost(program, op, args);
    const double share = 100.0 * static_cast<double>(cost.memory_bytes()) / static_cast<double>(total.memory_bytes());
    text += fmt::format("{:<13} {:<28} {:>15}  {:<8} {:>10} {:>10} {:>10} {:>6.2f}%\n", op_info(op.kind).name, op.label,
                        shape_of(program, op), split_of(program, op), amount(cost.weight_bytes),
                        amount(cost.state_bytes), amount(cost.wire_bytes), share);
  }
  text += fmt::format(
      "\n{} ops, {} rank{}; a step of {} sequence{} with {} row{} each at {} positions\n"
      "a rank moves {} of weights ({} bytes), {} of states, {} over the wire; {:.3f} GFLOP\n"
      "the step streams {} of weights ({} bytes), each counted once; all ranks together read {} of them\n",
      program.ops.size(), program.ranks, program.ranks == 1 ? "" : "s", args.sequences, args.sequences == 1 ? "" : "s",
      args.rows_each, args.rows_each == 1 ? "" : "s", args.context, human_bytes(static_cast<uint64_t>(total.weight_bytes)),
      total.weight_bytes, human_bytes(static_cast<uint64_t>(total.state_bytes)),
      human_bytes(static_cast<uint64_t>(total.wire_bytes)), total.flops / 1e9,
      human_bytes(static_cast<uint64_t>(streamed_bytes(program, args))), streamed_bytes(program, args),
      human_bytes(static_cast<uint64_t>(total.weight_bytes * program.ranks)));
  if (const double chosen = chosen_experts(program, args); chosen > 0) {
    text += fmt::format("of a layer's experts, {:.1f} are read (each row chooses as if by lot)\n", chosen);
  }
  text += wire_summary(program);
  if (bandwidth > 0) {
    text += fmt::format("floor {:.3f} ms = {} / {:.1f} GB/s a rank\n",
                        1e3 * static_cast<double>(total.memory_bytes()) / bandwidth,
                        human_bytes(static_cast<uint64_t>(total.memory_bytes())), bandwidth / 1e9);
  }
  return text;
}

}  // namespace megalith
