#pragma once

#include <cstdint>
#include <vector>

namespace megalith {

// The order in which a sum over `count` parts (segments of the inputs, or ranks) is formed: a binary tree over their
// indices, neighbours first. A rank that owns an aligned run of segments owns a subtree, so the sum over ranks of the
// ranks' own sums is the same tree, whatever the number of ranks. Part of the contract on bits.
struct TreeSum {
  int32_t into;
  int32_t from;
};

// parts[into] += parts[from] in this order leaves the sum in parts[0]. `count` need not be a power of two.
std::vector<TreeSum> tree_order(int count);

}  // namespace megalith
