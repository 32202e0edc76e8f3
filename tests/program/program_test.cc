// What a program says about the rows of its ops, its values and its states.

#include "program/program.h"

#include <map>

#include <gtest/gtest.h>

#include "program/builder.h"

namespace megalith {
namespace {

TEST(StateInfo, AWindowKeepsItselfAndASpeculativeRunBeyondIt) {
  for (const int64_t context : {16, 48, 304, 5120}) {
    for (const int64_t window : {1, 5, 16, 40, 1000}) {
      const StateInfo state = {"k", StateInfo::Kind::per_position, {2, 16}, window};
      const int64_t slots = state.slots(context);
      EXPECT_TRUE(slots == context || (slots < context && slots >= window + kMaxBlock)) << window << " of " << context;
    }
    EXPECT_EQ((StateInfo{"k", StateInfo::Kind::per_position, {2, 16}}).slots(context), context);
  }
}

// A step, the draft that follows it, and a token of the draft.
Program small_draft(int ranks) {
  Builder b({.ranks = ranks, .block = 4}, 4);
  const WeightRef table = b.matrix("table", 40, 16, Builder::split_outputs({{40, 40}}));
  const Value x = b.embed(table);
  b.append_window(x, x, b.per_position("k", 1, 16, 8), b.per_position("v", 1, 16, 8));
  const Value tokens = b.sample(b.all_gather(b.matmul(b.choose_rows(x), table)));
  const Value accepted = b.accept(tokens, {4, 39});
  const Value draft = b.embed(table, Rows::draft, accepted);
  const Value ids = b.candidates(b.all_gather(b.matmul(draft, table)), {3});
  b.output("rows", b.lookup(ids, b.matrix("codebook", 40, 16, {}), 3));
  b.output("path", b.select_path(ids, {}, {3, 0}));
  const Value first = b.pick_row(draft, 1);
  b.output("token", b.advance(b.sample(b.all_gather(b.matmul(first, table))), first));
  return std::move(b).build();
}

TEST(Program, AnOpWorksOnTheRowsOfItsOutput) {
  for (const int ranks : {1, 2}) {
    const Program program = small_draft(ranks);
    EXPECT_EQ(program.draft_block, 4);
    const std::map<OpKind, Rows> expected = {{OpKind::append_window, Rows::all},  {OpKind::accept, Rows::all},
                                             {OpKind::choose_rows, Rows::chosen}, {OpKind::candidates, Rows::draft},
                                             {OpKind::lookup, Rows::draft},       {OpKind::select_path, Rows::blocks},
                                             {OpKind::pick_row, Rows::blocks},    {OpKind::advance, Rows::blocks}};
    for (const Op& op : program.ops) {
      const auto rows = expected.find(op.kind);
      if (rows != expected.end()) {
        EXPECT_EQ(program.rows_of(op), rows->second) << op.label;
      }
    }
  }
}

TEST(Program, ChoicesAreWrittenOnce) {
  const Program program = small_draft(2);
  const std::vector<bool> once = program.written_once();
  for (const Op& op : program.ops) {
    if (!op.output.valid()) continue;
    const bool expected = op.kind == OpKind::all_gather || op.kind == OpKind::sample || op.kind == OpKind::accept ||
                          op.kind == OpKind::candidates || op.kind == OpKind::select_path || op.kind == OpKind::advance;
    EXPECT_EQ(once[static_cast<size_t>(op.output.id)], expected) << op.label;
  }
}

TEST(Program, TablesThatAreOnlyLookedUpEndTheTape) {
  const Program program = small_draft(1);
  const TapeLayout layout = tape_layout(program);
  ASSERT_EQ(layout.order.size(), 2u);
  EXPECT_EQ(program.weights[static_cast<size_t>(layout.order[0])].name, "table");  // it is also the head
  EXPECT_EQ(program.weights[static_cast<size_t>(layout.order[1])].name, "codebook");
}

}  // namespace
}  // namespace megalith
