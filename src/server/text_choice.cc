#include "server/text_choice.h"

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
  add({.text = stops_.flush()});
  if (stops_.hit()) stop(FinishReason::stop, stops_.hit());
  return reason;
}

void TextChoice::add_text(std::string_view text) {
  if (text.empty()) return;
  add({.text = stops_.feed(text)});
  if (stops_.hit()) stop(FinishReason::stop, stops_.hit());
}

}  // namespace megalith
