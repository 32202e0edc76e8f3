// What a request changes in the logits: penalties, biases, end tokens that come too early, and a rule that the text obeys.
// With a draft and without, the text is the same.

#include <algorithm>
#include <cmath>
#include <map>

#include <gtest/gtest.h>

#include "engine/engine.h"
#include "engine/forward.h"
#include "tests/support/golden.h"
#include "tests/support/loaded.h"
#include "tests/support/random_weights.h"

namespace megalith {
namespace {

constexpr int kContext = 96;
constexpr int kBlock = 8;
constexpr int32_t kVocabulary = 1024;

// Tokens whose number, divided by `step`, leaves what the number of tokens before leaves.
class Clock : public Constraint {
 public:
  Clock(int64_t vocabulary, int32_t step) : vocabulary_(vocabulary), step_(step) {}
  std::shared_ptr<const TokenSet> allowed() override {
    if (taken_ % 4 == 3) return nullptr;
    auto set = std::make_shared<TokenSet>(vocabulary_);
    for (int32_t id = 0; id < vocabulary_; ++id) {
      if (id % step_ == taken_ % step_) set->add(id);
    }
    return set;
  }
  bool take(int32_t token) override {
    if (taken_ % 4 != 3 && token % step_ != taken_ % step_) return false;
    ++taken_;
    return true;
  }
  std::unique_ptr<Constraint> clone() const override { return std::make_unique<Clock>(*this); }

 private:
  int64_t vocabulary_;
  int32_t step_;
  int32_t taken_ = 0;
};

class LogitRulesTest : public testing::Test {
 protected:
  static Loaded load(int block) {
    return load_model(test_data("qwen-a/target"), 2,
                      {.threads = 2, .max_rows = 64, .max_chosen = 32, .max_sequences = 4, .context = kContext}, false, block);
  }
  static Loaded& plain() {
    static Loaded one = load(0);
    return one;
  }
  static Loaded& blocks() {
    static Loaded one = load(kBlock);
    return one;
  }
  static int32_t vocabulary() { return static_cast<int32_t>(plain().model->vocabulary()); }

  static Request request(int number) {
    Request r = {.prompt = {5, 17, 5, 300, static_cast<int32_t>(number)}, .max_tokens = 24, .sampling = {}, .end_tokens = {}};
    if (number % 2 == 1) r.sampling = {.temperature = 1.2f, .top_k = 50, .seed = static_cast<uint64_t>(number)};
    return r;
  }
  static std::vector<int32_t> text(const Request& request) {
    Engine engine(*plain().machine, vocabulary(), 64);
    const auto id = engine.add(request);
    engine.run();
    return engine.generation(id).tokens;
  }
  // With guesses of which some are right.
  static std::vector<int32_t> guessed_text(const Request& request, const std::vector<int32_t>& truth) {
    const Drafter drafter = [&](const Generation& g, int64_t most) {
      std::vector<int32_t> guesses;
      for (size_t i = g.tokens.size(); i < truth.size() && static_cast<int64_t>(guesses.size()) < most; ++i) {
        guesses.push_back(i % 5 == 4 ? (truth[i] + 1) % vocabulary() : truth[i]);
      }
      return guesses;
    };
    Engine engine(*blocks().machine, vocabulary(), 64, {.width = kBlock, .drafter = drafter});
    const auto id = engine.add(request);
    engine.run();
    EXPECT_GT(engine.generation(id).steps.tokens_per_step(), 2);
    return engine.generation(id).tokens;
  }

  // The text token by token, from the logits of the whole text so far and a naive reading of the request.
  static std::vector<int32_t> naive(const Request& request) {
    std::vector<int32_t> all = request.prompt, made;
    const auto rule = request.constraint ? request.constraint->clone() : nullptr;
    while (static_cast<int64_t>(made.size()) < request.max_tokens) {
      const Forward f = forward(*plain().machine, all, 64);
      std::vector<float> logits(f.logits.end() - f.vocabulary, f.logits.end());
      std::map<int32_t, int> count;
      for (const int32_t token : made) ++count[token];
      for (int32_t id = 0; id < vocabulary(); ++id) {
        float& x = logits[static_cast<size_t>(id)];
        const bool seen = std::find(all.begin(), all.end(), id) != all.end();
        const Penalties& p = request.penalties;
        if (seen) x = x > 0 ? x / p.repetition : x * p.repetition;
        float add = 0;
        for (const auto& [token, bias] : request.logit_bias) add += token == id ? bias : 0;
        const float penalty = (count.contains(id) ? p.presence : 0) +
                              p.frequency * static_cast<float>(count.contains(id) ? count[id] : 0);
        x += add - penalty;
      }
      const auto& ends = request.end_tokens;
      for (const int32_t end : ends) {
        if (static_cast<int64_t>(made.size()) < request.min_tokens) logits[static_cast<size_t>(end)] = -HUGE_VALF;
      }
      if (const auto allowed = rule ? rule->allowed() : nullptr) {
        for (int32_t id = 0; id < vocabulary(); ++id) {
          if (!allowed->has(id)) logits[static_cast<size_t>(id)] = -HUGE_VALF;
        }
      }
      const auto token = static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
      made.push_back(token);
      all.push_back(token);
      if (rule) {
        EXPECT_TRUE(rule->take(token));
      }
      if (std::find(ends.begin(), ends.end(), token) != ends.end()) break;
    }
    return made;
  }

  static void expect_as_naive(const Request& greedy) {
    const auto want = naive(greedy);
    EXPECT_EQ(text(greedy), want);
    EXPECT_EQ(guessed_text(greedy, want), want);
    EXPECT_NE(want, text(request(static_cast<int>(greedy.prompt.back())))) << "the rule changes nothing";
  }
};

TEST_F(LogitRulesTest, PenaltiesCountThePromptAndTheTextAsTheySay) {
  Request presence = request(0), frequency = request(2), repetition = request(4);
  presence.penalties.presence = 12;
  frequency.penalties.frequency = 5;
  repetition.penalties.repetition = 6;
  for (const Request& r : {presence, frequency, repetition}) expect_as_naive(r);
  Request all = request(6);
  all.penalties = {.presence = -0.5f, .frequency = 6, .repetition = 1.3f};
  expect_as_naive(all);
}

TEST_F(LogitRulesTest, BiasesMoveTheTextToTokensAndAwayFromThem) {
  Request r = request(8);
  const auto usual = text(r);
  r.logit_bias = {{usual[0], -100.0f}, {usual[3], -100.0f}, {77, 3.0f}};
  expect_as_naive(r);
  const auto moved = text(r);
  EXPECT_EQ(std::count(moved.begin(), moved.end(), usual[0]), 0);
  r.logit_bias = {{901, 100.0f}};
  EXPECT_EQ(text(r), std::vector<int32_t>(24, 901));
}

TEST_F(LogitRulesTest, NoEndTokenComesBeforeTheLeastNumberOfOthers) {
  Request r = request(10);
  const auto usual = text(r);
  r.end_tokens = {usual[2], usual[5]};
  ASSERT_EQ(text(r).size(), static_cast<size_t>(std::find(usual.begin(), usual.end(), usual[2]) - usual.begin()) + 1);
  r.min_tokens = 9;
  EXPECT_GE(text(r).size(), 10u);
  expect_as_naive(r);
}

TEST_F(LogitRulesTest, ATextObeysItsRuleWithGuessesAndWithout) {
  for (const int32_t step : {2, 7, 64}) {
    Request r = request(12);
    r.constraint = std::make_shared<Clock>(vocabulary(), step);
    expect_as_naive(r);
    r.penalties.frequency = 0.4f;
    expect_as_naive(r);
  }
}

TEST_F(LogitRulesTest, DrawnTextsWithRulesAreThoseOfPlainDecodingAloneAndAmongOthers) {
  std::vector<Request> requests;
  std::vector<std::vector<int32_t>> truth;
  for (int i = 1; i < 16; i += 2) {
    Request r = request(i);
    if (i % 3 == 0) r.constraint = std::make_shared<Clock>(vocabulary(), 5);
    if (i % 4 == 1) r.penalties = {.presence = 0.5f, .frequency = 0.2f, .repetition = 1.1f};
    if (i % 5 == 0) r.logit_bias = {{7, 2.0f}};
    requests.push_back(r);
    truth.push_back(text(r));
    EXPECT_EQ(guessed_text(r, truth.back()), truth.back());
  }
  Engine engine(*plain().machine, vocabulary(), 11);
  std::vector<Engine::Id> ids;
  for (const Request& r : requests) ids.push_back(engine.add(r));
  engine.run();
  for (size_t i = 0; i < ids.size(); ++i) EXPECT_EQ(engine.generation(ids[i]).tokens, truth[i]) << i;
}

// Logits, as log-probabilities of the model, do not show what was changed.
TEST_F(LogitRulesTest, LogProbabilitiesAreTheModelsOwnOfPromptAndTextWithGuessesAndWithout) {
  Request r = request(14);
  r.penalties.frequency = 2;
  r.logprobs = 3;
  r.score_prompt = true;
  const auto want = naive(r);
  std::vector<int32_t> all = r.prompt;
  all.insert(all.end(), want.begin(), want.end());
  const Forward f = forward(*plain().machine, all, 64);
  const auto expected = [&](size_t place) {
    return logprobs_of(std::span(f.logits).subspan((place - 1) * static_cast<size_t>(vocabulary()), static_cast<size_t>(vocabulary())),
                       all[place], 3);
  };
  for (const bool guessed : {false, true}) {
    const Drafter drafter = [&](const Generation& g, int64_t most) {
      const auto first = want.begin() + static_cast<int64_t>(g.tokens.size());
      return std::vector<int32_t>(first, first + std::min(most, want.end() - first));
    };
    Engine engine(guessed ? *blocks().machine : *plain().machine, vocabulary(), 3,
                  guessed ? Speculation{.width = 3, .drafter = drafter} : Speculation{});
    const auto id = engine.add(r);
    const auto other = engine.add(request(3));
    engine.run();
    const Generation& g = engine.generation(id);
    EXPECT_EQ(g.tokens, want);
    EXPECT_TRUE(engine.generation(other).logprobs.empty());
    ASSERT_EQ(g.prompt_logprobs.size(), r.prompt.size() - 1);
    ASSERT_EQ(g.logprobs.size(), want.size());
    for (size_t place = 1; place < all.size(); ++place) {
      const Logprobs& got = place < r.prompt.size() ? g.prompt_logprobs[place - 1] : g.logprobs[place - r.prompt.size()];
      const Logprobs best = expected(place);
      EXPECT_EQ(got.logprob, best.logprob) << place;
      ASSERT_EQ(got.top.size(), 3u);
      for (size_t i = 0; i < 3; ++i) {
        EXPECT_EQ(got.top[i].token, best.top[i].token);
        EXPECT_EQ(got.top[i].logprob, best.top[i].logprob);
      }
    }
  }
}

TEST(Logprobs, AreTheSoftmaxWithTiesToTheLowerId) {
  const std::vector<float> logits = {1, 3, 3, -HUGE_VALF, 2, 0.5f};
  const Logprobs got = logprobs_of(logits, 4, 3);
  double sum = 0;
  for (const float x : logits) sum += std::exp(double{x});
  EXPECT_FLOAT_EQ(got.logprob, static_cast<float>(2 - std::log(sum)));
  ASSERT_EQ(got.top.size(), 3u);
  EXPECT_EQ(got.top[0].token, 1);
  EXPECT_EQ(got.top[1].token, 2);
  EXPECT_EQ(got.top[2].token, 4);
  EXPECT_EQ(got.top[2].logprob, got.logprob);
  EXPECT_EQ(logprobs_of(logits, 1, 100).top.size(), logits.size());
}

// A prompt that ends just where rows to choose run out waits for the next step rather than ask for too many.
TEST_F(LogitRulesTest, ManyScoredPromptsAtOnceKeepWithinTheRowsThatMayBeChosen) {
  const Loaded small = load_model(test_data("qwen-a/target"), 1,
                                  {.threads = 1, .max_rows = 64, .max_chosen = 4, .max_sequences = 4, .context = kContext});
  Engine engine(*small.machine, vocabulary(), 64);
  std::vector<Engine::Id> ids;
  for (int i = 0; i < 6; ++i) {
    Request r = request(i * 2);
    for (int j = 0; j < i * 7; ++j) r.prompt.push_back(j * 3 + i);
    r.max_tokens = i % 3;
    if (i % 2 == 0) r.logprobs = 1;
    r.score_prompt = i % 2 == 0;
    ids.push_back(engine.add(r));
  }
  engine.run();
  for (const auto id : ids) {
    const Generation& g = engine.generation(id);
    EXPECT_EQ(g.finish, Finish::length);
    if (!g.prompt_logprobs.empty()) {
      EXPECT_EQ(g.prompt_logprobs.size(), g.prompt.size() - 1);
    }
  }
}

}  // namespace
}  // namespace megalith
