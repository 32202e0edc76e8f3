#include "ranks/tree.h"

namespace megalith {

std::vector<TreeSum> tree_order(int count) {
  std::vector<TreeSum> order;
  for (int distance = 1; distance < count; distance *= 2) {
    for (int i = 0; i + distance < count; i += 2 * distance) order.push_back({i, i + distance});
  }
  return order;
}

}  // namespace megalith
