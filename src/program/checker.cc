#include "program/checker.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <tuple>

namespace megalith {

namespace {

constexpr size_t kMaxProblems = 20;

// For each worker, how many of its tasks (over both steps) are surely done.
using Clock = std::vector<int64_t>;

void join(Clock& into, const Clock& from) {
  for (size_t i = 0; i < into.size(); ++i) into[i] = std::max(into[i], from[i]);
}

// Who did something to a place: the `index`-th task of `worker`.
struct Moment {
  int32_t worker = 0;
  int64_t index = 0;
};

// What is known of a buffer or state of one rank: the op that wrote it last, and who has touched it since.
struct Place {
  int op = -1;
  int step = -1;
  int value = -1;
  std::vector<Moment> writers;
  std::vector<Moment> readers;
};

class Checker {
 public:
  Checker(const Program& program, const Schedule& schedule)
      : program_(program), schedule_(schedule), once_(program.written_once()) {}

  std::vector<std::string> run() {
    check_tasks();
    check_cover();
    if (problems_.empty()) simulate();
    return std::move(problems_);
  }

 private:
  template <class... Args>
  void problem(fmt::format_string<Args...> format, Args&&... args) {
    if (problems_.size() < kMaxProblems) problems_.push_back(fmt::format(format, std::forward<Args>(args)...));
  }

  std::string name(const Task& t) const {
    return fmt::format("{} {} (rank {}, part {} of {}, worker {})", program_.ops[static_cast<size_t>(t.op)].label,
                       op_info(program_.ops[static_cast<size_t>(t.op)].kind).name, t.rank, t.part, t.parts, t.worker);
  }

  // Rules 1 and 2, and that each task stands in exactly one list, its worker's.
  void check_tasks() {
    std::vector<int32_t> raised(schedule_.producers.size());
    std::vector<int> listed(schedule_.tasks.size());
    const auto n_ops = static_cast<int32_t>(program_.ops.size());
    for (const Task& t : schedule_.tasks) {
      if (t.op < 0 || t.op >= n_ops || t.rank < 0 || t.rank >= program_.ranks || t.worker < 0 ||
          t.worker >= schedule_.workers) {
        return problem("a task names op {}, rank {}, worker {}, which do not exist", t.op, t.rank, t.worker);
      }
      if (t.signal != t.op * program_.ranks + t.rank) return problem("{} raises another op's counter", name(t));
      ++raised[static_cast<size_t>(t.signal)];
    }
    for (size_t c = 0; c < raised.size(); ++c) {
      if (raised[c] != schedule_.producers[c]) {
        problem("counter {} is raised by {} tasks, said to have {}", c, raised[c], schedule_.producers[c]);
      }
    }
    for (const Task& t : schedule_.tasks) {
      for (const Wait& w : t.waits) {
        if (w.counter < 0 || w.counter >= static_cast<int32_t>(raised.size())) {
          return problem("{} waits for counter {}, which does not exist", name(t), w.counter);
        }
        if (w.producers != raised[static_cast<size_t>(w.counter)] || w.producers == 0) {
          problem("{} waits for {} of the {} producers of counter {}", name(t), w.producers,
                  raised[static_cast<size_t>(w.counter)], w.counter);
        }
      }
    }
    for (size_t worker = 0; worker < schedule_.lists.size(); ++worker) {
      for (const int32_t index : schedule_.lists[worker]) {
        if (index < 0 || index >= static_cast<int32_t>(listed.size())) return problem("a list names task {}", index);
        ++listed[static_cast<size_t>(index)];
        const Task& t = schedule_.tasks[static_cast<size_t>(index)];
        if (t.worker != static_cast<int32_t>(worker)) problem("{} stands in the list of worker {}", name(t), worker);
      }
    }
    for (size_t i = 0; i < listed.size(); ++i) {
      if (listed[i] != 1) problem("{} is listed {} times", name(schedule_.tasks[i]), listed[i]);
    }
  }

  // Rule 6.
  void check_cover() {
    std::map<std::pair<int, int>, std::vector<int>> parts;
    for (const Task& t : schedule_.tasks) {
      auto& seen = parts[{t.op, t.rank}];
      if (seen.empty()) seen.resize(static_cast<size_t>(std::max(t.parts, 0)));
      if (t.part < 0 || t.part >= t.parts) return problem("{} is no part of its op", name(t));
      if (static_cast<size_t>(t.parts) != seen.size()) return problem("{}: its op is cut in two ways", name(t));
      ++seen[static_cast<size_t>(t.part)];
    }
    for (int op = 0; op < static_cast<int>(program_.ops.size()); ++op) {
      const int ranks = program_.ops[static_cast<size_t>(op)].once() ? 1 : program_.ranks;
      for (int rank = 0; rank < ranks; ++rank) {
        const auto found = parts.find({op, rank});
        if (found == parts.end()) {
          problem("{} is not done on rank {}", program_.ops[static_cast<size_t>(op)].label, rank);
          continue;
        }
        for (size_t part = 0; part < found->second.size(); ++part) {
          if (found->second[part] != 1) {
            problem("part {} of {} is done {} times on rank {}", part, program_.ops[static_cast<size_t>(op)].label,
                    found->second[part], rank);
          }
        }
      }
    }
  }

  // Rules 3, 4 and 5: two steps, each worker as far as it can go, again and again.
  void simulate() {
    const auto workers = static_cast<size_t>(schedule_.workers);
    clocks_.assign(workers, Clock(workers, 0));
    counts_.assign(schedule_.producers.size(), 0);
    counter_clocks_.assign(schedule_.producers.size() * 2, Clock());
    std::vector<int64_t> next(workers, 0);
    for (bool moved = true; moved && problems_.empty();) {
      moved = false;
      for (size_t worker = 0; worker < workers; ++worker) {
        while (problems_.empty() && advance(worker, next[worker])) moved = true;
      }
    }
    for (size_t worker = 0; worker < workers && problems_.empty(); ++worker) {
      const auto& list = schedule_.lists[worker];
      if (next[worker] < 2 * static_cast<int64_t>(list.size())) {
        const int32_t task = list[static_cast<size_t>(next[worker]) % list.size()];
        problem("{} waits for ever", name(schedule_.tasks[static_cast<size_t>(task)]));
      }
    }
  }

  // Does the worker's next task if its waits are over.
  bool advance(size_t worker, int64_t& next) {
    const auto& list = schedule_.lists[worker];
    const auto length = static_cast<int64_t>(list.size());
    if (next >= 2 * length) return false;
    const int step = static_cast<int>(next / length);
    const Task& task = schedule_.tasks[static_cast<size_t>(list[static_cast<size_t>(next % length)])];
    for (const Wait& w : task.waits) {
      const int of_step = step - (w.previous_step ? 1 : 0);
      if (counts_[static_cast<size_t>(w.counter)] < int64_t{w.producers} * (of_step + 1)) return false;
    }
    Clock& clock = clocks_[worker];
    for (const Wait& w : task.waits) {
      const int of_step = step - (w.previous_step ? 1 : 0);
      if (of_step >= 0) join(clock, counter_clocks_[static_cast<size_t>(w.counter) * 2 + static_cast<size_t>(of_step)]);
    }
    touch(task, step, {static_cast<int32_t>(worker), next}, clock);
    clock[worker] = ++next;
    Clock& raised = counter_clocks_[static_cast<size_t>(task.signal) * 2 + static_cast<size_t>(step)];
    if (raised.empty()) raised.assign(clock.size(), 0);
    join(raised, clock);
    ++counts_[static_cast<size_t>(task.signal)];
    return true;
  }

  static bool ordered(const std::vector<Moment>& moments, const Clock& clock) {
    return std::all_of(moments.begin(), moments.end(),
                       [&](const Moment& m) { return clock[static_cast<size_t>(m.worker)] > m.index; });
  }

  void touch(const Task& task, int step, Moment now, const Clock& clock) {
    const Op& op = program_.ops[static_cast<size_t>(task.op)];
    for (const Value input : op.inputs) {
      for (int rank = 0; rank < program_.ranks; ++rank) {
        const int of = once_[static_cast<size_t>(input.id)] ? 0 : task.rank;
        if (op.collective() || rank == of) read_value(task, input, rank, step, now, clock);
      }
    }
    for (const int state : op.states) {
      Place& place = places_[{1, state, task.rank}];
      if (op.reads_states()) {
        if (!written(place, task, state, step) || !ordered(place.writers, clock)) {
          problem("{} reads a state before it is written", name(task));
        }
        place.readers.push_back(now);
      } else {
        write(task, place, step, -1, now, clock);
      }
    }
    if (op.output.valid()) {
      write(task, places_[{0, schedule_.buffer_of[static_cast<size_t>(op.output.id)], task.rank}], step, op.output.id,
            now, clock);
    }
  }

  // True if the op that the program has before this one as the state's writer is done, in this step.
  bool written(const Place& place, const Task& task, int state, int step) const {
    int writer = -1;
    for (int op = 0; op < task.op; ++op) {
      const Op& o = program_.ops[static_cast<size_t>(op)];
      const bool writes = std::find(o.states.begin(), o.states.end(), state) != o.states.end();
      if (writes && !o.reads_states()) writer = op;
    }
    if (writer < 0) return true;
    const auto counter = static_cast<size_t>(writer * program_.ranks + task.rank);
    return place.op == writer && place.step == step &&
           static_cast<int32_t>(place.writers.size()) == schedule_.producers[counter];
  }

  void read_value(const Task& task, Value value, int rank, int step, Moment now, const Clock& clock) {
    Place& place = places_[{0, schedule_.buffer_of[static_cast<size_t>(value.id)], rank}];
    const bool there = place.value == value.id && place.step == step;
    const size_t parts =
        there ? static_cast<size_t>(schedule_.producers[static_cast<size_t>(place.op * program_.ranks + rank)]) : 0;
    if (!there || place.writers.size() != parts || !ordered(place.writers, clock)) {
      problem("{} may read {} of rank {} before it is written, or after it is overwritten", name(task),
              program_.info(value).name, rank);
    }
    place.readers.push_back(now);
  }

  // Tasks of one op write disjoint parts of a place; another op must come after all who touched it.
  void write(const Task& task, Place& place, int step, int value, Moment now, const Clock& clock) {
    if (place.op != task.op || place.step != step) {
      if (!ordered(place.writers, clock) || !ordered(place.readers, clock)) {
        problem("{} may overwrite what {} left, before its last use", name(task),
                place.op < 0 ? "nobody" : program_.ops[static_cast<size_t>(place.op)].label);
      }
      previous_[&place] = std::exchange(place, {task.op, step, value, {}, {}});
    } else if (const Place& old = previous_[&place]; !ordered(old.writers, clock) || !ordered(old.readers, clock)) {
      problem("{} may overwrite what is still in use", name(task));
    }
    if (!place.readers.empty() && !ordered(place.readers, clock)) problem("{} writes what is being read", name(task));
    place.writers.push_back(now);
  }

  const Program& program_;
  const Schedule& schedule_;
  const std::vector<bool> once_;  // of each value: written once, on the first rank
  std::vector<std::string> problems_;
  std::vector<Clock> clocks_;
  std::vector<int64_t> counts_;
  std::vector<Clock> counter_clocks_;  // of each counter, for the first and the second step
  std::map<std::tuple<int, int, int>, Place> places_;  // (0 buffer or 1 state, index, rank)
  std::map<const Place*, Place> previous_;             // what a place held before its current writer
};

}  // namespace

std::vector<std::string> check_schedule(const Program& program, const Schedule& schedule) {
  return Checker(program, schedule).run();
}

}  // namespace megalith
