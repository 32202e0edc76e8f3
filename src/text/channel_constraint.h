#pragma once

// What a request asks of the form of an answer: how long its thoughts may be, that its content is JSON, that it is a
// call.

#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "text/chat.h"
#include "text/constraint.h"
#include "text/tokenizer.h"

namespace megalith {

// Null where the request asks for nothing.
//
// After `thinking_budget` tokens of thoughts these are ended, as the format does it. Content in a response_format is
// that alone, without calls; what ends it follows at once. A tool_choice that asks for a call wins over a
// response_format: the answer begins with a call of one of its functions, and does not end before the call does.
// Without `parallel_tool_calls` it ends after the first call. After an end token anything may come.
//
// Error, naming the field, for what the format, the schema or the vocabulary does not allow.
std::shared_ptr<const Constraint> make_answer_constraint(const ChatFormat& format, const Tokenizer& tokenizer,
                                                         const ChatRequest& request,
                                                         std::optional<int64_t> thinking_budget,
                                                         std::span<const int32_t> end_tokens, bool parallel_tool_calls);

}  // namespace megalith
