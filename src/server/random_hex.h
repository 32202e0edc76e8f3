#pragma once

#include <cstddef>
#include <string>

namespace megalith {

// So many random hexadecimal digits, for ids. From any thread.
std::string random_hex(size_t digits);

}  // namespace megalith
