#pragma once

#include <string>
#include <vector>

#include "models/model.h"
#include "tests/support/golden.h"

namespace megalith {

// The program of a configuration among the test data.
inline Program program_of(const std::string& config, int ranks) {
  const auto path = test_data(config);
  return make_model(read_json(path), path.string())->build({.ranks = ranks});
}

// The small model with one layer of each kind.
inline Program two_layers(int ranks) {
  const auto path = test_data("qwen-a/target/config.json");
  nlohmann::json config = read_json(path);
  nlohmann::json& text = config.contains("text_config") ? config["text_config"] : config;
  text["num_hidden_layers"] = 2;
  text["layer_types"] = {"linear_attention", "full_attention"};
  return make_model(config, path.string())->build({.ranks = ranks});
}

}  // namespace megalith
