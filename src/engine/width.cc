#include "engine/width.h"

#include <algorithm>
#include <cmath>

namespace megalith {

namespace {

constexpr double kNew = 0.2;       // weight of a new time
constexpr double kOutlier = 3;     // a time beyond this multiple of the known one counts as this much
constexpr double kFade = 0.95;     // of older blocks, with each new one
constexpr double kShare = 0.02;    // of plain decoding's time may be lost by trying
constexpr int64_t kAhead = 256;    // tokens that a text is taken to have at least
constexpr int64_t kLeastBlocks = 3;  // before acceptance is believed
constexpr double kLeastOfAWay = 2.5;  // blocks, before a way of guessing is judged
constexpr int64_t kTryOther = 24;    // blocks between tries of the less good way

}  // namespace

void StepTimes::add(int64_t rows, bool drafted, double seconds) {
  const auto [found, fresh] = seen_[drafted].try_emplace(rows, seconds);
  double& known = found->second;
  if (fresh) return;
  const bool was_held_up = seconds * kOutlier < known;  // the steps before
  known = was_held_up ? seconds : known + kNew * (std::min(seconds, kOutlier * known) - known);
}

std::optional<double> StepTimes::at(int64_t rows, bool drafted) const {
  const auto& seen = seen_[drafted];
  if (seen.empty()) return std::nullopt;
  const auto above = seen.lower_bound(rows);
  if (above == seen.end()) return seen.rbegin()->second;
  if (above->first == rows || above == seen.begin()) return above->second;
  const auto below = std::prev(above);
  const double part = static_cast<double>(rows - below->first) / static_cast<double>(above->first - below->first);
  return below->second + part * (above->second - below->second);
}

void Pace::add(int64_t guesses, int64_t right, double seconds, double plain) {
  tokens_ += right + 1;
  lost_ = std::max(lost_ + seconds - static_cast<double>(right + 1) * plain, 0.0);
  if (guesses == 0) return;
  ++blocks_;
  const auto size = static_cast<size_t>(guesses);
  if (tried_.size() < size) {
    tried_.resize(size);
    right_.resize(size);
  }
  for (size_t i = 0; i < tried_.size(); ++i) {
    tried_[i] *= kFade;
    right_[i] *= kFade;
  }
  for (int64_t i = 0; i < guesses; ++i) {
    tried_[static_cast<size_t>(i)] += 1;
    right_[static_cast<size_t>(i)] += i < right ? 1 : 0;
  }
}

double Pace::expected(int64_t width) const {
  double tokens = 1;
  for (int64_t i = 0; i + 1 < width; ++i) {
    const auto at = static_cast<size_t>(i);
    // Positions that no block has had are as good as the last one that was tried.
    if (at < tried_.size()) {
      tokens += right_[at] / std::max(tried_[at], 1e-9);
    } else {
      tokens += tried_.empty() ? 1 : right_.back() / std::max(tried_.back(), 1e-9);
    }
  }
  return tokens;
}

int WayChooser::next() const {
  if (std::min(blocks_[0], blocks_[1]) < kLeastOfAWay) return blocks_[1] < blocks_[0] ? 1 : 0;
  const int better = mean(1) > mean(0) ? 1 : 0;
  return since_other_ >= kTryOther ? 1 - better : better;
}

void WayChooser::add(int way, int64_t right) {
  const bool settled = std::min(blocks_[0], blocks_[1]) >= kLeastOfAWay;
  since_other_ = settled && way == (mean(1) > mean(0) ? 1 : 0) ? since_other_ + 1 : 0;
  blocks_[way] = blocks_[way] * kFade + 1;
  right_[way] = right_[way] * kFade + static_cast<double>(right);
}

bool WidthChooser::may_try(const Pace& pace, double plain, double loss) const {
  const auto tokens = static_cast<double>(std::max(pace.tokens(), kAhead));
  return pace.lost() + loss <= kShare * tokens * plain;
}

int WidthChooser::best(const Pace& pace, const Others& others, const StepTimes& times) const {
  const auto plain = times.at(others.rows + 1, false);
  if (!plain) return 1;
  // Of a try that gives nothing: the step that guesses, and the one that verifies.
  const double guess = times.at(others.rows + 1, true).value_or(*plain);
  const double verify = times.at(others.rows + most_, true).value_or(*plain);
  const double loss = guess + verify - 2 * *plain;
  const bool may = may_try(pace, *plain, loss);
  if (pace.blocks() < kLeastBlocks && (pace.lost() <= 0 || may)) return most_;
  if (pace.blocks() == 0) return 1;
  int best = 1;
  double best_rate = (others.tokens + 1) / *plain;
  for (int width = 2; width <= most_; ++width) {
    const double rate = (others.tokens + pace.expected(width)) / times.at(others.rows + width, true).value_or(*plain);
    if (rate > best_rate) {
      best = width;
      best_rate = rate;
    }
  }
  return best == 1 && may ? most_ : best;
}

}  // namespace megalith
