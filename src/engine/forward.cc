#include "engine/forward.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"

namespace megalith {

namespace {

void check_tokens(const Machine& machine, const std::vector<int32_t>& tokens, int64_t vocabulary) {
  const int context = machine.options().context;
  if (tokens.empty() || static_cast<int64_t>(tokens.size()) > context) {
    throw Error({.where = "tokens",
                 .expected = fmt::format("1 to {} tokens, the context", context),
                 .found = fmt::format("{}", tokens.size()),
                 .next = "Raise --context."});
  }
  for (const int32_t token : tokens) {
    if (token >= 0 && token < vocabulary) continue;
    throw Error({.where = "tokens",
                 .expected = fmt::format("token ids from 0 to {}", vocabulary - 1),
                 .found = fmt::format("{}", token),
                 .next = {}});
  }
}

}  // namespace

Forward forward(Machine& machine, const std::vector<int32_t>& tokens, int rows_per_step) {
  const Program& program = machine.program();
  const Value logits = program.output("logits");
  Forward result;
  result.vocabulary = program.info(logits).width;
  check_tokens(machine, tokens, result.vocabulary);
  std::vector<Value> hidden;
  for (Value v; (v = program.output(fmt::format("hidden.{}", hidden.size()))).valid();) hidden.push_back(v);
  result.hidden_outputs = static_cast<int64_t>(hidden.size());
  if (!hidden.empty()) result.hidden_size = program.info(hidden[0]).width;
  const auto n_tokens = static_cast<int64_t>(tokens.size());
  result.hidden.resize(static_cast<size_t>(result.hidden_outputs * n_tokens * result.hidden_size));

  StepArgs step;
  const int most = std::min(rows_per_step, machine.options().max_chosen);
  for (int64_t at = 0; at < n_tokens; at += most) {
    const int64_t end = std::min<int64_t>(n_tokens, at + most);
    step.clear();
    step.add_run(0, static_cast<int32_t>(at), {tokens.begin() + at, tokens.begin() + end});
    for (int32_t row = 0; row < end - at; ++row) step.choose(row, {});
    machine.run(step);
    const auto rows = machine.read(logits);
    result.logits.insert(result.logits.end(), rows.begin(), rows.end());
    for (int64_t i = 0; i < result.hidden_outputs; ++i) {
      const auto values = machine.read(hidden[static_cast<size_t>(i)]);
      std::copy(values.begin(), values.end(), result.hidden.begin() + (i * n_tokens + at) * result.hidden_size);
    }
  }
  return result;
}

}  // namespace megalith
