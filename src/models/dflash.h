#pragma once

#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "models/draft.h"

namespace megalith {

bool recognises_dflash(const nlohmann::json& config);
// DFlash2, and DFlash (without convolutions and selector). Throws Error naming the field that cannot be used.
std::unique_ptr<Draft> make_dflash(const nlohmann::json& config, const std::string& file);

}  // namespace megalith
