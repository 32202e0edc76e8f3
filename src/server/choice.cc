#include "server/choice.h"

#include <algorithm>
#include <utility>

namespace megalith {

bool Choice::feed(const Generation& generation, size_t first) {
  const auto& tokens = generation.tokens;
  const bool has_end = generation.finish == Finish::end_token;
  for (size_t i = first; i < tokens.size() && !stopped_; ++i) {
    ++tokens_;
    take(tokens[i], has_end && i + 1 == tokens.size());
  }
  return !stopped_;
}

void Choice::end(const Generation& generation) {
  if (stopped_) return;
  const bool has_end = generation.finish == Finish::end_token && !generation.tokens.empty();
  const FinishReason reason = flush(has_end ? FinishReason::stop : FinishReason::length);
  if (stopped_) return;
  finish_reason_ = reason;
  if (!has_end) return;
  const int32_t last = generation.tokens.back();
  if (std::find(own_end_.begin(), own_end_.end(), last) == own_end_.end()) stop_reason_ = last;
}

std::vector<Piece> Choice::take_pieces() {
  return std::exchange(pieces_, {});
}

void Choice::add(Piece piece) {
  const bool call = piece.kind == Piece::Kind::call_begin || piece.kind == Piece::Kind::call_arguments;
  if (piece.text.empty() && !call) return;
  piece.tokens = tokens_;
  if (!call && !pieces_.empty() && pieces_.back().kind == piece.kind) {
    pieces_.back().text += piece.text;
    pieces_.back().tokens = tokens_;
  } else {
    pieces_.push_back(std::move(piece));
  }
}

void Choice::stop(FinishReason reason, const std::optional<std::string>& found) {
  stopped_ = true;
  finish_reason_ = reason;
  if (found) stop_reason_ = *found;
}

}  // namespace megalith
