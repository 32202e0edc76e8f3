#include "server/chat.h"

#include <utility>
#include <vector>

#include "server/answer.h"
#include "server/chat_choice.h"

namespace megalith {

namespace {

using Json = nlohmann::ordered_json;

// A call begins with its name; its arguments follow.
Json call_delta(const Piece& piece) {
  Json call = {{"index", piece.call}};
  if (piece.kind == Piece::Kind::call_begin) {
    call["id"] = piece.id;
    call["type"] = "function";
    call["function"] = {{"name", piece.text}, {"arguments", ""}};
  } else {
    call["function"] = {{"arguments", piece.text}};
  }
  return {{"tool_calls", Json::array({std::move(call)})}};
}

// The pieces of a whole answer, joined.
struct WholeMessage {
  explicit WholeMessage(const std::vector<Piece>& pieces) {
    for (const Piece& piece : pieces) add(piece);
  }

  void add(const Piece& piece) {
    switch (piece.kind) {
      case Piece::Kind::content:
        content += piece.text;
        break;
      case Piece::Kind::reasoning:
        reasoning += piece.text;
        break;
      case Piece::Kind::call_begin:
        calls.push_back({piece.id, piece.text, ""});
        break;
      case Piece::Kind::call_arguments:
        calls.back().arguments += piece.text;
        break;
    }
  }

  Json calls_json() const {
    Json list = Json::array();
    for (const CallOutput& call : calls) {
      list.push_back(
          {{"id", call.id}, {"type", "function"}, {"function", {{"name", call.name}, {"arguments", call.arguments}}}});
    }
    return list;
  }

  std::string content, reasoning;
  std::vector<CallOutput> calls;
};

class ChatAnswer : public Answer {
 public:
  ChatAnswer(std::shared_ptr<Exchange> exchange, const Service& service, const ChatCompletionRequest& request)
      : Answer(std::move(exchange), service, request.common, {"chatcmpl-", "chat.completion", "chat.completion.chunk", "chat"}),
        logprobs_(request.logprobs),
        top_logprobs_(request.top_logprobs) {
    count_reasoning();
  }

 private:
  bool begins_early() const override { return service().defaults.early_role_chunk; }

  void begin_choice(Part& part, const Generation* generation) override {
    send_chunk(part, generation, {{"delta", {{"role", "assistant"}}}}, nullptr, 0);
  }

  Json chunk_text(const Piece* piece) const override {
    Json delta = Json::object();
    if (!piece) return {{"delta", std::move(delta)}};
    switch (piece->kind) {
      case Piece::Kind::content:
        delta["content"] = piece->text;
        break;
      case Piece::Kind::reasoning:
        add_reasoning(delta, piece->text);
        break;
      case Piece::Kind::call_begin:
      case Piece::Kind::call_arguments:
        delta = call_delta(*piece);
        break;
    }
    return {{"delta", std::move(delta)}};
  }

  Json whole_text(const Generation&, const std::vector<Piece>& pieces) const override {
    const WholeMessage whole(pieces);
    Json message = {{"role", "assistant"}, {"content", whole.content}};
    if (!whole.reasoning.empty()) add_reasoning(message, whole.reasoning);
    if (!whole.calls.empty()) message["tool_calls"] = whole.calls_json();
    if (!whole.calls.empty() && whole.content.empty()) message["content"] = nullptr;
    return {{"message", std::move(message)}};
  }

  Json logprobs(const Part&, const Generation& generation, size_t first, size_t last) override {
    if (!logprobs_) return nullptr;
    return chat_logprobs(service().model.text.require_tokenizer(), generation, first, last, top_logprobs_);
  }

  void add_reasoning(Json& fields, const std::string& text) const {
    fields["reasoning_content"] = text;
    if (service().defaults.reasoning_alias) fields["reasoning"] = text;
  }

  const bool logprobs_;
  const int top_logprobs_;
};

}  // namespace

void answer_chat(const std::shared_ptr<Exchange>& exchange, const ChatCompletionRequest& request, const Service& service) {
  std::make_shared<ChatAnswer>(exchange, service, request)->begin({request.prompt}, [&] {
    return std::make_unique<ChatChoice>(request, service.model);
  });
}

}  // namespace megalith
