#pragma once

// Cuts a text into pieces with a regular expression: the pre-tokenizer's Split with behaviour "Isolated".

#include <functional>
#include <memory>
#include <string>
#include <string_view>

namespace megalith {

// Immutable; split() may be called from several threads at once.
class Splitter {
 public:
  // `pattern` in the syntax of tokenizer.json (Oniguruma's, as far as PCRE2 shares it).
  // Error, naming `where`, when PCRE2 cannot read it.
  Splitter(const std::string& pattern, const std::string& where);

  // Gives each match, and each text between two matches, to `piece`, in order. Needs UTF-8.
  // Error when a pattern needs more than a set number of steps for one match.
  void split(std::string_view text, const std::function<void(std::string_view)>& piece) const;

 private:
  struct Compiled;
  std::shared_ptr<const Compiled> compiled_;
  std::string where_;
};

}  // namespace megalith
