// What a model wrote, read in both formats of the Qwen family. The first byte chooses the start, the second the steps
// in which tokens are fed; the rest is the answer (ids_of tells of which tokens).

#include <algorithm>
#include <map>

#include "base/check.h"
#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/read_answer.h"
#include "tests/fuzz/vocabulary.h"
#include "text/characters.h"
#include "text/chat.h"
#include "text/nfc.h"
#include "text/utf8_stream.h"

namespace megalith {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kTools =
    R"([{"type":"function","function":{"name":"f","parameters":{"type":"object","properties":{
    "s":{"type":"string"},"i":{"type":"integer"},"b":{"type":"boolean"},"o":{"type":"object"},"l":{"type":"array"},
    "sn":{"type":["string","null"]},"any":{"anyOf":[{"type":"integer"},{"type":"null"}]}}}}}])";

// How an answer begins and ends.
struct Start {
  explicit Start(uint8_t bits) : format(chat_format((bits & 1) != 0 ? "qwen3.8" : "qwen3.5")) {
    request.messages.push_back({.role = Role::user, .content = "q"});
    request.tools = Json::parse(kTools);
    request.enable_thinking = (bits & 2) != 0;
    request.continue_final_message = (bits & 4) != 0;
    const char* begun = (bits & 8) != 0 ? "a" : "";
    if (request.continue_final_message) request.messages.push_back({.role = Role::assistant, .content = begun});
    if ((bits & 16) != 0) reason = FinishReason::stop;
  }

  std::unique_ptr<OutputParser> parser() const { return format->parser(qwen_vocabulary().tokenizer, request); }
  MessageOutput read(const std::vector<int32_t>& ids) const { return parse_output(*parser(), ids, reason); }

  std::unique_ptr<const ChatFormat> format;
  ChatRequest request;
  FinishReason reason = FinishReason::length;
};

const Start& start_of(uint8_t bits) {
  static std::map<uint8_t, Start> starts;
  return starts.try_emplace(bits, bits).first->second;
}

// A text without blanks, and without the characters that marks are written with.
std::string core(std::string_view text) {
  std::string kept;
  while (!text.empty()) {
    const Character next = first_character(text);
    const bool in_mark = next.code < 0x80 && std::string_view("</>thinkoca_l").find(text[0]) != std::string_view::npos;
    if (!in_mark && !is_blank(next.code)) kept += text.substr(0, next.bytes);
    text.remove_prefix(next.bytes);
  }
  return kept;
}

// The text of an answer before its end, without special tokens.
std::string text_of(const std::vector<int32_t>& ids) {
  const Vocabulary& vocabulary = qwen_vocabulary();
  const auto ends = [&](int32_t id) {
    return id == vocabulary.added.at("<|im_end|>") || id == vocabulary.added.at("<|endoftext|>");
  };
  const auto end = std::find_if(ids.begin(), ids.end(), ends);
  return vocabulary.tokenizer.decode({ids.data(), static_cast<size_t>(end - ids.begin())}, true);
}

bool is_part_of(std::string_view part, std::string_view whole) {
  for (const char c : whole) {
    if (part.starts_with(c)) part.remove_prefix(1);
  }
  return part.empty();
}

// An answer without marks is its text, but for the blanks at its ends.
void check_without_marks(const Start& start, const MessageOutput& message, const std::vector<int32_t>& ids) {
  const std::string decoded = qwen_vocabulary().tokenizer.decode(ids, false);
  std::string_view text = start.request.continue_final_message ? decoded : trim_left(decoded);
  if (start.reason == FinishReason::stop) text = text.substr(0, trailing_blanks(text));
  CHECK(message.reasoning_content.value_or("") + message.content == text, "\"{}\" of \"{}\"", message.content, text);
}

// An answer without calls is its thoughts and its content. Calls take text away.
void check_nothing_is_lost(const MessageOutput& message, const std::vector<int32_t>& ids) {
  const std::string given = core(text_of(ids));
  const std::string read = core(message.reasoning_content.value_or("") + message.content);
  CHECK(message.tool_calls.empty() ? read == given : is_part_of(read, given), "\"{}\" of \"{}\"", read, given);
}

}  // namespace
}  // namespace megalith

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace megalith;
  Choices choices(text_of(data, size));
  const Start& start = start_of(choices.byte());
  const uint8_t seed = choices.byte();
  const std::string text(choices.rest());
  const auto ids = ids_of(text, qwen_vocabulary());
  const MessageOutput whole = start.read(ids);
  check_equal(whole, read_in_steps(*start.parser(), ids, start.reason, seed));
  check_calls(whole);
  check_nothing_is_lost(whole, ids);
  const auto is_added = [](int32_t id) { return qwen_vocabulary().is_added(id); };
  if (std::none_of(ids.begin(), ids.end(), is_added)) check_without_marks(start, whole, ids);
  // Nor does it matter how the text is cut into tokens.
  if (text.find(kNoMark) == text.npos && invalid_utf8(text) == text.npos && nfc(text) == text) {
    check_equal(whole, start.read(qwen_vocabulary().tokenizer.encode(text, Specials::recognised)));
  }
  return 0;
}
