#include "text/text_map.h"

#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace megalith {
namespace {

TEST(TextMap, FindsWhatIsInItAndNothingElse) {
  std::vector<std::string> texts = {"", std::string(1, '\0')};
  for (int i = 0; i < 20'000; ++i) texts.push_back(std::to_string(i));
  TextMap map(texts.size());
  EXPECT_EQ(map.find(""), std::nullopt);
  for (size_t i = 0; i < texts.size(); ++i) EXPECT_TRUE(map.insert(texts[i], static_cast<int32_t>(i)));
  for (size_t i = 0; i < texts.size(); ++i) EXPECT_EQ(map.find(texts[i]), static_cast<int32_t>(i));
  std::vector<std::string_view> wanted(texts.begin(), texts.end());
  wanted.insert(wanted.begin() + 100, "absent");
  std::vector<int32_t> ids(wanted.size());
  map.find(wanted, ids);
  for (size_t i = 0; i < wanted.size(); ++i) {
    EXPECT_EQ(ids[i], i == 100 ? -1 : static_cast<int32_t>(i < 100 ? i : i - 1));
  }
  for (const char* absent : {"a", "20000", "00", "-1"}) EXPECT_EQ(map.find(absent), std::nullopt) << absent;
}

TEST(TextMap, TextThatComesTwiceKeepsItsId) {
  TextMap map(2);
  EXPECT_TRUE(map.insert("a", 1));
  EXPECT_FALSE(map.insert("a", 2));
  EXPECT_EQ(map.find("a"), 1);
}

TEST(TextMap, EmptyOneFindsNothing) {
  EXPECT_EQ(TextMap().find("a"), std::nullopt);
}

}  // namespace
}  // namespace megalith
