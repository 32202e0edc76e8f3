#pragma once

// The answer to one request for text: from its choices, as the engine writes them, to a JSON reply or a stream of events.

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "server/choice.h"
#include "server/generation_request.h"
#include "server/generator.h"
#include "server/http.h"
#include "server/reply_json.h"
#include "server/service.h"
#include "server/sse.h"

namespace megalith {

// Kept alive by the generator, through the listeners of texts that have not ended; the exchange only knows it weakly. All
// that a listener hears comes on one thread, so only what the request's own thread and a client that goes have to do with
// is locked.
class Answer : public std::enable_shared_from_this<Answer> {
 public:
  virtual ~Answer() = default;
  Answer(const Answer&) = delete;
  Answer& operator=(const Answer&) = delete;

  using Prompts = std::vector<std::vector<int32_t>>;

  // Submits `n` texts for each prompt: choice prompt * n + j draws with seed + j. The client's leaving ends them. Throws
  // what Generator::submit throws; then nothing has been sent.
  void begin(const Prompts& prompts, const std::function<std::unique_ptr<Choice>()>& make_choice);

 protected:
  using Json = nlohmann::ordered_json;

  // How the two kinds of answers are named.
  struct Names {
    const char* id_prefix;
    const char* object;        // of a whole answer
    const char* chunk_object;  // of one event
    const char* kind;          // in the request log
  };

  class Part : public Listener {
   public:
    Part(Answer& answer, size_t index, std::unique_ptr<Choice> choice)
        : index(index), choice(std::move(choice)), answer_(answer) {}
    bool on_tokens(const Generation& generation, size_t first) override {
      return answer_.take_tokens(*this, generation, first);
    }
    void on_end(const Generation& generation) override { answer_.take_end(*this, generation); }

    const size_t index;
    const std::unique_ptr<Choice> choice;
    bool begun = false;                         // its first chunk was sent
    bool prompt_told = false;                   // a chunk had the prompt's ids
    size_t sent = 0;                            // tokens that chunks have told of
    size_t counted = 0, counted_thoughts = 0;   // tokens in the usage
    bool counted_cache = false;

   private:
    Answer& answer_;
  };

  Answer(std::shared_ptr<Exchange> exchange, const Service& service, CommonFields fields, Names names);

  // Whether a stream begins before anything was generated; begin_choice() then has no generation.
  virtual bool begins_early() const { return false; }
  // Sends what a choice's stream begins with.
  virtual void begin_choice(Part& part, const Generation* generation) = 0;
  // What a chunk has of a choice: the text or the delta; null: nothing, as in the last chunk.
  virtual Json chunk_text(const Piece* piece) const = 0;
  // What a whole answer has of a choice: the text or the message.
  virtual Json whole_text(const Generation& generation, const std::vector<Piece>& pieces) const = 0;
  // The values for generated tokens [first, last), which follow those of the last call; null where they are not asked for.
  virtual Json logprobs(const Part& part, const Generation& generation, size_t first, size_t last) = 0;
  // The same for a whole answer.
  virtual Json whole_logprobs(const Part& part, const Generation& generation) {
    return logprobs(part, generation, 0, part.choice->tokens());
  }

  // Sends one chunk of a choice, which tells of its tokens before `last`. `ends`: it is the choice's last.
  void send_chunk(Part& part, const Generation* generation, const Json& text, Json logprobs, size_t last, bool ends = false);

  const Service& service() const { return service_; }
  const CommonFields& fields() const { return fields_; }
  // A chat's thoughts are told apart in the usage.
  void count_reasoning() { usage_.reasoning = 0; }

 private:
  enum class State { waiting, open, ended };

  std::vector<Job> make_jobs(const Prompts& prompts);
  bool take_tokens(Part& part, const Generation& generation, size_t first);
  void take_end(Part& part, const Generation& generation);
  void end_choice(Part& part, const Generation& generation);
  void account(Part& part, const Generation& generation);
  void open();
  void send_pieces(Part& part, const Generation& generation);
  void send_end(Part& part, const Generation& generation);
  Json whole_choice(Part& part, const Generation& generation);
  void finish(const Generation& last);
  void fail(const ApiError& error);
  State set_ended();
  void cancel_all();
  void add_end(Json& choice, const Part& part) const;
  // The fields of every reply, and the choices.
  Json envelope(const char* object, Json choices) const;
  // Those at the end of an answer.
  void add_summary(Json& reply, const Generation& last) const;

  const std::shared_ptr<Exchange> exchange_;
  const Service& service_;
  const CommonFields fields_;
  const Names names_;
  const std::string id_;
  const int64_t created_;
  std::optional<EventStream> events_;
  std::vector<std::unique_ptr<Part>> parts_;
  Json choices_ = Json::array();  // of a whole answer
  size_t n_ended_ = 0;
  Usage usage_;

  // Of the state; also held while a stream begins, so that nothing is sent before its headers.
  std::mutex mutex_;
  State state_ = State::waiting;

  // Not held while anything is called: a client may go while something is sent to it.
  std::mutex tickets_mutex_;
  std::vector<Generator::Ticket> tickets_;
  std::atomic<bool> cancelled_ = false;
};

}  // namespace megalith
