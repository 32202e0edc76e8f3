#pragma once

#include <string>
#include <vector>

#include "program/program.h"
#include "program/schedule.h"

namespace megalith {

// Proves a schedule free of deadlock and of races, over two steps in a row. Returns what is wrong; nothing if it is right.
//
//   1. Each task raises exactly one counter, its op's, once.
//   2. Every wait asks for all producers of its counter.
//   3. Workers doing their lists in order always come to the end of two steps.
//   4. Every read finds the value that the program means, and all of its writers are ordered before it.
//   5. A buffer or state is overwritten only after all who read or wrote it before, also across the border of steps.
//   6. The tasks of an op cover it once: parts 0 … n-1 of n, on every rank that does it.
//
// The order is proved with vector clocks: one number a worker, so memory and time grow with tasks · workers.
std::vector<std::string> check_schedule(const Program& program, const Schedule& schedule);

}  // namespace megalith
