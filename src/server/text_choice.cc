#include "server/text_choice.h"

#include <utility>

namespace megalith {

TextChoice::TextChoice(const CommonFields& fields, const LoadedModel& model)
    : Choice(model.end_tokens),
      text_(model.text.require_tokenizer(), fields.skip_special_tokens),
      stops_(fields.stop, fields.include_stop) {}

void TextChoice::take(int32_t token, bool ends) {
  if (!ends) add_text(text_.feed({&token, 1}));
}

FinishReason TextChoice::flush(FinishReason reason) {
  add_text(text_.flush());
  add_safe(stops_.flush());
  return reason;
}

void TextChoice::add_text(std::string_view text) {
  if (!text.empty()) add_safe(stops_.feed(text));
}

void TextChoice::add_safe(std::string text) {
  add({.text = std::move(text)});
  if (stops_.hit()) stop(FinishReason::stop, stops_.hit());
}

}  // namespace megalith
