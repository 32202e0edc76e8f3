#include "reference/sample.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <vector>

#include <gtest/gtest.h>

#include "tests/machines/harness.h"

namespace megalith {
namespace {

constexpr int kContext = 1 << 20;

// Samples from given logits: a table whose rows are logits, "looked up" by token.
class Sampler {
 public:
  Sampler(const std::vector<std::vector<float>>& logits, int threads) : width_(static_cast<int64_t>(logits[0].size())) {
    Builder b({.catalog = all_of(DType::f32)}, 1);
    const auto n = static_cast<int64_t>(logits.size());
    tokens_ = b.sample(b.choose_rows(b.embed(b.matrix("logits", n, width_, {}))));
    b.output("tokens", tokens_);
    std::vector<float> all;
    for (const auto& row : logits) all.insert(all.end(), row.begin(), row.end());
    RandomWeights weights;
    weights.set("logits", std::move(all));
    machine_ = make_cpu_machine(std::move(b).build(), {.threads = threads, .max_rows = 2048, .context = kContext});
    machine_->load(weights, nullptr);
  }

  // Row i reads logits[rows[i]] at position `first` + i; its new token stands at the next position.
  // `changes`: of each row; none: of no row.
  std::vector<int32_t> draw(const std::vector<int32_t>& rows, int first, const std::vector<Sampling>& how,
                            const std::vector<LogitChanges>& changes = {}) {
    StepArgs step;
    step.add_run(0, first, rows);
    for (size_t i = 0; i < rows.size(); ++i) {
      step.choose(static_cast<int32_t>(i), how[i], changes.empty() ? nullptr : &changes[i]);
    }
    machine_->run(step);
    std::vector<int32_t> tokens;
    for (const float t : machine_->read(tokens_)) tokens.push_back(static_cast<int32_t>(t));
    return tokens;
  }

 private:
  int64_t width_;
  Value tokens_;
  std::unique_ptr<Machine> machine_;
};

std::vector<float> random_logits(uint64_t seed, int64_t size, float scale) {
  std::vector<float> logits;
  for (int64_t i = 0; i < size; ++i) logits.push_back(scale * random_number(seed, static_cast<uint64_t>(i)));
  return logits;
}

TEST(Sampler, GreedyTakesTheLowestIdOfATie) {
  std::vector<std::vector<float>> logits;
  std::vector<int32_t> want;
  for (const int64_t first : {0, 1, 15, 16, 31, 32, 62, 66}) {
    std::vector<float> row(67, -1.0f);
    row[static_cast<size_t>(first)] = row[66] = 3.0f;
    logits.push_back(row);
    want.push_back(static_cast<int32_t>(first));
  }
  logits.emplace_back(67, 0.0f);
  want.push_back(0);
  std::vector<int32_t> rows;
  for (size_t i = 0; i < logits.size(); ++i) rows.push_back(static_cast<int32_t>(i));
  Sampler sampler(logits, 2);
  EXPECT_EQ(sampler.draw(rows, 0, std::vector<Sampling>(rows.size())), want);
  EXPECT_EQ(sampler.draw(rows, 0, std::vector<Sampling>(rows.size(), {.temperature = 2, .top_k = 1, .seed = 3})), want);
}

TEST(Sampler, BrokenLogitsGiveMinusOne) {
  const float inf = HUGE_VALF;
  std::vector<std::vector<float>> logits;
  for (const size_t at : {0u, 16u, 31u, 40u, 66u}) {
    for (const float bad : {NAN, -NAN, inf}) {
      logits.push_back(random_logits(at, 67, 3));
      logits.back()[at] = bad;
    }
  }
  logits.emplace_back(67, -inf);
  Sampler sampler(logits, 1);
  for (int32_t row = 0; row < static_cast<int32_t>(logits.size()); ++row) {
    EXPECT_EQ(sampler.draw({row}, 0, {{}}), std::vector<int32_t>{-1}) << row;
    EXPECT_EQ(sampler.draw({row}, 0, {{.temperature = 1, .top_p = 0.9f}}), std::vector<int32_t>{-1}) << row;
  }
}

TEST(Sampler, MaskedTokensAreNeverDrawn) {
  std::vector<float> logits(50, -HUGE_VALF);
  logits[7] = 0.5f;
  logits[33] = 0.25f;
  Sampler sampler({logits}, 2);
  const Sampling how = {.temperature = 5, .top_k = 40, .seed = 1};
  for (const int32_t token : sampler.draw(std::vector<int32_t>(500, 0), 0, std::vector<Sampling>(500, how))) {
    EXPECT_TRUE(token == 7 || token == 33) << token;
  }
}

Sampling random_sampling(uint64_t i) {
  const auto pick = [&](uint64_t what) { return (random_number(1000 + what, i) + 1) / 2; };
  Sampling how = {.temperature = 0.1f + 2 * pick(0), .seed = i * 7919};
  if (i & 1) how.top_k = 1 + static_cast<int32_t>(pick(1) * (i & 8 ? 250 : 20));
  if (i & 2) how.top_p = pick(2);
  if (i & 4) how.min_p = pick(3) * 0.3f;
  return how;
}

// Sixteen draws of each case would differ soon if one set held a likely token more than the other.
TEST(Sampler, DrawsFromTheReferencesKeptSetInTwoThousandCases) {
  constexpr int kCases = 2000;
  constexpr int64_t kWidth = 203;
  std::vector<std::vector<float>> logits;
  std::vector<int32_t> rows;
  std::vector<Sampling> how;
  for (int i = 0; i < kCases; ++i) {
    // Every third case has coarse logits, which tie.
    logits.push_back(random_logits(static_cast<uint64_t>(i), kWidth, i % 3 == 0 ? 4.0f : 8.0f));
    if (i % 3 == 0) std::for_each(logits.back().begin(), logits.back().end(), [](float& x) { x = std::round(x); });
    rows.push_back(i);
    how.push_back(random_sampling(static_cast<uint64_t>(i)));
  }
  Sampler sampler(logits, 2);
  for (int draw = 0; draw < 16; ++draw) {
    const int first = draw * kCases;
    const auto got = sampler.draw(rows, first, how);
    for (int i = 0; i < kCases; ++i) {
      const auto at = static_cast<size_t>(i);
      ASSERT_EQ(got[at], reference::sample_token(logits[at].data(), kWidth, how[at], first + i + 1)) << "case " << i;
    }
  }
}

// Penalties, biases and a set of allowed tokens.
struct RandomChanges {
  RandomChanges(uint64_t seed, int64_t vocabulary) : allowed(static_cast<size_t>(vocabulary + 63) / 64) {
    for (int64_t i = 0; i < vocabulary; ++i) {
      const float x = random_number(seed, static_cast<uint64_t>(i));
      if (x < -0.7f) changes.tokens.push_back({static_cast<int32_t>(i), 1 + 5 * (x + 1), 20 * x + 17});
      if (x > 0) allowed[static_cast<size_t>(i) / 64] |= uint64_t{1} << (i % 64);
    }
    if (seed % 2 == 0) changes.allowed = allowed.data();
  }
  std::vector<uint64_t> allowed;
  LogitChanges changes;
};

TEST(Sampler, ChangedLogitsArePickedFromAndOnlyInTheirRows) {
  constexpr int64_t kWidth = 203;
  std::vector<std::vector<float>> logits;
  std::vector<std::unique_ptr<RandomChanges>> random;
  std::vector<LogitChanges> changes;
  std::vector<Sampling> how;
  std::vector<int32_t> rows, want;
  for (uint64_t i = 0; i < 200; ++i) {
    logits.push_back(random_logits(i, kWidth, 8.0f));
    random.push_back(std::make_unique<RandomChanges>(i, kWidth));
    changes.push_back(i % 5 == 0 ? LogitChanges{} : random.back()->changes);
    how.push_back(i % 3 == 0 ? Sampling{} : random_sampling(i));
    rows.push_back(static_cast<int32_t>(i));
    std::vector<float> changed = logits.back();
    for (const auto& change : changes.back().tokens) {
      float& x = changed[static_cast<size_t>(change.token)];
      x = (x > 0 ? x / change.divisor : x * change.divisor) + change.add;
    }
    for (size_t id = 0; changes.back().allowed != nullptr && id < changed.size(); ++id) {
      if (random_number(i, id) <= 0) changed[id] = -HUGE_VALF;
    }
    want.push_back(reference::sample_token(changed.data(), kWidth, how.back(), static_cast<int32_t>(i) + 1));
  }
  for (const int threads : {1, 3}) EXPECT_EQ(Sampler(logits, threads).draw(rows, 0, how, changes), want);
}

TEST(Sampler, EveryKeptTokenIsDrawnAndNoOther) {
  const std::vector<float> logits = random_logits(3, 203, 2.0f);
  Sampler sampler({logits}, 2);
  for (const Sampling& how : {Sampling{.temperature = 3, .top_k = 9}, Sampling{.temperature = 3, .top_p = 0.1f},
                              Sampling{.temperature = 2, .min_p = 0.7f},
                              Sampling{.temperature = 3, .top_k = 30, .top_p = 0.3f, .min_p = 0.8f}}) {
    std::vector<int32_t> want = reference::kept_tokens(logits.data(), 203, how);
    std::sort(want.begin(), want.end());
    ASSERT_GT(want.size(), 2u);
    std::vector<int32_t> got = sampler.draw(std::vector<int32_t>(2000, 0), 0, std::vector<Sampling>(2000, how));
    std::sort(got.begin(), got.end());
    got.erase(std::unique(got.begin(), got.end()), got.end());
    EXPECT_EQ(got, want);
  }
}

TEST(Sampler, AWholeVocabularyAsTheReference) {
  constexpr int64_t kVocabulary = 248'320;
  const std::vector<float> logits = random_logits(11, kVocabulary, 12.0f);
  Sampler sampler({logits}, 2);
  const std::vector<Sampling> how = {{.temperature = 0.6f, .top_k = 20, .top_p = 0.95f, .seed = 1},
                                     {.temperature = 1.5f, .seed = 2},
                                     {.temperature = 1.0f, .top_p = 0.8f, .seed = 3},
                                     {.temperature = 1.0f, .min_p = 0.05f, .seed = 4}};
  const auto got = sampler.draw({0, 0, 0, 0}, 5, how);
  for (size_t i = 0; i < how.size(); ++i) {
    EXPECT_EQ(got[i], reference::sample_token(logits.data(), kVocabulary, how[i], 6 + static_cast<int32_t>(i))) << i;
  }
}

TEST(Sampler, DoesNotDependOnOtherRows) {
  std::vector<std::vector<float>> logits;
  std::vector<Sampling> how;
  std::vector<int32_t> rows;
  for (uint64_t i = 0; i < 50; ++i) {
    logits.push_back(random_logits(i, 130, 3));
    how.push_back(random_sampling(i));
    rows.push_back(static_cast<int32_t>(i));
  }
  Sampler many(logits, 3), alone(logits, 1);
  const auto together = many.draw(rows, 100, how);
  for (size_t i = 0; i < rows.size(); ++i) {
    EXPECT_EQ(alone.draw({rows[i]}, 100 + static_cast<int>(i), {how[i]})[0], together[i]) << i;
  }
}

// Σ (seen - expected)² / expected over 20,000 draws; with 19 degrees of freedom it passes 50.8 once in 10,000 times.
double chi_squared(const std::vector<int>& seen, const std::vector<float>& logits, float temperature, int draws) {
  double total = 0;
  for (const float x : logits) total += std::exp(double{x} / temperature);
  double chi = 0;
  for (size_t i = 0; i < logits.size(); ++i) {
    const double expected = draws * std::exp(double{logits[i]} / temperature) / total;
    chi += (seen[i] - expected) * (seen[i] - expected) / expected;
  }
  return chi;
}

TEST(Sampler, DrawsHaveTheSoftmaxesFrequencies) {
  constexpr int kDraws = 20'000;
  constexpr float kTemperature = 0.8f;
  const std::vector<float> logits = random_logits(21, 20, 1.5f);
  Sampler sampler({logits}, 2);
  for (const bool vary_seed : {false, true}) {
    std::vector<int> seen(20);
    for (int done = 0; done < kDraws; done += 2000) {
      std::vector<Sampling> how(2000, {.temperature = kTemperature, .seed = 12345});
      if (vary_seed) {
        for (int i = 0; i < 2000; ++i) how[static_cast<size_t>(i)].seed = static_cast<uint64_t>(done + i) << 20;
      }
      const int first = vary_seed ? 0 : done;
      for (const int32_t token : sampler.draw(std::vector<int32_t>(2000, 0), first, how))
        ++seen[static_cast<size_t>(token)];
    }
    EXPECT_LT(chi_squared(seen, logits, kTemperature, kDraws), 50.8) << vary_seed;
  }
}

}  // namespace
}  // namespace megalith
