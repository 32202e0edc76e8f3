#pragma once

// Where a text is to be cut, found while it is written.

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace megalith {

// Looks for stop strings in a text that comes in pieces. The one that begins first ends the text; of several that begin
// there, the shortest. So a stop inside another that may yet become complete waits for it. What is given out, and where
// it ends, does not depend on the cuts; time is linear in the text, for each stop.
class StopStrings {
 public:
  // Empty strings are no stops. `include`: the stop itself is given out, too.
  StopStrings(std::vector<std::string> stops, bool include);

  // What of the text so far is certain to come before a stop, and was not given out yet: all but the longest end of it
  // that a stop may begin with. After a hit, nothing.
  std::string feed(std::string_view text);
  // The text has ended: the rest of it. A stop that waited for a longer one is a hit here.
  std::string flush();
  // The stop that has ended the text.
  const std::optional<std::string>& hit() const { return hit_; }

 private:
  // A stop, after Knuth, Morris and Pratt.
  struct Stop {
    std::string text;
    std::vector<size_t> borders;  // of each beginning, the longest proper one that it ends with
    size_t matched = 0;           // bytes of the stop that the text ends with, less than all

    explicit Stop(std::string stop);
    // Whether the stop is complete with the next byte.
    bool take(char byte);
  };
  struct Found {
    size_t begin = 0;  // in held_
    size_t stop = 0;
  };

  void take(char byte);
  std::string cut();

  std::vector<Stop> stops_;
  const bool include_;
  std::string held_;       // not given out
  size_t unfinished_ = 0;  // bytes at the end of held_ that a stop may begin with
  std::optional<Found> found_;
  std::optional<std::string> hit_;
};

}  // namespace megalith
