#include <algorithm>
#include <atomic>
#include <bit>
#include <chrono>
#include <cmath>
#include <cstring>
#include <exception>
#include <mutex>
#include <stdexcept>
#include <utility>

#include <fmt/format.h>

#include "base/check.h"
#include "base/memory.h"
#include "machines/cpu/instruction_set.h"
#include "machines/cpu/kernels/kernel.h"
#include "machines/cpu/workers.h"
#include "machines/machine.h"
#include "program/checker.h"
#include "program/rope.h"
#include "program/schedule.h"

namespace megalith {

namespace {

constexpr int kSpins = 2000;

using Clock = std::chrono::steady_clock;

int64_t round_up(int64_t n, int64_t to) {
  return (n + to - 1) / to * to;
}

// A task as a worker does it: everything is resolved.
struct Item {
  Kernel kernel = nullptr;
  const OpContext* context = nullptr;
  const StepArgs* const* step = nullptr;  // whose rows it works on
  Part part;
  std::vector<Wait> waits;
  int32_t signal = 0;
  Upcoming upcoming;  // the worker's next weights, fetched while it waits for this task's inputs
  bool begins_draft = false;
};

int64_t padded_context(const MachineOptions& options) {
  return round_up(options.context, kPositionBlock);
}

// Floats from a sequence's state to the next one's.
int64_t state_stride(const StateInfo& state, const MachineOptions& options) {
  const bool per_position = state.kind == StateInfo::Kind::per_position;
  return round_up(state.elements() * (per_position ? state.slots(padded_context(options)) : 1), 16);
}

// The most rows that a value can have.
int64_t most_rows(const Program& program, Rows rows, const MachineOptions& options) {
  switch (rows) {
    case Rows::all: return options.max_rows;
    case Rows::chosen: return options.max_chosen > 0 ? options.max_chosen : options.max_rows;
    case Rows::draft: return int64_t{options.max_sequences} * program.draft_block;
    case Rows::blocks: return options.max_sequences;
  }
  return 0;
}

int64_t scratch_bytes(const Program& program, const MachineOptions& options) {
  int64_t floats = 0;
  for (const Op& op : program.ops) floats = std::max(floats, scratch_floats(program, op, options.max_rows));
  return floats * 4 + 64;
}

int64_t buffer_bytes(const Program& program, const Schedule& schedule, size_t buffer, const MachineOptions& options) {
  return schedule.buffer_width[buffer] * most_rows(program, schedule.buffer_rows[buffer], options) * 4 + 64;
}

MemoryNeed memory_need(const Program& program, const MachineOptions& options, const Schedule& schedule) {
  MemoryNeed need;
  need.tape = tape_layout(program).bytes * program.ranks;
  for (const StateInfo& state : program.states) need.states += state_stride(state, options) * 4;
  need.states *= options.max_sequences * program.ranks;
  for (size_t buffer = 0; buffer < schedule.buffer_width.size(); ++buffer) {
    need.activations += buffer_bytes(program, schedule, buffer, options);
  }
  need.activations = need.activations * program.ranks + scratch_bytes(program, options) * schedule.workers;
  return need;
}

// A rank's memory. Buffers hold values, states hold sequences' states.
struct RankMemory {
  Pages tape;
  std::vector<Pages> buffers;
  std::vector<Pages> states;
};

class CpuMachine : public Machine {
 public:
  CpuMachine(Program program, const MachineOptions& options);

  void load(const TapeSource& source, Progress* progress) override;
  void run(const StepArgs& args, std::vector<TaskSpan>* spans) override;
  double draft_seconds() const override { return draft_seconds_; }
  std::span<const float> read(Value output) const override;
  std::vector<float> read_state(int state, int rank, int sequence, int positions) const override;
  int position_grain() const override { return kPositionBlock; }
  std::vector<std::byte> save(int sequence, StatePart part) const override;
  void restore(int sequence, StatePart part, std::span<const std::byte> saved) override;

  const Program& program() const override { return program_; }
  const MachineOptions& options() const override { return options_; }
  std::string describe() const override;
  MemoryNeed memory() const override { return memory_need(program_, options_, schedule_); }
  std::string find_non_finite(const StepArgs& args) override;

 private:
  void allocate();
  void bind(const Op& op, int rank, OpContext& context);
  void make_items();
  void set_upcoming(std::vector<Item>& list) const;
  // Some panels of a weight on a rank, or a plain weight.
  struct Piece {
    int rank = 0;
    int weight = 0;
    Range panels;
  };
  // What a worker loads, in the order of the tape. Each piece is taken once, by whoever asks first.
  struct LoadList {
    std::vector<Piece> pieces;
    alignas(64) std::atomic<size_t> next = 0;

    const Piece* take() {
      const size_t at = next.fetch_add(1, std::memory_order_relaxed);
      return at < pieces.size() ? &pieces[at] : nullptr;
    }
  };
  std::vector<Piece> pieces_of(int worker) const;
  void load_piece(const TapeSource& source, const Piece& piece, Progress* progress);
  void check_step(const StepArgs& args) const;
  void begin_step(const StepArgs& args);
  int64_t rows_of(Rows rows) const;
  template <bool kTraced>
  void work(int worker);
  void fail(const Item& item, const Wait& wait, int worker);
  template <class Visit>
  void visit_states(int sequence, StatePart part, Visit visit) const;
  int64_t state_stride(const StateInfo& state) const { return megalith::state_stride(state, options_); }

  const Program program_;
  MachineOptions options_;
  const Topology topology_;
  const std::string instruction_set_;
  const Schedule schedule_;
  const TapeLayout layout_;
  const std::vector<bool> written_once_;
  std::vector<RankMemory> ranks_;
  std::vector<OpContext> contexts_;  // of (op, rank): op · ranks + rank
  std::vector<std::vector<Item>> items_;
  std::vector<Pages> scratch_;  // of each worker
  std::vector<Counter> counters_;
  uint64_t steps_ = 0;
  // Whose rows the ops of a step work on (Program::rows_of): its own, and those of the draft in it.
  DraftSteps drafts_;
  const StepArgs* args_ = nullptr;
  const StepArgs* const draft_rows_ = &drafts_.rows;
  const StepArgs* const draft_blocks_ = &drafts_.blocks;
  TaskSpan* spans_ = nullptr;        // of a traced step: those of worker 0, then of worker 1, …
  std::vector<int64_t> first_span_;  // of each worker
  Clock::time_point step_start_, draft_start_;
  double draft_seconds_ = 0;
  size_t last_rows_ = 0, last_chosen_ = 0;
  std::mutex failure_mutex_;
  std::string failure_;
  Waiting waiting_;
  Workers workers_;
};

// A worker with less of the tape than this waits longer for the others than it works.
constexpr int64_t kLeastTape = int64_t{16} << 20;

int thread_count(const MachineOptions& options, const Topology& topology, const Program& program) {
  if (options.threads > 0) return options.threads;
  const int64_t worth = std::max<int64_t>(tape_layout(program).bytes * program.ranks / kLeastTape, 1);
  return static_cast<int>(std::min<int64_t>(topology.default_threads(), worth));
}

CpuMachine::CpuMachine(Program program, const MachineOptions& options)
    : program_(std::move(program)),
      options_(options),
      topology_(read_topology()),
      instruction_set_(instruction_set_name()),
      schedule_(make_schedule(program_, thread_count(options, topology_, program_))),
      layout_(tape_layout(program_)),
      written_once_(program_.written_once()),
      counters_(schedule_.producers.size()),
      waiting_(schedule_.workers <= static_cast<int>(topology_.cpus.size()) ? kSpins : 0, options.deadline_s),
      workers_(schedule_.workers, topology_, waiting_) {
  CHECK(program_.ranks <= kMaxLocalRanks, "{} ranks in a process", program_.ranks);
  options_.threads = schedule_.workers;
  if (options_.max_chosen == 0) options_.max_chosen = options_.max_rows;
  const std::vector<std::string> problems = check_schedule(program_, schedule_);
  CHECK(problems.empty(), "the schedule is wrong: {}", problems.front());
  allocate();
  make_items();
}

void CpuMachine::allocate() {
  const auto scratch = static_cast<size_t>(scratch_bytes(program_, options_));
  for (int worker = 0; worker < schedule_.workers; ++worker) scratch_.emplace_back(scratch);
  ranks_.resize(static_cast<size_t>(program_.ranks));
  for (RankMemory& memory : ranks_) {
    memory.tape = Pages(static_cast<size_t>(layout_.bytes));
    for (size_t buffer = 0; buffer < schedule_.buffer_width.size(); ++buffer) {
      memory.buffers.emplace_back(static_cast<size_t>(buffer_bytes(program_, schedule_, buffer, options_)));
    }
    for (const StateInfo& state : program_.states) {
      memory.states.emplace_back(static_cast<size_t>(state_stride(state) * options_.max_sequences) * 4);
    }
  }
}

void CpuMachine::bind(const Op& op, int rank, OpContext& c) {
  const RankMemory& memory = ranks_[static_cast<size_t>(rank)];
  const auto buffer = [&](Value v, const RankMemory& of) {
    return reinterpret_cast<float*>(
        of.buffers[static_cast<size_t>(schedule_.buffer_of[static_cast<size_t>(v.id)])].data());
  };
  c.op = &op;
  c.rank = rank;
  c.ranks = program_.ranks;
  c.block = program_.block;
  for (const Value input : op.inputs) {
    c.in.push_back(buffer(input, written_once_[static_cast<size_t>(input.id)] ? ranks_[0] : memory));
    c.in_width.push_back(program_.info(input).width);
  }
  if (op.collective()) {
    for (const RankMemory& other : ranks_) c.in_of_ranks.push_back(buffer(op.inputs[0], other));
    c.tree = tree_order(program_.ranks);
  }
  if (op.output.valid()) {
    c.out = buffer(op.output, memory);
    c.out_width = program_.info(op.output).width;
    c.chosen_rows = program_.rows_of(op) == Rows::chosen;
  }
  for (size_t i = 0; i < op.weights.size(); ++i) {
    const auto weight = static_cast<size_t>(op.weights[i]);
    c.weight[i] = memory.tape.data() + layout_.offset[weight];
    c.weight_info[i] = &program_.weights[weight];
  }
  for (size_t i = 0; i < op.states.size(); ++i) {
    const auto state = static_cast<size_t>(op.states[i]);
    c.state[i] = reinterpret_cast<float*>(memory.states[state].data());
    c.state_stride[i] = state_stride(program_.states[state]);
    c.head_dim = program_.states[state].shape.back();
    c.slots = program_.states[state].slots(padded_context(options_));
  }
  c.context = padded_context(options_);
  c.drafts = &drafts_;
  if (op.kind == OpKind::rope) c.frequencies = rope_frequencies(op.get<Rope>());
}

void CpuMachine::make_items() {
  contexts_.resize(program_.ops.size() * static_cast<size_t>(program_.ranks));
  for (size_t op = 0; op < program_.ops.size(); ++op) {
    for (int rank = 0; rank < program_.ranks; ++rank) {
      bind(program_.ops[op], rank, contexts_[op * static_cast<size_t>(program_.ranks) + static_cast<size_t>(rank)]);
    }
  }
  items_.resize(static_cast<size_t>(schedule_.workers));
  for (size_t worker = 0; worker < items_.size(); ++worker) {
    for (const int32_t index : schedule_.lists[worker]) {
      const Task& task = schedule_.tasks[static_cast<size_t>(index)];
      const auto context = static_cast<size_t>(task.op * program_.ranks + task.rank);
      const Op& op = program_.ops[static_cast<size_t>(task.op)];
      const Rows rows = program_.rows_of(op);
      items_[worker].push_back({kernel(op.kind),
                                &contexts_[context],
                                rows == Rows::draft ? &draft_rows_ : rows == Rows::blocks ? &draft_blocks_ : &args_,
                                {task.part, task.parts},
                                task.waits,
                                task.signal,
                                {},
                                task.op == program_.draft_begin && task.rank == 0 && task.part == 0});
    }
    set_upcoming(items_[worker]);
    first_span_.push_back(worker == 0 ? 0 : first_span_.back() + static_cast<int64_t>(items_[worker - 1].size()));
  }
}

void CpuMachine::set_upcoming(std::vector<Item>& list) const {
  Upcoming next;
  for (auto item = list.rbegin(); item != list.rend(); ++item) {
    const OpContext& c = *item->context;
    if (c.op->kind == OpKind::matmul) {
      const int64_t bytes = c.weight_info[0]->panel_bytes(c.ranks);
      const Range panels = item->part.of(c.weight_info[0]->panels(c.ranks));
      next = {c.weight[0] + panels.begin * bytes, static_cast<size_t>(panels.size() * bytes)};
    }
    item->upcoming = next;
  }
}

// Each worker writes the panels that it will read, so that their pages lie near it. One that is done helps the others,
// those whose numbers are nearest first: a processor may be busy with something else.
void CpuMachine::load(const TapeSource& source, Progress* progress) {
  std::vector<LoadList> lists(static_cast<size_t>(workers_.count()));
  for (size_t worker = 0; worker < lists.size(); ++worker) lists[worker].pieces = pieces_of(static_cast<int>(worker));
  std::exception_ptr problem;
  std::atomic<bool> stop = false;
  auto job = [&](int worker) {
    try {
      for (size_t distance = 0; distance < std::bit_ceil(lists.size()); ++distance) {
        const size_t owner = static_cast<size_t>(worker) ^ distance;
        if (owner >= lists.size()) continue;
        while (const Piece* piece = stop ? nullptr : lists[owner].take()) load_piece(source, *piece, progress);
      }
    } catch (...) {
      const std::lock_guard lock(failure_mutex_);
      if (!problem) problem = std::current_exception();
      stop = true;
    }
  };
  workers_.run(job);
  if (problem) std::rethrow_exception(problem);
  CHECK(failure_.empty(), "loading: {}", failure_);
}

std::vector<CpuMachine::Piece> CpuMachine::pieces_of(int worker) const {
  constexpr int64_t kPanelsAtOnce = 64;
  std::vector<Piece> pieces;
  for (int rank = 0; rank < program_.ranks; ++rank) {
    const WorkerRange range = workers_of(rank, program_.ranks, schedule_.workers);
    if (worker < range.first || worker >= range.last) continue;
    const Part part = {worker - range.first, range.last - range.first};
    for (const int weight : layout_.order) {
      const Weight& info = program_.weights[static_cast<size_t>(weight)];
      if (info.layout == WeightLayout::plain) {
        if (part.part == 0) pieces.push_back({rank, weight, {}});
        continue;
      }
      const Range panels = part.of(info.panels(program_.ranks));
      for (int64_t panel = panels.begin; panel < panels.end; panel += kPanelsAtOnce) {
        pieces.push_back({rank, weight, {panel, std::min(panel + kPanelsAtOnce, panels.end)}});
      }
    }
  }
  return pieces;
}

void CpuMachine::load_piece(const TapeSource& source, const Piece& piece, Progress* progress) {
  const Weight& weight = program_.weights[static_cast<size_t>(piece.weight)];
  std::byte* out =
      ranks_[static_cast<size_t>(piece.rank)].tape.data() + layout_.offset[static_cast<size_t>(piece.weight)];
  if (weight.layout == WeightLayout::plain) {
    source.read_plain(weight, piece.rank, program_.ranks, reinterpret_cast<float*>(out));
    return;
  }
  const int64_t bytes = weight.panel_bytes(program_.ranks), count = piece.panels.size();
  source.read_panels(weight, piece.rank, program_.ranks, piece.panels.begin, count, out + piece.panels.begin * bytes);
  if (progress) progress->add(static_cast<uint64_t>(count * bytes));
}

void CpuMachine::check_step(const StepArgs& args) const {
  CHECK(!args.runs.empty() && static_cast<int>(args.rows.size()) <= options_.max_rows, "{} rows of {}",
        args.rows.size(), options_.max_rows);
  for (const Run& run : args.runs) {
    CHECK(run.sequence >= 0 && run.sequence < options_.max_sequences && run.first_position >= run.replay &&
              run.first_position + run.rows <= options_.context,
          "sequence {}, positions {}+{}", run.sequence, run.first_position, run.rows);
    CHECK(!run.draft || program_.draft_block > 0, "a program without a draft");
    CHECK(run.replay >= 0 && run.replay <= program_.block && (!run.speculative || run.rows <= program_.block),
          "{} rows, of which {} are replayed, in a block of {}", run.rows, run.replay, program_.block);
  }
  CHECK(args.sampling.size() == args.chosen.size() && args.changes.size() == args.chosen.size() && static_cast<int>(args.chosen.size()) <= options_.max_chosen,
        "{} chosen rows of {}", args.chosen.size(), options_.max_chosen);
}

void CpuMachine::begin_step(const StepArgs& args) {
  check_step(args);
  args_ = &args;
  drafts_.prepare(args, program_.draft_block);
}

void CpuMachine::run(const StepArgs& args, std::vector<TaskSpan>* spans) {
  begin_step(args);
  draft_start_ = Clock::time_point::max();
  last_rows_ = args.rows.size();
  last_chosen_ = args.chosen.size();
  if (spans) {
    spans->resize(schedule_.tasks.size());
    spans_ = spans->data();
    step_start_ = Clock::now();
    auto job = [this](int worker) { work<true>(worker); };
    workers_.run(job);
  } else {
    auto job = [this](int worker) { work<false>(worker); };
    workers_.run(job);
  }
  ++steps_;
  draft_seconds_ = std::max(std::chrono::duration<double>(Clock::now() - draft_start_).count(), 0.0);
  if (!failure_.empty()) throw std::runtime_error(failure_);
}

template <bool kTraced>
void CpuMachine::work(int worker) {
  const Scratch scratch = {reinterpret_cast<float*>(scratch_[static_cast<size_t>(worker)].data()),
                           static_cast<int64_t>(scratch_[static_cast<size_t>(worker)].size()) / 4};
  const auto now = [this] { return std::chrono::duration<double>(Clock::now() - step_start_).count(); };
  TaskSpan* span = kTraced ? spans_ + first_span_[static_cast<size_t>(worker)] : nullptr;
  for (const Item& item : items_[static_cast<size_t>(worker)]) {
    if constexpr (kTraced) *span = {item.signal / program_.ranks, item.context->rank, worker, now(), 0, 0};
    for (const Wait& wait : item.waits) {
      const uint64_t target = static_cast<uint64_t>(wait.producers) * (steps_ + (wait.previous_step ? 0 : 1));
      if (!waiting_.wait(counters_[static_cast<size_t>(wait.counter)], target, item.upcoming)) {
        return fail(item, wait, worker);
      }
    }
    if (item.begins_draft) draft_start_ = Clock::now();
    if constexpr (kTraced) span->working = now();
    item.kernel(*item.context, **item.step, item.part, scratch);
    if constexpr (kTraced) (span++)->done = now();
    waiting_.raise(counters_[static_cast<size_t>(item.signal)]);
  }
}

void CpuMachine::fail(const Item& item, const Wait& wait, int worker) {
  const std::lock_guard lock(failure_mutex_);
  if (!failure_.empty()) return;
  const auto op = static_cast<size_t>(wait.counter / program_.ranks);
  failure_ =
      fmt::format("worker {} waited {} s at {} for {} (rank {}), which {} of {} workers had finished; step {}", worker,
                  options_.deadline_s, item.context->op->label, program_.ops[op].label, wait.counter % program_.ranks,
                  counters_[static_cast<size_t>(wait.counter)].value.load() % static_cast<uint64_t>(wait.producers),
                  wait.producers, steps_);
  waiting_.stop();
}

std::span<const float> CpuMachine::read(Value output) const {
  const ValueInfo& info = program_.info(output);
  const auto buffer = static_cast<size_t>(schedule_.buffer_of[static_cast<size_t>(output.id)]);
  return {reinterpret_cast<const float*>(ranks_[0].buffers[buffer].data()),
          static_cast<size_t>(rows_of(info.rows) * info.width)};
}

int64_t CpuMachine::rows_of(Rows rows) const {
  switch (rows) {
    case Rows::all: return static_cast<int64_t>(last_rows_);
    case Rows::chosen: return static_cast<int64_t>(last_chosen_);
    case Rows::draft: return static_cast<int64_t>(drafts_.rows.rows.size());
    case Rows::blocks: return static_cast<int64_t>(drafts_.blocks.rows.size());
  }
  return 0;
}

std::vector<float> CpuMachine::read_state(int state, int rank, int sequence, int positions) const {
  const StateInfo& info = program_.states[static_cast<size_t>(state)];
  const auto* s =
      reinterpret_cast<const float*>(ranks_[static_cast<size_t>(rank)].states[static_cast<size_t>(state)].data()) +
      sequence * state_stride(info);
  if (info.kind == StateInfo::Kind::per_sequence) return {s, s + info.elements()};
  const bool keys = std::any_of(program_.ops.begin(), program_.ops.end(),
                                [&](const Op& op) { return op.kind == OpKind::append_kv && op.states[0] == state; });
  const int64_t dim = info.shape[1];
  const int64_t slots = info.slots(padded_context(options_));
  std::vector<float> out;
  for (int64_t head = 0; head < info.shape[0]; ++head) {
    for (int64_t p = 0; p < std::min<int64_t>(positions, slots); ++p) {
      for (int64_t i = 0; i < dim; ++i) {
        const int64_t block = p / kPositionBlock * kPositionBlock;
        const int64_t at = keys ? block * dim + i * kPositionBlock + p - block : p * dim + i;
        out.push_back(s[head * slots * dim + at]);
      }
    }
  }
  return out;
}

// Calls visit(floats, count) for every stretch of memory of a part, always in the same order. Positions of a head lie in whole
// blocks, one after the other, whatever the order within a block.
template <class Visit>
void CpuMachine::visit_states(int sequence, StatePart part, Visit visit) const {
  CHECK(part.first % kPositionBlock == 0 && part.last % kPositionBlock == 0 && part.last <= padded_context(options_),
        "positions from {} to {}", part.first, part.last);
  for (const RankMemory& memory : ranks_) {
    for (size_t i = 0; i < program_.states.size(); ++i) {
      const StateInfo& info = program_.states[i];
      auto* state = reinterpret_cast<float*>(memory.states[i].data()) + sequence * state_stride(info);
      if (info.kind == StateInfo::Kind::per_sequence) {
        if (part.of_sequence()) visit(state, info.elements());
        continue;
      }
      const int64_t slots = info.slots(padded_context(options_));
      for (int64_t head = 0; head < info.shape[0]; ++head) {
        int64_t run = 0;  // positions that lie side by side
        for (int64_t p = std::max<int64_t>(part.first, part.last - slots); p < part.last; p += run) {
          run = std::min(part.last - p, slots - p % slots);
          visit(state + (head * slots + p % slots) * info.shape[1], run * info.shape[1]);
        }
      }
    }
  }
}

std::vector<std::byte> CpuMachine::save(int sequence, StatePart part) const {
  size_t bytes = 0;
  visit_states(sequence, part, [&](const float*, int64_t count) { bytes += static_cast<size_t>(count) * 4; });
  std::vector<std::byte> saved(bytes);
  std::byte* out = saved.data();
  visit_states(sequence, part, [&](const float* from, int64_t count) {
    std::memcpy(out, from, static_cast<size_t>(count) * 4);
    out += count * 4;
  });
  return saved;
}

void CpuMachine::restore(int sequence, StatePart part, std::span<const std::byte> saved) {
  const std::byte* in = saved.data();
  visit_states(sequence, part, [&](float* to, int64_t count) {
    CHECK(in + count * 4 <= saved.data() + saved.size(), "{} bytes of states", saved.size());
    std::memcpy(to, in, static_cast<size_t>(count) * 4);
    in += count * 4;
  });
  CHECK(in == saved.data() + saved.size(), "{} bytes of states", saved.size());
}

std::string CpuMachine::describe() const {
  return fmt::format("cpu, {} thread{}, {} rank{}, {}", schedule_.workers, schedule_.workers == 1 ? "" : "s",
                     program_.ranks, program_.ranks == 1 ? "" : "s", instruction_set_);
}

std::string CpuMachine::find_non_finite(const StepArgs& args) {
  begin_step(args);
  const Scratch scratch = {reinterpret_cast<float*>(scratch_[0].data()), static_cast<int64_t>(scratch_[0].size()) / 4};
  for (size_t op = 0; op < program_.ops.size(); ++op) {
    const int ranks = program_.ops[op].once() ? 1 : program_.ranks;
    for (int rank = 0; rank < ranks; ++rank) {
      const OpContext& c = contexts_[op * static_cast<size_t>(program_.ranks) + static_cast<size_t>(rank)];
      const StepArgs& step = drafts_.of(program_.rows_of(*c.op), args);
      kernel(c.op->kind)(c, step, {}, scratch);
      if (!c.out || c.op->kind == OpKind::accept) continue;
      const std::span<const float> values(c.out, static_cast<size_t>(c.rows(step) * c.out_width));
      if (!std::all_of(values.begin(), values.end(), [](float x) { return std::isfinite(x); })) {
        return program_.ops[op].label;
      }
    }
  }
  return {};
}

}  // namespace

std::unique_ptr<Machine> make_cpu_machine(Program program, const MachineOptions& options) {
  return std::make_unique<CpuMachine>(std::move(program), options);
}

MemoryNeed cpu_memory_need(const Program& program, const MachineOptions& options) {
  return memory_need(program, options, make_schedule(program, thread_count(options, read_topology(), program)));
}

}  // namespace megalith
