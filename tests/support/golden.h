#pragma once

#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "weights/files.h"
#include "weights/safetensors.h"

namespace megalith {

inline std::filesystem::path test_data(const std::string& name) {
  return std::filesystem::path(MEGALITH_SOURCE_DIR) / "tests/data" / name;
}

// An f32 tensor of a golden file.
inline std::vector<float> golden_tensor(const SafetensorsFile& file, const std::string& name) {
  const auto bytes = file.data(file.tensors().at(name));
  std::vector<float> values(bytes.size() / 4);
  std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

// The largest |a - b|, divided by the largest |b|.
inline double relative_error(const float* a, const float* b, size_t size) {
  double error = 0, scale = 0;
  for (size_t i = 0; i < size; ++i) {
    const double difference = std::abs(static_cast<double>(a[i]) - b[i]);
    if (!(difference <= error)) error = difference;
    scale = std::max(scale, std::abs(static_cast<double>(b[i])));
  }
  return error / scale;
}

}  // namespace megalith
