#pragma once

#include <exception>
#include <string>

namespace megalith {

// What a user's mistake is made of. `where` is the file, field, flag or variable; `next` says what to do about it.
struct Fault {
  std::string where;
  std::string expected;
  std::string found;
  std::string next;
};

// The one exception for mistakes that come from outside: a checkpoint, a request, a flag, the environment.
// Our own mistakes are CHECKs (check.h) and never reach the user as an Error.
//
//   throw Error({.where = path, .expected = "a JSON object", .found = "a list", .next = "Download the file again."});
//
// what() is two lines: the cause, then the next step (absent when `next` is empty).
class Error : public std::exception {
 public:
  explicit Error(Fault fault);

  const char* what() const noexcept override { return text_.c_str(); }
  const Fault& fault() const { return fault_; }
  // The first line of what(): "WHERE: expected EXPECTED, found FOUND".
  std::string cause() const;

 private:
  Fault fault_;
  std::string text_;
};

}  // namespace megalith
