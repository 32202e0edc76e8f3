#include "server/chat_choice.h"

#include <utility>

namespace megalith {

ChatChoice::ChatChoice(const ChatCompletionRequest& request, const LoadedModel& model)
    : Choice(model.end_tokens),
      tokenizer_(model.text.require_tokenizer()),
      parser_(model.text.require_format().parser(tokenizer_, request.chat)),
      stops_(request.common.stop, request.common.include_stop),
      parallel_calls_(request.parallel_tool_calls) {}

// Which of the marks end what is open, the parser knows; an end token that is ordinary text is no part of the answer.
void ChatChoice::take(int32_t token, bool ends) {
  if (ends && !tokenizer_.is_special(token)) return;
  for (OutputEvent& event : parser_->feed({&token, 1})) take_event(std::move(event));
  stop_after_first_call();
}

FinishReason ChatChoice::flush(FinishReason reason) {
  for (OutputEvent& event : parser_->finish(reason)) take_event(std::move(event));
  if (!stopped()) add_safe(stops_.flush());
  return reason == FinishReason::stop && calls_ > 0 ? FinishReason::tool_calls : reason;
}

void ChatChoice::take_event(OutputEvent event) {
  using Kind = OutputEvent::Kind;
  if (stopped() || event.kind == Kind::finish) return;
  attribute_tokens(event.kind == Kind::reasoning);
  const bool call = event.kind != Kind::reasoning && event.kind != Kind::content;
  if (call && !parallel_calls_ && event.call > 0) return;
  switch (event.kind) {
    case Kind::reasoning:
      return add({.kind = Piece::Kind::reasoning, .text = std::move(event.text)});
    case Kind::content:
      return add_safe(stops_.feed(event.text));
    case Kind::call_begin:
      return add(
          {.kind = Piece::Kind::call_begin, .text = std::move(event.text), .call = event.call, .id = std::move(event.id)});
    case Kind::call_arguments:
      return add({.kind = Piece::Kind::call_arguments, .text = std::move(event.text), .call = event.call});
    case Kind::call_end:
      ++calls_;
      return;
    case Kind::finish:
      return;
  }
}

void ChatChoice::add_safe(std::string text) {
  add({.text = std::move(text)});
  if (stops_.hit()) stop(calls_ > 0 ? FinishReason::tool_calls : FinishReason::stop, stops_.hit());
}

// Text comes some tokens after its first one, where a character or a blank was held: they belong to what comes next.
void ChatChoice::attribute_tokens(bool reasoning) {
  if (reasoning) count_reasoning(tokens() - attributed_);
  attributed_ = tokens();
}

void ChatChoice::stop_after_first_call() {
  if (parallel_calls_ || calls_ == 0 || stopped()) return;
  add_safe(stops_.flush());
  if (!stopped()) stop(FinishReason::tool_calls, {});
}

}  // namespace megalith
