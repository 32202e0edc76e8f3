#pragma once

#include <vector>

#include "program/weight.h"
#include "weights/checkpoint.h"

namespace megalith {

// Packs a checkpoint's tensors into tapes, at about the speed of memory; no more than a panel's chunk is held beside
// the mapped files and `out`. Expansion to f32 is exact. The program must fit the checkpoint (check_tensors): a tensor
// of another shape, or one that bf16 panels cannot hold, is a CHECK. Numbers that the model may not have (a scale of MXFP4
// of 0 or 255, a tail that is not zero) are an Error. Borrows the checkpoint.
class CheckpointTape : public TapeSource {
 public:
  explicit CheckpointTape(const Checkpoint& checkpoint) : checkpoint_(checkpoint) {}

  void read_panels(const Weight& weight, int rank, int ranks, int64_t first, int64_t count,
                   std::byte* out) const override;
  void read_plain(const Weight& weight, int rank, int ranks, float* out) const override;

 private:
  void read_experts(const Weight& weight, int rank, int ranks, int64_t first, int64_t count, std::byte* out) const;

  const Checkpoint& checkpoint_;
};

// The tapes of a target and its draft: weights whose names begin with kDraftPrefix are the draft's. Borrows both.
class PairTape : public TapeSource {
 public:
  PairTape(const TapeSource& target, const TapeSource& draft) : target_(target), draft_(draft) {}

  void read_panels(const Weight& weight, int rank, int ranks, int64_t first, int64_t count,
                   std::byte* out) const override;
  void read_plain(const Weight& weight, int rank, int ranks, float* out) const override;

 private:
  const TapeSource& target_;
  const TapeSource& draft_;
};

// The weights of a program that are (or are not) the draft's, under the names that they have in its checkpoint.
std::vector<Weight> weights_of(const std::vector<Weight>& weights, bool draft);
// Looks tensors up in both checkpoints. Borrows them.
TensorCatalog pair_catalog(const Checkpoint& target, const Checkpoint& draft);

}  // namespace megalith
