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
  return split.axis == Split::Axis::outputs ? rank_size(split.blocks, ranks) : shape[0];
}

int64_t Weight::inputs(int ranks) const {
  if (split.axis == Split::Axis::inputs) return rank_size(split.blocks, ranks);
  return std::accumulate(shape.begin() + 1, shape.end(), int64_t{1}, std::multiplies<>());
}

int64_t Weight::tape_bytes(int ranks) const {
  const int64_t bytes =
      layout == WeightLayout::panels ? panels(ranks) * panel_bytes(ranks) : outputs(ranks) * inputs(ranks) * 4;
  return (bytes + 63) / 64 * 64;
}

}  // namespace megalith
