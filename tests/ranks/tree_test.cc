#include "ranks/tree.h"

#include <string>

#include <gtest/gtest.h>

namespace megalith {
namespace {

// The tree as text: "((0+1)+(2+3))".
std::string tree(int count) {
  std::vector<std::string> parts;
  for (int i = 0; i < count; ++i) parts.push_back(std::to_string(i));
  for (const TreeSum sum : tree_order(count)) {
    parts[static_cast<size_t>(sum.into)] =
        "(" + parts[static_cast<size_t>(sum.into)] + "+" + parts[static_cast<size_t>(sum.from)] + ")";
  }
  return parts[0];
}

TEST(TreeOrder, IsABinaryTreeOverNeighbours) {
  EXPECT_EQ(tree(1), "0");
  EXPECT_EQ(tree(2), "(0+1)");
  EXPECT_EQ(tree(4), "((0+1)+(2+3))");
  EXPECT_EQ(tree(8), "(((0+1)+(2+3))+((4+5)+(6+7)))");
}

TEST(TreeOrder, LeavesTheRestToTheRightWhereTheCountIsNoPowerOfTwo) {
  EXPECT_EQ(tree(3), "((0+1)+2)");
  EXPECT_EQ(tree(6), "(((0+1)+(2+3))+(4+5))");
  EXPECT_EQ(tree(7), "(((0+1)+(2+3))+((4+5)+6))");
}

TEST(TreeOrder, AddsEveryPartOnce) {
  for (int count = 1; count <= 40; ++count) {
    std::vector<int64_t> sums(static_cast<size_t>(count));
    for (int i = 0; i < count; ++i) sums[static_cast<size_t>(i)] = int64_t{1} << i;
    for (const TreeSum sum : tree_order(count))
      sums[static_cast<size_t>(sum.into)] += sums[static_cast<size_t>(sum.from)];
    EXPECT_EQ(sums[0], (int64_t{1} << count) - 1) << count;
  }
}

}  // namespace
}  // namespace megalith
