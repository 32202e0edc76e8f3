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
  // The bytes that scales of MXFP4 are drawn from.
  void set_scales(std::vector<uint8_t> bytes) { scales_ = std::move(bytes); }

  void read_panels(const Weight& w, int rank, int ranks, int64_t first, int64_t count, std::byte* out) const override {
    const int part = w.part_rank(rank, ranks), parts = w.part_ranks(ranks);
    const auto outputs = outputs_of(w, part, parts);
    const auto inputs = inputs_of(w, part, parts);
    std::memset(out, w.dtype == DType::mxfp4 ? 127 : 0, static_cast<size_t>(count * w.panel_bytes(ranks)));
    for (int64_t i = 0; i < count * kPanelOutputs; ++i) {
      const int64_t panel = first + i / kPanelOutputs, matrix = panel / w.matrix_panels(ranks);
      const int64_t output = panel % w.matrix_panels(ranks) * kPanelOutputs + i % kPanelOutputs;
      if (output >= static_cast<int64_t>(outputs.size())) continue;
      std::byte* to = out + i / kPanelOutputs * w.panel_bytes(ranks);
      for (size_t k = 0; k < inputs.size(); ++k) {
        const int64_t row = outputs[static_cast<size_t>(output)], column = inputs[k];
        if (w.dtype == DType::mxfp4) {
          store_code(w, w.first_matrix(rank, ranks) + matrix, row, column, to, i % kPanelOutputs,
                     static_cast<int64_t>(k));
        } else {
          const int64_t line = static_cast<int64_t>(k) * kPanelOutputs;
          store(w.dtype, at(w, place(w, row, column)), to, line + panel_slot(w.dtype, i % kPanelOutputs));
        }
      }
    }
  }

  void read_plain(const Weight& w, int rank, int ranks, float* out) const override {
    const int64_t inputs = w.inputs(ranks);
    const int64_t size = w.shape[0] - w.zero_tail;
    for (const int64_t row : indices_of_rank(w.split, w.split.axis == Split::Axis::outputs, size, rank, ranks)) {
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
  // The outputs of a rank's matrix as indices of the whole matrix's outputs, heads cut and turned as HeadRows says.
  static std::vector<int64_t> outputs_of(const Weight& w, int part, int parts) {
    const auto rows = indices_of_rank(w.split, w.split.axis == Split::Axis::outputs, w.shape[0], part, parts);
    if (w.head_rows.heads == 0) return rows;
    const int64_t head_size = w.shape[0] / w.head_rows.heads;
    const int64_t each = w.head_rows.transposed ? w.shape[1] : w.head_rows.count;
    std::vector<int64_t> outputs;
    for (size_t i = 0; i < rows.size(); i += static_cast<size_t>(head_size)) {
      for (int64_t j = 0; j < each; ++j) outputs.push_back(rows[i] / head_size * each + j);
    }
    return outputs;
  }

  static std::vector<int64_t> inputs_of(const Weight& w, int part, int parts) {
    const int64_t whole = w.head_rows.transposed ? w.head_rows.count : w.shape[1];
    return indices_of_rank(w.split, w.split.axis == Split::Axis::inputs, whole, part, parts);
  }

  // Where the whole tensor has an element of the matrix.
  static int64_t place(const Weight& w, int64_t output, int64_t input) {
    if (w.head_rows.heads == 0) return output * w.shape[1] + input;
    const int64_t head_size = w.shape[0] / w.head_rows.heads;
    const int64_t each = w.head_rows.transposed ? w.shape[1] : w.head_rows.count;
    const int64_t first = output / each * head_size + w.head_rows.first;
    return w.head_rows.transposed ? (first + input) * w.shape[1] + output % each
                                  : (first + output % each) * w.shape[1] + input;
  }

  // A random code, and the random scale of its group.
  void store_code(const Weight& w, int64_t expert, int64_t output, int64_t input, std::byte* panel, int64_t j,
                  int64_t k) const {
    const auto index = static_cast<uint64_t>((expert * w.shape[0] + output) * w.shape[1] + input);
    const float r = random_number(seed_of(w.name), index);
    const float s = random_number(seed_of(w.name + " scales"), index / kMxGroup);
    const auto code = static_cast<uint32_t>((r + 1) * 8) & 15;
    std::byte* group = panel + k / kMxGroup * kMxGroupBytes;
    group[j] = std::byte{scales_[static_cast<size_t>((s + 1) * 0x1p23f) % scales_.size()]};
    std::byte& pair = group[kPanelOutputs + k % kMxGroup * 16 + j % 16];
    const uint32_t other = j < 16 ? static_cast<uint32_t>(pair) & 0xf0 : static_cast<uint32_t>(pair) & 0x0f;
    pair = static_cast<std::byte>(other | code << (j / 16 * 4));
  }

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
  std::vector<uint8_t> scales_ = {122, 123, 124};
};

}  // namespace megalith
