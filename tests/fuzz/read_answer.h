#pragma once

// Answers of models: their tokens, reading them in steps of any size, and comparing them.

#include <algorithm>
#include <random>
#include <span>
#include <vector>

#include <nlohmann/json.hpp>

#include "base/check.h"
#include "tests/fuzz/vocabulary.h"
#include "text/output_parser.h"
#include "text/utf8_stream.h"

namespace megalith {

// A byte that is left out; a mark with one in it stays text.
inline constexpr char kNoMark = '\xff';

// A mark that a text spells is the mark's token, every other byte a token of its own.
inline std::vector<int32_t> ids_of(std::string_view text, const Vocabulary& vocabulary) {
  std::vector<int32_t> ids;
  while (!text.empty()) {
    const bool may_begin = text[0] == '<' || text[0] == '[';
    const auto mark = vocabulary.added.find(text.substr(0, may_begin ? text.find_first_of(">]") + 1 : 0));
    const bool is_mark = mark != vocabulary.added.end();
    const int32_t id = is_mark ? mark->second : vocabulary.of_byte[static_cast<uint8_t>(text[0])];
    if (id >= 0 && text[0] != kNoMark) ids.push_back(id);
    text.remove_prefix(is_mark ? mark->first.size() : 1);
  }
  return ids;
}

inline void check_event(const OutputEvent& event, const MessageOutput& before) {
  using Kind = OutputEvent::Kind;
  const bool text = event.kind == Kind::reasoning || event.kind == Kind::content;
  CHECK(!text || !event.text.empty(), "an event without text");
  CHECK(invalid_utf8(event.text) == std::string::npos, "not UTF-8");
  const auto calls = static_cast<int32_t>(before.tool_calls.size());
  if (event.kind == Kind::call_begin) CHECK(event.call == calls, "call {} after {}", event.call, calls);
  if (event.kind == Kind::call_arguments) CHECK(event.call == calls - 1, "arguments of {} of {}", event.call, calls);
}

// The steps are of 0 to 7 tokens, as `seed` has them.
inline MessageOutput read_in_steps(OutputParser& parser, std::span<const int32_t> ids, FinishReason reason,
                                   uint8_t seed) {
  MessageOutput message;
  const auto add = [&](const std::vector<OutputEvent>& events) {
    for (const OutputEvent& event : events) {
      check_event(event, message);
      message.add(event);
    }
  };
  std::minstd_rand random(seed);
  for (size_t at = 0; at < ids.size();) {
    const size_t count = std::min<size_t>(random() % 8, ids.size() - at);
    add(parser.feed(ids.subspan(at, count)));
    at += count;
  }
  const auto last = parser.finish(reason);
  CHECK(!last.empty() && last.back().kind == OutputEvent::Kind::finish, "{} events at the end", last.size());
  add(last);
  return message;
}

inline void check_equal(const MessageOutput& a, const MessageOutput& b) {
  CHECK(a.reasoning_content == b.reasoning_content, "other thoughts");
  CHECK(a.content == b.content, "\"{}\" and \"{}\"", a.content, b.content);
  CHECK(a.tool_calls == b.tool_calls, "other calls");
  CHECK(a.finish_reason == b.finish_reason, "another end");
}

inline void check_calls(const MessageOutput& message) {
  for (const CallOutput& call : message.tool_calls) {
    CHECK(!call.name.empty() && !call.id.empty(), "a call without a name");
    CHECK(nlohmann::json::parse(call.arguments, nullptr, false).is_object(), "{} is no object", call.arguments);
  }
}

}  // namespace megalith
