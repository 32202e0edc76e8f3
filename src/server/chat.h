#pragma once

#include <memory>

#include "server/generation_request.h"
#include "server/http.h"
#include "server/service.h"

namespace megalith {

// Answers a chat that was read already. Returns before the answer is complete. Throws ApiError or Error
// where the generator takes no more; nothing has been sent then.
void answer_chat(const std::shared_ptr<Exchange>& exchange, const ChatCompletionRequest& request, const Service& service);

}  // namespace megalith
