#include "base/phases.h"

#include <fmt/format.h>

namespace megalith {

void Phases::begin(std::string name) {
  end();
  current_ = std::move(name);
  start_ = Clock::now();
}

void Phases::end() {
  if (current_.empty()) return;
  done_.emplace_back(std::move(current_), std::chrono::duration<double>(Clock::now() - start_).count());
  current_.clear();
}

double Phases::total_s() const {
  double sum = 0;
  for (const auto& [name, seconds] : done_) sum += seconds;
  return sum;
}

double Phases::seconds(std::string_view name) const {
  for (const auto& [phase, seconds] : done_) {
    if (phase == name) return seconds;
  }
  return 0;
}

std::string Phases::table() const {
  std::string text;
  for (const auto& [name, seconds] : done_) text += fmt::format("{:8.3f} s  {}\n", seconds, name);
  return text + fmt::format("{:8.3f} s  until ready\n", total_s());
}

}  // namespace megalith
