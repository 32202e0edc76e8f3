#pragma once

// One choice of an answer: what the client gets to read of one generated text, piece by piece.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "engine/engine.h"
#include "text/output_parser.h"

namespace megalith {

// The next part of a choice.
struct Piece {
  enum class Kind { content, reasoning, call_begin, call_arguments };
  Kind kind = Kind::content;
  // content, reasoning: the text; call_begin: the function's name; call_arguments: a piece of JSON
  std::string text = {};
  int32_t call = 0;     // call_*: its index, from 0
  std::string id = {};  // call_begin
  size_t tokens = 0;    // of the choice, that had come when this piece had
};

// Tokens in, pieces out; joined, they do not depend on how many tokens came at once. A choice ends with its text, or where
// a stop string is complete: tokens after that do not count.
class Choice {
 public:
  // `own_end`: the end tokens that are the model's; another one is named as the reason of the end.
  explicit Choice(std::vector<int32_t> own_end) : own_end_(std::move(own_end)) {}
  virtual ~Choice() = default;
  Choice(const Choice&) = delete;
  Choice& operator=(const Choice&) = delete;

  // The tokens from `first` on, as Listener::on_tokens has them. False: the choice is complete.
  bool feed(const Generation& generation, size_t first);
  // The end of the text, unless the choice was complete before.
  void end(const Generation& generation);

  // The pieces since the last call.
  std::vector<Piece> take_pieces();
  // Those that count: all, the end token too, or those up to the one that completed a stop string.
  size_t tokens() const { return tokens_; }
  // Of these, the ones of thoughts.
  size_t reasoning_tokens() const { return reasoning_tokens_; }
  // Complete by itself.
  bool stopped() const { return stopped_; }
  // After the end: stop, length or tool_calls.
  FinishReason finish_reason() const { return finish_reason_; }
  // The stop string, the id of an end token that the request named, or null.
  const nlohmann::ordered_json& stop_reason() const { return stop_reason_; }

 protected:
  // One more token; `ends`: it is the end token. Calls add() and stop().
  virtual void take(int32_t token, bool ends) = 0;
  // No more comes. Calls add() and stop(), and returns what the end was.
  virtual FinishReason flush(FinishReason reason) = 0;

  void add(Piece piece);
  // Completes the choice.
  void stop(FinishReason reason, const std::optional<std::string>& found);
  void count_reasoning(size_t tokens) { reasoning_tokens_ += tokens; }

 private:
  const std::vector<int32_t> own_end_;
  std::vector<Piece> pieces_;
  size_t tokens_ = 0, reasoning_tokens_ = 0;
  bool stopped_ = false;
  FinishReason finish_reason_ = FinishReason::length;
  nlohmann::ordered_json stop_reason_ = nullptr;
};

}  // namespace megalith
