#pragma once

#include <string>

#include "program/cost.h"
#include "program/program.h"

namespace megalith {

// The program as a table, a line an op: op, place, shape, split, bytes of weights, states and wire, share of the bytes of
// the step; then the totals, and the floor in ms at `bandwidth` bytes/s a rank (0: no floor).
std::string print_program(const Program& program, const CostArgs& args, double bandwidth);

}  // namespace megalith
