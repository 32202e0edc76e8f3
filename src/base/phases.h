#pragma once

#include <chrono>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace megalith {

// Where the time of a start went: begin() ends the phase before. The table is for reports.
class Phases {
 public:
  void begin(std::string name);
  void end();
  double total_s() const;
  // Of a phase that has ended; 0 where there was none of this name.
  double seconds(std::string_view name) const;
  // A line for each phase, "  0.123 s  reading headers", and their sum.
  std::string table() const;

 private:
  using Clock = std::chrono::steady_clock;
  std::vector<std::pair<std::string, double>> done_;
  std::string current_;
  Clock::time_point start_;
};

}  // namespace megalith
