#include "server/router.h"

#include <optional>

#include <gtest/gtest.h>

#include "base/error.h"
#include "server/api_error.h"
#include "tests/server/raw_client.h"

namespace megalith {
namespace {

using Shared = std::shared_ptr<Exchange>;

Handler saying(const std::string& text) {
  return [text](const Shared& exchange) { exchange->reply({.body = text + " " + exchange->request().path}); };
}

Router example(Access access) {
  Router router(std::move(access));
  router.add("GET", {"/v1/models", "/models"}, saying("models"));
  router.add("GET", {"/v1/models/{}"}, saying("model"));
  router.add("GET", {"/", "/health"}, saying("health"), true);
  router.add("POST", {"/v1/completions"}, saying("completions"));
  router.add("GET", {"/both"}, saying("get"));
  router.add("POST", {"/both"}, saying("post"));
  router.add("GET", {"/refuse"}, [](const Shared&) {
    throw Error({.where = "messages[0].content", .expected = "a string", .found = "7", .next = "Send text."});
  });
  router.add("GET", {"/busy"}, [](const Shared&) {
    ApiError error(429, "rate_limit_error", "Too many.");
    error.headers = {{"Retry-After", "1"}};
    throw error;
  });
  router.add("GET", {"/throw"}, [](const Shared&) { throw std::runtime_error("bad \xff thing"); });
  router.add("GET", {"/odd"}, [](const Shared&) { throw 1; });
  router.add("GET", {"/drop"}, [](const Shared&) {});
  router.add("GET", {"/throw-late"}, [](const Shared& exchange) {
    exchange->begin_stream(200, "text/event-stream", {});
    exchange->send("part");
    throw std::runtime_error("too late");
  });
  router.add("GET", {"/throw-after"}, [](const Shared& exchange) {
    exchange->reply({.body = "answered"});
    throw std::runtime_error("too late");
  });
  return router;
}

class Routed : public testing::Test {
 protected:
  RawClient& client(Access access = {}) {
    server_.emplace(HttpOptions{.bind = "127.0.0.1:0"}, example(std::move(access)));
    return client_.emplace(server_->address());
  }
  RawReply send(RawClient& client, const std::string& method, const std::string& path,
                const std::string& headers = "") {
    client.send(fmt::format("{} {} HTTP/1.1\r\n{}\r\n", method, path, headers));
    return client.read(method == "HEAD");
  }

 private:
  std::optional<HttpServer> server_;
  std::optional<RawClient> client_;
};

void expect_error(const RawReply& reply, int status, const std::string& type) {
  EXPECT_EQ(reply.status, status);
  const auto error = reply.json()["error"];
  EXPECT_EQ(error["type"], type);
  EXPECT_FALSE(error["message"].get<std::string>().empty());
  EXPECT_TRUE(error.contains("param"));
  EXPECT_TRUE(error.contains("code"));
  EXPECT_EQ(reply.header("access-control-allow-origin"), "*") << "a page could not read the error";
}

TEST_F(Routed, PathsAliasesAndRestsFindTheirHandlers) {
  RawClient& c = client();
  EXPECT_EQ(c.get("/v1/models").body, "models /v1/models");
  EXPECT_EQ(c.get("/models?limit=2").body, "models /models");
  EXPECT_EQ(c.get("/v1/models/a").body, "model /v1/models/a");
  EXPECT_EQ(c.get("/v1/models/org/name").body, "model /v1/models/org/name");
  EXPECT_EQ(c.get("/v1/models/org%2Fname%20").body, "model /v1/models/org/name ");
  EXPECT_EQ(c.get("/").body, "health /");
  EXPECT_EQ(c.get("/both").body, "get /both");
  EXPECT_EQ(c.post("/both", "").body, "post /both");
}

TEST_F(Routed, UnknownPathsAreNotFound) {
  RawClient& c = client();
  for (const char* path :
       {"/nothing", "/v1", "/v1/models/", "/v1/model", "/models/a", "/v1/models/{}/..%00", "//", "/%ff", "*"}) {
    SCOPED_TRACE(path);
    const RawReply reply = c.get(path);
    if (std::string(path).starts_with("/v1/models/{")) {
      EXPECT_EQ(reply.status, 200) << "any rest is a rest";
    } else {
      expect_error(reply, 404, "not_found_error");
    }
  }
}

TEST_F(Routed, AnotherMethodIsRefusedWithTheOnesThatThereAre) {
  RawClient& c = client();
  for (const char* method : {"POST", "PUT", "DELETE", "PATCH", "BREW"}) {
    const RawReply reply = send(c, method, "/v1/models");
    expect_error(reply, 405, "invalid_request_error");
    EXPECT_EQ(reply.header("allow"), "GET, HEAD, OPTIONS");
  }
  EXPECT_EQ(c.get("/v1/completions").header("allow"), "POST, OPTIONS");
  EXPECT_EQ(send(c, "HEAD", "/v1/completions").status, 405);
}

TEST_F(Routed, HeadIsGetWithoutTheBody) {
  RawClient& c = client();
  const RawReply reply = send(c, "HEAD", "/v1/models");
  EXPECT_EQ(reply.status, 200);
  EXPECT_EQ(reply.header("content-length"), "17");
  EXPECT_EQ(c.get("/").body, "health /") << "nothing of the body came before";
}

TEST_F(Routed, PreflightsTellWhatPagesMaySend) {
  RawClient& c = client({.api_keys = {"k"}});
  const RawReply reply = send(c, "OPTIONS", "/v1/completions",
                              "Origin: http://page\r\nAccess-Control-Request-Method: POST\r\n"
                              "Access-Control-Request-Headers: authorization, x-odd\r\n");
  EXPECT_EQ(reply.status, 204);
  EXPECT_EQ(reply.header("access-control-allow-origin"), "*");
  EXPECT_EQ(reply.header("access-control-allow-methods"), "POST, OPTIONS");
  EXPECT_EQ(reply.header("access-control-allow-headers"), "authorization, x-odd");
  EXPECT_FALSE(reply.header("access-control-max-age").empty());
  EXPECT_EQ(reply.header("content-length"), "");
  EXPECT_EQ(reply.header("access-control-allow-credentials"), "");
}

TEST_F(Routed, OnlyListedOriginsMayReadAnswers) {
  RawClient& c = client({.origins = {"https://a.example", "https://b.example"}});
  for (const char* origin : {"https://a.example", "https://b.example"}) {
    const RawReply reply = c.get("/", fmt::format("Origin: {}\r\n", origin));
    EXPECT_EQ(reply.header("access-control-allow-origin"), origin);
    EXPECT_EQ(reply.header("vary"), "Origin");
  }
  for (const char* header : {"Origin: https://a.example.evil\r\n", "Origin: null\r\n", "Origin:\r\n", ""}) {
    const RawReply reply = c.get("/nothing", header);
    EXPECT_EQ(reply.header("access-control-allow-origin"), "") << header;
    EXPECT_EQ(reply.header("vary"), "Origin");
  }
  EXPECT_EQ(c.get("/throw-late", "Origin: https://b.example\r\n").header("access-control-allow-origin"),
            "https://b.example");
}

TEST_F(Routed, NoOriginsMeansNoHeadersForPages) {
  RawClient& c = client({.origins = {}});
  const RawReply reply = send(c, "OPTIONS", "/", "Origin: http://page\r\nAccess-Control-Request-Headers: a\r\n");
  EXPECT_EQ(reply.status, 204);
  EXPECT_EQ(reply.header("access-control-allow-origin"), "");
  EXPECT_EQ(reply.header("access-control-allow-headers"), "");
  EXPECT_EQ(reply.header("vary"), "");
}

TEST_F(Routed, OnlyRightKeysOpenRoutesThatAreNotOpen) {
  RawClient& c = client({.api_keys = {"first-key", "second", ""}});
  EXPECT_EQ(c.get("/health").status, 200);
  EXPECT_EQ(c.get("/v1/models", "Authorization: Bearer first-key\r\n").status, 200);
  EXPECT_EQ(c.get("/v1/models", "authorization: bearer  second\r\n").status, 200);
  for (const char* header :
       {"", "Authorization: Bearer\r\n", "Authorization: Bearer \r\n", "Authorization: first-key\r\n",
        "Authorization: Basic first-key\r\n", "Authorization: Bearer first-ke\r\n",
        "Authorization: Bearer first-keyfirst-key\r\n", "Authorization: Bearer First-key\r\n",
        "Authorization: Bearer first-key second\r\n", "X-Api-Key: first-key\r\n"}) {
    SCOPED_TRACE(header);
    const RawReply reply = c.get("/v1/models", header);
    expect_error(reply, 401, "authentication_error");
    EXPECT_EQ(reply.json()["error"]["code"], "invalid_api_key");
    EXPECT_EQ(reply.header("www-authenticate"), "Bearer");
    EXPECT_EQ(reply.body.find("second"), std::string::npos);
  }
}

TEST_F(Routed, WithoutKeysAnyKeyWillDo) {
  EXPECT_EQ(client().get("/v1/models", "Authorization: Bearer \r\n").status, 200);
}

TEST_F(Routed, WhatHandlersThrowBecomesAnErrorReply) {
  RawClient& c = client();
  const RawReply refused = c.get("/refuse");
  expect_error(refused, 400, "invalid_request_error");
  EXPECT_EQ(refused.json()["error"]["param"], "messages[0].content");
  EXPECT_EQ(refused.json()["error"]["message"], "messages[0].content: expected a string, found 7. Send text.");
  const RawReply busy = c.get("/busy");
  expect_error(busy, 429, "rate_limit_error");
  EXPECT_EQ(busy.header("retry-after"), "1");
  const RawReply failed = c.get("/throw");
  expect_error(failed, 500, "server_error");
  EXPECT_EQ(failed.json()["error"]["message"], "bad \ufffd thing");
  expect_error(c.get("/odd"), 500, "server_error");
  expect_error(c.get("/drop"), 500, "server_error");
}

TEST_F(Routed, WhatIsThrownAfterAnAnswerHasBegunEndsIt) {
  RawClient& c = client();
  const RawReply late = c.get("/throw-late");
  EXPECT_EQ(late.status, 200);
  EXPECT_EQ(late.body, "part");
  EXPECT_TRUE(late.complete);
  EXPECT_EQ(c.get("/throw-after").body, "answered");
  EXPECT_EQ(c.get("/").body, "health /");
}

TEST(ApiError, NamesTheFieldOfAFaultAndNothingElse) {
  auto param = [](const std::string& where) {
    return ApiError(Error({.where = where, .expected = "x", .found = "y", .next = "Do z."})).param;
  };
  EXPECT_EQ(param("max_tokens"), "max_tokens");
  EXPECT_EQ(param("tools[0].function.name"), "tools[0].function.name");
  EXPECT_EQ(param("the body"), std::nullopt);
  EXPECT_EQ(param("/etc/model"), std::nullopt);
  EXPECT_EQ(param("--flag"), std::nullopt);
  EXPECT_EQ(param(""), std::nullopt);
}

TEST(ApiError, IsWhatItWasOrOurFailure) {
  ApiError original(429, "rate_limit_error", "m", "p", "c");
  original.headers = {{"Retry-After", "1"}};
  const ApiError same = api_error(static_cast<const std::exception&>(original));
  EXPECT_EQ(same.status, 429);
  EXPECT_EQ(same.headers.size(), 1U);
  EXPECT_EQ(same.json().dump(), R"({"error":{"message":"m","type":"rate_limit_error","param":"p","code":"c"}})");
  EXPECT_EQ(api_error(std::bad_alloc()).status, 500);
  EXPECT_EQ(ApiError(Error({.where = "stop", .found = "it"})).json().dump(),
            R"({"error":{"message":"stop: it","type":"invalid_request_error","param":"stop","code":null}})");
}

}  // namespace
}  // namespace megalith
