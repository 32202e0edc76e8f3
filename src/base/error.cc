#include "base/error.h"

#include <utility>

namespace megalith {

Error::Error(Fault fault) : fault_(std::move(fault)) {
  text_ = cause();
  if (!fault_.next.empty()) text_ += "\n" + fault_.next;
}

std::string Error::cause() const {
  std::string text = fault_.where;
  if (!fault_.expected.empty()) text += ": expected " + fault_.expected;
  if (!fault_.found.empty()) text += (fault_.expected.empty() ? ": " : ", found ") + fault_.found;
  return text;
}

}  // namespace megalith
