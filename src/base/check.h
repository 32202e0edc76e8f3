#pragma once

#include <fmt/format.h>

#include <string_view>

namespace megalith {

// Prints the broken invariant with its values and aborts.
[[noreturn]] void check_failed(const char* file, int line, const char* condition, std::string_view message);

}  // namespace megalith

// An invariant of ours; always on. CHECK(rows <= max_rows, "rows {} of {}", rows, max_rows);
#define CHECK(condition, ...)                                                                 \
  do {                                                                                        \
    if (!(condition)) [[unlikely]]                                                            \
      ::megalith::check_failed(__FILE__, __LINE__, #condition, ::fmt::format(__VA_ARGS__));   \
  } while (false)
