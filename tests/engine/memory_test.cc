#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/loaded_model.h"
#include "tests/support/errors.h"
#include "tests/support/golden.h"

namespace megalith {
namespace {

using testing::HasSubstr;

LoadOptions options(int context) {
  LoadOptions o;
  o.machine = {.threads = 2, .max_rows = 32, .max_chosen = 2, .max_sequences = 2, .context = context};
  o.quiet = true;
  return o;
}

TEST(Memory, WhatIsForeseenIsWhatTheMachineHolds) {
  const auto directory = test_data("qwen-a/target");
  for (const int ranks : {1, 4}) {
    LoadOptions o = options(200);
    o.ranks = ranks;
    const MemoryNeed foreseen = prepare_model(directory, o).memory;
    const MemoryNeed held = load_model(directory, o).machine->memory();
    EXPECT_EQ(foreseen.tape, held.tape);
    EXPECT_EQ(foreseen.states, held.states);
    EXPECT_EQ(foreseen.activations, held.activations);
  }
}

TEST(Memory, GrowsWithContextAndSequencesOnlyInTheStates) {
  const auto directory = test_data("qwen-a/target");
  const MemoryNeed small = prepare_model(directory, options(256)).memory;
  const MemoryNeed large = prepare_model(directory, options(4096)).memory;
  EXPECT_EQ(small.tape, large.tape);
  EXPECT_EQ(small.activations, large.activations);
  EXPECT_GT(large.states, small.states);
}

TEST(Memory, LogitsTakeRoomForTheRowsThatAreChosenNotForAll) {
  const auto directory = test_data("qwen-a/target");
  LoadOptions few = options(256), all = options(256);
  all.machine.max_chosen = 0;
  EXPECT_LT(prepare_model(directory, few).memory.activations, prepare_model(directory, all).memory.activations);
}

TEST(Memory, AModelThatDoesNotFitIsRefusedWithTheNumbers) {
  const MemoryNeed need = {.tape = 5'000'000'000, .states = 1'000'000'000, .activations = 500'000'000};
  const std::string cause = cause_of([&] { require_memory(need, 6'000'000'000); });
  for (const char* text : {"6.50 GB", "5.00 GB", "1.00 GB", "500.00 MB", "6.00 GB"})
    EXPECT_THAT(cause, HasSubstr(text));
  require_memory(need, 6'500'000'000);
}

}  // namespace
}  // namespace megalith
