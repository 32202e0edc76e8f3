#pragma once

// What a request's texts and messages are as tokens.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "server/request_fields.h"
#include "server/service.h"
#include "text/chat.h"

namespace megalith {

// The model's, or an ApiError that it has none.
const Tokenizer& tokenizer_of(const Service& service);
const ChatFormat& chat_format_of(const Service& service);

// Token ids that the model takes are below this.
int64_t vocabulary_of(const Service& service);

// Raw text. Control tokens that are spelled in it are recognised; the token that texts begin with is put first, where the
// model has one.
std::vector<int32_t> text_prompt(const Service& service, std::string_view text);
// Messages in the model's chat format. Control tokens that are spelled in them stay text.
std::vector<int32_t> chat_prompt(const Service& service, const ChatRequest& chat);

// Of one request, all prompts together.
inline constexpr int64_t kMostChoices = 1024;
void require_few_choices(int64_t choices);

// The prompts of a completion: a text, a list of token ids, or a list of texts or of such lists. None is
// empty, and there are at most kMostChoices.
std::vector<std::vector<int32_t>> read_prompts(const RequestFields& fields, const Service& service);

// ApiError with the code context_length_exceeded where the context has no room for a prompt, and for a token after it
// unless max_tokens is 0. `field`: that the prompt came from.
void require_room(const std::vector<int32_t>& prompt, int64_t max_tokens, const Service& service, const char* field);

// ApiError for the name of another model, where the service is strict about it.
void check_model_name(const RequestFields& fields, const Service& service);

}  // namespace megalith
