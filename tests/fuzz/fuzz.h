#pragma once

// What the fuzz targets share. A target is a LLVMFuzzerTestOneInput that hands bytes to a parser; a property that does
// not hold is a CHECK. docs/fuzzing.md tells more.

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/error.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace megalith {

inline std::string_view text_of(const uint8_t* data, size_t size) {
  return {reinterpret_cast<const char*>(data), size};
}

// Runs a parser on hostile input. Error is its one way to refuse; any other exception ends the process.
template <class Run>
void refuse_with_error_only(Run run) {
  try {
    run();
  } catch (const Error&) {
  }
}

// Takes small choices off the front of an input; those that it is too short for are 0.
class Choices {
 public:
  explicit Choices(std::string_view input) : rest_(input) {}

  uint8_t byte() {
    if (rest_.empty()) return 0;
    const auto value = static_cast<uint8_t>(rest_[0]);
    rest_.remove_prefix(1);
    return value;
  }
  std::string_view rest() const { return rest_; }

 private:
  std::string_view rest_;
};

}  // namespace megalith
