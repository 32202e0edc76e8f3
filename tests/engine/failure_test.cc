// What happens where weights are damaged: the request that meets the damage ends with an error that says where, and the
// others go on as if it had never been there.

#include <limits>

#include <gtest/gtest.h>

#include "engine/engine.h"
#include "program/builder.h"
#include "tests/support/random_weights.h"

namespace megalith {
namespace {

constexpr int64_t kVocabulary = 64;
constexpr int64_t kHidden = 32;
constexpr int32_t kDamaged = 7;  // the token whose row of the embedding is damaged

// Embedding, one matrix with its residual, head. Each layer's op has its own label.
Program small_program(int ranks) {
  Builder b({.ranks = ranks}, 2);
  const Split by_token = Builder::split_outputs({{kVocabulary, kVocabulary}});
  Value x = b.embed(b.matrix("embed", kVocabulary, kHidden, by_token));
  b.at("L0");
  const Value h =
      b.matmul(x, b.matrix("layers.0.up", 2 * kHidden, kHidden, Builder::split_outputs({{2 * kHidden, 2}})));
  x = b.add(x, b.matmul(h, b.matrix("layers.0.down", kHidden, 2 * kHidden, Builder::split_inputs({2 * kHidden, 2}))));
  b.at("");
  const Value logits = b.all_gather(b.matmul(b.choose_rows(x), b.matrix("head", kVocabulary, kHidden, by_token)));
  b.output("logits", logits);
  b.output("tokens", b.sample(logits));
  return std::move(b).build();
}

std::vector<float> values_of(const std::string& name, int64_t size) {
  std::vector<float> values;
  for (int64_t i = 0; i < size; ++i) values.push_back(0.3f * random_number(seed_of(name), static_cast<uint64_t>(i)));
  return values;
}

std::unique_ptr<Machine> machine_with(const RandomWeights& weights, int ranks) {
  auto machine =
      make_cpu_machine(small_program(ranks), {.threads = 2, .max_rows = 16, .max_sequences = 4, .context = 64});
  machine->load(weights, nullptr);
  return machine;
}

Request request(std::vector<int32_t> prompt) {
  return {.prompt = std::move(prompt), .max_tokens = 5, .sampling = {}, .end_tokens = {}};
}

TEST(Failure, ANotFiniteValueEndsItsRequestNamesStepAndOpAndLeavesOthersAlone) {
  for (const float damage : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    for (const int ranks : {1, 2}) {
      RandomWeights weights;
      auto embed = values_of("embed", kVocabulary * kHidden);
      embed[kDamaged * kHidden + 3] = damage;
      weights.set("embed", embed);
      const auto machine = machine_with(weights, ranks);

      Engine alone(*machine, kVocabulary, 16);
      const auto only = alone.add(request({1, 2}));
      alone.run();
      const auto expected = alone.generation(only).tokens;

      Engine engine(*machine, kVocabulary, 16);
      const auto good = engine.add(request({1, 2}));
      const auto bad = engine.add(request({3, kDamaged}));
      engine.run();
      EXPECT_EQ(engine.generation(bad).finish, Finish::failed);
      EXPECT_NE(engine.generation(bad).error.find("step 1"), std::string::npos) << engine.generation(bad).error;
      EXPECT_NE(engine.generation(bad).error.find("position 1"), std::string::npos) << engine.generation(bad).error;
      EXPECT_NE(engine.generation(bad).error.find("come from embed"), std::string::npos)
          << engine.generation(bad).error;
      EXPECT_TRUE(engine.generation(bad).tokens.empty());
      EXPECT_EQ(engine.generation(good).tokens, expected);

      const auto after = engine.add(request({1, 2}));
      engine.run();
      EXPECT_EQ(engine.generation(after).tokens, expected) << "the request after the failure";
    }
  }
}

TEST(Failure, TheFirstOpThatGivesANotFiniteValueIsNamedNotALaterOne) {
  RandomWeights weights;
  auto down = values_of("layers.0.down", 2 * kHidden * kHidden);
  down[5] = std::numeric_limits<float>::quiet_NaN();
  weights.set("layers.0.down", down);
  const auto machine = machine_with(weights, 1);
  Engine engine(*machine, kVocabulary, 16);
  const auto id = engine.add(request({1}));
  engine.run();
  EXPECT_EQ(engine.generation(id).finish, Finish::failed);
  EXPECT_NE(engine.generation(id).error.find("come from L0 down"), std::string::npos) << engine.generation(id).error;
}

TEST(Failure, EqualLogitsGiveTheLowestIdForAnyRanks) {
  for (const int ranks : {1, 2}) {
    RandomWeights weights;
    weights.set("head", std::vector<float>(kVocabulary * kHidden, 0.0f));
    const auto machine = machine_with(weights, ranks);
    Engine engine(*machine, kVocabulary, 16);
    const auto id = engine.add(request({1}));
    engine.run();
    EXPECT_EQ(engine.generation(id).tokens, (std::vector<int32_t>{0, 0, 0, 0, 0}));
  }
}

}  // namespace
}  // namespace megalith
