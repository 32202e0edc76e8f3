#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

namespace megalith {

// How long steps take by their rows, with and without a draft in them. Later steps weigh more.
class StepTimes {
 public:
  void add(int64_t rows, bool drafted, double seconds);
  // Seconds; between two row counts that were seen, a line between them, and beyond them the nearest. Nothing where no
  // such step was seen.
  std::optional<double> at(int64_t rows, bool drafted) const;

 private:
  std::map<int64_t, double> seen_[2];  // without, with
};

// Which of two ways of guessing keeps more guesses: both are tried, then the better one is used, and the other now and then.
class WayChooser {
 public:
  // 0 or 1, for the next block.
  int next() const;
  void add(int way, int64_t right);

 private:
  double mean(int way) const { return right_[way] / blocks_[way]; }

  double blocks_[2] = {}, right_[2] = {};  // old blocks fade
  int64_t since_other_ = 0;                // blocks since the less good way was tried
};

// What speculation has brought a sequence so far.
class Pace {
 public:
  // A step took `seconds`, in which the sequence got tokens; `guesses` of it were verified, and `right` of them kept. A plain
  // step would have taken `plain`.
  void add(int64_t guesses, int64_t right, double seconds, double plain);

  // Tokens that a block of `width` rows is expected to give: one, and each guess as often as it was reached and right.
  double expected(int64_t width) const;
  int64_t tokens() const { return tokens_; }
  int64_t blocks() const { return blocks_; }
  // Seconds, against plain decoding; what was gained before does not count.
  double lost() const { return lost_; }

 private:
  int64_t tokens_ = 0, blocks_ = 0;
  double lost_ = 0;
  std::vector<double> tried_, right_;  // by position in the block; old blocks fade
};

// Picks how many rows a sequence has in the next step, from the times of steps and its own acceptance, so that tokens come
// fastest. What trying costs a sequence stays below a share of what plain decoding takes.
class WidthChooser {
 public:
  explicit WidthChooser(int most) : most_(most) {}

  struct Others {
    int64_t rows = 0;   // of the other sequences in the step
    double tokens = 0;  // that they are expected to get
  };
  // The best width, from 1 to `most`; 1 is plain decoding.
  int best(const Pace& pace, const Others& others, const StepTimes& times) const;

 private:
  bool may_try(const Pace& pace, double plain, double loss) const;

  const int most_;
};

}  // namespace megalith
