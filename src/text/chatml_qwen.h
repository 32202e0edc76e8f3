#pragma once

// ChatML as the Qwen3.5, 3.6 and 3.8 models write it.

#include <memory>
#include <optional>

#include "text/chat.h"

namespace megalith {

// What differs between the members of the family.
struct ChatmlQwen {
  std::string_view name;
  bool thinking = true;            // think unless a request says otherwise
  bool preserve_thinking = false;  // keep the thoughts of turns before the last user message
  bool effort = false;             // the system message tells how hard to think
  bool inline_thoughts = true;     // <think>...</think> in an assistant's content is its thoughts
  bool python_scalars = true;      // arguments true, false, null read True, False, None
};

inline constexpr ChatmlQwen kQwen35{.name = "qwen3.5"};
inline constexpr ChatmlQwen kQwen38{
    .name = "qwen3.8", .preserve_thinking = true, .effort = true, .inline_thoughts = false, .python_scalars = false};

// Whether a chat template is this member's, by what it contains.
bool recognises_chatml_qwen(const ChatmlQwen& form, std::string_view template_text);

std::unique_ptr<const ChatFormat> make_chatml_qwen(ChatmlQwen form);

}  // namespace megalith
