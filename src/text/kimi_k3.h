#pragma once

// The chat format of Kimi K3: XML-like tags whose four marks are tokens, and whose names and attributes are text.

#include <memory>
#include <optional>

#include "text/chat.h"

namespace megalith {

struct KimiK3 {
  static constexpr std::string_view kName = "kimi-k3";
  bool thinking = true;  // think unless a request says otherwise
};

// Whether a chat template writes this format, by the marks in it.
bool recognises_kimi_k3(std::string_view template_text);

// Whether a vocabulary has the format's marks.
bool has_kimi_k3_marks(const Tokenizer& tokenizer);

std::unique_ptr<const ChatFormat> make_kimi_k3(KimiK3 form);

}  // namespace megalith
