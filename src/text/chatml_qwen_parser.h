#pragma once

// Reads answers written in the family's ChatML: thoughts up to </think>, then content and calls.

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "text/output_parser.h"
#include "text/tokenizer.h"

namespace megalith {

// Where an answer begins; the prompt decides it.
struct ChatmlQwenStart {
  bool thinking = true;                         // within <think>
  bool mid_text = false;                        // the answer goes on with a text; its first blanks count
  std::vector<std::string> used_call_ids = {};  // of the calls in the conversation; new ones get other ids
};

// A call as it stands between <tool_call> and </tool_call>.
struct CallText {
  std::string name;
  std::string arguments;  // a JSON object
};

// The functions called in `text`, most often one; none when the text has not the form of a call. Arguments have the
// types that `tools` (OpenAI tool objects) declare. `closed`: </tool_call> followed, so that tags left out at the end
// are forgiven.
std::vector<CallText> parse_calls(std::string_view text, const nlohmann::ordered_json& tools, bool closed);

// The marks are added tokens; text that spells them is text. A call is given out once it is complete, since what was
// sent cannot be taken back; one that stays incomplete, or has not the form of a call, is content.
// Error when the vocabulary lacks one of the marks.
std::unique_ptr<OutputParser> make_chatml_qwen_parser(const Tokenizer& tokenizer, const nlohmann::ordered_json& tools,
                                                      ChatmlQwenStart start);

}  // namespace megalith
