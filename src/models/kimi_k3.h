#pragma once

#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "models/model.h"

namespace megalith {

// Kimi K3: model_type kimi_k3 (with a text_config) or kimi_linear with attention residuals.
bool recognises_kimi_k3(const nlohmann::json& config);
std::unique_ptr<Model> make_kimi_k3(const nlohmann::json& config, const std::string& file);

}  // namespace megalith
