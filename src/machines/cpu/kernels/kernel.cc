#include "machines/cpu/kernels/kernel.h"

#include "base/check.h"

namespace megalith {

Kernel kernel(OpKind kind) {
  switch (kind) {
    case OpKind::embed: return run_embed;
    case OpKind::rms_norm: return run_rms_norm;
    case OpKind::matmul: return run_matmul;
    case OpKind::rope: return run_rope;
    case OpKind::append_kv: return run_append_kv;
    case OpKind::append_latent: return run_append_latent;
    case OpKind::attend: return run_attend;
    case OpKind::join_spans: return run_join_spans;
    case OpKind::sigmoid_gate: return run_sigmoid_gate;
    case OpKind::short_conv: return run_short_conv;
    case OpKind::gated_delta: return run_gated_delta;
    case OpKind::kda: return run_kda;
    case OpKind::gated_norm: return run_gated_norm;
    case OpKind::silu_gate: return run_silu_gate;
    case OpKind::situ_gate: return run_situ_gate;
    case OpKind::residual_mix: return run_residual_mix;
    case OpKind::route: return run_route;
    case OpKind::expert_gate: return run_expert_gate;
    case OpKind::expert_down: return run_expert_down;
    case OpKind::add: return run_add;
    case OpKind::all_reduce: return run_all_reduce;
    case OpKind::choose_rows: return run_choose_rows;
    case OpKind::all_gather: return run_all_gather;
    case OpKind::sample: return run_sample;
    case OpKind::accept: return run_accept;
    case OpKind::concat: return run_concat;
    case OpKind::append_window: return run_append_window;
    case OpKind::attend_block: return run_attend_block;
    case OpKind::block_conv: return run_block_conv;
    case OpKind::candidates: return run_candidates;
    case OpKind::lookup: return run_lookup;
    case OpKind::select_path: return run_select_path;
    case OpKind::pick_row: return run_pick_row;
    case OpKind::advance: return run_advance;
  }
  CHECK(false, "no kernel for op kind {}", static_cast<int>(kind));
}

int64_t scratch_floats(const Program& program, const Op& op, int64_t rows) {
  const auto matrices = [&] { return program.weights[static_cast<size_t>(op.weights[0])].matrices(program.ranks); };
  const auto inputs = [&] { return program.weights[static_cast<size_t>(op.weights[0])].inputs(program.ranks); };
  switch (op.kind) {
    case OpKind::matmul: return matmul_scratch_floats(op.get<Matmul>());
    case OpKind::attend:
    case OpKind::join_spans: return attend_scratch_floats(op.get<Attend>());
    case OpKind::gated_delta: return gated_delta_scratch_floats(op.get<GatedDelta>());
    case OpKind::kda: return kda_scratch_floats(op.get<Kda>());
    case OpKind::residual_mix: return static_cast<int64_t>(op.inputs.size());
    case OpKind::route: return route_scratch_floats(op.get<Route>());
    case OpKind::expert_gate: return expert_gate_scratch_floats(op.get<ExpertGate>(), matrices(), inputs(), rows);
    case OpKind::expert_down: return expert_down_scratch_floats(op.get<ExpertDown>(), matrices(), inputs(), rows);
    case OpKind::rope: return op.get<Rope>().rotary;
    case OpKind::attend_block: return attend_block_scratch_floats(op.get<AttendBlock>());
    case OpKind::select_path: return select_path_scratch_floats(op.get<SelectPath>());
    case OpKind::sample: return sample_scratch_floats(program.info(op.inputs[0]).width);
    default: return 0;
  }
}

}  // namespace megalith
