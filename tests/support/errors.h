#pragma once

#include <gtest/gtest.h>

#include <string>

#include "base/error.h"

namespace megalith {

// The first line of the Error that `run` throws; a failure when it throws none.
template <class Run>
std::string cause_of(Run run) {
  try {
    run();
  } catch (const Error& error) {
    return error.cause();
  }
  ADD_FAILURE() << "no Error";
  return "";
}

}  // namespace megalith
