#pragma once

// Reads answers written in Kimi K3's format: channels of thoughts and of content, and a channel of calls.

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "text/output_parser.h"
#include "text/tokenizer.h"

namespace megalith {

inline constexpr std::string_view kKimiK3Open = "<|open|>";
inline constexpr std::string_view kKimiK3Close = "<|close|>";
inline constexpr std::string_view kKimiK3Sep = "<|sep|>";
inline constexpr std::string_view kKimiK3End = "<|end_of_msg|>";
inline constexpr std::string_view kKimiK3TextEnd = "[EOS]";

// Where an answer begins; the prompt decides it.
struct KimiK3Start {
  enum class Channel { none, think, response };
  Channel channel = Channel::none;
  std::vector<std::string> used_call_ids = {};  // of the calls in the conversation; new ones count on
};

// Only the marks' ids are structure; text that spells them, and tags' names in prose, are text. Channels may come in
// any order, and what follows ends one that was left open. Text outside all channels is content, but for blanks at its
// beginning. A call is given out once it is complete; one that was cut off, or has not the form of a call, is content,
// as its name and arguments. Error when the vocabulary lacks one of the marks.
std::unique_ptr<OutputParser> make_kimi_k3_parser(const Tokenizer& tokenizer, KimiK3Start start);

}  // namespace megalith
