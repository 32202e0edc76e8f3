#pragma once

#include <memory>

#include "server/choice.h"
#include "server/generation_request.h"
#include "text/stop_strings.h"

namespace megalith {

// A choice of a chat: thoughts, content and calls, as the model's format has them. Stop strings are looked for in the
// content, across whatever stands between its parts.
class ChatChoice : public Choice {
 public:
  ChatChoice(const ChatCompletionRequest& request, const LoadedModel& model);

 private:
  void take(int32_t token, bool ends) override;
  FinishReason flush(FinishReason reason) override;
  void take_event(OutputEvent event);
  // Content that no stop string can take back; the end, where one is complete.
  void add_safe(std::string text);
  void attribute_tokens(bool reasoning);
  void stop_after_first_call();

  const Tokenizer tokenizer_;
  const std::unique_ptr<OutputParser> parser_;
  StopStrings stops_;
  const bool parallel_calls_;
  size_t attributed_ = 0;  // tokens of which it is known whether they are thoughts
  int32_t calls_ = 0;      // complete ones
};

}  // namespace megalith
