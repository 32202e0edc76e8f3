#include "program/program.h"

#include <algorithm>
#include <functional>
#include <numeric>

namespace megalith {

int64_t StateInfo::elements() const {
  return std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
}

int64_t StateInfo::slots(int64_t context) const {
  if (window == 0) return context;
  constexpr int64_t kGrain = 16;
  return std::min(context, (window + kMaxBlock + kGrain - 1) / kGrain * kGrain);
}

Rows Program::rows_of(const Op& op) const {
  return op.output.valid() && op.kind != OpKind::accept ? info(op.output).rows : Rows::all;
}

std::vector<bool> Program::written_once() const {
  std::vector<bool> once(values.size());
  for (const Op& op : ops) {
    if (op.output.valid()) once[static_cast<size_t>(op.output.id)] = op.once();
  }
  return once;
}

Value Program::output(const std::string& name) const {
  for (const auto& [output, value] : outputs) {
    if (output == name) return value;
  }
  return {};
}

TapeLayout tape_layout(const Program& program) {
  TapeLayout layout;
  layout.offset.assign(program.weights.size(), -1);
  const auto place = [&](const Op& op) {
    for (const int weight : op.weights) {
      auto& offset = layout.offset[static_cast<size_t>(weight)];
      if (offset >= 0) continue;
      offset = layout.bytes;
      layout.bytes += program.weights[static_cast<size_t>(weight)].tape_bytes(program.ranks);
      layout.order.push_back(weight);
    }
  };
  for (const bool looked_up : {false, true}) {
    for (const Op& op : program.ops) {
      if ((op.kind == OpKind::embed || op.kind == OpKind::lookup) == looked_up) place(op);
    }
  }
  return layout;
}

}  // namespace megalith
