#pragma once

#include "server/choice.h"
#include "server/generation_request.h"
#include "text/stop_strings.h"
#include "text/utf8_stream.h"

namespace megalith {

// A choice of a completion: the text itself, without the end token.
class TextChoice : public Choice {
 public:
  TextChoice(const CommonFields& fields, const LoadedModel& model);

 private:
  void take(int32_t token, bool ends) override;
  FinishReason flush(FinishReason reason) override;
  void add_text(std::string_view text);
  // What no stop string can take back; the end, where one is complete.
  void add_safe(std::string text);

  TextStream text_;
  StopStrings stops_;
};

}  // namespace megalith
