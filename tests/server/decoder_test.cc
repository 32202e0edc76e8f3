// The engine's thread: what listeners are told, and what ends a text.

#include "server/decoder.h"

#include <atomic>
#include <future>
#include <stdexcept>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/api_error.h"
#include "tests/support/golden.h"
#include "tests/support/loaded.h"
#include "tests/support/scratch.h"

namespace megalith {
namespace {

using std::chrono::milliseconds;

constexpr int kContext = 512;

// Runs another machine's steps until it is told to break.
class Breakable : public Machine {
 public:
  explicit Breakable(std::unique_ptr<Machine> machine) : machine_(std::move(machine)) {}

  std::atomic<bool> broken = false;
  std::atomic<int> step_ms = 0;  // that a step takes longer

  void load(const TapeSource& source, Progress* progress) override { machine_->load(source, progress); }
  void run(const StepArgs& args, std::vector<TaskSpan>* spans) override {
    if (broken) throw std::runtime_error("worker 1 waited 8 s");
    std::this_thread::sleep_for(milliseconds(step_ms));
    machine_->run(args, spans);
  }
  double draft_seconds() const override { return machine_->draft_seconds(); }
  std::span<const float> read(Value output) const override { return machine_->read(output); }
  std::vector<float> read_state(int state, int rank, int sequence, int positions) const override {
    return machine_->read_state(state, rank, sequence, positions);
  }
  int position_grain() const override { return machine_->position_grain(); }
  std::vector<std::byte> save(int sequence, StatePart part) const override { return machine_->save(sequence, part); }
  void restore(int sequence, StatePart part, std::span<const std::byte> saved) override {
    machine_->restore(sequence, part, saved);
  }
  const Program& program() const override { return machine_->program(); }
  const MachineOptions& options() const override { return machine_->options(); }
  std::string describe() const override { return machine_->describe(); }
  MemoryNeed memory() const override { return machine_->memory(); }
  std::string find_non_finite(const StepArgs& args) override { return machine_->find_non_finite(args); }

 private:
  std::unique_ptr<Machine> machine_;
};

// Keeps what it is told.
class Recorder : public Listener {
 public:
  explicit Recorder(size_t most = SIZE_MAX, bool throws = false) : most_(most), throws_(throws) {}

  bool on_tokens(const Generation& generation, size_t first) override {
    EXPECT_EQ(first, tokens.size());
    EXPECT_FALSE(ended_);
    tokens = generation.tokens;
    ++calls;
    if (throws_ && tokens.size() >= 3) throw std::runtime_error("no such character");
    return tokens.size() < most_;
  }
  void on_end(const Generation& generation) override {
    EXPECT_FALSE(ended_.exchange(true));
    finish = generation.finish;
    error = generation.error;
    end_.set_value();
  }
  bool wait() { return done_.wait_for(std::chrono::seconds(60)) == std::future_status::ready; }

  std::vector<int32_t> tokens;
  int calls = 0;
  Finish finish = Finish::running;
  std::string error;

 private:
  const size_t most_;
  const bool throws_;
  std::atomic<bool> ended_ = false;
  std::promise<void> end_;
  std::future<void> done_ = end_.get_future();
};

class DecoderTest : public testing::Test {
 protected:
  void start(DecoderOptions options = {}) {
    Loaded loaded = load_model(test_data("qwen-a/target"), 1,
                               {.threads = 2, .max_rows = 32, .max_sequences = 2, .context = kContext, .deadline_s = 30});
    vocabulary_ = loaded.model->vocabulary();
    machine = std::make_unique<Breakable>(std::move(loaded.machine));
    engine = std::make_unique<Engine>(*machine, vocabulary_, 32);
    decoder = std::make_unique<Decoder>(*engine, *machine, metrics, nullptr, std::move(options));
  }
  static Request request(int number, int64_t max_tokens) {
    return {.prompt = {1, 2, static_cast<int32_t>(number)}, .max_tokens = max_tokens, .sampling = {}, .end_tokens = {}};
  }
  std::pair<Generator::Ticket, std::shared_ptr<Recorder>> submit(Request r, std::shared_ptr<Recorder> recorder = nullptr,
                                                                 std::string id = "") {
    if (!recorder) recorder = std::make_shared<Recorder>();
    const auto tickets = decoder->submit({{std::move(r), recorder, std::move(id)}});
    return {tickets.at(0), recorder};
  }
  int refusal(Request r) {
    try {
      submit(std::move(r));
    } catch (const ApiError& error) {
      return error.status;
    }
    return 0;
  }
  int64_t vocabulary_ = 0;
  Metrics metrics{"test", kContext, 0};
  std::unique_ptr<Breakable> machine;
  std::unique_ptr<Engine> engine;
  std::unique_ptr<Decoder> decoder;
};

TEST_F(DecoderTest, EachListenerGetsTheTextThatItsRequestHasAlone) {
  start();
  std::vector<std::shared_ptr<Recorder>> recorders;
  for (int i = 0; i < 7; ++i) recorders.push_back(submit(request(i, 20 + i)).second);
  for (auto& r : recorders) ASSERT_TRUE(r->wait());
  EXPECT_EQ(decoder->served(), 7);
  decoder.reset();
  for (int i = 0; i < 7; ++i) {
    Engine alone(*machine, vocabulary_, 32);
    const auto id = alone.add(request(i, 20 + i));
    alone.run();
    EXPECT_EQ(recorders[static_cast<size_t>(i)]->tokens, alone.generation(id).tokens);
    EXPECT_EQ(recorders[static_cast<size_t>(i)]->finish, Finish::length);
    EXPECT_EQ(recorders[static_cast<size_t>(i)]->calls, 20 + i);
  }
}

TEST_F(DecoderTest, AListenerEndsItsTextAndNoOther) {
  start();
  auto [ticket, shortened] = submit(request(1, 400), std::make_shared<Recorder>(5));
  auto [other_ticket, whole] = submit(request(2, 30));
  ASSERT_TRUE(shortened->wait() && whole->wait());
  EXPECT_EQ(shortened->tokens.size(), 5u);
  EXPECT_EQ(shortened->finish, Finish::cancelled);
  EXPECT_EQ(whole->tokens.size(), 30u);
  EXPECT_NE(metrics.text().find("finished_reason=\"stop\"} 1\n"), std::string::npos);
}

TEST_F(DecoderTest, WhatAListenerThrowsEndsItsTextOnly) {
  start();
  auto [ticket, broken] = submit(request(1, 400), std::make_shared<Recorder>(SIZE_MAX, true));
  auto [other_ticket, whole] = submit(request(2, 30));
  ASSERT_TRUE(broken->wait() && whole->wait());
  EXPECT_EQ(broken->finish, Finish::failed);
  EXPECT_EQ(broken->error, "no such character");
  EXPECT_EQ(whole->finish, Finish::length);
  EXPECT_FALSE(decoder->failure());
}

TEST_F(DecoderTest, CancelledTextsEndWhetherTheyRunOrWait) {
  start();
  machine->step_ms = 2;
  std::vector<std::pair<Generator::Ticket, std::shared_ptr<Recorder>>> texts;
  for (int i = 0; i < 5; ++i) texts.push_back(submit(request(i, 400), nullptr, i == 3 ? "third" : ""));
  decoder->cancel(texts[0].first);
  decoder->cancel(texts[4].first);
  EXPECT_EQ(decoder->abort("third"), 1);
  EXPECT_EQ(decoder->abort("nobody"), 0);
  decoder->cancel(99);
  for (const size_t i : {0, 3, 4}) {
    ASSERT_TRUE(texts[i].second->wait());
    EXPECT_EQ(texts[i].second->finish, Finish::cancelled);
  }
  machine->step_ms = 0;
  for (const size_t i : {1, 2}) {
    ASSERT_TRUE(texts[i].second->wait());
    EXPECT_EQ(texts[i].second->tokens.size(), 400u);
  }
}

TEST_F(DecoderTest, AFullQueueRefusesAndTakesAgainWhenThereIsRoom) {
  start({.max_queue = 2});
  machine->step_ms = 5;
  std::vector<std::pair<Generator::Ticket, std::shared_ptr<Recorder>>> texts;
  for (int i = 0; i < 2; ++i) texts.push_back(submit(request(i, 400)));
  while (decoder->load() != std::pair<int64_t, int64_t>(2, 0)) std::this_thread::sleep_for(milliseconds(1));
  for (int i = 2; i < 4; ++i) texts.push_back(submit(request(i, 400)));
  EXPECT_EQ(refusal(request(4, 4)), 429);
  for (auto& [ticket, recorder] : texts) decoder->cancel(ticket);
  for (auto& [ticket, recorder] : texts) ASSERT_TRUE(recorder->wait());
  EXPECT_EQ(refusal(request(5, 4)), 0);
}

TEST_F(DecoderTest, AWrongRequestIsRefusedBeforeItIsQueued) {
  start();
  EXPECT_THROW(submit(Request{.prompt = {}, .sampling = {}, .end_tokens = {}}), Error);
  EXPECT_THROW(submit(Request{.prompt = {-1}, .sampling = {}, .end_tokens = {}}), Error);
  EXPECT_EQ(decoder->load(), (std::pair<int64_t, int64_t>(0, 0)));
}

TEST_F(DecoderTest, DrainingFinishesWhatIsOpenAndEndsWhatTakesTooLong) {
  start();
  auto [ticket, quick] = submit(request(1, 10));
  decoder->stop_accepting();
  EXPECT_EQ(refusal(request(2, 10)), 503);
  EXPECT_EQ(decoder->drain(std::chrono::seconds(60)), 0);
  EXPECT_EQ(quick->finish, Finish::length);

  start();
  machine->step_ms = 20;
  auto [slow_ticket, slow] = submit(request(1, 500));
  decoder->stop_accepting();
  EXPECT_EQ(decoder->drain(milliseconds(50)), 1);
  ASSERT_TRUE(slow->wait());
  EXPECT_EQ(slow->finish, Finish::cancelled);
}

TEST_F(DecoderTest, ATextThatTakesTooLongFailsWithTheFlagsName) {
  start({.request_timeout_s = 0.1});
  machine->step_ms = 10;
  auto [ticket, recorder] = submit(request(1, 500));
  ASSERT_TRUE(recorder->wait());
  EXPECT_EQ(recorder->finish, Finish::failed);
  EXPECT_THAT(recorder->error, testing::HasSubstr("--request-timeout"));
  EXPECT_EQ(refusal(request(2, 1)), 0);
}

TEST_F(DecoderTest, ADeadMachineEndsAllTextsAndRefusesNewOnes) {
  start();
  machine->step_ms = 2;
  std::vector<std::shared_ptr<Recorder>> recorders;
  for (int i = 0; i < 4; ++i) recorders.push_back(submit(request(i, 500)).second);
  machine->broken = true;
  for (auto& r : recorders) {
    ASSERT_TRUE(r->wait());
    EXPECT_EQ(r->finish, Finish::failed);
    EXPECT_EQ(r->error, "worker 1 waited 8 s");
  }
  EXPECT_EQ(decoder->failure(), "worker 1 waited 8 s");
  EXPECT_EQ(refusal(request(5, 1)), 503);
  EXPECT_EQ(decoder->drain(milliseconds(0)), 0);
}

TEST_F(DecoderTest, TextsThatAreOpenAtItsEndAreCancelled) {
  start();
  machine->step_ms = 5;
  auto [ticket, recorder] = submit(request(1, 500));
  decoder.reset();
  EXPECT_EQ(recorder->finish, Finish::cancelled);
}

TEST_F(DecoderTest, ATraceOfTheFirstStepsIsWrittenOnce) {
  const Scratch scratch;
  const auto file = scratch.path() / "trace.json";
  start({.trace_steps = 3, .trace_file = file});
  for (int i = 0; i < 2; ++i) ASSERT_TRUE(submit(request(i, 10)).second->wait());
  const auto json = read_json(file);
  EXPECT_GT(json.at("traceEvents").size(), 10u);
}

}  // namespace
}  // namespace megalith
