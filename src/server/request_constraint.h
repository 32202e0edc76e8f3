#pragma once

// The forms that answers can be asked to have.

#include <cstdint>
#include <memory>
#include <optional>

#include "server/service.h"
#include "text/chat.h"
#include "text/constraint.h"

namespace megalith {

// Whether an answer must have a form from its first token to its end.
bool has_form(const ResponseFormat& format);
bool has_form(const ChatRequest& chat);

// What a completion obeys; null: nothing.
std::shared_ptr<const Constraint> completion_constraint(const Service& service, const ResponseFormat& format,
                                                        const Request& request);
// The same of a chat's answer, its thoughts and calls included.
std::shared_ptr<const Constraint> chat_constraint(const Service& service, const ChatRequest& chat,
                                                  std::optional<int64_t> thinking_budget, bool parallel_tool_calls,
                                                  const Request& request);

}  // namespace megalith
