#include "base/error.h"

#include <string>

#include <gtest/gtest.h>

namespace megalith {
namespace {

TEST(Error, SaysTheCauseThenTheNextStep) {
  const Error error({.where = "config.json", .expected = "an object", .found = "a list", .next = "Download it again."});
  EXPECT_STREQ(error.what(), "config.json: expected an object, found a list\nDownload it again.");
  EXPECT_EQ(error.cause(), "config.json: expected an object, found a list");
}

TEST(Error, HasNoSecondLineWithoutNextStep) {
  const Error error({.where = "--ranks", .expected = "a number", .found = "two", .next = {}});
  EXPECT_STREQ(error.what(), "--ranks: expected a number, found two");
}

TEST(Error, LeavesOutPartsThatAreEmpty) {
  EXPECT_STREQ(Error({.where = "a", .expected = "b", .found = {}, .next = {}}).what(), "a: expected b");
  EXPECT_STREQ(Error({.where = "a", .expected = {}, .found = "c", .next = {}}).what(), "a: c");
  EXPECT_STREQ(Error({.where = "a", .expected = {}, .found = {}, .next = {}}).what(), "a");
}

TEST(Error, KeepsItsPartsApart) {
  const Error error({.where = "w", .expected = "e", .found = "f", .next = "n"});
  EXPECT_EQ(error.fault().where, "w");
  EXPECT_EQ(error.fault().expected, "e");
  EXPECT_EQ(error.fault().found, "f");
  EXPECT_EQ(error.fault().next, "n");
}

TEST(Error, DoesNotReadBracesAsPlaceholders) {
  const Error error({.where = "{}", .expected = "{0}", .found = "%s", .next = "{:d}"});
  EXPECT_STREQ(error.what(), "{}: expected {0}, found %s\n{:d}");
}

TEST(Error, OutlivesACopyAndIsCaughtAsAStandardException) {
  std::string text;
  try {
    const Error original({.where = "w", .expected = {}, .found = {}, .next = "n"});
    throw Error(original);
  } catch (const std::exception& error) {
    text = error.what();
  }
  EXPECT_EQ(text, "w\nn");
}

}  // namespace
}  // namespace megalith
