#pragma once

#include <string>

namespace megalith {

// Escape codes where standard output is a terminal and NO_COLOR is not set; empty text elsewhere.
struct Style {
  std::string dim, bold, plain;
};
Style terminal_style();

// Ctrl-C as a number instead of an end: counts since the last reset.
void catch_interrupts();
int interrupts();
void reset_interrupts();

// A line from standard input; false at its end. An interrupt ends the wait with an empty line.
bool read_line(const std::string& prompt, std::string& line);

}  // namespace megalith
