#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "models/fields.h"
#include "models/model.h"
#include "program/builder.h"

namespace megalith {

// What drafts of all families have: layers of Qwen3 (grouped-query attention with norms on queries and keys, SwiGLU) over
// blocks of rows, which see the target's context by a projection of its residual stream.
struct DraftShape {
  int64_t hidden = 0, intermediate = 0, layers = 0, vocabulary = 0;
  int64_t heads = 0, kv_heads = 0, head_dim = 0;
  float eps = 0;
  Rope rope;                            // of one head
  std::vector<AttendBlock> attention;   // of each layer: which rows see what
  std::vector<int64_t> taps;            // indices of DraftInputs::streams
  int64_t tap_offset = 0;               // of these, beyond the layers that the configuration names
  int64_t block = 0, mask = 0;
  std::optional<int64_t> target_layers;  // that the target has, where the configuration says so
};

// Reads hidden_size, intermediate_size, the heads, the rotary embedding and rms_norm_eps. Throws Error for what the layers
// cannot do.
DraftShape read_draft_shape(const Fields& fields);

// Throws Error where the shape does not fit the target: layers, hidden size, vocabulary, mask, or a tap beyond the layers, whose
// field is `taps_field`. `file` is the draft's configuration.
void require_same_target(const DraftShape& shape, const Model& target, const std::string& file, const std::string& taps_field);

// Builds the layers; a new one for each program.
class DraftLayers {
 public:
  DraftLayers(Builder& b, const DraftShape& shape);

  // Gives every layer's attention the keys and values of the target's context: a row for each of the step's.
  void see(const DraftInputs& target);
  void at(int64_t layer);  // where the next ops stand
  Value attention(int64_t layer, Value x);  // x: normed rows of draft blocks
  Value mlp(int64_t layer, Value x);
  Value norm(const std::string& name, Value x);

  WeightRef vector(const std::string& name, std::vector<int64_t> shape);
  WeightRef whole(const std::string& name, int64_t outputs, int64_t inputs);     // on every rank
  WeightRef by_token(const std::string& name, int64_t tokens, int64_t inputs);   // dealt to ranks where that can be
  Value gathered(Value x, const std::string& name, int64_t outputs, int64_t inputs);  // outputs of all ranks, on each

 private:
  struct Cache {
    int keys, values;
  };
  bool deals(int64_t groups) const { return groups % b_.segments() == 0; }
  Value context(const DraftInputs& target);
  void see_context(int64_t layer, Value context);
  Value keys(const std::string& layer, Value x);
  Value values(const std::string& layer, Value x);
  Split heads(int64_t outputs, int64_t groups) const;
  std::string layer_name(int64_t layer) const;

  Builder& b_;
  const DraftShape& s_;
  const bool by_heads_, by_width_;  // whether ranks share the heads, and the MLP's width
  int64_t heads_ = 0, kv_heads_ = 0;  // of a rank
  std::vector<Cache> caches_;         // of each layer
};

}  // namespace megalith
