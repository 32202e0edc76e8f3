#include "reference/reference.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "reference/ops.h"

namespace megalith {

namespace {

// Output `output` (0…31) of input k of a panel.
float element(DType dtype, const std::byte* panel, int64_t output, int64_t k) {
  if (dtype == DType::mxfp4) {
    const std::byte* group = panel + k / kMxGroup * kMxGroupBytes;
    const auto codes = static_cast<uint32_t>(group[kPanelOutputs + k % kMxGroup * 16 + output % 16]);
    return e2m1_to_f32(codes >> (output / 16 * 4)) * e8m0_to_f32(static_cast<uint8_t>(group[output]));
  }
  const int64_t at = k * kPanelOutputs + panel_slot(dtype, output);
  if (dtype == DType::bf16) {
    uint16_t bits = 0;
    std::memcpy(&bits, panel + at * 2, 2);
    return bf16_to_f32(bits);
  }
  float value = 0;
  std::memcpy(&value, panel + at * 4, 4);
  return value;
}

// Takes panels (weight.h) apart: [matrices, outputs, inputs], without the padding.
std::vector<float> unpack(const Weight& weight, int ranks, const std::vector<std::byte>& panels) {
  const int64_t inputs = weight.inputs(ranks);
  std::vector<float> all;
  for (int64_t matrix = 0; matrix < weight.matrices(ranks); ++matrix) {
    for (int64_t output = 0; output < weight.outputs(ranks); ++output) {
      const int64_t panel = matrix * weight.matrix_panels(ranks) + output / kPanelOutputs;
      const std::byte* bytes = panels.data() + panel * weight.panel_bytes(ranks);
      for (int64_t k = 0; k < inputs; ++k) all.push_back(element(weight.dtype, bytes, output % kPanelOutputs, k));
    }
  }
  return all;
}

std::vector<float> read_weight(const TapeSource& source, const Weight& weight, int rank, int ranks) {
  if (weight.layout == WeightLayout::plain) {
    std::vector<float> values(static_cast<size_t>(weight.outputs(ranks) * weight.inputs(ranks)));
    source.read_plain(weight, rank, ranks, values.data());
    return values;
  }
  std::vector<std::byte> panels(static_cast<size_t>(weight.panels(ranks) * weight.panel_bytes(ranks)));
  source.read_panels(weight, rank, ranks, 0, weight.panels(ranks), panels.data());
  return unpack(weight, ranks, panels);
}

void dispatch(const reference::Call& call) {
  switch (call.op.kind) {
    case OpKind::embed:
      return reference::embed(call);
    case OpKind::rms_norm:
      return reference::rms_norm(call);
    case OpKind::matmul:
      return reference::matmul(call);
    case OpKind::rope:
      return reference::rope(call);
    case OpKind::append_kv:
      return reference::append_kv(call);
    case OpKind::append_latent:
      return reference::append_latent(call);
    case OpKind::attend:
      return reference::attend(call);
    case OpKind::join_spans:
      return reference::join_spans(call);
    case OpKind::sigmoid_gate:
      return reference::sigmoid_gate(call);
    case OpKind::short_conv:
      return reference::short_conv(call);
    case OpKind::gated_delta:
      return reference::gated_delta(call);
    case OpKind::kda:
      return reference::kda(call);
    case OpKind::gated_norm:
      return reference::gated_norm(call);
    case OpKind::silu_gate:
      return reference::silu_gate(call);
    case OpKind::situ_gate:
      return reference::situ_gate(call);
    case OpKind::residual_mix:
      return reference::residual_mix(call);
    case OpKind::route:
      return reference::route(call);
    case OpKind::expert_gate:
      return reference::expert_gate(call);
    case OpKind::expert_down:
      return reference::expert_down(call);
    case OpKind::add:
      return reference::add(call);
    case OpKind::all_reduce:
      return reference::all_reduce(call);
    case OpKind::choose_rows:
      return reference::choose_rows(call);
    case OpKind::all_gather:
      return reference::all_gather(call);
    case OpKind::sample:
      return reference::sample(call);
    case OpKind::accept:
      return reference::accept(call);
    case OpKind::concat:
      return reference::concat(call);
    case OpKind::append_window:
      return reference::append_window(call);
    case OpKind::attend_block:
      return reference::attend_block(call);
    case OpKind::block_conv:
      return reference::block_conv(call);
    case OpKind::candidates:
      return reference::candidates(call);
    case OpKind::lookup:
      return reference::lookup(call);
    case OpKind::select_path:
      return reference::select_path(call);
    case OpKind::pick_row:
      return reference::pick_row(call);
    case OpKind::advance:
      return reference::advance(call);
  }
}

}  // namespace

Reference::Reference(Program program, int max_sequences, int context)
    : program_(std::move(program)),
      max_sequences_(max_sequences),
      context_(context),
      once_(program_.written_once()),
      ranks_(static_cast<size_t>(program_.ranks)) {
  for (RankMemory& memory : ranks_) {
    memory.values.resize(program_.values.size());
    for (int state = 0; state < static_cast<int>(program_.states.size()); ++state) {
      memory.states.emplace_back(static_cast<size_t>(state_size(state) * max_sequences_));
    }
  }
}

int64_t Reference::state_size(int state) const {
  const StateInfo& info = program_.states[static_cast<size_t>(state)];
  return info.elements() * (info.kind == StateInfo::Kind::per_position ? info.slots(context_) : 1);
}

void Reference::load(const TapeSource& source) {
  for (int rank = 0; rank < program_.ranks; ++rank) {
    for (const Weight& weight : program_.weights) {
      ranks_[static_cast<size_t>(rank)].weights.push_back(read_weight(source, weight, rank, program_.ranks));
    }
  }
}

void Reference::run(const StepArgs& step) {
  for (const Run& run : step.runs) {
    CHECK(run.sequence >= 0 && run.sequence < max_sequences_ && run.first_position + run.rows <= context_,
          "sequence {}, positions {}+{}", run.sequence, run.first_position, run.rows);
  }
  drafts_.prepare(step, program_.draft_block);
  for (const Op& op : program_.ops) {
    for (int rank = 0; rank < (op.once() ? 1 : program_.ranks); ++rank) run_op(op, rank, step);
  }
}

void Reference::run_op(const Op& op, int rank, const StepArgs& step) {
  RankMemory& memory = ranks_[static_cast<size_t>(rank)];
  reference::Call call{
      .op = op, .step = drafts_.of(program_.rows_of(op), step), .rank = rank, .ranks = program_.ranks, .drafts = &drafts_};
  for (const Value input : op.inputs) {
    const auto id = static_cast<size_t>(input.id);
    call.in.push_back((once_[id] ? ranks_[0] : memory).values[id].data());
    call.in_width.push_back(program_.info(input).width);
  }
  if (op.collective()) {
    for (const RankMemory& other : ranks_) {
      call.in_of_ranks.push_back(other.values[static_cast<size_t>(op.inputs[0].id)].data());
    }
  }
  for (const int weight : op.weights) {
    call.weights.push_back(memory.weights[static_cast<size_t>(weight)].data());
    call.weight_info.push_back(&program_.weights[static_cast<size_t>(weight)]);
  }
  for (const int state : op.states) {
    call.states.push_back(memory.states[static_cast<size_t>(state)].data());
    call.state_size.push_back(state_size(state));
    call.head_dim = program_.states[static_cast<size_t>(state)].shape.back();
    call.slots = program_.states[static_cast<size_t>(state)].slots(context_);
  }
  if (op.output.valid()) {
    const ValueInfo& info = program_.info(op.output);
    const StepArgs& rows = drafts_.of(info.rows, step);
    call.rows = static_cast<int64_t>(info.rows == Rows::chosen ? rows.chosen.size() : rows.rows.size());
    call.width = info.width;
    std::vector<float>& out = memory.values[static_cast<size_t>(op.output.id)];
    out.assign(static_cast<size_t>(call.rows * call.width), 0.0f);
    call.out = out.data();
  }
  dispatch(call);
}

const std::vector<float>& Reference::read(Value value, int rank) const {
  return ranks_[static_cast<size_t>(rank)].values[static_cast<size_t>(value.id)];
}

std::vector<float> Reference::read_state(int state, int rank, int sequence, int positions) const {
  const StateInfo& info = program_.states[static_cast<size_t>(state)];
  const float* s =
      ranks_[static_cast<size_t>(rank)].states[static_cast<size_t>(state)].data() + sequence * state_size(state);
  if (info.kind == StateInfo::Kind::per_sequence) return {s, s + info.elements()};
  const int64_t slots = info.slots(context_);
  std::vector<float> out;
  for (int64_t head = 0; head < info.shape[0]; ++head) {
    const float* first = s + head * slots * info.shape[1];
    out.insert(out.end(), first, first + std::min<int64_t>(positions, slots) * info.shape[1]);
  }
  return out;
}

}  // namespace megalith
