#include "engine/measure.h"

#include <algorithm>
#include <chrono>
#include <set>

#include "base/check.h"
#include "program/cost.h"

namespace megalith {

namespace {

double seconds_of(Machine& machine, const StepArgs& step) {
  const auto start = std::chrono::steady_clock::now();
  machine.run(step);
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

int32_t token_at(int64_t vocabulary, int64_t sequence, int64_t position) {
  return static_cast<int32_t>((sequence * 7919 + position * 104729 + 17) % vocabulary);
}

std::vector<int32_t> tokens_at(int64_t vocabulary, int sequence, int position, int rows) {
  std::vector<int32_t> tokens;
  for (int i = 0; i < rows; ++i) tokens.push_back(token_at(vocabulary, sequence, position + i));
  return tokens;
}

void add_tokens(StepArgs& step, int64_t vocabulary, int sequence, int position, int rows) {
  step.add_run(sequence, position, tokens_at(vocabulary, sequence, position, rows));
  step.choose(static_cast<int32_t>(step.rows.size()) - 1, {});
}

StepArgs decode_step(int64_t vocabulary, int sequences, int position) {
  StepArgs step;
  for (int sequence = 0; sequence < sequences; ++sequence) add_tokens(step, vocabulary, sequence, position, 1);
  return step;
}

// With `replay`, the step follows another one at `position` - kept.
StepArgs block_step(int64_t vocabulary, const BlockSteps& how, int position, bool replay) {
  StepArgs step;
  for (int sequence = 0; sequence < how.sequences; ++sequence) {
    const int32_t first = step.add_run(sequence, position, tokens_at(vocabulary, sequence, position, how.rows),
                                       replay ? how.kept : 0, true);
    for (int row = 0; row < how.rows; ++row) step.choose(first + row, {});
    step.runs.back().draft = how.draft;
    step.runs.back().forced = how.kept - 1;
  }
  return step;
}

// Gives every sequence its tokens before `position`.
void fill(Machine& machine, int64_t vocabulary, int sequences, int position) {
  for (int sequence = 0; sequence < sequences; ++sequence) {
    for (int at = 0; at < position; at += machine.options().max_rows) {
      StepArgs step;
      add_tokens(step, vocabulary, sequence, at, std::min(position - at, machine.options().max_rows));
      machine.run(step);
    }
  }
}

}  // namespace

Spread spread_of(std::vector<double> values) {
  CHECK(!values.empty(), "no values");
  std::sort(values.begin(), values.end());
  const size_t n = values.size();
  return {(values[(n - 1) / 2] + values[n / 2]) / 2, values.front(), values.back()};
}

DecodeTime time_decode(Machine& machine, int64_t vocabulary, int sequences, int position, int steps) {
  fill(machine, vocabulary, sequences, position);
  DecodeTime sum;
  for (int i = 0; i < steps; ++i) {
    sum.seconds += seconds_of(machine, decode_step(vocabulary, sequences, position + i));
    sum.experts += experts_of_step(machine);
  }
  return {sum.seconds / steps, sum.experts / steps};
}

DecodeTime time_blocks(Machine& machine, int64_t vocabulary, const BlockSteps& how, int position, int steps) {
  fill(machine, vocabulary, how.sequences, position);
  machine.run(block_step(vocabulary, how, position, false));
  DecodeTime sum;
  for (int i = 1; i <= steps; ++i) {
    sum.seconds += seconds_of(machine, block_step(vocabulary, how, position + i * how.kept, true));
    if (how.draft) sum.draft_s += machine.draft_seconds();
    sum.experts += experts_of_step(machine);
  }
  return {sum.seconds / steps, sum.experts / steps, sum.draft_s / steps};
}

double experts_of_step(const Machine& machine) {
  const Program& program = machine.program();
  int64_t chosen = 0, layers = 0;
  for (const Op& op : program.ops) {
    if (op.kind != OpKind::route) continue;
    const bool read = std::any_of(program.outputs.begin(), program.outputs.end(),
                                  [&](const auto& output) { return output.second == op.output; });
    if (!read) continue;
    const auto routing = machine.read(op.output);
    const auto top_k = static_cast<size_t>(op.get<Route>().top_k);
    std::set<float> ids;
    for (size_t row = 0; row < routing.size(); row += 2 * top_k) {
      ids.insert(routing.begin() + static_cast<int64_t>(row), routing.begin() + static_cast<int64_t>(row + top_k));
    }
    chosen += static_cast<int64_t>(ids.size());
    ++layers;
  }
  return layers == 0 ? 0 : static_cast<double>(chosen) / static_cast<double>(layers);
}

double prefill_seconds(Machine& machine, int64_t vocabulary, int rows) {
  StepArgs step;
  add_tokens(step, vocabulary, 0, 0, rows);
  return seconds_of(machine, step);
}

std::vector<TaskSpan> traced_decode(Machine& machine, int64_t vocabulary, int sequences, int position) {
  std::vector<TaskSpan> spans;
  machine.run(decode_step(vocabulary, sequences, position), &spans);
  return spans;
}

std::vector<TaskSpan> traced_blocks(Machine& machine, int64_t vocabulary, const BlockSteps& how, int position) {
  std::vector<TaskSpan> spans;
  machine.run(block_step(vocabulary, how, position, false));
  machine.run(block_step(vocabulary, how, position + how.kept, true), &spans);
  return spans;
}

double decode_bytes(const Program& program, int sequences, int position, double experts) {
  const Cost cost = program_cost(
      program, {.sequences = sequences, .rows_each = 1, .context = position + 1, .experts = experts, .draft = false});
  return static_cast<double>(cost.memory_bytes()) * program.ranks;
}

double prefill_flops(const Program& program, int rows) {
  return program_cost(program, {.sequences = 1, .rows_each = rows, .context = rows, .draft = false}).flops *
         program.ranks;
}

}  // namespace megalith
