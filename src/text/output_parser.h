#pragma once

// What a model wrote, as the fields of a chat message: thoughts, content, tool calls. One state machine for streamed
// and for whole answers: a whole answer is the sum of its events.

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "text/tokenizer.h"
#include "text/utf8_stream.h"

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

// One answer, token by token. Use once. What a format's marks mean, and where text goes, its own parser knows.
class OutputParser {
 public:
  explicit OutputParser(const Tokenizer& tokenizer) : tokenizer_(tokenizer) {}
  virtual ~OutputParser() = default;
  // The ids that follow those fed before, in steps of any size. An end token ends the answer; ids after it are ignored.
  // Error when an id is outside the vocabulary.
  std::vector<OutputEvent> feed(std::span<const int32_t> ids);
  // Ends the answer: what was held, then one `finish` event. `reason` is stop or length, as the engine saw it.
  std::vector<OutputEvent> finish(FinishReason reason);

 protected:
  // Whether the id is a mark that means something here; else it is text. A mark calls end_character() first.
  virtual bool take_mark(int32_t id) = 0;
  // Whole characters.
  virtual void take_text(std::string_view text) = 0;
  // No more text comes: gives out what was held. `cut`: the answer might have gone on.
  virtual void end_text(bool cut) = 0;

  // An unfinished character before a mark stays unfinished.
  void end_character() { take_text(utf8_.flush()); }
  void end_answer() { ended_ = true; }
  bool ended() const { return ended_; }

  void give(OutputEvent::Kind kind, std::string text);
  void give_call(std::string id, std::string name, std::string arguments);
  int32_t n_calls() const { return n_calls_; }

 private:
  const Tokenizer tokenizer_;
  Utf8Stream utf8_;
  std::vector<OutputEvent> events_;
  int32_t n_calls_ = 0;
  bool ended_ = false;  // by the model
};

// The id of an added token that a format needs. Error, naming the field of the file, when the vocabulary lacks it.
int32_t find_mark(const Tokenizer& tokenizer, std::string_view text, const char* field);

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
