#pragma once

#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "models/draft.h"

namespace megalith {

bool recognises_dspark(const nlohmann::json& config);
// Throws Error naming the field that cannot be used.
std::unique_ptr<Draft> make_dspark(const nlohmann::json& config, const std::string& file);

}  // namespace megalith
