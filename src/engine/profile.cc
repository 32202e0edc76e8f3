#include "engine/profile.h"

#include <algorithm>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/progress.h"

namespace megalith {

namespace {

constexpr std::string_view kDraftPlace = "draft ";

// "L3 mlp.down_proj" → "mlp.down_proj", "draft L3 mlp.down_proj" → "draft mlp.down_proj".
std::string without_layer(const std::string& label) {
  const size_t layer = label.starts_with(kDraftPlace) ? kDraftPlace.size() : 0;
  const size_t space = label.find(' ', layer);
  if (layer == label.size() || label[layer] != 'L' || space == std::string::npos) return label;
  return label.substr(0, layer) + label.substr(space + 1);
}

double end_of(const std::vector<TaskSpan>& step) {
  double end = 0;
  for (const TaskSpan& span : step) end = std::max(end, span.done);
  return end;
}

}  // namespace

Profile::Profile(const Program& program, const CostArgs& args, int workers) : program_(program), workers_(workers) {
  for (const Op& op : program.ops) {
    const std::string kind(op_info(op.kind).name);
    const std::string where = without_layer(op.label);
    const std::string name = where == kind ? kind : kind + " " + where;
    Line& line = lines_[idle(program, op, args) ? "draft, without rows" : name];
    const int ranks = op.once() ? 1 : program.ranks;
    line.bytes += static_cast<double>(op_cost(program, op, args).memory_bytes()) * ranks;
    ++line.ops;
    line_of_.push_back(&line);
  }
}

void Profile::add(const std::vector<TaskSpan>& step) {
  for (const TaskSpan& span : step) {
    Line& line = *line_of_[static_cast<size_t>(span.op)];
    line.working += span.done - span.working;
    line.waiting += span.working - span.waiting;
  }
  step_seconds_ += end_of(step);
  ++steps_;
}

std::string Profile::table() const {
  std::vector<std::pair<std::string, Line>> lines(lines_.begin(), lines_.end());
  std::sort(lines.begin(), lines.end(), [](const auto& a, const auto& b) {
    return a.second.working + a.second.waiting > b.second.working + b.second.waiting;
  });
  const double each = 1.0 / (static_cast<double>(std::max(steps_, 1)) * workers_);  // to a worker's seconds in a step
  const double step = step_seconds_ / std::max(steps_, 1);
  std::string text = fmt::format("{:<36} {:>5} {:>9} {:>7} {:>10} {:>8} {:>9}\n", "op", "ops", "ms", "share", "bytes",
                                 "GB/s", "wait ms");
  Line all;
  for (const auto& [name, line] : lines) {
    const double working = line.working * each;
    text += fmt::format("{:<36} {:>5} {:>9.3f} {:>6.1f}% {:>10} {:>8.1f} {:>9.3f}\n", name, line.ops, 1e3 * working,
                        100 * working / step, human_bytes(static_cast<uint64_t>(line.bytes)),
                        working > 0 ? line.bytes / working / 1e9 : 0, 1e3 * line.waiting * each);
    all.working += working;
    all.waiting += line.waiting * each;
    all.bytes += line.bytes;
  }
  return text + fmt::format("{:<36} {:>5} {:>9.3f} {:>6.1f}% {:>10} {:>8.1f} {:>9.3f}\n", "step", program_.ops.size(),
                            1e3 * step, 100 * all.working / step, human_bytes(static_cast<uint64_t>(all.bytes)),
                            all.bytes / step / 1e9, 1e3 * all.waiting);
}

std::string trace_json(const Program& program, const std::vector<std::vector<TaskSpan>>& steps) {
  nlohmann::ordered_json events = nlohmann::ordered_json::array();
  double start = 0;  // of the step, in seconds since the first
  const auto add = [&](const std::string& name, const char* category, double from, double to, const TaskSpan& span) {
    events.push_back({{"name", name},
                      {"cat", category},
                      {"ph", "X"},
                      {"ts", 1e6 * (start + from)},
                      {"dur", 1e6 * (to - from)},
                      {"pid", 0},
                      {"tid", span.worker},
                      {"args", {{"rank", span.rank}}}});
  };
  for (const auto& step : steps) {
    for (const TaskSpan& span : step) {
      const Op& op = program.ops[static_cast<size_t>(span.op)];
      const std::string kind(op_info(op.kind).name);
      if (span.working > span.waiting) add("wait", "wait", span.waiting, span.working, span);
      add(op.label, kind.c_str(), span.working, span.done, span);
    }
    start += end_of(step);
  }
  return nlohmann::ordered_json({{"traceEvents", events}, {"displayTimeUnit", "ms"}}).dump() + "\n";
}

}  // namespace megalith
