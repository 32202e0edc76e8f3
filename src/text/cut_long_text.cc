#include "text/cut_long_text.h"

#include "text/characters.h"

namespace megalith {

namespace {

constexpr size_t kLongestText = 400'000;  // characters
constexpr size_t kLongestRun = 25'000;    // characters, all blank or none

}  // namespace

void cut_long_text(std::string_view text, const std::function<void(std::string_view)>& part) {
  size_t begin = 0;  // of the part
  size_t characters = 0;
  size_t run = 0;
  bool blanks = false;
  for (size_t at = 0; at < text.size();) {
    Character next = first_character(text.substr(at));
    bool blank = is_blank(next.code);
    bool full = characters > 0 && characters % kLongestText == 0;
    run = !full && blank == blanks ? run + 1 : 1;
    blanks = blank;
    if (full || run > kLongestRun) {
      part(text.substr(begin, at - begin));
      begin = at;
      run = 1;
    }
    ++characters;
    at += next.bytes;
  }
  if (begin < text.size()) part(text.substr(begin));
}

}  // namespace megalith
