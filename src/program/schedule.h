#pragma once

#include <cstdint>
#include <vector>

#include "program/program.h"

namespace megalith {

// A task starts when `counter` has been raised `producers` times in this step (or in the step before).
struct Wait {
  int32_t counter = 0;
  int32_t producers = 0;
  bool previous_step = false;
};

// Part `part` of `parts` of an op on a rank, along the op's Cut. It raises `signal` once, after all its writes.
struct Task {
  int32_t op = 0;
  int32_t rank = 0;
  int32_t part = 0;
  int32_t parts = 1;
  int32_t worker = 0;
  std::vector<Wait> waits;
  int32_t signal = 0;
};

// A Program cut into tasks, dealt to workers. Every worker does the tasks of its list in order, waiting on counters;
// nothing is decided while a step runs, so one schedule serves steps of any number of rows.
//
// Each (op, rank) has one counter, which only grows: in step s a wait needs producers · (s + 1). Values live in buffers;
// a buffer serves several values where no one can still read the old value when the new one is written.
struct Schedule {
  int workers = 1;
  std::vector<Task> tasks;
  std::vector<std::vector<int32_t>> lists;  // of each worker: indices into tasks
  std::vector<int32_t> producers;           // of each counter
  std::vector<int32_t> buffer_of;           // of each value; every rank has its own set of buffers
  std::vector<int64_t> buffer_width;        // floats a row
  std::vector<Rows> buffer_rows;            // which rows of a step it holds
};

// Which workers do rank `rank`'s tasks: [first, last). With fewer workers than ranks, a worker has several ranks.
struct WorkerRange {
  int first = 0;
  int last = 1;
};
WorkerRange workers_of(int rank, int ranks, int workers);

Schedule make_schedule(const Program& program, int workers);

// The part of [0, size) that is part `part` of `parts`, in multiples of `grain` (but for the end). Parts are as equal as
// the grain allows, and cover everything once.
struct Range {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t size() const { return end - begin; }
};
Range part_of(int64_t size, int64_t part, int64_t parts, int64_t grain = 1);

}  // namespace megalith
