#pragma once

// What a text may go on with.

#include <cstdint>
#include <memory>
#include <vector>

namespace megalith {

// A set of token ids.
class TokenSet {
 public:
  explicit TokenSet(int64_t vocabulary) : words_(static_cast<size_t>((vocabulary + 63) / 64)) {}

  void add(int32_t id) { words_[static_cast<size_t>(id) / 64] |= uint64_t{1} << (id % 64); }
  bool has(int32_t id) const { return (words_[static_cast<size_t>(id) / 64] >> (id % 64) & 1) != 0; }
  // Bit id mod 64 of word ⌊id / 64⌋.
  const uint64_t* words() const { return words_.data(); }

 private:
  std::vector<uint64_t> words_;
};

// The rule that a text obeys, and where in it the text is, token by token.
class Constraint {
 public:
  virtual ~Constraint() = default;
  // The tokens that may come next, at least one; null: all may.
  virtual std::shared_ptr<const TokenSet> allowed() = 0;
  // The token that came next. False: it is not allowed, and the state is as before.
  virtual bool take(int32_t token) = 0;
  virtual std::unique_ptr<Constraint> clone() const = 0;
};

}  // namespace megalith
