// What a model wrote in the format of Kimi K3. The first byte chooses the start, the second the steps in which tokens
// are fed; the rest is the answer (ids_of tells of which tokens).

#include <algorithm>

#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/read_answer.h"
#include "tests/fuzz/vocabulary.h"
#include "text/chat.h"

namespace megalith {
namespace {

ChatRequest request_of(uint8_t bits) {
  ChatRequest request;
  request.messages.push_back({.role = Role::user, .content = "q"});
  request.enable_thinking = (bits & 1) != 0;
  request.continue_final_message = (bits & 2) != 0;
  request.add_generation_prompt = (bits & 4) == 0;
  if (request.continue_final_message) request.messages.push_back({.role = Role::assistant});
  return request;
}

}  // namespace
}  // namespace megalith

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace megalith;
  Choices choices(text_of(data, size));
  const uint8_t bits = choices.byte();
  const uint8_t seed = choices.byte();
  const std::string text(choices.rest());
  const Tokenizer& tokenizer = kimi_vocabulary().tokenizer;
  const auto ids = ids_of(text, kimi_vocabulary());
  const auto reason = bits & 8 ? FinishReason::stop : FinishReason::length;
  const auto format = chat_format("kimi-k3");
  const ChatRequest request = request_of(bits);
  const auto read = [&](const std::vector<int32_t>& tokens) {
    return parse_output(*format->parser(tokenizer, request), tokens, reason);
  };
  const MessageOutput whole = read(ids);
  check_equal(whole, read_in_steps(*format->parser(tokenizer, request), ids, reason, seed));
  check_calls(whole);
  const std::string fields = whole.reasoning_content.value_or("") + whole.content;
  const auto is_mark = [](int32_t id) { return kimi_vocabulary().is_added(id); };
  if (std::none_of(ids.begin(), ids.end(), is_mark)) {
    const bool channel = request.add_generation_prompt || request.continue_final_message;
    if (channel) CHECK(fields == tokenizer.decode(ids, false), "\"{}\"", fields);
  }
  // Nor does it matter how the text is cut into tokens.
  if (text.find(kNoMark) == text.npos && invalid_utf8(text) == text.npos) {
    check_equal(whole, read(tokenizer.encode(text, Specials::recognised)));
  }
  return 0;
}
