#pragma once

// Text to tokens and back, as requests and replies.

#include "server/http.h"
#include "server/service.h"

namespace megalith {

// POST /tokenize: a text, or messages as a chat would send them to the model.
HttpReply tokenize(const HttpRequest& request, const Service& service);
// POST /detokenize
HttpReply detokenize(const HttpRequest& request, const Service& service);
// GET /tokenizer_info: the model's special tokens and chat template, as its directory names them.
HttpReply tokenizer_info(const HttpRequest& request, const Service& service);
// POST /apply-template: the text of a chat's prompt.
HttpReply apply_template(const HttpRequest& request, const Service& service);

}  // namespace megalith
