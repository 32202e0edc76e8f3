#include "engine/engine.h"

#include <limits>

#include <gtest/gtest.h>

#include "base/error.h"
#include "engine/forward.h"
#include "tests/support/golden.h"
#include "tests/support/loaded.h"

namespace megalith {
namespace {

constexpr int kContext = 96;

class EngineTest : public testing::Test {
 protected:
  static Loaded& loaded() {
    static Loaded one = load_model(test_data("qwen-a/target"), 2,
                                   {.threads = 2, .max_rows = 32, .max_sequences = 4, .context = kContext});
    return one;
  }
  static Engine engine(int rows_per_step = 32) {
    return {*loaded().machine, loaded().model->vocabulary(), rows_per_step};
  }

  // A prompt that differs for every number.
  static std::vector<int32_t> prompt(int number, int size) {
    std::vector<int32_t> tokens;
    for (int i = 0; i < size; ++i) tokens.push_back((number * 131 + i * 17 + 5) % 1000);
    return tokens;
  }
  static Generation alone(const Request& request, int rows_per_step = 32) {
    Engine e = engine(rows_per_step);
    const auto id = e.add(request);
    e.run();
    return e.generation(id);
  }
};

Sampling sampled(uint64_t seed) {
  return {.temperature = 0.9f, .top_k = 40, .top_p = 0.95f, .min_p = 0.01f, .seed = seed};
}

TEST_F(EngineTest, GreedyTextEqualsTheGoldenContinuation) {
  const auto json = read_json(test_data("qwen-a/golden.json"));
  const auto greedy = json["runs"]["f32"]["greedy"].get<std::vector<int32_t>>();
  const Generation g =
      alone({.prompt = json["prompt"].get<std::vector<int32_t>>(), .max_tokens = 32, .sampling = {}, .end_tokens = {}});
  EXPECT_EQ(g.tokens, greedy);
  EXPECT_EQ(g.finish, Finish::length);
  EXPECT_GT(g.prefill_s, 0);
}

// The contract on bits, as a user meets it: more requests than slots, of all sizes, joining at different times.
TEST_F(EngineTest, TextOfARequestIsTheSameAloneAndAmongOthers) {
  std::vector<Request> requests;
  for (int i = 0; i < 9; ++i) {
    requests.push_back({.prompt = prompt(i, 1 + i * 9),
                        .max_tokens = 6 + i % 4,
                        .sampling = i % 2 ? sampled(static_cast<uint64_t>(i)) : Sampling{},
                        .end_tokens = {}});
  }
  Engine e = engine(13);
  std::vector<Engine::Id> ids;
  for (const Request& request : requests) {
    ids.push_back(e.add(request));
    e.step();
  }
  e.run();
  for (size_t i = 0; i < requests.size(); ++i) {
    EXPECT_EQ(e.generation(ids[i]).tokens, alone(requests[i]).tokens) << "request " << i;
    EXPECT_EQ(e.generation(ids[i]).tokens, alone(requests[i], 1).tokens) << "request " << i;
  }
}

TEST_F(EngineTest, SeedsGiveTheSameTextAgainAndOtherSeedsAnother) {
  const Request one = {.prompt = prompt(3, 8), .max_tokens = 24, .sampling = sampled(1), .end_tokens = {}};
  Request other = one;
  other.sampling.seed = 2;
  EXPECT_EQ(alone(one).tokens, alone(one).tokens);
  EXPECT_NE(alone(one).tokens, alone(other).tokens);
}

TEST_F(EngineTest, EndTokensEndTheTextAndAreCounted) {
  const Request whole = {.prompt = prompt(1, 5), .max_tokens = 12, .sampling = {}, .end_tokens = {}};
  const auto tokens = alone(whole).tokens;
  Request cut = whole;
  cut.end_tokens = {tokens[4]};
  const Generation g = alone(cut);
  EXPECT_EQ(g.finish, Finish::end_token);
  EXPECT_EQ(g.tokens.back(), tokens[4]);
  EXPECT_LE(g.tokens.size(), 5u);
}

TEST_F(EngineTest, ContextEndsTheText) {
  const Generation g = alone({.prompt = prompt(1, kContext - 3), .max_tokens = 100, .sampling = {}, .end_tokens = {}});
  EXPECT_EQ(g.finish, Finish::length);
  EXPECT_EQ(g.tokens.size(), 3u);
}

TEST_F(EngineTest, NoTokensAreMadeWhereNoneAreWanted) {
  const Generation g = alone({.prompt = prompt(1, 5), .max_tokens = 0, .sampling = {}, .end_tokens = {}});
  EXPECT_EQ(g.finish, Finish::length);
  EXPECT_TRUE(g.tokens.empty());
}

TEST_F(EngineTest, CancelledRequestsFreeTheirSlotsAndLeaveOthersAlone) {
  const Request request = {.prompt = prompt(2, 20), .max_tokens = 10, .sampling = {}, .end_tokens = {}};
  Engine e = engine();
  std::vector<Engine::Id> ids;
  for (int i = 0; i < 6; ++i) ids.push_back(e.add(request));
  e.step();
  e.step();
  e.cancel(ids[0]);  // running
  e.cancel(ids[5]);  // waiting
  e.run();
  EXPECT_EQ(e.generation(ids[0]).finish, Finish::cancelled);
  EXPECT_EQ(e.generation(ids[5]).finish, Finish::cancelled);
  for (int i = 1; i < 5; ++i) EXPECT_EQ(e.generation(ids[static_cast<size_t>(i)]).tokens, alone(request).tokens);
}

TEST_F(EngineTest, BadRequestsAreRefusedWithTheFieldAndBothNumbers) {
  Engine e = engine();
  const auto refusal = [&](Request request) {
    try {
      e.add(std::move(request));
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  const auto with = [&](Sampling s) {
    return Request{.prompt = {1}, .max_tokens = 1, .sampling = s, .end_tokens = {}};
  };
  EXPECT_NE(refusal({.prompt = {}, .max_tokens = 1, .sampling = {}, .end_tokens = {}}).find("at least one token"),
            std::string::npos);
  const std::string too_long =
      refusal({.prompt = prompt(1, kContext), .max_tokens = 1, .sampling = {}, .end_tokens = {}});
  EXPECT_NE(too_long.find("fewer than 96"), std::string::npos) << too_long;
  EXPECT_NE(refusal({.prompt = {1024}, .max_tokens = 1, .sampling = {}, .end_tokens = {}}).find("0 to 1023"),
            std::string::npos);
  EXPECT_NE(refusal({.prompt = {-1}, .max_tokens = 1, .sampling = {}, .end_tokens = {}}), "");
  const float nan = std::numeric_limits<float>::quiet_NaN();
  EXPECT_NE(refusal(with({.temperature = nan})).find("temperature"), std::string::npos);
  EXPECT_NE(refusal(with({.temperature = -1})).find("temperature"), std::string::npos);
  EXPECT_NE(refusal(with({.top_p = 0})).find("top_p"), std::string::npos);
  EXPECT_NE(refusal(with({.top_p = nan})).find("top_p"), std::string::npos);
  EXPECT_NE(refusal(with({.min_p = 2})).find("min_p"), std::string::npos);
  EXPECT_FALSE(e.step());
}

TEST_F(EngineTest, ForwardGivesTheLogitsThatDecodingSees) {
  const auto tokens = prompt(4, 50);
  const Forward whole = forward(*loaded().machine, tokens, 32);
  const Forward pieces = forward(*loaded().machine, tokens, 3);
  EXPECT_EQ(whole.vocabulary, 1024);
  EXPECT_EQ(whole.logits, pieces.logits);
  const float* last = whole.logits.data() + 49 * 1024;
  const auto likeliest = static_cast<int32_t>(std::max_element(last, last + 1024) - last);
  EXPECT_EQ(alone({.prompt = tokens, .max_tokens = 1, .sampling = {}, .end_tokens = {}}).tokens.front(), likeliest);
  EXPECT_THROW(forward(*loaded().machine, prompt(1, kContext + 1), 32), Error);
  EXPECT_THROW(forward(*loaded().machine, {5000}, 32), Error);
}

}  // namespace
}  // namespace megalith
