#pragma once

// What a model wrote, as the fields of a chat message: thoughts, content, tool calls. One state machine for streamed
// and for whole answers: a whole answer is the sum of its events.

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace megalith {

// Why generation ended. `tool_calls` is `stop` after at least one complete call.
enum class FinishReason { stop, length, tool_calls };

// The name in the OpenAI interface: "stop", "length", "tool_calls".
const char* finish_reason_name(FinishReason reason);

struct OutputEvent {
  enum class Kind { reasoning, content, call_begin, call_arguments, call_end, finish };
  Kind kind = Kind::content;
  // reasoning, content: the next text; call_begin: the function's name; call_arguments: the next piece of JSON
  std::string text = {};
  int32_t call = 0;                          // call_*: the call's index, from 0
  std::string id = {};                       // call_begin: the call's id
  FinishReason reason = FinishReason::stop;  // finish
};

// One answer, token by token. Use once.
class OutputParser {
 public:
  virtual ~OutputParser() = default;
  // The ids that follow those fed before, in steps of any size. An end token ends the answer; ids after it are ignored.
  // Error when an id is outside the vocabulary.
  virtual std::vector<OutputEvent> feed(std::span<const int32_t> ids) = 0;
  // Ends the answer: what was held, then one `finish` event. `reason` is stop or length, as the engine saw it.
  virtual std::vector<OutputEvent> finish(FinishReason reason) = 0;
};

struct CallOutput {
  std::string id;
  std::string name;
  std::string arguments;  // a JSON object
  bool operator==(const CallOutput&) const = default;
};

// A whole answer.
struct MessageOutput {
  std::optional<std::string> reasoning_content;  // absent when the model wrote no thoughts
  std::string content;
  std::vector<CallOutput> tool_calls;
  FinishReason finish_reason = FinishReason::length;

  // Adds what an event says.
  void add(const OutputEvent& event);
};

// The whole answer of one parser.
MessageOutput parse_output(OutputParser& parser, std::span<const int32_t> ids, FinishReason reason);

}  // namespace megalith
