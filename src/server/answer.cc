#include "server/answer.h"

#include <algorithm>
#include <chrono>
#include <ctime>
#include <exception>
#include <utility>

#include "base/check.h"
#include "server/api_error.h"
#include "server/json_reply.h"

namespace megalith {

using Json = nlohmann::ordered_json;

Answer::Answer(std::shared_ptr<Exchange> exchange, const Service& service, CommonFields fields, Names names)
    : exchange_(std::move(exchange)),
      service_(service),
      fields_(std::move(fields)),
      names_(names),
      id_(random_id(names.id_prefix)),
      created_(std::time(nullptr)) {}

void Answer::begin(const Prompts& prompts, const std::function<std::unique_ptr<Choice>()>& make_choice) {
  CHECK(!prompts.empty() && fields_.n >= 1, "{} prompts, {} choices of each", prompts.size(), fields_.n);
  const size_t n = prompts.size() * static_cast<size_t>(fields_.n);
  for (size_t i = 0; i < n; ++i) parts_.push_back(std::make_unique<Part>(*this, i, make_choice()));
  choices_ = std::vector<Json>(n);
  auto tickets = service_.generator.submit(make_jobs(prompts));
  {
    std::lock_guard lock(tickets_mutex_);
    tickets_ = std::move(tickets);
  }
  // One may have failed before the others could be named.
  if (cancelled_) cancel_all();
  exchange_->on_gone([weak = weak_from_this()] {
    if (const auto answer = weak.lock()) answer->cancel_all();
  });
  if (fields_.stream) open();
}

std::vector<Job> Answer::make_jobs(const Prompts& prompts) {
  std::vector<Job> jobs;
  for (const auto& prompt : prompts) {
    usage_.prompt += static_cast<int64_t>(prompt.size());
    const int64_t room = std::max<int64_t>(0, service_.context - static_cast<int64_t>(prompt.size()));
    for (int j = 0; j < fields_.n; ++j) {
      Request request = fields_.request;
      request.prompt = prompt;
      request.max_tokens = std::min(request.max_tokens, room);
      request.sampling.seed += static_cast<uint64_t>(j);
      jobs.push_back({.request = std::move(request),
                      .listener = std::shared_ptr<Listener>(shared_from_this(), parts_[jobs.size()].get()),
                      .request_id = exchange_->request().id,
                      .kind = names_.kind});
    }
  }
  return jobs;
}

bool Answer::take_tokens(Part& part, const Generation& generation, size_t first) {
  if (cancelled_) return true;  // the generator ends it
  if (fields_.stream) open();
  const bool more = part.choice->feed(generation, first);
  account(part, generation);
  if (fields_.stream) send_pieces(part, generation);
  return more;
}

void Answer::take_end(Part& part, const Generation& generation) {
  if (cancelled_) return;
  const Finish how = generation.finish;
  if (how == Finish::failed) {
    return fail(ApiError::internal(generation.error.empty() ? "The generation failed." : generation.error));
  }
  if (how == Finish::cancelled && !part.choice->stopped()) {
    return fail(ApiError::unavailable("The server cancelled the request before its end."));
  }
  try {
    end_choice(part, generation);
  } catch (const std::exception& error) {
    fail(ApiError::internal(error.what()));
  }
}

void Answer::end_choice(Part& part, const Generation& generation) {
  if (fields_.stream) open();
  part.choice->end(generation);
  account(part, generation);
  ++n_ended_;
  if (fields_.stream) {
    send_pieces(part, generation);
    send_end(part, generation);
  } else {
    choices_[part.index] = whole_choice(part, generation);
  }
  if (n_ended_ == parts_.size()) finish(generation);
}

void Answer::account(Part& part, const Generation& generation) {
  const size_t tokens = part.choice->tokens(), thoughts = part.choice->reasoning_tokens();
  usage_.completion += static_cast<int64_t>(tokens - std::exchange(part.counted, tokens));
  if (usage_.reasoning) *usage_.reasoning += static_cast<int64_t>(thoughts - std::exchange(part.counted_thoughts, thoughts));
  // As the prompt itself: once, however many choices it has.
  const bool first_of_prompt = part.index % static_cast<size_t>(fields_.n) == 0;
  if (first_of_prompt && !std::exchange(part.counted_cache, true)) usage_.cached += generation.cached;
}

void Answer::open() {
  std::lock_guard lock(mutex_);
  if (state_ != State::waiting) return;
  state_ = State::open;
  events_.emplace(exchange_, std::chrono::seconds(service_.defaults.ping_s));
  if (!begins_early()) return;
  for (const auto& part : parts_) {
    part->begun = true;
    begin_choice(*part, nullptr);
  }
}

void Answer::send_pieces(Part& part, const Generation& generation) {
  if (!std::exchange(part.begun, true)) begin_choice(part, &generation);
  for (const Piece& piece : part.choice->take_pieces()) {
    Json values = piece.tokens > part.sent ? logprobs(part, generation, part.sent, piece.tokens) : Json();
    send_chunk(part, &generation, chunk_text(&piece), std::move(values), piece.tokens);
  }
}

void Answer::send_end(Part& part, const Generation& generation) {
  const size_t last = part.choice->tokens();
  send_chunk(part, &generation, chunk_text(nullptr), logprobs(part, generation, part.sent, last), last, true);
}

void Answer::send_chunk(Part& part, const Generation* generation, const Json& text, Json logprobs, size_t last, bool ends) {
  Json choice = {{"index", part.index}};
  choice.update(text);
  choice["logprobs"] = std::move(logprobs);
  choice["finish_reason"] = nullptr;
  if (ends) add_end(choice, part);
  if (fields_.return_token_ids && generation) {
    if (!std::exchange(part.prompt_told, true)) choice["prompt_token_ids"] = generation->prompt;
    const int32_t* tokens = generation->tokens.data();
    choice["token_ids"] = std::vector<int32_t>(tokens + part.sent, tokens + last);
  }
  part.sent = last;
  Json chunk = envelope(names_.chunk_object, Json::array({std::move(choice)}));
  if (fields_.continuous_usage_stats) chunk["usage"] = usage_.json();
  if (ends && n_ended_ == parts_.size() && !fields_.include_usage) chunk["system_fingerprint"] = service_.fingerprint;
  events_->event(chunk);
}

Json Answer::whole_choice(Part& part, const Generation& generation) {
  Json choice = {{"index", part.index}};
  choice.update(whole_text(generation, part.choice->take_pieces()));
  choice["logprobs"] = whole_logprobs(part, generation);
  add_end(choice, part);
  if (fields_.return_token_ids) {
    choice["prompt_token_ids"] = generation.prompt;
    const int32_t* tokens = generation.tokens.data();
    choice["token_ids"] = std::vector<int32_t>(tokens, tokens + part.choice->tokens());
  }
  return choice;
}

void Answer::finish(const Generation& last) {
  if (set_ended() == State::ended) return;
  if (!fields_.stream) {
    Json reply = envelope(names_.object, std::move(choices_));
    add_summary(reply, last);
    return exchange_->reply(json_reply(reply));
  }
  if (fields_.include_usage) {
    Json chunk = envelope(names_.chunk_object, Json::array());
    add_summary(chunk, last);
    events_->event(chunk);
  }
  events_->done();
}

void Answer::fail(const ApiError& error) {
  const State before = set_ended();
  if (before == State::ended) return;
  if (before == State::open) {
    events_->error(error);
    events_->done();
  } else {
    exchange_->reply(error_reply(error));
  }
  cancel_all();
}

Answer::State Answer::set_ended() {
  std::lock_guard lock(mutex_);
  return std::exchange(state_, State::ended);
}

void Answer::cancel_all() {
  cancelled_ = true;
  std::vector<Generator::Ticket> tickets;
  {
    std::lock_guard lock(tickets_mutex_);
    tickets = tickets_;
  }
  for (const Generator::Ticket ticket : tickets) service_.generator.cancel(ticket);
}

void Answer::add_end(Json& choice, const Part& part) const {
  choice["finish_reason"] = finish_reason_name(part.choice->finish_reason());
  choice["stop_reason"] = part.choice->stop_reason();
}

Json Answer::envelope(const char* object, Json choices) const {
  return {{"id", id_},
          {"object", object},
          {"created", created_},
          {"model", service_.model_name},
          {"choices", std::move(choices)}};
}

void Answer::add_summary(Json& reply, const Generation& last) const {
  reply["usage"] = usage_.json();
  reply["system_fingerprint"] = service_.fingerprint;
  // Times of several texts at once are no times of the request.
  if (parts_.size() == 1) reply["metrics"] = metrics_json(last, service_.draft_guesses);
}

}  // namespace megalith
