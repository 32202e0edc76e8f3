#pragma once

// Bodies of /v1/completions and /v1/chat/completions, read and checked.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "engine/engine.h"
#include "server/service.h"
#include "text/chat.h"

namespace megalith {

// Fields that both have.
struct CommonFields {
  Request request;  // without a prompt: budget (before it is cut to the context), sampling with a seed, penalties, …
  int n = 1;        // choices of each prompt; choice j of a prompt draws with seed + j
  std::vector<std::string> stop;
  bool include_stop = false;         // include_stop_str_in_output
  bool skip_special_tokens = false;  // completions: control tokens are no part of the text
  bool stream = false;
  bool include_usage = false;          // stream_options
  bool continuous_usage_stats = false;  // stream_options
  bool return_token_ids = false;
};

struct CompletionRequest {
  CommonFields common;
  std::vector<std::vector<int32_t>> prompts;
  bool echo = false;
  std::optional<int> logprobs;  // alternatives at each place
};

struct ChatCompletionRequest {
  CommonFields common;
  ChatRequest chat;
  std::vector<int32_t> prompt;
  bool logprobs = false;
  int top_logprobs = 0;
  bool parallel_tool_calls = true;
};

// Throw Error or ApiError with the field; a prompt that the context has no room for has code context_length_exceeded.
// Unknown fields are ignored. The returned requests carry their constraint, their budget and everything else but the prompt.
CompletionRequest parse_completion_request(const nlohmann::ordered_json& body, const Service& service);
ChatCompletionRequest parse_chat_completion_request(const nlohmann::ordered_json& body, const Service& service);

}  // namespace megalith
