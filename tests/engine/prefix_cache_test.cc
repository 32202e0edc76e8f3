// A prompt that begins as an earlier one starts from that one's states, and nothing else changes.

#include "engine/prefix_cache.h"

#include <gtest/gtest.h>

#include "engine/engine.h"
#include "tests/support/golden.h"
#include "tests/support/loaded.h"
#include "tests/support/random_weights.h"

namespace megalith {
namespace {

constexpr int kContext = 256;
constexpr int64_t kPlenty = int64_t{1} << 30;

struct Family {
  const char* directory;
  const char* draft;
  int ranks;
};
void PrintTo(const Family& family, std::ostream* out) { *out << family.directory << " " << family.draft; }

class PrefixCacheTest : public testing::TestWithParam<Family> {
 protected:
  Loaded load() const {
    const auto [directory, draft, ranks] = GetParam();
    const MachineOptions options = {
        .threads = 2, .max_rows = 128, .max_chosen = 32, .max_sequences = 3, .context = kContext};
    const auto target = test_data(directory);
    return draft[0] != 0 ? load_pair(target, test_data(draft), ranks, options) : load_model(target, ranks, options);
  }
};

std::vector<int32_t> numbers(int seed, int count, int64_t vocabulary) {
  std::vector<int32_t> tokens;
  for (int i = 0; i < count; ++i) {
    tokens.push_back(static_cast<int32_t>((random_number(static_cast<uint64_t>(seed), static_cast<uint64_t>(i)) + 1) / 2 *
                                          static_cast<float>(vocabulary - 1)));
  }
  return tokens;
}

std::vector<int32_t> joined(std::vector<int32_t> a, const std::vector<int32_t>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

Generation run(Engine& engine, const std::vector<int32_t>& prompt, uint64_t seed = 0) {
  Request request = {.prompt = prompt, .max_tokens = 12, .sampling = {}, .end_tokens = {}};
  if (seed > 0) request.sampling = {.temperature = 1, .seed = seed};
  const auto id = engine.add(std::move(request));
  engine.run();
  Generation g = engine.generation(id);
  engine.forget(id);
  return g;
}

TEST_P(PrefixCacheTest, TextsAreTheSameWithKeptStatesAndWithout) {
  const Loaded loaded = load();
  const int64_t vocabulary = loaded.model->vocabulary();
  const int width = loaded.draft ? loaded.machine->program().block : 1;
  PrefixCache cache(*loaded.machine, 16, kPlenty);
  Engine with(*loaded.machine, vocabulary, 50, {.width = width}, &cache);
  const auto shared = numbers(1, 70, vocabulary);
  const std::vector<std::vector<int32_t>> prompts = {
      shared, joined(shared, numbers(2, 30, vocabulary)), joined(shared, numbers(3, 9, vocabulary)), numbers(4, 40, vocabulary),
      joined(joined(shared, numbers(2, 30, vocabulary)), numbers(5, 100, vocabulary)), shared};
  const std::vector<int64_t> cached = {0, 64, 64, 0, 96, 64};
  for (size_t i = 0; i < prompts.size(); ++i) {
    const Generation got = run(with, prompts[i], i);
    EXPECT_EQ(got.cached, cached[i]) << i;
    Engine without(*loaded.machine, vocabulary, 64, {.width = width});
    EXPECT_EQ(got.tokens, run(without, prompts[i], i).tokens) << i;
  }
}

// Slots are filled with other texts in between, and the copies go to another slot than they came from.
TEST_P(PrefixCacheTest, KeptStatesServeAnySlotWhileOthersDecode) {
  const Loaded loaded = load();
  const int64_t vocabulary = loaded.model->vocabulary();
  const int width = loaded.draft ? loaded.machine->program().block : 1;
  PrefixCache cache(*loaded.machine, 32, kPlenty);
  Engine engine(*loaded.machine, vocabulary, 40, {.width = width}, &cache);
  std::vector<Engine::Id> ids;
  std::vector<std::vector<int32_t>> prompts;
  for (int i = 0; i < 12; ++i) {
    prompts.push_back(joined(numbers(i % 2, 65, vocabulary), numbers(100 + i, 1 + i * 5, vocabulary)));
    ids.push_back(engine.add({.prompt = prompts.back(), .max_tokens = 5 + i % 3, .sampling = {}, .end_tokens = {}}));
  }
  engine.run();
  int64_t cached = 0;
  for (size_t i = 0; i < ids.size(); ++i) {
    const Generation& got = engine.generation(ids[i]);
    cached += got.cached;
    Engine without(*loaded.machine, vocabulary, 64);
    const auto id = without.add({.prompt = prompts[i], .max_tokens = static_cast<int64_t>(5 + i % 3), .sampling = {}, .end_tokens = {}});
    without.run();
    EXPECT_EQ(got.tokens, without.generation(id).tokens) << i;
  }
  EXPECT_GE(cached, 6 * 64);
}

TEST_P(PrefixCacheTest, MemoryStaysWithinItsBoundAndTheLeastRecentlyUsedGoesFirst) {
  const Loaded loaded = load();
  const int64_t vocabulary = loaded.model->vocabulary();
  int64_t of_one = 0;
  {
    PrefixCache cache(*loaded.machine, 16, kPlenty);
    Engine engine(*loaded.machine, vocabulary, 64, {}, &cache);
    run(engine, numbers(1, 17, vocabulary));
    of_one = cache.bytes();
    ASSERT_GT(of_one, 0);
  }
  PrefixCache cache(*loaded.machine, 16, 3 * of_one + of_one / 2);
  Engine engine(*loaded.machine, vocabulary, 64, {}, &cache);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(run(engine, numbers(i, 17, vocabulary)).cached, 0);
  EXPECT_EQ(run(engine, numbers(0, 18, vocabulary)).cached, 16);  // so 1 is the oldest
  EXPECT_EQ(run(engine, numbers(7, 17, vocabulary)).cached, 0);
  EXPECT_EQ(run(engine, numbers(0, 17, vocabulary)).cached, 16);
  EXPECT_EQ(run(engine, numbers(2, 17, vocabulary)).cached, 16);
  EXPECT_EQ(run(engine, numbers(1, 17, vocabulary)).cached, 0);
  EXPECT_LE(cache.bytes(), cache.max_bytes());
  // A prompt with more chunks than there is room for keeps its first ones.
  run(engine, numbers(9, 160, vocabulary));
  EXPECT_LE(cache.bytes(), cache.max_bytes());
  EXPECT_EQ(run(engine, numbers(9, 160, vocabulary)).cached, 48);
}

TEST_P(PrefixCacheTest, NothingIsKeptWithoutMemoryAndScoredPromptsAreComputedWhole) {
  const Loaded loaded = load();
  const int64_t vocabulary = loaded.model->vocabulary();
  PrefixCache none(*loaded.machine, 16, 0);
  Engine without(*loaded.machine, vocabulary, 64, {}, &none);
  for (int i = 0; i < 2; ++i) EXPECT_EQ(run(without, numbers(1, 40, vocabulary)).cached, 0);
  EXPECT_EQ(none.bytes(), 0);

  PrefixCache cache(*loaded.machine, 16, kPlenty);
  Engine engine(*loaded.machine, vocabulary, 64, {}, &cache);
  run(engine, numbers(1, 40, vocabulary));
  Request scored = {.prompt = numbers(1, 40, vocabulary), .max_tokens = 1, .sampling = {}, .end_tokens = {}};
  scored.logprobs = 1;
  scored.score_prompt = true;
  const auto id = engine.add(scored);
  engine.run();
  EXPECT_EQ(engine.generation(id).cached, 0);
  EXPECT_EQ(engine.generation(id).prompt_logprobs.size(), 39u);
}

INSTANTIATE_TEST_SUITE_P(Families, PrefixCacheTest,
                         testing::Values(Family{"qwen-a/target", "", 2}, Family{"qwen-a/target", "qwen-a/draft", 1},
                                         Family{"kimi-a/target", "", 2}, Family{"kimi-a/target", "kimi-a/draft", 1}));

}  // namespace
}  // namespace megalith
