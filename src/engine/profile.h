#pragma once

#include <map>
#include <string>
#include <vector>

#include "machines/machine.h"
#include "program/cost.h"

namespace megalith {

// Where the time of steps goes: ops of all layers that do the same are one line.
class Profile {
 public:
  // `args` says what the steps are, for the bytes beside each time.
  Profile(const Program& program, const CostArgs& args, int workers);

  void add(const std::vector<TaskSpan>& step);
  // A line for each kind of op, most time first: milliseconds of a step (the mean over workers), its share, bytes and
  // GB/s, and how long workers waited before they could begin it.
  std::string table() const;

 private:
  struct Line {
    double working = 0, waiting = 0;  // seconds, of all workers and steps
    double bytes = 0;                 // of one step
    int ops = 0;
  };
  const Program& program_;
  const int workers_;
  int steps_ = 0;
  double step_seconds_ = 0;
  std::map<std::string, Line> lines_;
  std::vector<Line*> line_of_;  // of each op
};

// The spans of steps, one after the other, in the Trace Event Format that Perfetto and chrome://tracing read: a row for
// each worker, with its tasks and its waits.
std::string trace_json(const Program& program, const std::vector<std::vector<TaskSpan>>& steps);

}  // namespace megalith
