#include "text/request_json.h"

#include "test_data.h"

namespace megalith {
namespace {

std::string cause(const std::string& text) {
  return cause_of([&] { parse_request_json(text, "body"); });
}

TEST(RequestJson, KeepsTheOrderOfNames) {
  EXPECT_EQ(parse_request_json(R"({"b":1,"a":[2,{"d":3,"c":4}]})", "body").dump(), R"({"b":1,"a":[2,{"d":3,"c":4}]})");
}

TEST(RequestJson, BytesThatAreNotUtf8AreRefusedWithoutThem) {
  EXPECT_EQ(cause("{\"prompt\":\"a\xff\"}"), "body: expected UTF-8, found byte 0xff at offset 12");
  EXPECT_EQ(cause("\"\xc4\xe3\xba\xc3\""), "body: expected UTF-8, found byte 0xc4 at offset 1");
}

TEST(RequestJson, LoneSurrogatesAreRefused) {
  for (const char* text : {R"("\ud83d")", R"("\ude00")", R"("\ud83dx")", R"("\ud83d\ud83d")"}) {
    EXPECT_TRUE(cause(text).starts_with("body: expected JSON, found a syntax error")) << text;
  }
  EXPECT_EQ(parse_request_json(R"("\ud83d\ude00")", "body"), "😀");
}

TEST(RequestJson, WhatIsNotJsonIsRefusedWithItsPlace) {
  EXPECT_EQ(cause(""), "body: expected JSON, found an end after 0 bytes");
  EXPECT_EQ(cause("{"), "body: expected JSON, found an end after 1 bytes");
  EXPECT_EQ(cause("{\"a\":1,}"), "body: expected JSON, found a syntax error at byte 8");
  EXPECT_EQ(cause("NaN"), "body: expected JSON, found a syntax error at byte 1");
  EXPECT_EQ(cause("[1e400]"), "body: expected JSON, found a number that is out of range");
}

TEST(RequestJson, NestingHasALimit) {
  const auto nested = [](size_t depth) { return std::string(depth, '[') + std::string(depth, ']'); };
  EXPECT_NO_THROW(parse_request_json(nested(100), "body"));
  EXPECT_EQ(cause(nested(101)), "body: expected at most 100 lists and objects inside each other, found more");
  EXPECT_EQ(cause(std::string(1'000'000, '[')), cause(nested(101)));
  EXPECT_EQ(cause(repeat("{\"a\":", 101)), cause(nested(101)));
}

TEST(RequestJson, NamesOfAnObjectHaveALimitAndItemsOfAListHaveNone) {
  const auto object = [](int names) {
    std::string text = "{";
    for (int i = 0; i < names; ++i) text += (i > 0 ? ",\"k" : "\"k") + std::to_string(i) + "\":[0,{\"a\":1}]";
    return text + "}";
  };
  EXPECT_EQ(parse_request_json(object(1000), "body").size(), 1000U);
  EXPECT_EQ(cause(object(1001)), "body: expected at most 1000 names in an object, found more");
  EXPECT_EQ(parse_request_json("[0" + repeat(",0", 99'999) + "]", "body").size(), 100'000U);
}

}  // namespace
}  // namespace megalith
