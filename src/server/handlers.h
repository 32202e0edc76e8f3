#pragma once

// The routes of a loaded model.

#include "server/router.h"
#include "server/service.h"

namespace megalith {

// /v1/completions, /v1/chat/completions
void add_completion_routes(Router& router, const Service& service);
void add_chat_routes(Router& router, const Service& service);
// /tokenize, /detokenize, /tokenizer_info, /apply-template
void add_text_routes(Router& router, const Service& service);

}  // namespace megalith
