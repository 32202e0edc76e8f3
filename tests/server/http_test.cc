#include "server/http.h"

#include <atomic>
#include <filesystem>
#include <fstream>
#include <future>
#include <mutex>
#include <random>
#include <set>

#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <spdlog/spdlog.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include "base/error.h"
#include "server/api_error.h"
#include "tests/server/raw_client.h"

namespace megalith {
namespace {

using namespace std::chrono_literals;
using Shared = std::shared_ptr<Exchange>;

std::string numbered(int i) {
  return fmt::format("/{}", i);
}

HttpOptions any_port() {
  return {.bind = "127.0.0.1:0"};
}

// What a request was, as JSON.
void echo(const Shared& exchange) {
  const HttpRequest& request = exchange->request();
  nlohmann::json json = {
      {"method", request.method}, {"path", request.path}, {"query", request.query}, {"body", request.body}};
  exchange->reply({.body = json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace)});
}

// Keeps exchanges for the test, and counts clients that have gone.
class Kept {
 public:
  Handler handler() {
    return [this](const Shared& exchange) {
      exchange->on_gone([this] { ++gone; });
      std::lock_guard lock(mutex_);
      exchanges_.push_back(exchange);
    };
  }
  // The next one, once it has come.
  Shared next() {
    Shared exchange;
    eventually([&] {
      std::lock_guard lock(mutex_);
      if (exchanges_.empty()) return false;
      exchange = std::move(exchanges_.front());
      exchanges_.erase(exchanges_.begin());
      return true;
    });
    return exchange;
  }
  std::atomic<int> gone = 0;

 private:
  std::mutex mutex_;
  std::vector<Shared> exchanges_;
};

size_t descriptors() {
  const std::filesystem::directory_iterator all("/proc/self/fd");
  return static_cast<size_t>(std::distance(begin(all), end(all)));
}

std::string socket_path(const std::string& name) {
  return (std::filesystem::temp_directory_path() / ("megalith-" + name + "-" + std::to_string(::getpid()))).string();
}

void expect_error(const RawReply& reply, int status) {
  EXPECT_EQ(reply.status, status) << reply.body;
  ASSERT_TRUE(reply.complete);
  EXPECT_EQ(reply.header("content-type"), "application/json");
  EXPECT_FALSE(reply.json()["error"]["message"].get<std::string>().empty());
  EXPECT_FALSE(reply.header("x-request-id").empty());
}

TEST(Http, RequestsOverOneConnectionAreAnsweredAtPortsAndSocketFiles) {
  for (const std::string& bind : {std::string("127.0.0.1:0"), std::string(":0"), "unix:" + socket_path("both")}) {
    HttpServer server({.bind = bind}, echo);
    RawClient client(server.address());
    for (int i = 0; i < 3; ++i) {
      const RawReply reply = client.post("/a/b?x=1&y=/?", "body" + std::to_string(i), "content-type: text/odd\r\n");
      EXPECT_EQ(reply.status, 200);
      EXPECT_EQ(reply.header("content-type"), "application/json");
      EXPECT_EQ(reply.header("connection"), "");
      const nlohmann::json expected = {
          {"method", "POST"}, {"path", "/a/b"}, {"query", "x=1&y=/?"}, {"body", "body" + std::to_string(i)}};
      EXPECT_EQ(reply.json(), expected);
    }
  }
}

TEST(Http, ARequestMayComeByteByByte) {
  HttpServer server(any_port(), echo);
  RawClient client(server.address());
  const std::string request =
      "POST /p HTTP/1.1\r\nA: 1\r\nTransfer-Encoding: chunked\r\n\r\n5;x=\"y\"\r\nhello\r\n1\r\n!\r\n0\r\nTrailer: "
      "t\r\n\r\n";
  for (int round = 0; round < 2; ++round) {
    for (const char c : request) {
      ASSERT_TRUE(client.send({&c, 1}));
      std::this_thread::sleep_for(1ms);
    }
    EXPECT_EQ(client.read().json()["body"], "hello!");
  }
}

TEST(Http, RequestsCutAnywhereReadTheSame) {
  HttpServer server(any_port(), echo);
  RawClient client(server.address());
  const std::string request = "POST /cut HTTP/1.1\r\nContent-Length: 4\r\n\r\nbody";
  for (size_t cut = 1; cut < request.size(); ++cut) {
    client.send(request.substr(0, cut));
    std::this_thread::sleep_for(1ms);
    client.send(request.substr(cut) + "\r\n");  // one more line than there should be
    ASSERT_EQ(client.read().json()["body"], "body") << cut;
  }
}

TEST(Http, PipelinedRequestsAreAnsweredInOrder) {
  Kept kept;
  HttpServer server(any_port(), kept.handler());
  RawClient client(server.address());
  std::string requests;
  for (int i = 0; i < 20; ++i) requests += "GET /" + std::to_string(i) + " HTTP/1.1\r\n\r\n";
  client.send(requests);
  for (int i = 0; i < 20; ++i) {
    const Shared exchange = kept.next();
    ASSERT_TRUE(exchange);
    EXPECT_EQ(exchange->request().path, numbered(i));
    if (i % 2 == 0) {
      exchange->reply({.body = exchange->request().path});
    } else {
      exchange->begin_stream(200, "text/plain", {});
      exchange->send(exchange->request().path);
      exchange->end();
    }
    EXPECT_EQ(client.read().body, numbered(i));
  }
  EXPECT_EQ(kept.gone, 0);
}

TEST(Http, ABodyOfTheLimitIsTakenAndOneMoreByteIsRefusedReadably) {
  HttpOptions options = any_port();
  options.threads = 1;
  HttpServer server(options, [](const Shared& exchange) {
    exchange->reply({.body = std::to_string(exchange->request().body.size())});
  });
  const auto most = static_cast<size_t>(options.max_body);
  {
    RawClient client(server.address());
    EXPECT_EQ(client.post("/", std::string(most, 'x')).body, std::to_string(most));
  }
  {
    // Everything is sent before the reply is read.
    RawClient client(server.address());
    const RawReply reply = client.post("/", std::string(most + 1, 'x'));
    expect_error(reply, 413);
    EXPECT_EQ(reply.header("connection"), "close");
    EXPECT_TRUE(client.ended());
  }
  {
    RawClient client(server.address());
    client.send("POST / HTTP/1.1\r\nContent-Length: 99999999999999\r\nX-Request-Id: big\r\n\r\n");
    const RawReply reply = client.read();
    expect_error(reply, 413);
    EXPECT_EQ(reply.header("x-request-id"), "big");
  }
  {
    RawClient client(server.address());
    client.send("POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n");
    const std::string chunk = "100000\r\n" + std::string(1 << 20, 'x') + "\r\n";
    for (int i = 0; i < 33; ++i) client.send(chunk);
    client.send("0\r\n\r\n");
    expect_error(client.read(), 413);
    EXPECT_TRUE(client.ended());
  }
}

TEST(Http, HeadersBeyondTheLimitAreRefused) {
  HttpServer server(any_port(), echo);
  {
    RawClient client(server.address());
    EXPECT_EQ(client.get("/", "A: " + std::string(60 << 10, 'a') + "\r\n").status, 200);
  }
  for (const std::string& request : {
           "GET / HTTP/1.1\r\nA: " + std::string(64 << 10, 'a') + "\r\n\r\n",
           "GET /" + std::string(70 << 10, 'a') + " HTTP/1.1\r\n\r\n",
           "GET /" + std::string(40 << 10, 'a') + " HTTP/1.1\r\nA: " + std::string(40 << 10, 'a') + "\r\n\r\n",
           "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n5;" + std::string(200 << 10, 'e'),
       }) {
    RawClient client(server.address());
    client.send(request);
    expect_error(client.read(), 431);
    EXPECT_TRUE(client.ended());
  }
}

TEST(Http, WhatIsNotHttpIsRefusedInJson) {
  std::atomic<int> handled = 0;
  HttpServer server(any_port(), [&](const Shared& exchange) {
    ++handled;
    echo(exchange);
  });
  const std::pair<std::string, int> cases[] = {
      {"nonsense\r\n\r\n", 400},
      {"GET / HTTP/2.0\r\n\r\n", 400},
      {"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400},
      {"\x16\x03\x01\x02\x01\x01\xfc\x03\x03\r\n\r\n", 400},  // TLS
      {"GET / HTTP/1.1\r\nno colon\r\n\r\n", 400},
      {"GET /\x01 HTTP/1.1\r\n\r\n", 400},
      {std::string("GET /\0 HTTP/1.1\r\n\r\n", 19), 400},
      {"POST / HTTP/1.1\r\nContent-Length: -1\r\n\r\n", 400},
      {"POST / HTTP/1.1\r\nContent-Length: 99999999999999999999999\r\n\r\n", 400},
      {"POST / HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab", 400},
      {"POST / HTTP/1.1\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400},
      {"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", 400},
      {"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nfffffffffffffffff\r\n", 400},
      {"POST / HTTP/1.1\r\nTransfer-Encoding: gzip\r\n\r\nGET /smuggled HTTP/1.1\r\n\r\n", 501},
      {"POST / HTTP/1.1\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", 501},
  };
  for (const auto& [bytes, status] : cases) {
    SCOPED_TRACE(bytes);
    RawClient client(server.address());
    client.send(bytes);
    expect_error(client.read(), status);
    EXPECT_TRUE(client.ended());
  }
  EXPECT_EQ(handled, 0);
}

TEST(Http, RandomBytesDoNoHarm) {
  HttpServer server(any_port(), echo);
  std::mt19937 random(7);
  const std::string request =
      "POST /x HTTP/1.1\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n";
  for (int round = 0; round < 300; ++round) {
    std::string bytes = request;
    for (int i = 0; i < 3; ++i) bytes[random() % bytes.size()] = static_cast<char>(random());
    RawClient client(server.address());
    client.send(bytes.substr(0, random() % bytes.size()));
    client.half_close();
    client.read_to_end();
  }
  EXPECT_EQ(RawClient(server.address()).get("/").status, 200);
}

TEST(Http, PathsAreDecodedAndOddBytesInThemAreHarmless) {
  HttpServer server(any_port(), echo);
  RawClient client(server.address());
  EXPECT_EQ(client.get("/v1/models/Qwen%2FQwen3.8%20x?a%20b").json()["path"], "/v1/models/Qwen/Qwen3.8 x");
  EXPECT_EQ(client.get("/%00%zz%4").json()["path"], std::string("/\0%zz%4", 7));
  EXPECT_EQ(client.get("/\xff\xfe%ff").json()["path"], "/\ufffd\ufffd\ufffd");
  EXPECT_EQ(client.get("http://host:80/full?q").json()["path"], "/full");
  EXPECT_EQ(client.get("http://host").json()["path"], "/");
}

TEST(Http, AClientThatExpectsToBeAskedForTheBodyIs) {
  HttpServer server(any_port(), echo);
  RawClient client(server.address());
  client.send("POST / HTTP/1.1\r\nContent-Length: 4\r\nExpect: 100-Continue\r\n\r\n");
  EXPECT_EQ(client.read().status, 100);
  client.send("body");
  EXPECT_EQ(client.read().json()["body"], "body");

  client.send("POST / HTTP/1.1\r\nContent-Length: 99999999999\r\nExpect: 100-continue\r\n\r\n");
  expect_error(client.read(), 413);
}

TEST(Http, ConnectionsEndWhereTheClientWantsIt) {
  HttpServer server(any_port(), echo);
  {
    RawClient client(server.address());
    const RawReply reply = client.get("/", "Connection: close\r\n");
    EXPECT_EQ(reply.status, 200);
    EXPECT_EQ(reply.header("connection"), "close");
    EXPECT_TRUE(client.ended());
  }
  {
    RawClient client(server.address());
    client.send("GET / HTTP/1.0\r\n\r\n");
    EXPECT_TRUE(client.read().complete);
    EXPECT_TRUE(client.ended());
  }
  RawClient client(server.address());
  for (int i = 0; i < 2; ++i) {
    client.send("GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
    EXPECT_EQ(client.read().header("connection"), "keep-alive");
  }
}

TEST(Http, RepliesCarryTheClientsRequestIdOrAFreshOne) {
  std::string seen;
  HttpServer server(any_port(), [&](const Shared& exchange) {
    seen = exchange->request().id;
    exchange->reply({});
  });
  RawClient client(server.address());
  EXPECT_EQ(client.get("/", "x-request-ID: abc-123 z\r\n").header("x-request-id"), "abc-123 z");
  EXPECT_EQ(seen, "abc-123 z");
  std::set<std::string> fresh;
  for (const std::string& header : {std::string(), "X-Request-Id: " + std::string(129, 'a') + "\r\n",
                                    std::string("X-Request-Id: \xc3\xa9\r\n"), std::string("X-Request-Id:\r\n")}) {
    const std::string id = client.get("/", header).header("x-request-id");
    EXPECT_EQ(id, seen);
    EXPECT_EQ(id.size(), 32U);
    EXPECT_EQ(id.find_first_not_of("0123456789abcdef"), std::string::npos);
    fresh.insert(id);
  }
  EXPECT_EQ(fresh.size(), 4U);
}

TEST(Http, APieceOfAStreamIsOneChunkAndComesAtOnce) {
  Kept kept;
  HttpServer server(any_port(), kept.handler());
  RawClient client(server.address());
  client.send("POST / HTTP/1.1\r\n\r\n");
  const Shared exchange = kept.next();
  exchange->begin_stream(202, "text/event-stream", {{"Cache-Control", "no-cache"}});
  const std::string head = client.read_until("\r\n\r\n");
  EXPECT_TRUE(head.starts_with("HTTP/1.1 202 ")) << head;
  EXPECT_NE(head.find("Cache-Control: no-cache\r\n"), std::string::npos);
  EXPECT_NE(head.find("Transfer-Encoding: chunked\r\n"), std::string::npos);
  for (const std::string& piece : {std::string("data: 1\n\n"), std::string(100'000, 'x'), std::string("\0\r\n", 3)}) {
    exchange->send(piece);
    EXPECT_EQ(client.read_until("\r\n").size(), piece.size() < 16 ? 3U : 7U);
    EXPECT_EQ(client.read_bytes(piece.size() + 2), piece + "\r\n");
  }
  exchange->send("");  // would be the last chunk
  exchange->send("a");
  exchange->send("b");
  exchange->end();
  exchange->send("after the end");
  exchange->end();
  EXPECT_EQ(client.read_until("0\r\n\r\n"), "1\r\na\r\n1\r\nb\r\n0\r\n\r\n");
  client.send("GET / HTTP/1.1\r\n\r\n");
  kept.next()->reply({.body = "next"});
  EXPECT_EQ(client.read().body, "next");
  EXPECT_EQ(kept.gone, 0);
}

TEST(Http, AStreamForAnOldClientHasNoChunks) {
  Kept kept;
  HttpServer server(any_port(), kept.handler());
  RawClient client(server.address());
  client.send("GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
  const Shared exchange = kept.next();
  exchange->begin_stream(200, "text/plain", {});
  exchange->send("one,");
  exchange->send("two");
  exchange->end();
  const RawReply reply = client.read();
  EXPECT_EQ(reply.header("connection"), "close");
  EXPECT_EQ(reply.body, "one,two");
}

TEST(Http, HeadHasTheHeadersAndNoBody) {
  HttpServer server(any_port(), [](const Shared& exchange) {
    if (exchange->request().path == "/whole") return exchange->reply({.body = "12345"});
    exchange->begin_stream(200, "text/plain", {});
    exchange->send("12345");
    exchange->end();
  });
  RawClient client(server.address());
  for (int round = 0; round < 2; ++round) {
    client.send("HEAD /whole HTTP/1.1\r\n\r\n");
    EXPECT_EQ(client.read(true).header("content-length"), "5");
    client.send("HEAD /stream HTTP/1.1\r\n\r\n");
    EXPECT_EQ(client.read(true).header("transfer-encoding"), "chunked");
  }
}

TEST(Http, HeadersCannotBeSmuggledIntoReplies) {
  HttpServer server(any_port(), [](const Shared& exchange) {
    exchange->reply({.content_type = "a\r\nX-Evil: 1", .headers = {{"X-Good", "b\r\nX-Evil: 2\n\nbody"}}});
  });
  const RawReply reply = RawClient(server.address()).get("/");
  EXPECT_EQ(reply.header("x-evil"), "");
  EXPECT_EQ(reply.header("x-good"), "b  X-Evil: 2  body");
}

TEST(Http, AnExchangeGivenUpIsA500AndAStreamGivenUpIsBrokenOff) {
  HttpServer server(any_port(), [](const Shared& exchange) {
    const std::string& path = exchange->request().path;
    if (path == "/throw") throw std::runtime_error("broken thing");
    if (path == "/refuse")
      throw Error({.where = "stop", .expected = "a string", .found = "a list", .next = "Send one."});
    if (path == "/odd") throw 1;
    if (path == "/drop") return;
    exchange->begin_stream(200, "text/plain", {});
    exchange->send("part");
    if (path == "/throw-late") throw std::runtime_error("too late");
  });
  RawClient client(server.address());
  for (const char* path : {"/drop", "/throw", "/odd"}) {
    const RawReply reply = client.get(path);
    expect_error(reply, 500);
    EXPECT_EQ(reply.json()["error"]["type"], "server_error");
  }
  EXPECT_EQ(client.get("/throw").json()["error"]["message"], "broken thing");
  const RawReply refused = client.get("/refuse");
  expect_error(refused, 400);
  EXPECT_EQ(refused.json()["error"]["param"], "stop");
  for (const char* path : {"/drop-late", "/throw-late"}) {
    RawClient other(server.address());
    const RawReply reply = other.get(path);
    EXPECT_EQ(reply.body, "part");
    EXPECT_FALSE(reply.complete);
    EXPECT_TRUE(other.ended());
  }
}

TEST(Http, AClientThatLeavesIsNoticedAtOnceHoweverItLeaves) {
  Kept kept;
  HttpServer server(any_port(), kept.handler());
  int expected = 0;
  for (const bool streaming : {false, true}) {
    for (const int way : {0, 1, 2}) {
      RawClient client(server.address());
      client.send("GET / HTTP/1.1\r\n\r\n");
      const Shared exchange = kept.next();
      if (streaming) {
        exchange->begin_stream(200, "text/plain", {});
        exchange->send("x");
        client.read_bytes(10);
      }
      EXPECT_EQ(kept.gone, expected);
      way == 0 ? client.close() : way == 1 ? client.half_close() : client.reset();
      ++expected;
      EXPECT_TRUE(eventually([&] { return kept.gone == expected; })) << streaming << way;
      std::atomic<bool> late = false;
      exchange->on_gone([&] { late = true; });
      EXPECT_TRUE(late) << "asked after the client had gone";
      exchange->send("nobody");
      exchange->end();
      exchange->reply({});
    }
  }
  EXPECT_EQ(kept.gone, expected);
}

TEST(Http, AnAnsweredClientIsNeverSaidToHaveGone) {
  std::atomic<int> gone = 0;
  HttpServer server(any_port(), [&](const Shared& exchange) {
    exchange->on_gone([&gone, exchange] { ++gone; });
    if (exchange->request().path == "/stream") {
      exchange->begin_stream(200, "text/plain", {});
      exchange->send("x");
      exchange->end();
    } else {
      exchange->reply({});
    }
    exchange->on_gone([&] { ++gone; });
  });
  for (int i = 0; i < 50; ++i) {
    RawClient client(server.address());
    client.send(i % 2 == 0 ? "GET /stream HTTP/1.1\r\n\r\n" : "GET / HTTP/1.1\r\n\r\n");
    if (i % 3 == 0) client.reset();
    if (i % 3 == 1) client.read();
  }
  std::this_thread::sleep_for(50ms);
  EXPECT_EQ(gone, 0);
}

TEST(Http, AClientThatOnlySendsNoMoreGetsACompleteAnswer) {
  const std::string large(8 << 20, 'x');
  HttpServer server(any_port(), [&](const Shared& exchange) { exchange->reply({.body = large}); });
  RawClient client(server.address());
  client.send("GET / HTTP/1.1\r\n\r\n");
  client.half_close();
  std::this_thread::sleep_for(50ms);
  EXPECT_EQ(client.read().body.size(), large.size());
}

TEST(Http, ASlowReaderOfAStreamIsGivenUpBeforeMuchWaitsForIt) {
  Kept kept;
  HttpOptions options = any_port();
  options.max_unsent = 1 << 20;
  HttpServer server(options, kept.handler());
  RawClient client(server.address(), 4096);
  client.send("GET / HTTP/1.1\r\n\r\n");
  const Shared exchange = kept.next();
  exchange->begin_stream(200, "text/plain", {});
  const std::string piece(64 << 10, 'x');
  size_t sent = 0;
  for (; kept.gone == 0 && sent < size_t{64} << 20; sent += piece.size()) {
    exchange->send(piece);
    std::this_thread::sleep_for(1ms);
  }
  EXPECT_TRUE(eventually([&] { return kept.gone == 1; }));
  EXPECT_LT(sent, size_t{16} << 20);
  exchange->end();
  const RawReply reply = client.read();
  EXPECT_FALSE(reply.complete);
  EXPECT_EQ(kept.gone, 1);
}

TEST(Http, AReaderThatKeepsUpGetsMoreThanMayWait) {
  Kept kept;
  HttpOptions options = any_port();
  options.max_unsent = 1 << 20;
  HttpServer server(options, kept.handler());
  RawClient client(server.address());
  client.send("GET / HTTP/1.1\r\n\r\n");
  const Shared exchange = kept.next();
  exchange->begin_stream(200, "text/plain", {});
  client.read_until("\r\n\r\n");
  const std::string piece(256 << 10, 'x');
  for (int i = 0; i < 40; ++i) {
    exchange->send(piece);
    EXPECT_EQ(client.read_until("\r\n"), "40000\r\n");
    EXPECT_EQ(client.read_bytes(piece.size() + 2).size(), piece.size() + 2);
  }
  exchange->end();
  EXPECT_EQ(client.read_until("\r\n\r\n"), "0\r\n\r\n");
}

TEST(Http, AClientThatTakesNothingOfAReplyIsGivenUp) {
  HttpOptions options = any_port();
  options.write_timeout = 200ms;
  const std::string large(32 << 20, 'x');
  std::atomic<bool> replied = false;
  HttpServer server(options, [&](const Shared& exchange) {
    exchange->reply({.body = large});
    replied = true;
  });
  RawClient client(server.address(), 4096);
  client.send("GET / HTTP/1.1\r\n\r\n");
  EXPECT_TRUE(eventually([&] { return replied.load(); }));
  EXPECT_FALSE(server.drain(50ms));
  EXPECT_TRUE(server.drain(20s));
  EXPECT_FALSE(client.read().complete);
}

TEST(Http, HalfRequestsAndIdleConnectionsEndAfterTheirTime) {
  HttpOptions options = any_port();
  options.header_timeout = 150ms;
  options.body_timeout = 150ms;
  options.idle_timeout = 300ms;
  HttpServer server(options, echo);
  for (const char* half : {"G", "GET / HTTP/1.1\r\nA: b\r\n", "POST / HTTP/1.1\r\nContent-Length: 10\r\n\r\nhalf",
                           "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhe"}) {
    RawClient client(server.address());
    client.send(half);
    expect_error(client.read(), 408);
    EXPECT_TRUE(client.ended());
  }
  RawClient drip(server.address());
  const auto start = std::chrono::steady_clock::now();
  drip.send("GET / HTTP/1.1\r\n");
  while (drip.silent(20ms) && std::chrono::steady_clock::now() - start < 10s) drip.send("A: b\r\n");
  expect_error(drip.read(), 408);

  RawClient fresh(server.address());
  EXPECT_TRUE(fresh.ended());
  RawClient idle(server.address());
  EXPECT_EQ(idle.get("/").status, 200);
  EXPECT_TRUE(idle.ended());
}

TEST(Http, ABodyMayTakeLongAsLongAsItComes) {
  HttpOptions options = any_port();
  options.header_timeout = 500ms;
  options.body_timeout = 500ms;
  options.idle_timeout = 500ms;
  HttpServer server(options, [](const Shared& exchange) {
    std::thread([exchange] {
      std::this_thread::sleep_for(1s);  // no limit to an answer
      exchange->reply({.body = exchange->request().body});
    }).detach();
  });
  RawClient client(server.address());
  client.send("POST / HTTP/1.1\r\nContent-Length: 10\r\n\r\n");
  for (int i = 0; i < 10; ++i) {
    std::this_thread::sleep_for(100ms);
    client.send("x");
  }
  EXPECT_EQ(client.read().body, "xxxxxxxxxx");
}

TEST(Http, SilentStreamsArePingedUntilTheyEnd) {
  Kept kept;
  HttpServer server(any_port(), kept.handler());
  RawClient client(server.address());
  client.send("GET / HTTP/1.1\r\n\r\n");
  const Shared exchange = kept.next();
  exchange->ping_every(100ms, ": ping\n\n");
  EXPECT_TRUE(client.silent(300ms)) << "no answer has begun";
  exchange->begin_stream(200, "text/event-stream", {});
  client.read_until("\r\n\r\n");
  for (int i = 0; i < 3; ++i) EXPECT_EQ(client.read_until("\n\n\r\n"), "8\r\n: ping\n\n\r\n");
  exchange->send("x");
  EXPECT_EQ(client.read_until("x\r\n"), "1\r\nx\r\n");
  EXPECT_EQ(client.read_until("\n\n\r\n"), "8\r\n: ping\n\n\r\n");
  exchange->end();
  EXPECT_EQ(client.read_until("0\r\n\r\n"), "0\r\n\r\n");
  EXPECT_TRUE(client.silent(300ms));
}

TEST(Http, ManyClientsWithSuddenEndsLeaveNothingBehind) {
  const size_t before = descriptors();
  {
    std::atomic<int> answered = 0;
    HttpServer server(any_port(), [&](const Shared& exchange) {
      if (exchange->request().path == "/now") return exchange->reply({.body = exchange->request().body});
      std::thread([exchange] {
        exchange->begin_stream(200, "text/plain", {});
        for (int i = 0; i < 20; ++i) exchange->send("piece");
        exchange->end();
      }).detach();
    });
    const size_t listening = descriptors();
    std::vector<std::thread> clients;
    for (unsigned worker = 0; worker < 8; ++worker) {
      clients.emplace_back([&, worker] {
        std::mt19937 random(worker);
        for (int round = 0; round < 4; ++round) {
          std::vector<std::unique_ptr<RawClient>> open;
          for (int i = 0; i < 25; ++i) open.push_back(std::make_unique<RawClient>(server.address()));
          for (auto& client : open) {
            const std::string request = random() % 2 == 0 ? "POST /now HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc"
                                                          : "GET /later HTTP/1.1\r\n\r\n";
            client->send(random() % 4 == 0 ? request.substr(0, random() % request.size()) : request);
          }
          for (auto& client : open) {
            const auto end = random() % 4;
            if (end == 0) client->close();
            if (end == 1) client->reset();
            if (end == 2) client->half_close();
          }
          RawClient last(server.address());
          answered += last.post("/now", "abc").body == "abc" && last.get("/later").body.size() == 100;
        }
      });
    }
    for (auto& client : clients) client.join();
    EXPECT_EQ(answered, 32);
    EXPECT_TRUE(eventually([&] { return descriptors() == listening; })) << descriptors() << " and were " << listening;
    EXPECT_TRUE(server.drain(20s));
  }
  EXPECT_EQ(descriptors(), before);
}

TEST(Http, TwoHundredConnectionsAreServedAtOnce) {
  Kept kept;
  HttpServer server(any_port(), kept.handler());
  std::vector<std::unique_ptr<RawClient>> clients;
  for (int i = 0; i < 200; ++i) {
    clients.push_back(std::make_unique<RawClient>(server.address()));
    clients.back()->send("GET /" + std::to_string(i) + " HTTP/1.1\r\n\r\n");
  }
  std::vector<Shared> exchanges;
  for (int i = 0; i < 200; ++i) exchanges.push_back(kept.next());
  for (const auto& exchange : exchanges) exchange->reply({.body = exchange->request().path});
  for (int i = 0; i < 200; ++i) EXPECT_EQ(clients[static_cast<size_t>(i)]->read().body, numbered(i));
}

TEST(Http, AnExchangeOutlivesItsClientAndItsServer) {
  Kept kept;
  Shared open;
  Shared streaming;
  {
    HttpServer server(any_port(), kept.handler());
    RawClient first(server.address());
    first.send("GET / HTTP/1.1\r\n\r\n");
    open = kept.next();
    RawClient second(server.address());
    second.send("GET / HTTP/1.1\r\n\r\n");
    streaming = kept.next();
    streaming->begin_stream(200, "text/plain", {});
    streaming->send("x");
  }
  EXPECT_EQ(kept.gone, 2) << "the end of the server is the end of its clients";
  EXPECT_EQ(open->request().path, "/");
  open->on_gone([&] { ++kept.gone; });
  EXPECT_EQ(kept.gone, 3);
  open->reply({.body = "late"});
  streaming->send("late");
  streaming->ping_every(1ms, "ping");
  streaming->end();
}

TEST(Http, ManyThreadsMayUseOneExchangeWhileItsClientLeaves) {
  Kept kept;
  HttpServer server(any_port(), kept.handler());
  for (int round = 0; round < 20; ++round) {
    RawClient client(server.address());
    client.send("GET / HTTP/1.1\r\n\r\n");
    Shared exchange = kept.next();
    exchange->begin_stream(200, "text/plain", {});
    std::vector<std::thread> threads;
    for (int t = 0; t < 3; ++t) {
      threads.emplace_back([exchange] {
        for (int i = 0; i < 200; ++i) exchange->send("piece");
        exchange->end();
      });
    }
    exchange.reset();
    if (round % 2 == 0) client.reset();
    for (auto& thread : threads) thread.join();
  }
  EXPECT_TRUE(server.drain(20s));
}

TEST(Http, AServerThatStopsEndsIdleConnectionsAndFinishesAnswers) {
  Kept kept;
  HttpServer server(any_port(), kept.handler());
  const std::string address = server.address();
  RawClient idle(address);
  idle.send("GET / HTTP/1.1\r\n\r\n");
  kept.next()->reply({});
  EXPECT_EQ(idle.read().header("connection"), "");
  RawClient busy(address);
  busy.send("GET / HTTP/1.1\r\n\r\n");
  Shared exchange = kept.next();
  RawClient half(address);
  half.send("POST / HTTP/1.1\r\nContent-Length: 2\r\n\r\n1");
  std::this_thread::sleep_for(50ms);

  server.stop_accepting();
  EXPECT_TRUE(idle.ended());
  EXPECT_TRUE(eventually([&] {
    try {
      RawClient late(address);
      return false;
    } catch (const std::runtime_error&) {
      return true;
    }
  }));
  EXPECT_FALSE(server.drain(100ms));
  half.send("2");
  kept.next()->reply({.body = "half"});
  EXPECT_EQ(half.read().body, "half");
  exchange->reply({.body = "done"});
  EXPECT_TRUE(server.drain(20s));
  const RawReply reply = busy.read();
  EXPECT_EQ(reply.body, "done");
  EXPECT_EQ(reply.header("connection"), "close");
  EXPECT_TRUE(busy.ended());
  EXPECT_EQ(kept.gone, 0);
}

TEST(Http, RunningOutOfDescriptorsIsNotTheEnd) {
  HttpServer server(any_port(), echo);
  // The sanitizer looks at an object of a class it has not seen yet with descriptors of its own.
  spdlog::default_logger_raw()->flush();
  std::vector<int> filler;
  rlimit old = {};
  ::getrlimit(RLIMIT_NOFILE, &old);
  rlimit few = {.rlim_cur = descriptors() + 20, .rlim_max = old.rlim_max};
  ::setrlimit(RLIMIT_NOFILE, &few);
  RawClient waiting(server.address());
  EXPECT_EQ(waiting.get("/").status, 200);
  for (int fd; (fd = ::open("/dev/null", O_RDONLY | O_CLOEXEC)) >= 0;) filler.push_back(fd);
  ::close(filler.back());  // one for the client's side
  filler.pop_back();
  RawClient client(server.address());
  client.send("GET /late HTTP/1.1\r\n\r\n");
  EXPECT_TRUE(client.silent(300ms));
  EXPECT_EQ(waiting.get("/").status, 200);
  for (const int fd : filler) ::close(fd);
  ::setrlimit(RLIMIT_NOFILE, &old);
  EXPECT_EQ(client.read().json()["path"], "/late");
}

std::string error_of(const std::string& bind) {
  try {
    HttpServer server({.bind = bind}, echo);
    return "";
  } catch (const Error& error) {
    EXPECT_NE(error.cause().find(bind), std::string::npos) << error.what();
    EXPECT_FALSE(error.fault().next.empty());
    return error.fault().found;
  }
}

TEST(Http, AddressesThatCannotBeListenedAtAreRefused) {
  HttpServer server(any_port(), echo);
  EXPECT_EQ(error_of(server.address()), "it is in use");
  for (const char* bind :
       {"", "localhost", "8000", ":", "1.2.3.4:", ":99999", ":80x", ":-1", "::1:8000", "unix:", "[]:1"}) {
    EXPECT_NE(error_of(bind), "") << bind;
  }
  EXPECT_NE(error_of("no.such.host.invalid:80"), "");
  EXPECT_EQ(error_of("192.0.2.1:8000"), "no interface of this machine has this address");
  EXPECT_EQ(error_of("unix:/no/such/directory/socket"), "the directory does not exist");
  EXPECT_EQ(error_of("unix:/" + std::string(200, 'x')), "a path that is too long");
}

TEST(Http, AnAddressOfIpv6IsWrittenInBrackets) {
  try {
    HttpServer server({.bind = "[::1]:0"}, echo);
    EXPECT_TRUE(server.address().starts_with("[::1]:")) << server.address();
  } catch (const Error& error) {
    GTEST_SKIP() << error.what();
  }
}

TEST(Http, AStaleSocketFileIsReplacedAndOthersAreKept) {
  const std::string path = socket_path("stale");
  const std::string bind = "unix:" + path;
  {
    HttpServer server({.bind = bind}, echo);
    EXPECT_EQ(server.address(), bind);
    EXPECT_EQ(error_of(bind), "it is in use");
    EXPECT_EQ(RawClient(bind).get("/").status, 200);
  }
  EXPECT_FALSE(std::filesystem::exists(path));

  const int stale = ::socket(AF_UNIX, SOCK_STREAM, 0);
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  std::strncpy(address.sun_path, path.c_str(), sizeof(address.sun_path) - 1);
  ASSERT_EQ(::bind(stale, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  ::close(stale);
  {
    HttpServer server({.bind = bind}, echo);
    EXPECT_EQ(RawClient(bind).get("/").status, 200);
    server.stop_accepting();
    EXPECT_TRUE(eventually([&] { return !std::filesystem::exists(path); }));
    HttpServer next({.bind = bind}, echo);
    EXPECT_EQ(RawClient(bind).get("/").status, 200);
  }
  std::ofstream(path) << "text";
  EXPECT_EQ(error_of(bind), "a file that is no socket is there");
  EXPECT_TRUE(std::filesystem::exists(path));
  std::filesystem::remove(path);
}

}  // namespace
}  // namespace megalith
