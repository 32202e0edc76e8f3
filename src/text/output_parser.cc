#include "text/output_parser.h"

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
