#include "program/weight.h"

#include <functional>
#include <numeric>

#include "base/check.h"

namespace megalith {

namespace {

int64_t rank_size(const std::vector<Block>& blocks, int ranks) {
  int64_t size = 0;
  for (const Block& block : blocks) size += block.rank_size(ranks);
  return size;
}

}  // namespace

int64_t Block::begin(int rank, int ranks) const {
  const int64_t group = rank * groups / ranks;
  return group * (size / groups);
}

int64_t Block::rank_size(int ranks) const {
  CHECK(size % groups == 0 && divides(ranks), "{} indices in {} groups over {} ranks", size, groups, ranks);
  return size / groups * (groups >= ranks ? groups / ranks : 1);
}

int64_t Weight::outputs(int ranks) const {
  const int64_t rows =
      split.axis == Split::Axis::outputs ? rank_size(split.blocks, part_ranks(ranks)) : shape[0] - zero_tail;
  if (head_rows.heads == 0) return rows;
  const int64_t heads = rows / (shape[0] / head_rows.heads);
  return heads * (head_rows.transposed ? shape[1] : head_rows.count);
}

int64_t Weight::inputs(int ranks) const {
  if (head_rows.transposed) return head_rows.count;
  if (split.axis == Split::Axis::inputs) return rank_size(split.blocks, part_ranks(ranks));
  return std::accumulate(shape.begin() + 1, shape.end(), int64_t{1}, std::multiplies<>());
}

int64_t Weight::tape_bytes(int ranks) const {
  const int64_t bytes =
      layout == WeightLayout::panels ? panels(ranks) * panel_bytes(ranks) : outputs(ranks) * inputs(ranks) * 4;
  return (bytes + 63) / 64 * 64;
}

std::string expert_tensor(const std::string& name, int64_t expert, const char* part) {
  const size_t star = name.find('*');
  return name.substr(0, star) + std::to_string(expert) + name.substr(star + 1) + part;
}

std::vector<StoredTensorName> stored_tensors(const Weight& weight) {
  if (weight.stored != DType::mxfp4) return {{weight.name, weight.shape, false, weight.stored == DType::i64}};
  std::vector<StoredTensorName> tensors;
  for (int64_t expert = 0; expert < weight.experts.count; ++expert) {
    tensors.push_back({expert_tensor(weight.name, expert, ".weight_packed"), {weight.shape[0], weight.shape[1] / 2}, true});
    tensors.push_back(
        {expert_tensor(weight.name, expert, ".weight_scale"), {weight.shape[0], weight.shape[1] / kMxGroup}, true});
  }
  return tensors;
}

}  // namespace megalith
