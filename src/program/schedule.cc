#include "program/schedule.h"

#include <algorithm>
#include <set>

#include "base/check.h"

namespace megalith {

namespace {

// Some of a program's ops.
class OpSet {
 public:
  explicit OpSet(size_t ops) : words_((ops + 63) / 64) {}

  void add(int op) { words_[static_cast<size_t>(op) / 64] |= uint64_t{1} << (op % 64); }
  void add(const OpSet& other) {
    for (size_t i = 0; i < words_.size(); ++i) words_[i] |= other.words_[i];
  }
  bool has(int op) const { return (words_[static_cast<size_t>(op) / 64] >> (op % 64) & 1) != 0; }

 private:
  std::vector<uint64_t> words_;
};

// Which ops each op reads from and must stay behind, on the same rank or (a collective's inputs) on all ranks.
class Order {
 public:
  explicit Order(const Program& program) : program_(program) {
    const size_t n = program.ops.size();
    before_.assign(n, OpSet(n));
    before_everywhere_.assign(n, OpSet(n));
    depends_.resize(n);
  }

  // `op` waits for `earlier`: on its own rank, or (everywhere) on all of them. An op that runs once has waited for its own
  // rank; what ops of other ranks may conclude from it is what it knows of all ranks.
  void add(int op, int earlier, bool everywhere) {
    depends_[static_cast<size_t>(op)].insert({earlier, everywhere});
    OpSet& same = before_[static_cast<size_t>(op)];
    OpSet& all = before_everywhere_[static_cast<size_t>(op)];
    const bool from_one = once(earlier) && !once(op);
    same.add(from_one ? before_everywhere_[static_cast<size_t>(earlier)] : before_[static_cast<size_t>(earlier)]);
    all.add(before_everywhere_[static_cast<size_t>(earlier)]);
    same.add(earlier);
    if (once(earlier)) all.add(earlier);
    if (everywhere) {
      all.add(before_[static_cast<size_t>(earlier)]);
      all.add(earlier);
    }
  }

  // True if `earlier`, on every rank that could touch this rank's buffers, is done when `op` starts.
  bool ordered(int op, int earlier) const {
    const Op& e = program_.ops[static_cast<size_t>(earlier)];
    if (e.collective()) return before_everywhere_[static_cast<size_t>(op)].has(earlier);
    return before_[static_cast<size_t>(op)].has(earlier);
  }

  const std::set<std::pair<int, bool>>& depends(int op) const { return depends_[static_cast<size_t>(op)]; }

 private:
  bool once(int op) const { return program_.ops[static_cast<size_t>(op)].once(); }

  const Program& program_;
  std::vector<OpSet> before_;             // on the same rank
  std::vector<OpSet> before_everywhere_;  // on every rank
  std::vector<std::set<std::pair<int, bool>>> depends_;
};

// Reads of an op follow the writer of each input and of each state.
Order data_order(const Program& program) {
  Order order(program);
  std::vector<int> writer(program.values.size(), -1);
  std::vector<int> state_user(program.states.size(), -1);
  for (int op = 0; op < static_cast<int>(program.ops.size()); ++op) {
    const Op& o = program.ops[static_cast<size_t>(op)];
    for (const Value input : o.inputs) order.add(op, writer[static_cast<size_t>(input.id)], o.meets());
    for (const int state : o.states) {
      int& user = state_user[static_cast<size_t>(state)];
      if (user >= 0) order.add(op, user, false);
      user = op;
    }
    if (o.output.valid()) writer[static_cast<size_t>(o.output.id)] = op;
  }
  return order;
}

// Gives every value a buffer. A buffer is used again only where the order of ops already keeps the new writer behind the
// old value's writer and readers, so that no wait is added for it. Outputs keep their buffers for the host, and so do
// values that are written once and read by all ranks.
void place_values(const Program& program, const Order& order, Schedule& schedule) {
  const size_t n_values = program.values.size();
  std::vector<std::vector<int>> users(n_values);  // writer, then readers
  std::vector<bool> kept(n_values);
  const std::vector<bool> once = program.written_once();
  for (int op = 0; op < static_cast<int>(program.ops.size()); ++op) {
    const Op& o = program.ops[static_cast<size_t>(op)];
    for (const Value input : o.inputs) {
      users[static_cast<size_t>(input.id)].push_back(op);
      if (once[static_cast<size_t>(input.id)] && !o.once()) kept[static_cast<size_t>(input.id)] = true;
    }
    if (o.output.valid()) users[static_cast<size_t>(o.output.id)].push_back(op);
  }
  for (const auto& [name, value] : program.outputs) kept[static_cast<size_t>(value.id)] = true;

  std::vector<int> tenant;  // of each buffer: the value that was put there last
  schedule.buffer_of.assign(n_values, -1);
  for (int op = 0; op < static_cast<int>(program.ops.size()); ++op) {
    const Value output = program.ops[static_cast<size_t>(op)].output;
    if (!output.valid()) continue;
    const auto free = [&](int old) {
      if (kept[static_cast<size_t>(old)] || program.values[static_cast<size_t>(old)].rows != program.info(output).rows) {
        return false;
      }
      const auto& uses = users[static_cast<size_t>(old)];
      return std::all_of(uses.begin(), uses.end(), [&](int user) { return user < op && order.ordered(op, user); });
    };
    auto buffer = std::find_if(tenant.begin(), tenant.end(), free);
    if (buffer == tenant.end() || kept[static_cast<size_t>(output.id)]) {
      tenant.push_back(output.id);
      schedule.buffer_width.push_back(0);
      schedule.buffer_rows.push_back(program.info(output).rows);
      buffer = tenant.end() - 1;
    }
    *buffer = output.id;
    const auto index = buffer - tenant.begin();
    schedule.buffer_of[static_cast<size_t>(output.id)] = static_cast<int32_t>(index);
    int64_t& width = schedule.buffer_width[static_cast<size_t>(index)];
    width = std::max(width, program.info(output).width);
  }
}

// Lays out counters: (op, rank) has number op · ranks + rank. An op that runs once has its tasks on rank 0.
int32_t counter_of(const Program& program, int op, int rank) { return op * program.ranks + rank; }

int ranks_doing(const Program& program, const Op& op) { return op.once() ? 1 : program.ranks; }

void add_waits(const Program& program, const Schedule& schedule, const Order& order, int op, Task& task) {
  for (const auto& [earlier, everywhere] : order.depends(op)) {
    const int ranks = ranks_doing(program, program.ops[static_cast<size_t>(earlier)]);
    for (int rank = 0; rank < ranks; ++rank) {
      if (!everywhere && ranks > 1 && rank != task.rank) continue;
      const int32_t counter = counter_of(program, earlier, rank);
      task.waits.push_back({counter, schedule.producers[static_cast<size_t>(counter)], false});
    }
  }
}

// The first tasks of a step wait for the last ops of the step before, those that nothing else waits for.
void add_step_border(const Program& program, Schedule& schedule) {
  std::vector<bool> awaited(schedule.producers.size());
  for (const Task& task : schedule.tasks) {
    for (const Wait& wait : task.waits) awaited[static_cast<size_t>(wait.counter)] = true;
  }
  std::vector<Wait> last;
  for (int32_t counter = 0; counter < static_cast<int32_t>(awaited.size()); ++counter) {
    const int32_t producers = schedule.producers[static_cast<size_t>(counter)];
    if (producers > 0 && !awaited[static_cast<size_t>(counter)]) last.push_back({counter, producers, true});
  }
  for (Task& task : schedule.tasks) {
    if (task.waits.empty()) task.waits = last;
  }
  CHECK(!program.ops.empty() && !last.empty(), "a program without an end");
}

}  // namespace

WorkerRange workers_of(int rank, int ranks, int workers) {
  if (workers < ranks) {
    const int worker = rank * workers / ranks;
    return {worker, worker + 1};
  }
  return {rank * workers / ranks, (rank + 1) * workers / ranks};
}

Range part_of(int64_t size, int64_t part, int64_t parts, int64_t grain) {
  const int64_t grains = (size + grain - 1) / grain;
  return {std::min(size, grains * part / parts * grain), std::min(size, grains * (part + 1) / parts * grain)};
}

Schedule make_schedule(const Program& program, int workers) {
  CHECK(workers >= 1, "{} workers", workers);
  Schedule schedule;
  schedule.workers = workers;
  schedule.lists.resize(static_cast<size_t>(workers));
  schedule.producers.assign(program.ops.size() * static_cast<size_t>(program.ranks), 0);
  const Order order = data_order(program);
  place_values(program, order, schedule);
  for (int op = 0; op < static_cast<int>(program.ops.size()); ++op) {
    const Op& o = program.ops[static_cast<size_t>(op)];
    for (int rank = 0; rank < ranks_doing(program, o); ++rank) {
      const WorkerRange range = o.once() ? WorkerRange{0, workers} : workers_of(rank, program.ranks, workers);
      const int parts = range.last - range.first;
      schedule.producers[static_cast<size_t>(counter_of(program, op, rank))] = parts;
      for (int part = 0; part < parts; ++part) {
        Task task{op, rank, part, parts, range.first + part, {}, counter_of(program, op, rank)};
        add_waits(program, schedule, order, op, task);
        schedule.lists[static_cast<size_t>(task.worker)].push_back(static_cast<int32_t>(schedule.tasks.size()));
        schedule.tasks.push_back(std::move(task));
      }
    }
  }
  add_step_border(program, schedule);
  return schedule;
}

}  // namespace megalith
