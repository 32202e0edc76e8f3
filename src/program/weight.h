#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
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
// In MXFP4, a group of 32 inputs is 544 bytes: 32 scales, of output j at j, then for each input a line of 16 bytes: byte j
// holds the code of output j in its lower and of output 16 + j in its upper half.
// The last panel is filled up with zeros (in MXFP4: with scales of 1).
inline constexpr int64_t kPanelOutputs = 32;
inline constexpr int64_t kMxGroupBytes = dtype_bytes(DType::mxfp4, kPanelOutputs * kMxGroup);

// Where output `output` (0…31) of an input's line lies: index in units of the element (u16 or f32).
constexpr int64_t panel_slot(DType dtype, int64_t output) {
  return dtype == DType::bf16 ? (output % 16) * 2 + output / 16 : output;
}

// The same matrix of many experts, each a tensor of its own. Experts are dealt to ranks in `groups` equal groups; where
// there are more ranks than groups, the ranks of a group share its experts, and deal out each matrix as its Split says.
struct ExpertSet {
  int64_t count = 1;
  int64_t groups = 1;
};

// Of each head's rows of a tensor, only rows [first, first + count), as a matrix of its own; turned round, a head's
// outputs are the tensor's inputs, and its inputs these rows.
struct HeadRows {
  int64_t heads = 0;  // 0: the tensor as it is
  int64_t first = 0;
  int64_t count = 0;
  bool transposed = false;
};

// Before the names of tensors that are in the draft's checkpoint.
inline constexpr std::string_view kDraftPrefix = "draft:";

struct Weight {
  std::string name;            // in the checkpoint; of experts, with * for an expert's number
  std::vector<int64_t> shape;  // whole, as in the checkpoint; of experts, one expert's
  DType dtype = DType::bf16;   // in the tape: bf16, f32 or mxfp4 for panels, f32 for plain
  WeightLayout layout = WeightLayout::plain;
  Split split;
  DType stored = DType::bf16;  // in the checkpoint; cost counts these bytes
  ExpertSet experts = {};
  HeadRows head_rows = {};
  int64_t zero_tail = 0;  // indices at the end of the first dimension that hold zeros and are left out

  // Of one rank, without padding; of experts, those of one matrix. A plain weight's inputs are what follows its first
  // dimension.
  int64_t outputs(int ranks) const;
  int64_t inputs(int ranks) const;
  // A rank's experts are [first_matrix, + matrices); a weight that is no set of experts is one matrix.
  int64_t matrices(int ranks) const { return experts.count / expert_ranks(ranks); }
  int64_t first_matrix(int rank, int ranks) const { return rank / part_ranks(ranks) * matrices(ranks); }
  // Between how many ranks a matrix is dealt out, and which part a rank has.
  int part_ranks(int ranks) const { return ranks / expert_ranks(ranks); }
  int part_rank(int rank, int ranks) const { return rank % part_ranks(ranks); }

  int64_t matrix_panels(int ranks) const { return (outputs(ranks) + kPanelOutputs - 1) / kPanelOutputs; }
  int64_t panels(int ranks) const { return matrices(ranks) * matrix_panels(ranks); }
  int64_t panel_bytes(int ranks) const { return dtype_bytes(dtype, kPanelOutputs * inputs(ranks)); }
  // In the tape, padding included.
  int64_t tape_bytes(int ranks) const;
  // What the checkpoint holds for one rank: no padding, and vectors in their own type.
  int64_t bytes(int ranks) const { return matrices(ranks) * matrix_bytes(ranks); }
  int64_t matrix_bytes(int ranks) const { return dtype_bytes(stored, outputs(ranks) * inputs(ranks)); }
  int64_t whole_bytes() const { return matrices(1) * matrix_bytes(1); }

 private:
  int expert_ranks(int ranks) const { return ranks < experts.groups ? ranks : static_cast<int>(experts.groups); }
};

// What is known of a tensor before its bytes are read.
struct TensorInfo {
  DType dtype = DType::bf16;
  std::vector<int64_t> shape;
};

// The tensors of the checkpoint that hold a weight: one, or for each expert its codes and its scales.
struct StoredTensorName {
  std::string name;
  std::vector<int64_t> shape;
  bool packed = false;    // bytes of MXFP4 rather than numbers
  bool integers = false;  // 64 bits each
};
std::vector<StoredTensorName> stored_tensors(const Weight& weight);
// The name of an expert's tensor: * replaced by its number, and ".weight_packed" or ".weight_scale".
std::string expert_tensor(const std::string& name, int64_t expert, const char* part);

// Looks a tensor of the checkpoint up by name.
using TensorCatalog = std::function<std::optional<TensorInfo>(const std::string& name)>;

// Fills tapes with weights, in the layout above. read() may be called from many threads at once.
class TapeSource {
 public:
  virtual ~TapeSource() = default;
  // Writes panels [first, first + count) of a rank's part of `weight` to `out` (count · panel_bytes). Panels are counted
  // through all matrices of the rank.
  virtual void read_panels(const Weight& weight, int rank, int ranks, int64_t first, int64_t count,
                           std::byte* out) const = 0;
  // Writes a rank's part of a plain weight to `out` (outputs · inputs floats).
  virtual void read_plain(const Weight& weight, int rank, int ranks, float* out) const = 0;
};

}  // namespace megalith
