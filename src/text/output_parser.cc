#include "text/output_parser.h"

#include <fmt/format.h>

#include "base/error.h"

namespace megalith {

const char* finish_reason_name(FinishReason reason) {
  switch (reason) {
    case FinishReason::stop:
      return "stop";
    case FinishReason::length:
      return "length";
    case FinishReason::tool_calls:
      return "tool_calls";
  }
  return "";
}

std::vector<OutputEvent> OutputParser::feed(std::span<const int32_t> ids) {
  events_.clear();
  for (int32_t id : ids) {
    std::string_view bytes = tokenizer_.token_bytes(id);
    if (ended_) break;
    if (!take_mark(id) && !tokenizer_.is_special(id)) take_text(utf8_.feed(bytes));
  }
  return std::move(events_);
}

std::vector<OutputEvent> OutputParser::finish(FinishReason reason) {
  events_.clear();
  end_character();
  end_text(reason == FinishReason::length && !ended_);
  if (reason == FinishReason::stop && n_calls_ > 0) reason = FinishReason::tool_calls;
  events_.push_back({.kind = OutputEvent::Kind::finish, .reason = reason});
  ended_ = true;
  return std::move(events_);
}

void OutputParser::give(OutputEvent::Kind kind, std::string text) {
  if (!text.empty()) events_.push_back({.kind = kind, .text = std::move(text)});
}

void OutputParser::give_call(std::string id, std::string name, std::string arguments) {
  using Kind = OutputEvent::Kind;
  int32_t index = n_calls_++;
  events_.push_back({.kind = Kind::call_begin, .text = std::move(name), .call = index, .id = std::move(id)});
  events_.push_back({.kind = Kind::call_arguments, .text = std::move(arguments), .call = index});
  events_.push_back({.kind = Kind::call_end, .call = index});
}

int32_t find_mark(const Tokenizer& tokenizer, std::string_view text, const char* field) {
  if (auto id = tokenizer.find_added(text)) return *id;
  throw Error({.where = field,
               .expected = fmt::format("the token {} of the chat format", text),
               .found = "none",
               .next = "Choose another format with --chat-format."});
}

void MessageOutput::add(const OutputEvent& event) {
  switch (event.kind) {
    case OutputEvent::Kind::reasoning:
      if (!reasoning_content) reasoning_content.emplace();
      *reasoning_content += event.text;
      break;
    case OutputEvent::Kind::content:
      content += event.text;
      break;
    case OutputEvent::Kind::call_begin:
      tool_calls.push_back({event.id, event.text, ""});
      break;
    case OutputEvent::Kind::call_arguments:
      tool_calls.back().arguments += event.text;
      break;
    case OutputEvent::Kind::call_end:
      break;
    case OutputEvent::Kind::finish:
      finish_reason = event.reason;
      break;
  }
}

MessageOutput parse_output(OutputParser& parser, std::span<const int32_t> ids, FinishReason reason) {
  MessageOutput message;
  for (const OutputEvent& event : parser.feed(ids)) message.add(event);
  for (const OutputEvent& event : parser.finish(reason)) message.add(event);
  return message;
}

}  // namespace megalith
