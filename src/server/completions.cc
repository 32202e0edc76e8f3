#include "server/completions.h"

#include <utility>
#include <vector>

#include "server/answer.h"
#include "server/text_choice.h"

namespace megalith {

namespace {

class CompletionAnswer : public Answer {
 public:
  CompletionAnswer(std::shared_ptr<Exchange> exchange, const Service& service, const CompletionRequest& request)
      : Answer(std::move(exchange), service, request.common, {"cmpl-", "text_completion", "text_completion", "completion"}),
        echo_(request.echo) {
    if (!request.logprobs) return;
    const size_t n = request.prompts.size() * static_cast<size_t>(fields().n);
    logprobs_.assign(n, CompletionLogprobs(service.model.text.require_tokenizer(), *request.logprobs));
  }

 private:
  void begin_choice(Part& part, const Generation* generation) override {
    if (!echo_) return;
    Json values;
    if (!logprobs_.empty()) {
      logprobs_[part.index].add_prompt(*generation);
      values = logprobs_[part.index].take();
    }
    send_chunk(part, generation, {{"text", prompt_text(*generation)}}, std::move(values), 0);
  }

  Json chunk_text(const Piece* piece) const override { return {{"text", piece ? piece->text : ""}}; }

  Json whole_text(const Generation& generation, const std::vector<Piece>& pieces) const override {
    std::string text = echo_ ? prompt_text(generation) : "";
    for (const Piece& piece : pieces) text += piece.text;
    return {{"text", std::move(text)}};
  }

  Json logprobs(const Part& part, const Generation& generation, size_t first, size_t last) override {
    if (logprobs_.empty()) return nullptr;
    logprobs_[part.index].add_tokens(generation, first, last);
    return logprobs_[part.index].take();
  }

  Json whole_logprobs(const Part& part, const Generation& generation) override {
    if (echo_ && !logprobs_.empty()) logprobs_[part.index].add_prompt(generation);
    return logprobs(part, generation, 0, part.choice->tokens());
  }

  std::string prompt_text(const Generation& generation) const {
    return service().model.text.require_tokenizer().decode(generation.prompt, fields().skip_special_tokens);
  }

  const bool echo_;
  std::vector<CompletionLogprobs> logprobs_;  // of each choice; none where they are not asked for
};

}  // namespace

void answer_completion(const std::shared_ptr<Exchange>& exchange, const CompletionRequest& request, const Service& service) {
  std::make_shared<CompletionAnswer>(exchange, service, request)->begin(request.prompts, [&] {
    return std::make_unique<TextChoice>(request.common, service.model);
  });
}

}  // namespace megalith
