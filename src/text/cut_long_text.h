#pragma once

// Cuts very long texts before they are split, as the tokenizers of the Kimi family do. Ids depend on where.

#include <functional>
#include <string_view>

namespace megalith {

// Gives parts of at most 400,000 characters, each cut again so that no run of more than 25,000 blanks, or of other
// characters, stays within one part. Needs UTF-8; an empty text has no parts.
void cut_long_text(std::string_view text, const std::function<void(std::string_view)>& part);

}  // namespace megalith
