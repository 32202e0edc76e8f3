// The ops of the draft that follows a step, on the CPU against the reference: in steps whose runs speculate or do not,
// with and without a draft. Equal bits where an op only moves numbers or picks ids; else within a relative 1e-5 of the
// largest element.

#include <algorithm>
#include <array>
#include <cmath>
#include <set>

#include <gtest/gtest.h>

#include "machines/cpu/instruction_set.h"
#include "tests/machines/harness.h"

namespace megalith {
namespace {

constexpr double kEqual = 0;
constexpr double kClose = 1e-5;
constexpr int kTokens = 37;
constexpr int32_t kMask = 36;

// The choice after a token, of a program whose logits are next_table().
int32_t next(int32_t token) {
  return (5 * token + 3) % kTokens;
}

// Logits of each token, of which one is far above the others.
std::vector<float> next_table() {
  std::vector<float> table;
  for (int32_t token = 0; token < kTokens; ++token) {
    for (int32_t i = 0; i < kTokens; ++i) table.push_back(i == next(token) ? 100.0f : 0.0f);
  }
  return table;
}

// A run of some sequence's text.
struct Piece {
  int sequence = 0;
  int rows = 1;
  bool draft = true;
  int right = -1;  // not negative: it is speculative, and so many of its guesses are right
  int forced = -1;
  Sampling how = {};
};

// Writes the steps of some texts, each going on where its last run was right.
class Script {
 public:
  explicit Script(size_t texts) : texts_(texts) {}

  void step(const std::vector<Piece>& pieces) {
    steps_.emplace_back();
    for (const Piece& piece : pieces) add(steps_.back(), piece);
  }
  void start_again(int sequence) { texts_[static_cast<size_t>(sequence)] = {}; }
  const std::vector<StepArgs>& steps() const { return steps_; }

 private:
  struct Text {
    int32_t position = 0, newest = 1;
  };

  void add(StepArgs& step, const Piece& piece) {
    Text& text = texts_[static_cast<size_t>(piece.sequence)];
    const bool speculative = piece.right >= 0;
    std::vector<int32_t> tokens = {text.newest};
    for (int i = 1; i < piece.rows; ++i) {
      const int32_t right = next(tokens.back());
      tokens.push_back(i <= piece.right ? right : (right + i) % kTokens);
    }
    const int32_t first = step.add_run(piece.sequence, text.position, tokens, 0, speculative);
    step.runs.back().draft = piece.draft;
    step.runs.back().forced = piece.forced;
    // Of a plain run: the last row, or some.
    for (int i = speculative || piece.rows == 3 ? 0 : piece.rows - 1; i < piece.rows; ++i)
      step.choose(first + i, piece.how);
    int last = piece.rows - 1;
    if (speculative) last = std::min(piece.forced >= 0 ? piece.forced : piece.right, last);
    text.position += last + 1;
    text.newest = next(tokens[static_cast<size_t>(last)]);
  }

  std::vector<Text> texts_;
  std::vector<StepArgs> steps_;
};

// Steps of four texts: blocks side by side, runs and steps without a draft, guesses that are wrong, right and forced to
// be, texts that go on past the end of a window's ring, and another text in a used slot. Requests sample in the given
// ways.
std::vector<StepArgs> draft_steps(int block, const std::vector<Sampling>& ways = {{}}) {
  Script script(4);
  const auto way = [&](size_t i) { return ways[i % ways.size()]; };
  const int some = block / 2;
  script.step({{0, 20, true, -1, -1, way(0)}, {1, 3, false}});
  script.step({{0, block, true, 0, -1, way(0)}, {2, 17, true, -1, -1, way(1)}});
  script.step({{1, 1, true, -1, -1, way(2)}, {0, block, true, block - 1, -1, way(0)}, {2, block, false, some}});
  script.step({{0, 1, false}});
  script.step(
      {{2, block, true, block - 1, 0, way(1)}, {3, block, true, some, -1, way(3)}, {0, block, true, 0, some, way(4)}});
  script.step({{0, 100, true, -1, -1, way(0)}, {3, 3, true, -1, -1, way(5)}, {1, 1, false}});
  for (size_t i = 0; i < 6; ++i) {
    script.step(
        {{3, block, true, block - 1, -1, way(i)}, {0, block, true, static_cast<int>(i) % block, -1, way(i + 1)}});
  }
  script.start_again(0);
  script.step({{0, 2, true, -1, -1, way(0)}, {2, 1, true, 0, -1, way(3)}});
  script.step({{0, block, true, 0, 99, way(0)}, {1, block, true, some, -1, way(2)}});
  return script.steps();
}

// Of a program with a draft: what its ops begin with.
struct Draft {
  Value accepted;
  Value ids;  // of each draft row, one that depends on its position

  Draft(Builder& b, int block) {
    const Value logits = b.choose_rows(b.embed(b.matrix("next", kTokens, kTokens, {})));
    const Value tokens = b.sample(logits);
    accepted = b.accept(tokens, {block, kMask});
    const Value x =
        b.rope(b.embed(b.matrix("anchor or mask", kTokens, 16, {}), Rows::draft, accepted), {1, 16, 16, 10});
    ids = b.candidates(b.matmul(x, b.matrix("id of row", kTokens, 16, {})), {1});
    b.output("tokens", tokens);
    b.output("accepted", accepted);
    b.output("rows", source(b, "row", 1));
  }

  // Values that differ draft row by draft row: a table's rows, chosen by id.
  Value source(Builder& b, const std::string& name, int64_t width) const {
    return b.lookup(ids, b.matrix(name, kTokens, width, {}), 1);
  }
};

// The same of the step's own rows.
Value step_source(Builder& b, const std::string& name, int64_t width) {
  return b.embed(b.matrix(name, kTokens, width, {}));
}

BuildOptions options_of(int block, int ranks = 1, DType dtype = DType::f32) {
  return {.ranks = ranks, .catalog = all_of(dtype), .block = block};
}

Parity parity_of(Builder&& b, double tolerance) {
  Parity parity(std::move(b).build(), tolerance);
  parity.weights.set("next", next_table());
  return parity;
}

TEST(DraftParity, TheScriptIsWhatTheProgramChooses) {
  constexpr int kBlock = 5;
  Builder b(options_of(kBlock), 1);
  const Draft draft(b, kBlock);
  const Program program = std::move(b).build();
  RandomWeights weights;
  weights.set("next", next_table());
  Reference reference(program, 4, 304);
  reference.load(weights);
  std::set<float> accepted, ids;
  for (const StepArgs& step : draft_steps(kBlock)) {
    reference.run(step);
    for (const float a : reference.read(draft.accepted)) accepted.insert(a);
    for (size_t i = 0; i < reference.read(draft.ids).size(); i += 2) ids.insert(reference.read(draft.ids)[i]);
  }
  EXPECT_EQ(accepted.size(), size_t{kBlock});  // none to all of the guesses
  EXPECT_GT(ids.size(), 10u);
}

TEST(DraftParity, AcceptBeginsBlocksOfAnyLength) {
  for (const int block : {2, 3, 8, 16}) {
    for (const int ranks : {1, 2}) {
      Builder b(options_of(block, ranks), 2);
      const Draft draft(b, block);
      b.output("x", b.embed(b.matrix("table", kTokens, 19, {}), Rows::draft, draft.accepted));
      b.output("y", b.embed(b.matrix("table", kTokens, 19, {}), Rows::blocks, draft.accepted));
      parity_of(std::move(b), kEqual).run(draft_steps(block), {1, 3});
    }
  }
}

TEST(DraftParity, RopeTurnsDraftRowsByTheirPositions) {
  Builder b(options_of(6), 1);
  const Draft draft(b, 6);
  b.output("y", b.rope(draft.source(b, "x", 48), {3, 16, 16, 1e4}));
  parity_of(std::move(b), kClose).run(draft_steps(6));
}

TEST(DraftParity, ConcatJoinsRowsInOrder) {
  for (const std::vector<int64_t>& widths :
       {std::vector<int64_t>{1}, {1, 15, 17, 33}, {16, 16}, {7, 7, 7, 7, 7}, {65, 3}}) {
    Builder b(options_of(4), 1);
    const Draft draft(b, 4);
    std::vector<Value> of_step, of_draft;
    for (size_t i = 0; i < widths.size(); ++i) {
      of_step.push_back(step_source(b, "step" + std::to_string(i), widths[i]));
      of_draft.push_back(draft.source(b, "draft" + std::to_string(i), widths[i]));
    }
    b.output("step", b.concat(of_step));
    b.output("draft", b.concat(of_draft));
    parity_of(std::move(b), kEqual).run(draft_steps(4), {1, 3, 4});
  }
}

TEST(DraftParity, PickRowTakesARowOfEachBlock) {
  for (const int64_t width : {1, 15, 16, 65}) {
    Builder b(options_of(5), 1);
    const Draft draft(b, 5);
    const Value x = draft.source(b, "x", width);
    for (const int64_t row : {0, 1, 4}) b.output("row " + std::to_string(row), b.pick_row(x, row));
    parity_of(std::move(b), kEqual).run(draft_steps(5));
  }
}

TEST(DraftParity, AdvanceMakesATokenTheOneThatIsFollowed) {
  Builder b(options_of(4), 1);
  const Draft draft(b, 4);
  const WeightRef next = b.matrix("next", kTokens, kTokens, {});
  const auto after = [&](Value token) { return b.embed(b.matrix("table", kTokens, 33, {}), Rows::blocks, token); };
  b.output("after 0", after(draft.accepted));
  Value token = draft.accepted;
  for (int i = 1; i < 4; ++i) {
    const Value used = b.embed(next, Rows::blocks, token);
    token = b.advance(b.sample(used), used);
    b.output("token " + std::to_string(i), token);
    b.output("after " + std::to_string(i), after(token));
  }
  parity_of(std::move(b), kEqual).run(draft_steps(4), {1, 2, 5});
}

// A draft of nine tokens, each of which is three times as far on among the target's: what follows sees the target's token.
TEST(DraftParity, AdvanceTurnsTokensOfTheDraftsVocabularyIntoTheTargets) {
  Builder b(options_of(3), 1);
  const Draft draft(b, 3);
  const Value own = b.advance(b.sample(b.pick_row(draft.source(b, "logits", 9), 1)), draft.accepted, b.integers("map", 9));
  b.output("token", own);
  b.output("after", b.embed(b.matrix("table", kTokens, 33, {}), Rows::blocks, own));
  Parity parity = parity_of(std::move(b), kEqual);
  std::vector<float> twice;
  for (int i = 0; i < 9; ++i) twice.push_back(2.0f * static_cast<float>(i));
  parity.weights.set("map", twice);
  parity.run(draft_steps(3), {1, 3});
}

// The noise of a draft's own sampling is that of the position that it guesses.
TEST(DraftParity, SampleOfABlockUsesTheRequestsNoise) {
  Builder b(options_of(4), 1);
  const Draft draft(b, 4);
  const Value x = draft.source(b, "logits", 65);
  Value token = draft.accepted;
  for (int64_t i = 1; i < 4; ++i) {
    const Value used = b.pick_row(x, i);
    token = b.advance(b.sample(used), used);
    b.output("token " + std::to_string(i), token);
  }
  parity_of(std::move(b), kEqual)
      .run(draft_steps(4, {{.temperature = 2, .seed = 3}, {.temperature = 1, .top_p = 0.9f, .seed = 4}, {}}));
}

TEST(DraftParity, AppendWindowKeepsTheLastPositions) {
  for (const int64_t window : {0, 1, 7, 16, 40, 1000}) {
    for (const auto& [heads, dim] : {std::pair{1, 16}, {3, 48}, {2, 80}}) {
      Builder b(options_of(6), 1);
      const Draft draft(b, 6);
      b.append_window(step_source(b, "k", heads * dim), step_source(b, "v", heads * dim),
                      b.per_position("k", heads, dim, window), b.per_position("v", heads, dim, window));
      parity_of(std::move(b), kEqual).run(draft_steps(6), {1, 2, 4});
    }
  }
}

TEST(DraftParity, AppendWindowTakesRunsFarLongerThanTheRing) {
  Builder b({}, 1);
  b.append_window(step_source(b, "k", 32), step_source(b, "v", 32), b.per_position("k", 2, 16, 5),
                  b.per_position("v", 2, 16, 5));
  std::vector<StepArgs> steps;
  int position = 0;
  for (const int rows : {31, 1, 1, 32, 33, 1, 130, 64, 5}) {
    add_tokens(steps.emplace_back(), 1, position, rows, position, kTokens);
    position += rows;
  }
  b.output("x", step_source(b, "x", 1));
  Parity(std::move(b).build(), kEqual).run(steps);
}

Parity attention(const AttendBlock& how, int block, int context = 304) {
  Builder b(options_of(block), 1);
  const Draft draft(b, block);
  const int64_t q = how.heads * how.dim, kv = how.kv_heads * how.dim;
  const int k_state = b.per_position("k", how.kv_heads, how.dim, how.window);
  const int v_state = b.per_position("v", how.kv_heads, how.dim, how.window);
  b.append_window(step_source(b, "context k", kv), step_source(b, "context v", kv), k_state, v_state);
  b.output("y", b.attend_block(draft.source(b, "q", q), draft.source(b, "k", kv), draft.source(b, "v", kv), k_state,
                               v_state, how));
  Parity parity(std::move(b).build(), kClose, 4, context);
  parity.weights.set("next", next_table());
  return parity;
}

// A steep softmax: large scores show a max that is taken wrongly.
constexpr float kSteep = 8;

TEST(DraftParity, AttendBlockSeesItsWindowAndItsBlock) {
  for (const int64_t window : {0, 1, 3, 7, 8, 9, 40, 1000}) {
    for (const bool causal : {false, true}) {
      for (const bool from_anchor : {false, true}) {
        attention({4, 2, 32, kSteep, causal, window, from_anchor}, 8).run(draft_steps(8));
      }
    }
  }
}

TEST(DraftParity, AttendBlockOfAnyShape) {
  for (const int64_t dim : {16, 32, 48, 80}) {
    for (const auto& [heads, kv_heads] : {std::pair{1, 1}, {4, 2}, {6, 1}, {3, 3}}) {
      for (const float scale : {0.1f, kSteep}) {
        attention({heads, kv_heads, dim, scale, dim == 48, heads == 4 ? 40 : 0, heads == 3}, 5)
            .run(draft_steps(5), {1, 4});
      }
    }
  }
}

TEST(DraftParity, AttendBlockOfShortAndLongBlocks) {
  for (const int block : {2, 3, 16}) {
    for (const int64_t window : {0, 5, 30}) {
      attention({2, 1, 16, kSteep, false, window, false}, block).run(draft_steps(block));
    }
  }
}

// Contexts of more than one chunk of positions, and windows whose ring has gone round many times.
TEST(DraftParity, AttendBlockOfALongContext) {
  Script script(2);
  script.step({{0, 250}});
  for (int i = 0; i < 3; ++i) script.step({{0, 4, true, 3}});
  script.step({{0, 300}, {1, 1}});
  script.step({{0, 4, true, 1}, {1, 4, true, 2}});
  script.step({{0, 300}});
  script.step({{0, 4, true, 0}});
  script.step({{0, 4, true, 3}});
  for (const int64_t window : {0, 100, 300, 520}) {
    for (const bool from_anchor : {false, true}) {
      attention({2, 1, 32, kSteep, false, window, from_anchor}, 4, 1024).run(script.steps());
    }
  }
}

TEST(DraftParity, BlockConvOfAnyShape) {
  struct Shape {
    int64_t channels, taps, group;
  };
  for (const Shape& s : {Shape{4, 3, 4},
                         {20, 1, 4},
                         {36, 4, 4},
                         {130, 3, 2},
                         {16, 3, 16},
                         {48, 2, 16},
                         {80, 4, 16},
                         {144, 5, 16},
                         {15, 2, 5},
                         {23, 3, 1},
                         {64, 16, 32}}) {
    for (const int side : {0, 1}) {
      for (const int block : {2, 6}) {
        Builder b(options_of(block), 1);
        const Draft draft(b, block);
        const Value dynamic = draft.source(b, "dynamic", 2 * s.taps * s.channels / s.group);
        const WeightRef base = b.vector("base", {2, s.taps, s.channels});
        b.output("y",
                 b.block_conv(draft.source(b, "x", s.channels), dynamic, base, {s.channels, s.taps, s.group, side}));
        parity_of(std::move(b), kClose).run(draft_steps(block), {1, 3});
      }
    }
  }
}

// A table of numbers, some equal.
std::vector<float> coarse_numbers(int64_t width, float scale) {
  std::vector<float> numbers;
  for (int64_t i = 0; i < kTokens * width; ++i) {
    numbers.push_back(scale * std::round(8 * random_number(11, static_cast<uint64_t>(i))));
  }
  return numbers;
}

TEST(DraftParity, CandidatesAreTheLargestLogitsInOrder) {
  for (const int64_t vocabulary : {1, 7, 16, 17, 65, 300}) {
    for (const int64_t top_k : {int64_t{1}, int64_t{2}, int64_t{16}, vocabulary}) {
      if (top_k > vocabulary) continue;
      Builder b(options_of(4), 1);
      const Draft draft(b, 4);
      b.output("plain", b.candidates(draft.source(b, "logits", vocabulary), {top_k, 0.37f, 0}));
      b.output("ties", b.candidates(draft.source(b, "coarse", vocabulary), {top_k}));
      Parity parity = parity_of(std::move(b), kEqual);
      parity.weights.set("coarse", coarse_numbers(vocabulary, 1));
      parity.run(draft_steps(4), {1, 3});
    }
  }
}

TEST(DraftParity, CandidatesWithinACap) {
  Builder b(options_of(4), 1);
  const Draft draft(b, 4);
  b.output("y", b.candidates(draft.source(b, "logits", 30), {12, 0.5f, 30}));
  Parity parity = parity_of(std::move(b), kClose);
  parity.weights.set("logits", coarse_numbers(30, 25));  // far beyond the cap, and far below
  parity.run(draft_steps(4));
}

// Every way of sampling, each with its own seed.
std::vector<Sampling> ways_of_sampling() {
  std::vector<Sampling> ways = {{},
                                {.temperature = 0.7f},
                                {.temperature = 3},
                                {.temperature = 1, .top_k = 1},
                                {.temperature = 2, .top_k = 3},
                                {.temperature = 2, .top_p = 0.6f},
                                {.temperature = 2, .min_p = 0.2f},
                                {.temperature = 2, .top_k = 5, .top_p = 0.8f, .min_p = 0.05f},
                                {.temperature = 0.1f, .top_k = 100, .top_p = 0.01f}};
  for (size_t i = 0; i < ways.size(); ++i) ways[i].seed = 1000 + i;
  return ways;
}

TEST(DraftParity, CandidatesOfBrokenLogits) {
  for (const float bad : {NAN, HUGE_VALF, -HUGE_VALF}) {
    for (const int64_t numbers : {0, 1, 3, 40}) {  // of each row
      Builder b(options_of(4), 1);
      const Draft draft(b, 4);
      const Value logits = draft.source(b, "logits", 41);
      const Value ids = b.candidates(logits, {20});
      b.output("candidates", ids);
      b.output("path", b.select_path(ids, {}, {20, 0}));
      std::vector<float> table(static_cast<size_t>(kTokens * 41), bad);
      for (int64_t token = 0; token < kTokens; ++token) {
        for (int64_t i = 0; i < numbers; ++i) {
          table[static_cast<size_t>(token * 41 + (7 * i + 20) % 41)] =
              random_number(3, static_cast<uint64_t>(token * 41 + i));
        }
      }
      Parity parity = parity_of(std::move(b), kEqual);
      parity.weights.set("logits", table);
      parity.run(draft_steps(4, ways_of_sampling()));
    }
  }
}

TEST(DraftParity, LookupReadsTheRowsOfItsIds) {
  for (const DType dtype : {DType::bf16, DType::f32}) {
    for (const int64_t width : {1, 15, 16, 33}) {
      for (const int64_t count : {1, 3, 5}) {
        Builder b(options_of(4, 1, dtype), 1);
        const Draft draft(b, 4);
        const Value ids = b.candidates(draft.source(b, "logits", 40), {5});
        b.output("y", b.lookup(ids, b.matrix("table", 40, width, {}), count));
        parity_of(std::move(b), kEqual).run(draft_steps(4), {1, 2, 5});
      }
    }
  }
}

TEST(DraftParity, LookupOverRanksAddsNothingToTheRows) {
  for (const int ranks : {1, 2, 4, 8}) {
    Builder b(options_of(4, ranks), 8);
    const Draft draft(b, 4);
    const Value ids = b.candidates(draft.source(b, "logits", 40), {5});
    b.output("y", b.lookup(ids, b.matrix("table", 40, 33, Builder::split_outputs({{40, 40}})), 5));
    parity_of(std::move(b), kEqual).run(draft_steps(4), {1, 3, 9});
  }
}

// Candidates of every number of inputs, with codebooks where rank > 0.
Parity path(int block, SelectPath how, const std::vector<float>& logits = {}, int ranks = 1) {
  Builder b(options_of(block, ranks), 8);
  const Draft draft(b, block);
  const Value ids = b.candidates(draft.source(b, "logits", 40), {how.top_k});
  std::vector<Value> codebooks;
  if (how.rank > 0) {
    const Split split = Builder::split_outputs({{40, 40}});
    codebooks.push_back(b.lookup(ids, b.matrix("successor", 40, how.rank, split), how.top_k));
    codebooks.push_back(b.lookup(ids, b.matrix("predecessor", 40, how.rank, split), how.top_k));
    codebooks.push_back(draft.source(b, "g", how.rank));
  }
  b.output("candidates", ids);
  b.output("path", b.select_path(ids, codebooks, how));
  Parity parity = parity_of(std::move(b), kEqual);
  if (!logits.empty()) parity.weights.set("logits", logits);
  return parity;
}

TEST(DraftParity, SelectPathTakesTheSameTokens) {
  for (const int64_t rank : {0, 1, 16, 37, 64}) {
    for (const int64_t top_k : {1, 2, 7, 16, 33}) {
      Parity parity = path(5, {top_k, rank});
      for (size_t i = 0; i < ways_of_sampling().size(); i += 4) {
        std::vector<Sampling> ways = ways_of_sampling();
        std::rotate(ways.begin(), ways.begin() + static_cast<int64_t>(i), ways.end());
        parity.run(draft_steps(5, ways));
      }
    }
  }
}

TEST(DraftParity, SelectPathOfShortAndLongBlocks) {
  for (const int block : {2, 16}) {
    path(block, {8, 16}).run(draft_steps(block, ways_of_sampling()), {1, 3, 4});
  }
}

TEST(DraftParity, SelectPathOfTiesTakesTheLowerId) {
  for (const float scale : {1.0f, 0.0f}) {
    path(5, {16, 0}, coarse_numbers(40, scale)).run(draft_steps(5, ways_of_sampling()));
  }
}

TEST(DraftParity, SelectPathOverRanks) {
  for (const int ranks : {2, 4}) path(5, {8, 24}, {}, ranks).run(draft_steps(5, ways_of_sampling()), {1, 3});
}

// Two small models of the known kinds. Of both, the target's part: [logits, hidden states side by side].
constexpr int kBlock = 4;
constexpr int64_t kVocabulary = 40, kWidth = 64, kHeads = 16, kKvHeads = 8, kDim = 16;

struct Target {
  WeightRef table;
  Value tokens, features;

  explicit Target(Builder& b) {
    table = b.matrix("embed", kVocabulary, kWidth, Builder::split_outputs({{kVocabulary, kVocabulary}}));
    const Value x = b.embed(table);
    const Value up = b.matmul(x, b.matrix("up", 128, kWidth, Builder::split_outputs({{128, 8}})));
    const Value y = b.add(x, b.matmul(up, b.matrix("down", kWidth, 128, Builder::split_inputs({128, 8}))));
    tokens = b.sample(b.all_gather(b.matmul(b.choose_rows(y), table)));
    features = b.concat({x, y});
    b.output("tokens", tokens);
  }
};

// Keys and values of rows, each rank's heads.
std::pair<Value, Value> keys_and_values(Builder& b, Value x, const std::string& name) {
  const int64_t size = kKvHeads * kDim;
  const Split split = Builder::split_outputs({{size, kKvHeads}});
  const Value k = b.matmul(x, b.matrix(name + ".k", size, kWidth, split));
  return {b.rope(k, {kKvHeads / b.ranks(), kDim, kDim, 1e4}), b.matmul(x, b.matrix(name + ".v", size, kWidth, split))};
}

// A layer of a draft: attention to the context and the block, then a convolution.
Value draft_layer(Builder& b, Value x, Value context, const std::string& name, const AttendBlock& how) {
  const int k_state = b.per_position(name + ".k", how.kv_heads, kDim, how.window);
  const int v_state = b.per_position(name + ".v", how.kv_heads, kDim, how.window);
  const auto [context_k, context_v] = keys_and_values(b, context, name);
  b.append_window(context_k, context_v, k_state, v_state);
  const int64_t size = kHeads * kDim;
  const WeightRef q = b.matrix(name + ".q", size, kWidth, Builder::split_outputs({{size, kHeads}}));
  const auto [k, v] = keys_and_values(b, x, name);
  const Value y = b.attend_block(b.rope(b.matmul(x, q), {how.heads, kDim, kDim, 1e4}), k, v, k_state, v_state, how);
  const Value sum = b.add(x, b.matmul(y, b.matrix(name + ".o", kWidth, size, Builder::split_inputs({size, 8}))));
  const Value dynamic = b.matmul(sum, b.matrix(name + ".dynamic", 2 * 3 * 4, kWidth, {}));
  return b.block_conv(sum, dynamic, b.vector(name + ".base", {2, 3, kWidth}), {kWidth, 3, 16, 1});
}

Value draft_body(Builder& b, const Target& target, Value accepted) {
  const int ranks = b.ranks();
  const AttendBlock how = {kHeads / ranks, kKvHeads / ranks, kDim, 0.25f, false, 24, true};
  const Value context = b.matmul(target.features, b.matrix("fuse", kWidth, 2 * kWidth, {}));
  Value x = b.embed(target.table, Rows::draft, accepted);
  for (const std::string name : {"D0", "D1"}) x = draft_layer(b, x, context, name, how);
  return x;
}

// All slots at once: candidates, and a path through them.
Program parallel_draft(int ranks) {
  Builder b({.ranks = ranks, .block = kBlock}, 8);
  const Target target(b);
  const Value accepted = b.accept(target.tokens, {kBlock, kMask});
  const Value x = draft_body(b, target, accepted);
  const Value ids = b.candidates(b.all_gather(b.matmul(x, target.table)), {6, 1, 30});
  const Split by_token = Builder::split_outputs({{kVocabulary, kVocabulary}});
  const Value successor = b.lookup(ids, b.matrix("successor", kVocabulary, 32, by_token), 6);
  const Value predecessor = b.lookup(ids, b.matrix("predecessor", kVocabulary, 32, by_token), 6);
  const Value g = b.matmul(x, b.matrix("g", 32, kWidth, {}));
  b.output("accepted", accepted);
  b.output("x", x);
  b.output("candidates", ids);
  b.output("path", b.select_path(ids, {successor, predecessor, g}, {6, 32}));
  return std::move(b).build();
}

// Slot after slot: each guess is drawn with the one before it.
Program sequential_draft(int ranks) {
  Builder b({.ranks = ranks, .block = kBlock}, 8);
  const Target target(b);
  const Value accepted = b.accept(target.tokens, {kBlock, kMask});
  const Value x = draft_body(b, target, accepted);
  Value token = accepted;
  std::vector<Value> guesses;
  for (int64_t i = 1; i < kBlock; ++i) {
    const Value y = b.add(b.pick_row(x, i), b.embed(target.table, Rows::blocks, token));
    token = b.advance(b.sample(b.all_gather(b.matmul(y, target.table))), y);
    guesses.push_back(token);
  }
  b.output("accepted", accepted);
  b.output("guesses", b.concat(guesses));
  return std::move(b).build();
}

using MakeProgram = Program (*)(int ranks);
constexpr std::array<MakeProgram, 2> kPrograms = {parallel_draft, sequential_draft};

TEST(DraftParity, WholeDraftsOverRanks) {
  for (const MakeProgram make : kPrograms) {
    for (const int ranks : {1, 2, 4, 8})
      Parity(make(ranks), kClose).run(draft_steps(kBlock, ways_of_sampling()), {1, 3});
  }
}

// What a machine makes of some steps: all outputs.
std::vector<float> outputs_of(const Program& program, int threads) {
  const auto machine =
      make_cpu_machine(program, {.threads = threads, .max_rows = 320, .max_sequences = 4, .context = 304});
  machine->load(RandomWeights(), nullptr);
  std::vector<float> all;
  for (const StepArgs& step : draft_steps(kBlock, ways_of_sampling())) {
    machine->run(step);
    for (const auto& [name, value] : program.outputs) {
      const auto read = machine->read(value);
      all.insert(all.end(), read.begin(), read.end());
    }
  }
  return all;
}

// A machine checks its schedule before it runs.
TEST(DraftParity, WholeDraftsHaveTheSameBitsForAllRanksAndWorkers) {
  for (const MakeProgram make : kPrograms) {
    const std::vector<float> whole = outputs_of(make(1), 1);
    for (const int ranks : {1, 2, 4, 8}) {
      for (int threads = 1; threads <= 5; ++threads) {
        EXPECT_TRUE(same_bits(outputs_of(make(ranks), threads), whole)) << ranks << " ranks, " << threads << " threads";
      }
    }
  }
}

TEST(DraftParity, WholeDraftsHaveTheSameBitsOnEveryInstructionSet) {
  if (!use_instruction_set(InstructionSet::avx512)) GTEST_SKIP() << "no AVX-512 here";
  for (const MakeProgram make : kPrograms) {
    use_instruction_set(InstructionSet::avx512);
    const std::vector<float> wide = outputs_of(make(1), 3);
    use_instruction_set(InstructionSet::avx2);
    EXPECT_TRUE(same_bits(outputs_of(make(1), 3), wide));
  }
  use_instruction_set(InstructionSet::best);
}

}  // namespace
}  // namespace megalith
