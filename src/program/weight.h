#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/numbers.h"

namespace megalith {

// A run of consecutive indices of a dimension that is dealt to ranks in whole groups (heads): `size` indices in `groups`
// equal groups. With R ranks, rank r gets groups [r·groups/R, (r+1)·groups/R); with fewer groups than ranks, rank r
// gets the one group ⌊r·groups/R⌋, so that neighbours share it (KV heads).
struct Block {
  int64_t size = 0;
  int64_t groups = 1;

  bool divides(int ranks) const { return groups % ranks == 0 || ranks % groups == 0; }
  // The indices of rank `rank`, counted from the start of the block.
  int64_t begin(int rank, int ranks) const;
  int64_t rank_size(int ranks) const;
};

// How a weight is dealt to ranks. A matrix of the checkpoint is [outputs, inputs], row-major; a vector has outputs only.
// Each block of the split dimension is dealt on its own (q, k and v of one matrix); a rank's parts are joined in order.
struct Split {
  enum class Axis : uint8_t { none, outputs, inputs };
  Axis axis = Axis::none;
  std::vector<Block> blocks;
};

// How a weight lies in the tape.
//   panels: a matrix for matmul and embed (see below).
//   plain:  f32, row-major as in the checkpoint; norms, biases, convolution taps.
enum class WeightLayout : uint8_t { panels, plain };

// A panel is kPanelOutputs outputs of a matrix and all of its inputs, inputs in order ("K-major"). In bf16, an input's 32
// weights are one cache line of sixteen u32: word j holds output j in its lower and output 16 + j in its upper half, so
// that one shift and one mask expand a vector of them, at any vector length. In f32 they are 32 floats, in order.
// The last panel is filled up with zeros.
inline constexpr int64_t kPanelOutputs = 32;

// Where output `output` (0…31) of an input's line lies: index in units of the element (u16 or f32).
constexpr int64_t panel_slot(DType dtype, int64_t output) {
  return dtype == DType::bf16 ? (output % 16) * 2 + output / 16 : output;
}

struct Weight {
  std::string name;            // in the checkpoint
  std::vector<int64_t> shape;  // whole, as in the checkpoint
  DType dtype = DType::bf16;   // in the tape: bf16 or f32 for panels, f32 for plain
  WeightLayout layout = WeightLayout::plain;
  Split split;
  DType stored = DType::bf16;  // in the checkpoint; cost counts these bytes

  // Of one rank, without padding. A plain weight's inputs are what follows its first dimension.
  int64_t outputs(int ranks) const;
  int64_t inputs(int ranks) const;
  int64_t panels(int ranks) const { return (outputs(ranks) + kPanelOutputs - 1) / kPanelOutputs; }
  int64_t panel_bytes(int ranks) const { return kPanelOutputs * inputs(ranks) * dtype_bytes(dtype); }
  // In the tape, padding included.
  int64_t tape_bytes(int ranks) const;
  // What the checkpoint holds for one rank: no padding, and vectors in their own type.
  int64_t bytes(int ranks) const { return outputs(ranks) * inputs(ranks) * dtype_bytes(stored); }
};

// What is known of a tensor before its bytes are read.
struct TensorInfo {
  DType dtype = DType::bf16;
  std::vector<int64_t> shape;
};

// Looks a tensor of the checkpoint up by name.
using TensorCatalog = std::function<std::optional<TensorInfo>(const std::string& name)>;

// Fills tapes with weights, in the layout above. read() may be called from many threads at once.
class TapeSource {
 public:
  virtual ~TapeSource() = default;
  // Writes panels [first, first + count) of a rank's part of `weight` to `out` (count · panel_bytes).
  virtual void read_panels(const Weight& weight, int rank, int ranks, int64_t first, int64_t count,
                           std::byte* out) const = 0;
  // Writes a rank's part of a plain weight to `out` (outputs · inputs floats).
  virtual void read_plain(const Weight& weight, int rank, int ranks, float* out) const = 0;
};

}  // namespace megalith
