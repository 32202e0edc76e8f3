#include "text/stop_strings.h"

#include <algorithm>
#include <utility>

namespace megalith {

StopStrings::Stop::Stop(std::string stop) : text(std::move(stop)), borders(text.size() + 1, 0) {
  for (size_t end = 2; end <= text.size(); ++end) {
    size_t border = borders[end - 1];
    while (border > 0 && text[border] != text[end - 1]) border = borders[border];
    borders[end] = text[border] == text[end - 1] ? border + 1 : 0;
  }
}

bool StopStrings::Stop::take(char byte) {
  while (matched > 0 && text[matched] != byte) matched = borders[matched];
  if (text[matched] == byte) ++matched;
  if (matched < text.size()) return false;
  matched = borders[matched];
  return true;
}

StopStrings::StopStrings(std::vector<std::string> stops, bool include) : include_(include) {
  for (std::string& stop : stops) {
    if (!stop.empty()) stops_.emplace_back(std::move(stop));
  }
}

void StopStrings::take(char byte) {
  held_ += byte;
  unfinished_ = 0;
  for (size_t i = 0; i < stops_.size(); ++i) {
    Stop& stop = stops_[i];
    if (stop.take(byte)) {
      const size_t begin = held_.size() - stop.text.size();
      if (!found_ || begin < found_->begin) found_ = {begin, i};
    }
    unfinished_ = std::max(unfinished_, stop.matched);
  }
}

std::string StopStrings::feed(std::string_view text) {
  if (hit_) return "";
  if (stops_.empty()) return std::string(text);
  for (const char byte : text) {
    take(byte);
    if (found_ && found_->begin <= held_.size() - unfinished_) return cut();
  }
  const size_t safe = held_.size() - unfinished_;
  std::string given = held_.substr(0, safe);
  held_.erase(0, safe);
  if (found_) found_->begin -= safe;
  return given;
}

std::string StopStrings::flush() {
  if (hit_) return "";
  if (found_) return cut();
  unfinished_ = 0;
  return std::exchange(held_, {});
}

std::string StopStrings::cut() {
  const std::string& stop = stops_[found_->stop].text;
  std::string given = held_.substr(0, found_->begin + (include_ ? stop.size() : 0));
  held_.clear();
  hit_ = stop;
  return given;
}

}  // namespace megalith
