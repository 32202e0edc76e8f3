#include "engine/width.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <optional>

#include "tests/support/random_weights.h"

namespace megalith {
namespace {

TEST(StepTimes, RowCountsThatWereNotSeenLieOnALineBetweenThoseThatWere) {
  StepTimes times;
  EXPECT_EQ(times.at(1, false), std::nullopt);
  times.add(2, false, 1.0);
  times.add(6, false, 3.0);
  EXPECT_DOUBLE_EQ(*times.at(2, false), 1.0);
  EXPECT_DOUBLE_EQ(*times.at(3, false), 1.5);
  EXPECT_DOUBLE_EQ(*times.at(6, false), 3.0);
  EXPECT_DOUBLE_EQ(*times.at(1, false), 1.0);  // beyond: the nearest
  EXPECT_DOUBLE_EQ(*times.at(9, false), 3.0);
}

TEST(StepTimes, StepsWithADraftAreTimedApart) {
  StepTimes times;
  times.add(1, false, 1.0);
  EXPECT_EQ(times.at(1, true), std::nullopt);
  times.add(8, true, 2.0);
  EXPECT_DOUBLE_EQ(*times.at(1, false), 1.0);
  EXPECT_DOUBLE_EQ(*times.at(1, true), 2.0);
}

TEST(StepTimes, FollowsTimesThatChange) {
  StepTimes times;
  times.add(1, false, 1.0);
  for (int i = 0; i < 30; ++i) times.add(1, false, 2.0);
  EXPECT_NEAR(*times.at(1, false), 2.0, 0.01);
  for (int i = 0; i < 30; ++i) times.add(1, false, 0.5);
  EXPECT_NEAR(*times.at(1, false), 0.5, 0.01);
}

TEST(StepTimes, OneStepThatWasHeldUpCountsLittle) {
  StepTimes times;
  times.add(1, false, 1.0);
  times.add(1, false, 1000.0);
  EXPECT_LT(*times.at(1, false), 1.5);
}

TEST(Pace, ExpectsOneTokenAndEachGuessAsOftenAsItWasRight) {
  Pace pace;
  pace.add(4, 4, 1, 1);
  pace.add(4, 0, 1, 1);
  pace.add(4, 2, 1, 1);
  EXPECT_DOUBLE_EQ(pace.expected(1), 1.0);
  EXPECT_NEAR(pace.expected(3), 1 + 2 * 2.0 / 3, 0.02);
  EXPECT_NEAR(pace.expected(5), 1 + 2 * 2.0 / 3 + 2 * 1.0 / 3, 0.04);
  EXPECT_EQ(pace.tokens(), 9);
  EXPECT_EQ(pace.blocks(), 3);
}

TEST(Pace, PositionsThatNoBlockHadAreAsGoodAsTheLast) {
  Pace pace;
  EXPECT_DOUBLE_EQ(pace.expected(8), 8.0);
  pace.add(2, 1, 1, 1);
  EXPECT_DOUBLE_EQ(pace.expected(8), 2.0);  // the second guess was wrong
  Pace right;
  right.add(2, 2, 1, 1);
  EXPECT_DOUBLE_EQ(right.expected(8), 8.0);
}

TEST(Pace, LosesWhatStepsTakeBeyondThoseOfPlainDecoding) {
  Pace pace;
  pace.add(7, 0, 1.8, 1);
  EXPECT_NEAR(pace.lost(), 0.8, 1e-12);
  pace.add(0, 0, 1.5, 1);  // the draft alone
  EXPECT_NEAR(pace.lost(), 1.3, 1e-12);
}

TEST(Pace, OldBlocksFade) {
  Pace pace;
  for (int i = 0; i < 100; ++i) pace.add(7, 7, 1, 1);
  for (int i = 0; i < 100; ++i) pace.add(7, 0, 1, 1);
  EXPECT_LT(pace.expected(8), 1.5);
}

// The time of a step: of its rows, and of the draft in it.
struct Cost {
  double row = 0, draft = 0;
  double of(int64_t rows, bool drafted) const { return 1 + row * static_cast<double>(rows - 1) + (drafted ? draft : 0); }
};
constexpr Cost kUsual = {0.4 / 7, 0.4};  // a block of 8 with its draft takes 1.8 plain steps
constexpr Cost kSlow = {1.0 / 7, 1.0};   // 3

using Share = std::function<double(int64_t tokens)>;  // how often a guess after right ones is right, by tokens so far

Share always(double share) {
  return [share](int64_t) { return share; };
}

// One sequence that decodes as the engine does it: how wide a block is, is decided with its draft, in the step before.
class Text {
 public:
  Text(Cost cost, Share share, uint64_t seed) : cost_(cost), share_(std::move(share)), seed_(seed) {}

  // Makes one step longer.
  void hold_up(int64_t step, double factor) {
    held_up_ = step;
    factor_ = factor;
  }
  void until(int64_t tokens) {
    while (pace_.tokens() < tokens) step();
  }
  // Seconds over those of plain decoding, as a share of these, since the last call.
  double loss() {
    const double seconds = seconds_ - seconds_before_, plain = static_cast<double>(pace_.tokens() - tokens_before_);
    seconds_before_ = seconds_;
    tokens_before_ = pace_.tokens();
    return seconds / plain - 1;
  }
  int width() const { return width_; }  // of the last step's block

 private:
  double dice() { return (random_number(seed_, drawn_++) + 1) / 2; }

  int64_t right_of(int64_t guesses) {
    int64_t right = 0;
    while (right < guesses && dice() < share_(pace_.tokens())) ++right;
    return right;
  }

  void step() {
    width_ = next_width_;
    next_width_ = chooser_.best(pace_, {}, times_);
    const bool drafts = next_width_ > 1;
    const double jitter = 0.95 + 0.1 * dice();
    const double seconds = cost_.of(width_, drafts) * jitter * (steps_++ == held_up_ ? factor_ : 1);
    seconds_ += seconds;
    times_.add(width_, drafts, seconds);
    pace_.add(width_ - 1, right_of(width_ - 1), seconds, times_.at(1, false).value_or(seconds));
  }

  const Cost cost_;
  const Share share_;
  const uint64_t seed_;
  uint64_t drawn_ = 0;
  StepTimes times_;
  Pace pace_;
  const WidthChooser chooser_{8};
  int width_ = 1, next_width_ = 1;
  int64_t steps_ = 0, held_up_ = -1, tokens_before_ = 0;
  double factor_ = 1, seconds_ = 0, seconds_before_ = 0;
};

// The largest loss of some texts with a draft of constant quality.
double largest_loss(Cost cost, double share, int64_t tokens) {
  double largest = -1;
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    Text text(cost, always(share), seed);
    text.until(tokens);
    largest = std::max(largest, text.loss());
  }
  return largest;
}

TEST(WidthChooser, DecodesPlainlyUntilAPlainStepWasTimed) {
  StepTimes times;
  EXPECT_EQ(WidthChooser(8).best({}, {}, times), 1);
  times.add(8, true, 1.0);
  EXPECT_EQ(WidthChooser(8).best({}, {}, times), 1);
  times.add(1, false, 1.0);
  EXPECT_EQ(WidthChooser(8).best({}, {}, times), 8);
}

TEST(WidthChooser, AUselessDraftCostsLessThanThreePercent) {
  for (const Cost cost : {kUsual, kSlow}) {
    EXPECT_LT(largest_loss(cost, 0, 256), 0.03) << cost.of(8, true);
    EXPECT_LT(largest_loss(cost, 0, 2048), 0.03) << cost.of(8, true);
  }
}

TEST(WidthChooser, ADraftThatIsFarTooSlowIsTriedOnce) {
  EXPECT_LT(largest_loss({1, 3}, 0, 1024), 0.03);
}

TEST(WidthChooser, ADraftThatIsTooWeakForItsCostIsLeft) {
  EXPECT_LT(largest_loss(kUsual, 0.2, 1024), 0.03);
  EXPECT_LT(largest_loss(kSlow, 0.5, 1024), 0.03);
}

TEST(WidthChooser, EveryTextGainsByAGoodDraft) {
  EXPECT_LT(largest_loss(kUsual, 0.9, 256), -0.6);
  EXPECT_LT(largest_loss(kSlow, 0.95, 256), -0.4);
}

// A draft that was unlucky in its first blocks is tried again.
TEST(WidthChooser, EveryLongTextGainsByAFairDraft) {
  EXPECT_LT(largest_loss(kUsual, 0.6, 2048), -0.15);
  EXPECT_LT(largest_loss(kSlow, 0.8, 2048), -0.1);
}

// Tokens a second of a block.
double rate(Cost cost, double share, int width) {
  double tokens = 0, reached = 1;
  for (int i = 0; i < width; ++i, reached *= share) tokens += reached;
  return tokens / cost.of(width, width > 1);
}

TEST(WidthChooser, TakesTheWidthThatGivesTheMostTokensASecond) {
  for (const Cost cost : {kUsual, kSlow, Cost{0.3, 0.1}}) {
    StepTimes times;
    times.add(1, false, 1);
    for (int width = 1; width <= 8; ++width) times.add(width, true, cost.of(width, true));
    for (const double share : {0.1, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0}) {
      Pace pace;
      for (int i = 0; i < 1000; ++i) {  // shares of all positions, evenly spread
        int64_t right = 0;
        while (right < 7 && std::pow(share, right + 1) > std::fmod(0.618 * i, 1)) ++right;
        pace.add(7, right, 100, 1);  // so that it has no time for tries
      }
      double best = 0;
      for (int width = 1; width <= 8; ++width) best = std::max(best, rate(cost, share, width));
      const int width = WidthChooser(8).best(pace, {}, times);
      EXPECT_GT(rate(cost, share, width), 0.97 * best) << "share " << share << ", width " << width;
    }
  }
}

TEST(WidthChooser, FallsBackAsSoonAsGuessesAreWrongAndReturnsWhenTheyAreRight) {
  for (uint64_t seed = 1; seed <= 5; ++seed) {
    Text text(kUsual, [](int64_t tokens) { return tokens > 1000 && tokens < 1500 ? 0.0 : 0.9; }, seed);
    text.until(1000);
    EXPECT_LT(text.loss(), -0.6);
    text.until(1100);
    EXPECT_LT(text.loss(), 0.5) << seed;
    text.until(1500);
    EXPECT_LT(text.loss(), 0.03) << seed;
    EXPECT_EQ(text.width(), 1);
    text.until(2000);
    text.loss();
    text.until(2500);
    EXPECT_LT(text.loss(), -0.5) << seed;
  }
}

TEST(WidthChooser, OneStepThatWasHeldUpDoesNotStopAGoodDraft) {
  for (const int64_t step : {0, 3, 4, 8, 40}) {
    Text text(kUsual, always(0.9), 1);
    text.hold_up(step, 10);
    text.until(512);
    EXPECT_LT(text.loss(), -0.55) << step;
  }
}

// With many sequences a step's time is that of its rows, and guesses that are often wrong take rows from no one.
TEST(WidthChooser, GuessesFewerTokensTheMoreOtherSequencesThereAre) {
  const Cost cost = {0.05, 0.3};
  StepTimes times;
  for (const int64_t rows : {1, 41, 81}) {
    times.add(rows, false, cost.of(rows, false));
    times.add(rows, true, cost.of(rows, true));
  }
  Pace pace;
  for (int i = 0; i < 100; ++i) pace.add(7, i % 2 == 0 ? 7 : i % 8, 1000, 1);
  const auto width = [&](int64_t others) {
    return WidthChooser(8).best(pace, {others, static_cast<double>(others)}, times);
  };
  EXPECT_EQ(width(0), 8);
  EXPECT_GT(width(3), 1);
  EXPECT_EQ(width(70), 1);
  for (int64_t others = 1; others <= 70; ++others) EXPECT_LE(width(others), width(others - 1)) << others;
}

}  // namespace
}  // namespace megalith
