#pragma once

#include <ostream>
#include <string>

#include <gtest/gtest.h>

#include "base/error.h"
#include "server/api_error.h"

namespace megalith {

// What a client learns of a request that was refused.
struct Refusal {
  int status = 200;  // none
  std::string param;
  std::string code;
  std::string message;
};

inline std::ostream& operator<<(std::ostream& out, const Refusal& refusal) {
  return out << refusal.status << " " << refusal.param << ": " << refusal.message;
}

template <class Run>
Refusal refusal_of(Run run) {
  try {
    run();
  } catch (const Error& error) {
    return {400, error.fault().where, "", error.what()};
  } catch (const ApiError& error) {
    return {error.status, error.param.value_or(""), error.code.value_or(""), error.message};
  }
  return {};
}

}  // namespace megalith
