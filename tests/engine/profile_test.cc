#include "engine/profile.h"

#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "engine/measure.h"
#include "tests/support/golden.h"
#include "tests/support/loaded.h"

namespace megalith {
namespace {

using testing::HasSubstr;

Loaded load(int ranks, int threads) {
  return load_model(test_data("qwen-a/target"), ranks,
                    {.threads = threads, .max_rows = 32, .max_sequences = 4, .context = 64});
}

TEST(Trace, HasEveryTaskOnceWithItsWorkersTimesInOrder) {
  const Loaded loaded = load(2, 3);
  const auto spans = traced_decode(*loaded.machine, loaded.model->vocabulary(), 2, 5);
  std::map<int, double> last;  // of each worker
  std::set<std::tuple<int, int, int>> tasks;
  for (const TaskSpan& span : spans) {
    EXPECT_LE(last[span.worker], span.waiting);
    EXPECT_LE(span.waiting, span.working);
    EXPECT_LE(span.working, span.done);
    last[span.worker] = span.done;
    EXPECT_TRUE(tasks.insert({span.op, span.rank, span.worker}).second);
  }
  EXPECT_EQ(last.size(), 3u);
  for (int op = 0; op < static_cast<int>(loaded.machine->program().ops.size()); ++op) {
    EXPECT_TRUE(std::any_of(spans.begin(), spans.end(), [&](const TaskSpan& s) { return s.op == op; })) << op;
  }
}

TEST(Trace, DoesNotChangeWhatAStepComputes) {
  const Loaded loaded = load(1, 2);
  Machine& machine = *loaded.machine;
  const Value logits = machine.program().output("logits");
  StepArgs step;
  step.add_run(0, 0, {3, 4, 5});
  step.choose(2, {});
  machine.run(step);
  const auto first = machine.read(logits);
  const std::vector<float> plain(first.begin(), first.end());
  std::vector<TaskSpan> spans;
  machine.run(step, &spans);
  const auto traced = machine.read(logits);
  EXPECT_EQ(plain, std::vector<float>(traced.begin(), traced.end()));
}

TEST(Trace, JsonIsWhatPerfettoReads) {
  const Loaded loaded = load(1, 2);
  std::vector<std::vector<TaskSpan>> steps;
  for (int i = 0; i < 2; ++i) steps.push_back(traced_decode(*loaded.machine, loaded.model->vocabulary(), 1, i));
  const auto json = nlohmann::json::parse(trace_json(loaded.machine->program(), steps));
  ASSERT_FALSE(json["traceEvents"].empty());
  double end = 0;
  bool second_step = false;
  for (const auto& event : json["traceEvents"]) {
    EXPECT_EQ(event["ph"], "X");
    EXPECT_GE(event["dur"].get<double>(), 0);
    EXPECT_TRUE(event["tid"] == 0 || event["tid"] == 1);
    end = std::max(end, event["ts"].get<double>() + event["dur"].get<double>());
    second_step = second_step || (event["name"] == "L0 mlp.down_proj" && end > event["dur"].get<double>());
  }
  EXPECT_TRUE(second_step);
}

TEST(Profile, LinesOfAllLayersAreJoinedAndTheirBytesAreTheProgramsBytes) {
  const Loaded loaded = load(1, 2);
  const CostArgs args = {.sequences = 2, .rows_each = 1, .context = 6};
  Profile profile(loaded.machine->program(), args, 2);
  for (int i = 0; i < 3; ++i) profile.add(traced_decode(*loaded.machine, loaded.model->vocabulary(), 2, 5));
  const std::string table = profile.table();
  EXPECT_THAT(table, HasSubstr("matmul mlp.down_proj"));
  EXPECT_THAT(table, testing::Not(HasSubstr("L0")));
  EXPECT_THAT(table, HasSubstr("wait ms"));
  const auto bytes = static_cast<uint64_t>(program_cost(loaded.machine->program(), args).memory_bytes());
  EXPECT_THAT(table, HasSubstr(human_bytes(bytes)));
}

// The draft's matrices are in no step that asks for no draft; what the context passes through is.
TEST(Measure, PlainStepsOfAPairCountTheContextAndNotTheDraft) {
  const Loaded alone = load(1, 1);
  const Loaded pair = load_pair(test_data("qwen-a/target"), test_data("qwen-a/draft"), 1,
                                {.threads = 1, .max_rows = 32, .max_sequences = 2, .context = 64});
  const Program& program = pair.machine->program();
  const int64_t fc = 128 * 3 * 128, keys_and_values = 2 * 2 * 256 * 128, norms = 128 + 2 * 32;
  const int64_t without = streamed_bytes(program, {.draft = false});
  EXPECT_EQ(without - streamed_bytes(alone.machine->program()), 2 * (fc + keys_and_values + norms));
  EXPECT_GT(streamed_bytes(program), without);
  EXPECT_LT(decode_bytes(program, 1, 5), static_cast<double>(program_cost(program, {.context = 6}).memory_bytes()));

  Profile plain(program, {.context = 6, .draft = false}, 1), drafted(program, {.rows_each = 8, .context = 13}, 1);
  const int64_t vocabulary = pair.model->vocabulary();
  plain.add(traced_decode(*pair.machine, vocabulary, 1, 5));
  drafted.add(traced_blocks(*pair.machine, vocabulary, {.rows = 8, .kept = 6, .draft = true}, 5));
  EXPECT_THAT(plain.table(), HasSubstr("draft, without rows"));
  EXPECT_THAT(plain.table(), testing::Not(HasSubstr("matmul draft mlp.down_proj")));
  EXPECT_THAT(drafted.table(), HasSubstr("matmul draft mlp.down_proj"));
}

TEST(Measure, BlocksAreTimedWithTheirDraftsAndWithout) {
  const Loaded pair = load_pair(test_data("qwen-a/target"), test_data("qwen-a/draft"), 1,
                                {.threads = 1, .max_rows = 32, .max_sequences = 2, .context = 64});
  for (const bool draft : {false, true}) {
    const DecodeTime time = time_blocks(*pair.machine, pair.model->vocabulary(),
                                        {.sequences = 2, .rows = 8, .kept = 8, .draft = draft}, 4, 3);
    EXPECT_GT(time.seconds, time.draft_s);
    EXPECT_EQ(time.draft_s > 0, draft);
  }
}

TEST(Measure, SpreadIsMedianLeastAndMost) {
  EXPECT_EQ(spread_of({3, 1, 2}).median, 2);
  EXPECT_EQ(spread_of({4, 1, 2, 3}).median, 2.5);
  EXPECT_EQ(spread_of({4, 1, 2, 3}).least, 1);
  EXPECT_EQ(spread_of({4, 1, 2, 3}).most, 4);
}

TEST(Measure, BytesAreThoseOfTheProgramWhateverTheRanks) {
  const Loaded one = load(1, 1), two = load(2, 1);
  const double whole = decode_bytes(one.machine->program(), 1, 5);
  EXPECT_GE(whole, static_cast<double>(streamed_bytes(one.machine->program())));
  // Norms are held by both ranks; they are a small part.
  EXPECT_NEAR(decode_bytes(two.machine->program(), 1, 5) / whole, 1, 0.05);
  EXPECT_GT(prefill_flops(one.machine->program(), 8), 0);
}

}  // namespace
}  // namespace megalith
