#pragma once

#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "models/model.h"

namespace megalith {

// The dense members of the Qwen3.5, 3.6 and 3.8 line: model_type qwen3_5 (with a text_config) or qwen3_5_text.
bool recognises_qwen35(const nlohmann::json& config);
std::unique_ptr<Model> make_qwen35(const nlohmann::json& config, const std::string& file);

}  // namespace megalith
