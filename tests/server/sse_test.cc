#include "server/sse.h"

#include <future>
#include <optional>

#include <gtest/gtest.h>

#include "tests/server/raw_client.h"

namespace megalith {
namespace {

using namespace std::chrono_literals;
using Json = nlohmann::ordered_json;
using Shared = std::shared_ptr<Exchange>;

// A server whose one request the test answers.
class Events : public testing::Test {
 protected:
  Events() : client_(server_.address()) {
    client_.send("POST / HTTP/1.1\r\n\r\n");
    exchange_ = given_.get_future().get();
  }

  std::promise<Shared> given_;
  HttpServer server_{{.bind = "127.0.0.1:0"}, [this](const Shared& exchange) { given_.set_value(exchange); }};
  RawClient client_;
  Shared exchange_;
};

TEST_F(Events, EachIsOneChunkOfOneLine) {
  EventStream stream(exchange_, 0ms, {{"X-More", "1"}});
  stream.event({{"text", "a\nb\r\n\u2028é"}});
  stream.comment("wait\n\nhere");
  stream.event(Json{{"text", "bad \xff\xc3"}});
  stream.error(ApiError(500, "server_error", "It broke.\n\n"));
  stream.done();
  stream.event("late");
  stream.done();
  const RawReply reply = client_.read();
  EXPECT_EQ(reply.status, 200);
  EXPECT_TRUE(reply.complete);
  EXPECT_EQ(reply.header("content-type"), "text/event-stream");
  EXPECT_EQ(reply.header("cache-control"), "no-cache");
  EXPECT_EQ(reply.header("x-accel-buffering"), "no");
  EXPECT_EQ(reply.header("x-more"), "1");
  const std::vector<std::string> expected = {
      "data: {\"text\":\"a\\nb\\r\\n\u2028é\"}\n\n",
      ": wait  here\n\n",
      "data: {\"text\":\"bad \ufffd\ufffd\"}\n\n",
      "data: {\"error\":{\"message\":\"It broke.\\n\\n\",\"type\":\"server_error\",\"param\":null,\"code\":null}}\n\n",
      "data: [DONE]\n\n",
  };
  EXPECT_EQ(reply.chunks, expected);
}

TEST_F(Events, SilenceIsFilledWithPingsUntilTheEnd) {
  EventStream stream(exchange_, 100ms);
  client_.read_until("\r\n\r\n");
  for (int i = 0; i < 2; ++i) EXPECT_EQ(client_.read_until("\n\n\r\n"), "8\r\n: ping\n\n\r\n");
  stream.event(1);
  EXPECT_EQ(client_.read_until("\n\n\r\n"), "9\r\ndata: 1\n\n\r\n");
  EXPECT_EQ(client_.read_until("\n\n\r\n"), "8\r\n: ping\n\n\r\n");
  stream.done();
  EXPECT_EQ(client_.read_until("0\r\n\r\n"), "e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n");
  EXPECT_TRUE(client_.silent(300ms));
}

TEST_F(Events, PingsKeepNothingAliveOnceTheClientHasGone) {
  std::weak_ptr<Exchange> watched = exchange_;
  std::promise<void> gone;
  exchange_->on_gone([&] { gone.set_value(); });
  {
    EventStream stream(std::move(exchange_), 20ms);
    given_ = {};
    client_.close();
    EXPECT_EQ(gone.get_future().wait_for(20s), std::future_status::ready);
    stream.event("nobody reads this");
    stream.done();
  }
  EXPECT_TRUE(watched.expired());
  EXPECT_TRUE(server_.drain(20s));
}

TEST_F(Events, ThreadsMaySendAndEndAtOnce) {
  EventStream stream(exchange_, 1ms);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&stream, t] {
      for (int i = 0; i < 100; ++i) stream.event(t);
      if (t == 0) stream.done();
    });
  }
  for (auto& thread : threads) thread.join();
  const RawReply reply = client_.read();
  EXPECT_TRUE(reply.complete);
  EXPECT_GE(reply.chunks.size(), 101U);
  EXPECT_EQ(reply.chunks.back(), "data: [DONE]\n\n") << "nothing may follow it";
}

}  // namespace
}  // namespace megalith
