#include "text/stop_strings.h"

#include <chrono>
#include <random>

#include <gtest/gtest.h>

#include "text/utf8_stream.h"

namespace megalith {
namespace {

struct Cut {
  std::string text;
  std::optional<std::string> hit;
  bool operator==(const Cut&) const = default;
};

void PrintTo(const Cut& cut, std::ostream* out) {
  *out << testing::PrintToString(cut.text) << ", " << cut.hit.value_or("(no stop)");
}

// The whole text at once, by search.
Cut naive(const std::string& text, const std::vector<std::string>& stops, bool include) {
  size_t begin = std::string::npos;
  std::optional<std::string> hit;
  for (const std::string& stop : stops) {
    const size_t at = stop.empty() ? std::string::npos : text.find(stop);
    if (at == std::string::npos || at > begin || (at == begin && stop.size() >= hit->size())) continue;
    begin = at;
    hit = stop;
  }
  if (!hit) return {text, hit};
  return {text.substr(0, begin + (include ? hit->size() : 0)), hit};
}

// In pieces; `size` gives the bytes of the next one.
template <class Size>
Cut streamed(const std::string& text, const std::vector<std::string>& stops, bool include, Size size) {
  StopStrings stream(stops, include);
  std::string given;
  for (size_t at = 0; at < text.size();) {
    const size_t n = std::min<size_t>(size(), text.size() - at);
    given += stream.feed(std::string_view(text).substr(at, n));
    at += n;
  }
  given += stream.flush();
  return {given, stream.hit()};
}

// The longest end of a text that is a proper beginning of a stop.
size_t longest_beginning(const std::string& text, const std::vector<std::string>& stops) {
  size_t longest = 0;
  for (const std::string& stop : stops) {
    for (size_t n = 1; n < stop.size(); ++n) {
      if (text.ends_with(stop.substr(0, n))) longest = std::max(longest, n);
    }
  }
  return longest;
}

std::string random_text(std::mt19937& random, size_t letters, size_t size) {
  std::string text;
  for (size_t i = 0; i < size; ++i) text += static_cast<char>('a' + random() % letters);
  return text;
}

std::vector<std::string> random_stops(std::mt19937& random, size_t letters, size_t longest) {
  std::vector<std::string> stops(random() % 6);
  for (std::string& stop : stops) stop = random_text(random, letters, random() % (longest + 1));
  return stops;
}

TEST(StopStrings, CutWhereASearchOfTheWholeTextWouldWhateverThePieces) {
  std::mt19937 random(1);
  int hits = 0;
  for (int round = 0; round < 60000; ++round) {
    const size_t letters = 1 + random() % 4, largest = 1 + random() % 9;
    const auto stops = random_stops(random, letters, 1 + random() % 8);
    const std::string text = random_text(random, letters, random() % 40);
    const bool include = random() % 2 == 0;
    const Cut expected = naive(text, stops, include);
    hits += expected.hit ? 1 : 0;
    ASSERT_EQ(streamed(text, stops, include, [&] { return random() % (largest + 1); }), expected)
        << text << " " << testing::PrintToString(stops);
    ASSERT_EQ(streamed(text, stops, include, [] { return 1; }), expected) << text << " " << testing::PrintToString(stops);
  }
  EXPECT_GT(hits, 20000);
  EXPECT_LT(hits, 50000);
}

TEST(StopStrings, HoldNothingBackButWhatAStopMayBeginWith) {
  std::mt19937 random(2);
  for (int round = 0; round < 20000; ++round) {
    const size_t letters = 2 + random() % 3;
    const auto stops = random_stops(random, letters, 7);
    StopStrings stream(stops, false);
    std::string fed, given;
    while (fed.size() < 40 && !naive(fed, stops, false).hit) {
      ASSERT_EQ(given, fed.substr(0, fed.size() - longest_beginning(fed, stops)))
          << fed << " " << testing::PrintToString(stops);
      const std::string piece = random_text(random, letters, 1 + random() % 3);
      fed += piece;
      given += stream.feed(piece);
    }
  }
}

TEST(StopStrings, AStopInsideALongerOneWaitsForIt) {
  StopStrings longer({"bc", "abcd"}, false);
  EXPECT_EQ(longer.feed("xabc"), "x");
  EXPECT_FALSE(longer.hit());
  EXPECT_EQ(longer.feed("d"), "");
  EXPECT_EQ(longer.hit(), "abcd");

  StopStrings shorter({"bc", "abcd"}, false);
  EXPECT_EQ(shorter.feed("xabc"), "x");
  EXPECT_EQ(shorter.feed("e"), "a");
  EXPECT_EQ(shorter.hit(), "bc");

  StopStrings ended({"bc", "abcd"}, true);
  EXPECT_EQ(ended.feed("xabc"), "x");
  EXPECT_EQ(ended.flush(), "abc");
  EXPECT_EQ(ended.hit(), "bc");
}

TEST(StopStrings, OfTwoThatBeginTogetherTheShorterEndsTheTextAtOnce) {
  StopStrings stream({"\n\nQ:", "\n\n"}, false);
  EXPECT_EQ(stream.feed("A: 4\n"), "A: 4");
  EXPECT_EQ(stream.feed("\n"), "");
  EXPECT_EQ(stream.hit(), "\n\n");
}

TEST(StopStrings, AfterAHitNothingComes) {
  StopStrings stream({"END"}, true);
  EXPECT_EQ(stream.feed("one EN"), "one ");
  EXPECT_EQ(stream.feed("D two END"), "END");
  EXPECT_EQ(stream.feed("three"), "");
  EXPECT_EQ(stream.flush(), "");
  EXPECT_EQ(stream.hit(), "END");
}

TEST(StopStrings, WithoutStopsNothingIsHeld) {
  for (const auto& stops : {std::vector<std::string>{}, std::vector<std::string>{"", ""}}) {
    StopStrings stream(stops, false);
    EXPECT_EQ(stream.feed("any text"), "any text");
    EXPECT_EQ(stream.flush(), "");
    EXPECT_FALSE(stream.hit());
  }
}

TEST(StopStrings, PiecesOfWholeCharactersStayWholeCharacters) {
  const std::vector<std::string> stops = {"é", "国家", "👍🏽"};
  const char* characters[] = {"è", "é", "国", "家", "困", "👍", "👎", "🏽", "a"};
  std::mt19937 random(3);
  for (int round = 0; round < 20000; ++round) {
    StopStrings stream(stops, random() % 2 == 0);
    for (int i = 0; i < 10; ++i) ASSERT_EQ(invalid_utf8(stream.feed(characters[random() % 9])), std::string::npos);
    ASSERT_EQ(invalid_utf8(stream.flush()), std::string::npos);
  }
}

TEST(StopStrings, ALongTextOfNearHitsTakesLinearTime) {
  std::vector<std::string> stops;
  for (int i = 0; i < 16; ++i) stops.push_back(std::string(127, 'a') + static_cast<char>('b' + i));
  const std::string text(4 << 20, 'a');
  const auto start = std::chrono::steady_clock::now();
  EXPECT_EQ(streamed(text, stops, false, [] { return 3; }), (Cut{text, std::nullopt}));
  // A search that starts again at each byte takes 128 times as long: minutes.
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(30));
}

}  // namespace
}  // namespace megalith
