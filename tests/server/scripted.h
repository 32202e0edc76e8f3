#pragma once

// A generator that says what a test wrote for it, and an exchange that keeps what was sent.

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "server/api_error.h"
#include "server/generator.h"
#include "server/http.h"
#include "server/service.h"
#include "tests/engine/tiny_model.h"

namespace megalith {

using Json = nlohmann::ordered_json;

// One text: its tokens come in bursts of so many; the last number counts on.
struct Script {
  std::vector<int32_t> tokens;
  std::vector<size_t> bursts = {1};
  Finish finish = Finish::length;
  std::vector<Logprobs> logprobs = {}, prompt_logprobs = {};
  int64_t cached = 0;
  std::string error = {};
  size_t fails_after = SIZE_MAX;  // tokens; then it fails with the error
};

class ScriptedGenerator : public Generator {
 public:
  // For the texts in the order in which they are submitted.
  std::vector<Script> scripts;
  // Texts are written while submit() runs.
  bool at_once = false;
  // Or by a thread that submit() starts.
  bool own_thread = false;

  ~ScriptedGenerator() override { join(); }

  std::vector<Ticket> submit(std::vector<Job> jobs) override {
    std::vector<Ticket> tickets;
    for (Job& job : jobs) {
      requests.push_back(job.request);
      Text text{.script = scripts.at(texts_.size()), .listener = std::move(job.listener)};
      text.generation.prompt = job.request.prompt;
      text.generation.prompt_logprobs = text.script.prompt_logprobs;
      text.generation.cached = text.script.cached;
      text.generation.queue_s = 0.5;
      text.generation.prefill_s = 0.25;
      tickets.push_back(static_cast<Ticket>(texts_.size()));
      texts_.push_back(std::move(text));
    }
    if (at_once) run();
    if (own_thread) thread_ = std::thread([this] { run(); });
    return tickets;
  }
  void join() {
    if (thread_.joinable()) thread_.join();
  }

  int64_t abort(const std::string&) override { return 0; }
  void cancel(Ticket ticket) override {
    std::lock_guard lock(mutex_);
    cancelled_.insert(ticket);
  }

  // The next burst of every text that has not ended; false: there is none.
  bool step() {
    bool any = false;
    for (size_t i = 0; i < texts_.size(); ++i) any = step_text(static_cast<Ticket>(i)) || any;
    return any;
  }
  void run() {
    while (step()) {
    }
  }

  bool is_cancelled(Ticket ticket) {
    std::lock_guard lock(mutex_);
    return cancelled_.contains(ticket);
  }
  // What a text has come to.
  const Generation& generation(size_t i) const { return texts_.at(i).generation; }

  std::vector<Request> requests;

 private:
  struct Text {
    Script script;
    std::shared_ptr<Listener> listener;
    Generation generation = {};
    size_t burst = 0;
  };

  bool step_text(Ticket ticket) {
    Text& text = texts_[static_cast<size_t>(ticket)];
    if (!text.listener) return false;
    Generation& g = text.generation;
    if (is_cancelled(ticket)) return end(text, Finish::cancelled);
    const size_t first = g.tokens.size();
    if (first >= text.script.fails_after) {
      g.error = text.script.error;
      return end(text, Finish::failed);
    }
    const size_t all = text.script.tokens.size();
    const size_t burst = text.script.bursts[std::min(text.burst++, text.script.bursts.size() - 1)];
    while (g.tokens.size() < std::min(all, first + burst)) {
      if (!text.script.logprobs.empty()) g.logprobs.push_back(text.script.logprobs.at(g.tokens.size()));
      g.tokens.push_back(text.script.tokens[g.tokens.size()]);
    }
    g.decode_s = 0.001 * static_cast<double>(g.tokens.size());
    const bool last = g.tokens.size() == all && text.script.fails_after == SIZE_MAX;
    if (last) g.finish = text.script.finish;
    if (all == 0) return end(text, g.finish);
    try {
      if (!text.listener->on_tokens(g, first)) return end(text, last ? g.finish : Finish::cancelled);
    } catch (const std::exception& error) {
      g.error = error.what();
      return end(text, Finish::failed);
    }
    return last ? end(text, g.finish) : true;
  }

  bool end(Text& text, Finish how) {
    text.generation.finish = how;
    text.listener->on_end(text.generation);
    text.listener.reset();
    return true;
  }

  std::vector<Text> texts_;
  std::thread thread_;
  std::mutex mutex_;
  std::set<Ticket> cancelled_;
};

class RecordingExchange : public Exchange {
 public:
  const HttpRequest& request() const override { return request_; }

  void reply(HttpReply reply) override {
    std::lock_guard lock(mutex_);
    EXPECT_FALSE(replied || begun) << "a second answer";
    replied = true;
    if (!left_) last_reply = std::move(reply);
  }
  void begin_stream(int status, std::string content_type, Headers) override {
    std::lock_guard lock(mutex_);
    EXPECT_FALSE(replied || begun) << "a second answer";
    EXPECT_EQ(status, 200);
    EXPECT_EQ(content_type, "text/event-stream");
    begun = true;
  }
  void send(std::string piece) override {
    {
      std::lock_guard lock(mutex_);
      EXPECT_TRUE(begun && !ended);
      if (!left_) sent += piece;
    }
    if (leaves_on_send) leave();
  }
  void end() override {
    std::lock_guard lock(mutex_);
    EXPECT_TRUE(begun && !ended);
    ended = true;
  }
  void on_gone(std::function<void()> gone) override {
    bool now = false;
    {
      std::lock_guard lock(mutex_);
      gone_ = std::move(gone);
      now = left_;
    }
    if (now) gone_();
  }

  // The client closes its connection.
  void leave() {
    std::function<void()> gone;
    {
      std::lock_guard lock(mutex_);
      if (std::exchange(left_, true)) return;
      gone = gone_;
    }
    if (gone) gone();
  }

  // The body of a whole answer.
  Json body() const {
    EXPECT_TRUE(replied);
    return Json::parse(last_reply.body);
  }
  // What came in a stream that ended as it should.
  std::vector<Json> events() const {
    EXPECT_TRUE(ended) << "the stream has not ended";
    std::vector<Json> list;
    size_t at = 0;
    while (at < sent.size()) {
      const size_t end = sent.find("\n\n", at);
      EXPECT_NE(end, std::string::npos);
      EXPECT_EQ(sent.substr(at, 6), "data: ");
      const std::string data = sent.substr(at + 6, end - at - 6);
      at = end + 2;
      if (data == "[DONE]") {
        EXPECT_EQ(at, sent.size()) << "something after [DONE]";
        return list;
      }
      list.push_back(Json::parse(data));
    }
    ADD_FAILURE() << "no [DONE]";
    return list;
  }

  bool replied = false, begun = false, ended = false;
  bool leaves_on_send = false;
  HttpReply last_reply;
  std::string sent;

 private:
  HttpRequest request_;
  std::mutex mutex_;
  bool left_ = false;
  std::function<void()> gone_;
};

// A loaded model, once for all tests.
inline const LoadedModel& tiny_qwen() {
  static const LoadedModel model = load_tiny("tiny-qwen", 1);
  return model;
}
inline const LoadedModel& tiny_kimi() {
  static const LoadedModel model = load_tiny("tiny-kimi", 1);
  return model;
}

// A service whose generator follows scripts.
struct ScriptedService {
  explicit ScriptedService(const LoadedModel& model, std::vector<Script> scripts = {})
      : service{.model = model,
                .model_name = "served",
                .fingerprint = "megalith-test",
                .context = 100'000,
                .generator = generator} {
    generator.scripts = std::move(scripts);
  }

  ScriptedGenerator generator;
  Service service;
};

inline std::vector<int32_t> ids_of(const LoadedModel& model, const std::string& text) {
  return model.text.tokenizer->encode(text, Specials::recognised);
}

// The deltas of one choice of a stream, put together into what a whole answer has.
inline Json joined_choice(const std::vector<Json>& events, int index) {
  Json all = Json::object();
  const auto append = [](Json& to, const std::string& key, const Json& value) {
    if (value.is_string()) to[key] = (to.contains(key) ? to[key].get<std::string>() : "") + value.get<std::string>();
    if (!value.is_array()) return;
    if (!to.contains(key)) to[key] = Json::array();
    for (const auto& one : value) to[key].push_back(one);
  };
  for (const Json& event : events) {
    for (const Json& choice : event["choices"]) {
      if (choice["index"] != index) continue;
      EXPECT_FALSE(all.contains("finish_reason")) << "a chunk after the last";
      if (choice.contains("text")) append(all, "text", choice["text"]);
      const Json delta = choice.value("delta", Json::object());
      for (const auto& [key, value] : delta.items()) {
        if (key != "tool_calls") {
          append(all["message"], key, value);
          continue;
        }
        for (const Json& call : value) {
          Json& calls = all["message"]["tool_calls"];
          if (call.contains("id")) {
            calls.push_back({{"id", call["id"]}, {"type", call["type"]}, {"function", call["function"]}});
          } else {
            append(calls.at(call["index"].get<size_t>())["function"], "arguments", call["function"]["arguments"]);
          }
        }
      }
      if (choice["logprobs"].is_object()) {
        for (const auto& [key, value] : choice["logprobs"].items()) append(all["logprobs"], key, value);
      }
      for (const char* key : {"token_ids", "prompt_token_ids"}) {
        if (choice.contains(key)) append(all, key, choice[key]);
      }
      if (!choice["finish_reason"].is_null()) {
        all["finish_reason"] = choice["finish_reason"];
        all["stop_reason"] = choice["stop_reason"];
      }
    }
  }
  return all;
}

}  // namespace megalith
