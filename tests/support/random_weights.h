#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "base/numbers.h"
#include "program/weight.h"

namespace megalith {

// A number in (-1, 1) that depends on (seed, index) only.
inline float random_number(uint64_t seed, uint64_t index) {
  uint64_t x = seed * 0x9E3779B97F4A7C15 + index + 1;  // splitmix64
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EB;
  x ^= x >> 31;
  return static_cast<float>(static_cast<int64_t>(x >> 40) - (int64_t{1} << 23)) * 0x1p-23f;
}

inline uint64_t seed_of(const std::string& name) {
  uint64_t hash = 14695981039346656037u;  // FNV-1a
  for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211u;
  return hash;
}

// The indices of the whole dimension that a rank holds, in its order.
inline std::vector<int64_t> indices_of_rank(const Split& split, bool applies, int64_t size, int rank, int ranks) {
  std::vector<int64_t> indices;
  if (!applies) {
    for (int64_t i = 0; i < size; ++i) indices.push_back(i);
    return indices;
  }
  int64_t before = 0;
  for (const Block& block : split.blocks) {
    for (int64_t i = 0; i < block.rank_size(ranks); ++i) indices.push_back(before + block.begin(rank, ranks) + i);
    before += block.size;
  }
  return indices;
}

// Weights from memory: those that were set, and for every other name random numbers that depend on the name and the
// place in the whole matrix only, so that all rank counts see one model. Matrices have a variance that keeps
// activations near 1.
class RandomWeights : public TapeSource {
 public:
  void set(const std::string& name, std::vector<float> whole) { given_[name] = std::move(whole); }

  void read_panels(const Weight& w, int rank, int ranks, int64_t first, int64_t count, std::byte* out) const override {
    const auto outputs = indices_of_rank(w.split, w.split.axis == Split::Axis::outputs, w.shape[0], rank, ranks);
    const auto inputs = indices_of_rank(w.split, w.split.axis == Split::Axis::inputs, w.shape[1], rank, ranks);
    std::memset(out, 0, static_cast<size_t>(count * w.panel_bytes(ranks)));
    for (int64_t i = 0; i < count * kPanelOutputs; ++i) {
      const int64_t output = first * kPanelOutputs + i;
      if (output >= static_cast<int64_t>(outputs.size())) break;
      for (size_t k = 0; k < inputs.size(); ++k) {
        const float value = at(w, outputs[static_cast<size_t>(output)] * w.shape[1] + inputs[k]);
        const int64_t line =
            (i / kPanelOutputs * static_cast<int64_t>(inputs.size()) + static_cast<int64_t>(k)) * kPanelOutputs;
        store(w.dtype, value, out, line + panel_slot(w.dtype, i % kPanelOutputs));
      }
    }
  }

  void read_plain(const Weight& w, int rank, int ranks, float* out) const override {
    const int64_t inputs = w.inputs(ranks);
    for (const int64_t row : indices_of_rank(w.split, w.split.axis == Split::Axis::outputs, w.shape[0], rank, ranks)) {
      for (int64_t k = 0; k < inputs; ++k) *out++ = at(w, row * inputs + k);
    }
  }

  // Element `index` of the whole weight, row-major, as it is in the tape.
  float at(const Weight& w, int64_t index) const {
    const auto given = given_.find(w.name);
    if (given != given_.end()) return rounded(w.dtype, given->second[static_cast<size_t>(index)]);
    const bool matrix = w.layout == WeightLayout::panels;
    const float scale = matrix ? 1.7f / std::sqrt(static_cast<float>(w.shape[1])) : 1.0f;
    return rounded(w.dtype, random_number(seed_of(w.name), static_cast<uint64_t>(index)) * scale);
  }

 private:
  static float rounded(DType dtype, float x) { return dtype == DType::bf16 ? bf16_to_f32(f32_to_bf16(x)) : x; }

  static void store(DType dtype, float value, std::byte* out, int64_t at) {
    const uint16_t half = f32_to_bf16(value);
    if (dtype == DType::bf16) {
      std::memcpy(out + at * 2, &half, 2);
    } else {
      std::memcpy(out + at * 4, &value, 4);
    }
  }

  std::map<std::string, std::vector<float>> given_;
};

}  // namespace megalith
