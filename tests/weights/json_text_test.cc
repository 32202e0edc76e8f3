#include "weights/json_text.h"

#include <chrono>

#include <gtest/gtest.h>

namespace megalith {
namespace {

using nlohmann::json;

TEST(JsonText, HasTheValueOfTheLibrarysOwnParser) {
  const std::string text = R"({"a":[1,-2,3.5,"x",null,true,[],{}],"b":{"c":{"d":[[1],[2,[3]]]},"e":18446744073709551615},"f":""})";
  const ParsedJson parsed = parse_json(text);
  EXPECT_EQ(parsed.value, json::parse(text));
  EXPECT_FALSE(parsed.too_deep);
  EXPECT_FALSE(parsed.twice);
  EXPECT_EQ(parse_json("7").value, 7);
}

TEST(JsonText, SaysWhichKeyStandsTwiceAndKeepsTheLaterValue) {
  const ParsedJson parsed = parse_json(R"({"a":1,"b":{"x":1,"x":2},"a":3})");
  EXPECT_EQ(parsed.twice, "x");
  EXPECT_EQ(parsed.value, json::parse(R"({"a":3,"b":{"x":2}})"));
}

TEST(JsonText, StopsAtTooManyLevels) {
  EXPECT_FALSE(parse_json(std::string(100, '[') + std::string(100, ']')).too_deep);
  EXPECT_TRUE(parse_json(std::string(101, '[')).too_deep);
  std::string objects;
  for (int i = 0; i < 101; ++i) objects += R"({"a":)";
  EXPECT_TRUE(parse_json(objects).too_deep);
}

TEST(JsonText, ErrorsAreTheLibrarys) {
  for (const char* text : {"", "{", "[1,]", "{\"a\" 1}", "nul", "[1] 2", "\"\xff\""}) {
    EXPECT_THROW(parse_json(text), json::parse_error) << text;
  }
  EXPECT_THROW(parse_json("1e999"), json::out_of_range);
}

// Each object that ends must not cost a walk through all that ended before.
TEST(JsonText, AHeaderOfHundredsOfThousandsOfTensorsTakesNoMoreThanItsSize) {
  std::string text = "{";
  for (int i = 0; i < 300'000; ++i) text += (i ? ",\"t" : "\"t") + std::to_string(i) + R"(":{"dtype":"U8"})";
  const auto start = std::chrono::steady_clock::now();
  EXPECT_EQ(parse_json(text + "}").value.size(), 300'000u);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(20));  // by walks: minutes
}

}  // namespace
}  // namespace megalith
