// The checker must refuse every schedule that is wrong: mutants of right ones.

#include "program/checker.h"

#include <algorithm>
#include <tuple>

#include <gtest/gtest.h>

#include "program/builder.h"
#include "tests/program/small_model.h"

namespace megalith {
namespace {

bool refused(const Program& program, const Schedule& schedule) {
  return !check_schedule(program, schedule).empty();
}

struct Shape {
  int ranks, workers;
};
constexpr Shape kShapes[] = {{1, 1}, {1, 2}, {1, 3}, {2, 2}, {2, 3}, {4, 2}, {2, 5}};

// Finds races in another way than the checker: all pairs of tasks of two steps that touch one place, one of them
// writing, must be joined by a path of list and wait edges. Only for schedules whose lists are in program order.
class Races {
 public:
  Races(const Program& program, const Schedule& schedule) : program_(program), s_(schedule), n_(schedule.tasks.size()) {
    for (int step = 0; step < 2; ++step) {
      for (size_t task = 0; task < n_; ++task) add_touches(step, task);
    }
    make_edges();
  }

  bool any() const {
    std::vector<std::vector<bool>> before(2 * n_, std::vector<bool>(2 * n_));
    for (size_t node = 0; node < 2 * n_; ++node) {  // tasks are numbered in program order, so edges go upwards
      for (const size_t from : edges_[node]) {
        for (size_t i = 0; i < node; ++i) before[node][i] = before[node][i] || before[from][i];
        before[node][from] = true;
      }
    }
    for (const Touch& a : touches_) {
      for (const Touch& b : touches_) {
        if (a.node >= b.node || a.place != b.place || !(a.writes || b.writes)) continue;
        const bool same_op = a.node / n_ == b.node / n_ && task(a).op == task(b).op && a.writes == b.writes;
        if (!same_op && !before[b.node][a.node]) return true;
      }
    }
    return false;
  }

 private:
  struct Touch {
    size_t node;
    std::tuple<int, int, int> place;  // value or state, which, rank
    bool writes;
  };
  const Task& task(const Touch& t) const { return s_.tasks[t.node % n_]; }

  void add_touches(int step, size_t index) {
    const Task& t = s_.tasks[index];
    const Op& op = program_.ops[static_cast<size_t>(t.op)];
    const size_t node = static_cast<size_t>(step) * n_ + index;
    const auto buffer = [&](Value v) { return s_.buffer_of[static_cast<size_t>(v.id)]; };
    for (const Value v : op.inputs) {
      for (int rank = 0; rank < program_.ranks; ++rank) {
        if (op.collective() || rank == t.rank) touches_.push_back({node, {0, buffer(v), rank}, false});
      }
    }
    for (const int state : op.states) touches_.push_back({node, {1, state, t.rank}, op.kind != OpKind::attend});
    if (op.output.valid()) touches_.push_back({node, {0, buffer(op.output), t.rank}, true});
  }

  void make_edges() {
    edges_.resize(2 * n_);
    for (const auto& list : s_.lists) {
      std::vector<size_t> nodes;
      for (size_t step = 0; step < 2; ++step) {
        for (const int32_t index : list) nodes.push_back(step * n_ + static_cast<size_t>(index));
      }
      for (size_t i = 1; i < nodes.size(); ++i) edges_[nodes[i]].push_back(nodes[i - 1]);
    }
    for (size_t node = 0; node < 2 * n_; ++node) {
      for (const Wait& w : s_.tasks[node % n_].waits) {
        if (w.previous_step && node < n_) continue;
        const size_t base = (w.previous_step ? 0 : node / n_) * n_;
        for (size_t other = 0; other < n_; ++other) {
          if (s_.tasks[other].signal == w.counter) edges_[node].push_back(base + other);
        }
      }
    }
  }

  const Program& program_;
  const Schedule& s_;
  const size_t n_;
  std::vector<Touch> touches_;
  std::vector<std::vector<size_t>> edges_;
};

TEST(Checker, RefusesADroppedWaitExactlyWhereARaceFollows) {
  for (const auto& [ranks, workers] : {Shape{1, 1}, Shape{1, 2}, Shape{2, 3}, Shape{4, 2}}) {
    const Program program = two_layers(ranks);
    const Schedule right = make_schedule(program, workers);
    ASSERT_FALSE(refused(program, right));
    ASSERT_FALSE(Races(program, right).any());
    int needed = 0;
    for (size_t task = 0; task < right.tasks.size(); ++task) {
      for (size_t wait = 0; wait < right.tasks[task].waits.size(); ++wait) {
        Schedule mutant = right;
        mutant.tasks[task].waits.erase(mutant.tasks[task].waits.begin() + static_cast<int64_t>(wait));
        const bool race = Races(program, mutant).any();
        ASSERT_EQ(refused(program, mutant), race)
            << ranks << " ranks, " << workers << " workers, task " << task << ", wait " << wait;
        needed += race ? 1 : 0;
      }
    }
    EXPECT_EQ(needed > 0, workers > 1);
  }
}

TEST(Checker, RefusesAWaitForSomeOfTheProducers) {
  for (const auto& [ranks, workers] : kShapes) {
    const Program program = two_layers(ranks);
    const Schedule right = make_schedule(program, workers);
    for (size_t task = 0; task < right.tasks.size(); ++task) {
      for (size_t wait = 0; wait < right.tasks[task].waits.size(); ++wait) {
        for (const int change : {-1, 1}) {
          Schedule mutant = right;
          mutant.tasks[task].waits[wait].producers += change;
          ASSERT_TRUE(refused(program, mutant)) << task << ", " << wait;
        }
      }
    }
  }
}

TEST(Checker, RefusesATaskInFrontOfTheOneThatItWaitsFor) {
  for (const auto& [ranks, workers] : kShapes) {
    const Program program = two_layers(ranks);
    const Schedule right = make_schedule(program, workers);
    int swaps = 0;
    for (size_t worker = 0; worker < right.lists.size(); ++worker) {
      for (size_t i = 1; i < right.lists[worker].size(); ++i) {
        const Task& first = right.tasks[static_cast<size_t>(right.lists[worker][i - 1])];
        const Task& second = right.tasks[static_cast<size_t>(right.lists[worker][i])];
        const bool waits = std::any_of(second.waits.begin(), second.waits.end(),
                                       [&](const Wait& w) { return !w.previous_step && w.counter == first.signal; });
        if (!waits) continue;
        Schedule mutant = right;
        std::swap(mutant.lists[worker][i - 1], mutant.lists[worker][i]);
        ASSERT_TRUE(refused(program, mutant)) << "worker " << worker << ", place " << i;
        ++swaps;
      }
    }
    EXPECT_GT(swaps, 0);
  }
}

// Takes a task out, with everything that counts it, so that only the cover is wrong.
Schedule without(const Schedule& right, int32_t task) {
  Schedule mutant = right;
  const int32_t counter = mutant.tasks[static_cast<size_t>(task)].signal;
  mutant.tasks.erase(mutant.tasks.begin() + task);
  for (auto& list : mutant.lists) {
    std::erase(list, task);
    for (int32_t& index : list) index -= index > task ? 1 : 0;
  }
  const int32_t producers = --mutant.producers[static_cast<size_t>(counter)];
  for (Task& t : mutant.tasks) {
    std::erase_if(t.waits, [&](const Wait& w) { return w.counter == counter && producers == 0; });
    for (Wait& w : t.waits) w.producers = w.counter == counter ? producers : w.producers;
  }
  return mutant;
}

TEST(Checker, RefusesAForgottenTask) {
  const Program program = two_layers(2);
  const Schedule right = make_schedule(program, 3);
  for (int32_t task = 0; task < static_cast<int32_t>(right.tasks.size()); ++task) {
    ASSERT_TRUE(refused(program, without(right, task))) << task;
    Schedule unlisted = right;
    for (auto& list : unlisted.lists) std::erase(list, task);
    ASSERT_TRUE(refused(program, unlisted)) << task;
  }
}

TEST(Checker, RefusesAPartThatIsDoneTwice) {
  const Program program = two_layers(2);
  const Schedule right = make_schedule(program, 5);
  for (size_t task = 0; task < right.tasks.size(); ++task) {
    Schedule mutant = right;
    Task again = right.tasks[task];
    const int32_t producers = ++mutant.producers[static_cast<size_t>(again.signal)];
    mutant.lists[static_cast<size_t>(again.worker)].push_back(static_cast<int32_t>(mutant.tasks.size()));
    mutant.tasks.push_back(again);
    for (Task& t : mutant.tasks) {
      for (Wait& w : t.waits) w.producers = w.counter == again.signal ? producers : w.producers;
    }
    ASSERT_TRUE(refused(program, mutant)) << task;
  }
}

TEST(Checker, RefusesTasksThatCutTheirOpInTwoWays) {
  const Program program = two_layers(1);
  const Schedule right = make_schedule(program, 2);
  for (Schedule mutant = right; Task & task : mutant.tasks) {
    if (task.part != 1) continue;
    task.parts = 3;  // parts 0 of 2 and 1 of 3
    ASSERT_TRUE(refused(program, mutant));
    task.parts = 2;
  }
}

TEST(Checker, RefusesATaskThatRaisesAnotherCounter) {
  const Program program = two_layers(2);
  const Schedule right = make_schedule(program, 3);
  for (size_t task = 0; task < right.tasks.size(); ++task) {
    Schedule mutant = right;
    mutant.tasks[task].signal = (mutant.tasks[task].signal + 1) % static_cast<int32_t>(mutant.producers.size());
    ASSERT_TRUE(refused(program, mutant)) << task;
  }
}

TEST(Checker, RefusesAReadOfTheCacheBeforeItIsAppended) {
  for (const auto& [ranks, workers] : kShapes) {
    const Program program = two_layers(ranks);
    Schedule mutant = make_schedule(program, workers);
    const auto kind = [&](int32_t index) {
      return program.ops[static_cast<size_t>(mutant.tasks[static_cast<size_t>(index)].op)].kind;
    };
    for (auto& list : mutant.lists) {
      // Every attend is put right before its append, and waits for it no more.
      for (int rank = 0; rank < ranks; ++rank) {
        const auto of_rank = [&](OpKind k) {
          return std::find_if(list.begin(), list.end(), [&](int32_t i) {
            return kind(i) == k && mutant.tasks[static_cast<size_t>(i)].rank == rank;
          });
        };
        const auto append = of_rank(OpKind::append_kv);
        const auto attend = of_rank(OpKind::attend);
        if (append == list.end() || attend == list.end()) continue;
        const int32_t counter = mutant.tasks[static_cast<size_t>(*append)].signal;
        std::erase_if(mutant.tasks[static_cast<size_t>(*attend)].waits,
                      [&](const Wait& w) { return w.counter == counter; });
        std::rotate(append, attend, attend + 1);
      }
    }
    EXPECT_TRUE(refused(program, mutant)) << ranks << " ranks, " << workers << " workers";
  }
}

TEST(Checker, RefusesABufferForTwoValuesThatLiveTogether) {
  for (const auto& [ranks, workers] : {Shape{1, 1}, Shape{2, 3}}) {
    const Program program = two_layers(ranks);
    const Schedule right = make_schedule(program, workers);
    const auto n = program.values.size();
    std::vector<int> written(n), last_read(n);
    for (int op = 0; op < static_cast<int>(program.ops.size()); ++op) {
      const Op& o = program.ops[static_cast<size_t>(op)];
      for (const Value v : o.inputs) last_read[static_cast<size_t>(v.id)] = op;
      if (o.output.valid()) written[static_cast<size_t>(o.output.id)] = op;
    }
    int pairs = 0;
    for (size_t a = 0; a < n; ++a) {
      for (size_t b = 0; b < n; ++b) {
        if (written[b] <= written[a] || written[b] >= last_read[a]) continue;
        Schedule mutant = right;
        mutant.buffer_of[b] = mutant.buffer_of[a];
        ASSERT_TRUE(refused(program, mutant)) << program.values[a].name << " and " << program.values[b].name;
        ++pairs;
      }
    }
    EXPECT_GT(pairs, 20);
  }
}

TEST(Checker, RefusesAnOutputThatOverwritesItsOwnInput) {
  const Program program = two_layers(1);
  Schedule mutant = make_schedule(program, 2);
  for (const Op& op : program.ops) {
    if (op.kind != OpKind::matmul) continue;
    mutant.buffer_of[static_cast<size_t>(op.output.id)] = mutant.buffer_of[static_cast<size_t>(op.inputs[0].id)];
    break;
  }
  EXPECT_TRUE(refused(program, mutant));
}

Schedule without_step_border(Schedule schedule) {
  for (Task& task : schedule.tasks) std::erase_if(task.waits, [](const Wait& w) { return w.previous_step; });
  return schedule;
}

TEST(Checker, RefusesStepsThatRunIntoEachOther) {
  for (const int workers : {1, 2, 3, 8}) {
    Builder b({}, 1);
    const Value x = b.embed(b.matrix("table", 8, 64, {}));
    // The last op reads what the next step's first op writes.
    b.output("y", b.add(x, b.matmul(x, b.matrix("w", 64, 64, {}))));
    const Program program = std::move(b).build();
    const Schedule right = make_schedule(program, workers);
    EXPECT_FALSE(refused(program, right));
    EXPECT_EQ(refused(program, without_step_border(right)), workers > 1) << workers << " workers";
  }
}

TEST(Checker, NeedsTheStepBorderExactlyWhereARaceFollows) {
  for (const auto& [ranks, workers] : kShapes) {
    const Program program = two_layers(ranks);
    const Schedule mutant = without_step_border(make_schedule(program, workers));
    EXPECT_EQ(refused(program, mutant), Races(program, mutant).any()) << ranks << " ranks, " << workers << " workers";
  }
}

TEST(Checker, RefusesIndicesOutOfRange) {
  const Program program = two_layers(1);
  const Schedule right = make_schedule(program, 2);
  Schedule mutant = right;
  mutant.tasks[3].op = static_cast<int32_t>(program.ops.size());
  EXPECT_TRUE(refused(program, mutant));
  mutant = right;
  mutant.tasks[3].waits.push_back({static_cast<int32_t>(right.producers.size()), 1, false});
  EXPECT_TRUE(refused(program, mutant));
  mutant = right;
  mutant.lists[0].push_back(static_cast<int32_t>(right.tasks.size()));
  EXPECT_TRUE(refused(program, mutant));
  mutant = right;
  std::swap(mutant.lists[0], mutant.lists[1]);
  EXPECT_TRUE(refused(program, mutant));
  mutant = right;
  mutant.tasks[3].part = 7;
  EXPECT_TRUE(refused(program, mutant));
}

}  // namespace
}  // namespace megalith
