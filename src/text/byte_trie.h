#pragma once

// A few texts as a trie, followed byte by byte.

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

namespace megalith {

class ByteTrie {
 public:
  static constexpr uint32_t kNone = UINT32_MAX;

  // The number of the text, from 0; that of an equal one where it is there.
  uint32_t add(std::string_view text) {
    uint32_t node = 0;
    for (char c : text) node = child_or_new(node, static_cast<uint8_t>(c));
    if (nodes_[node].text != kNone) return nodes_[node].text;
    nodes_[node].text = count_;
    node = 0;
    nodes_[node].below.push_back(count_);
    for (char c : text) nodes_[node = child(node, static_cast<uint8_t>(c))].below.push_back(count_);
    return count_++;
  }

  // The node one byte on, or kNone. The root is node 0.
  uint32_t child(uint32_t node, uint8_t byte) const {
    const auto& children = nodes_[node].children;
    auto found = std::find_if(children.begin(), children.end(), [&](const auto& one) { return one.first == byte; });
    return found == children.end() ? kNone : found->second;
  }
  // The text that ends at a node, or kNone.
  uint32_t text(uint32_t node) const { return nodes_[node].text; }
  // Texts that begin like this, in order.
  const std::vector<uint32_t>& below(uint32_t node) const { return nodes_[node].below; }
  bool empty() const { return count_ == 0; }

 private:
  struct Node {
    std::vector<std::pair<uint8_t, uint32_t>> children;
    std::vector<uint32_t> below;
    uint32_t text = kNone;
  };

  uint32_t child_or_new(uint32_t node, uint8_t byte) {
    uint32_t next = child(node, byte);
    if (next != kNone) return next;
    next = static_cast<uint32_t>(nodes_.size());
    nodes_[node].children.emplace_back(byte, next);
    nodes_.emplace_back();
    return next;
  }

  std::vector<Node> nodes_ = std::vector<Node>(1);
  uint32_t count_ = 0;
};

}  // namespace megalith
