#pragma once

// A text that is one JSON document.

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "text/chat.h"
#include "text/constraint.h"
#include "text/json_grammar.h"
#include "text/tokenizer.h"

namespace megalith {

class JsonMasks;

// Blanks: at most two on a line and, after a line break, four and as many for each open container; no second line break.
// Before the document at most four of any kind. Once the document is complete one of the end tokens may come, and after it
// anything.
class JsonConstraint : public Constraint {
 public:
  // Error when the vocabulary lacks a byte that JSON may need. With no end tokens, anything may follow the document.
  JsonConstraint(JsonGrammar grammar, const Tokenizer& tokenizer, std::span<const int32_t> end_tokens);

  std::shared_ptr<const TokenSet> allowed() override;
  bool take(int32_t token) override;
  std::unique_ptr<Constraint> clone() const override { return std::make_unique<JsonConstraint>(*this); }

  // The text that came next. False: it is not allowed, and the state is as before.
  bool take_text(std::string_view bytes);
  // Whether the text is a document, which may go on where that leaves it one.
  bool complete() const;
  // Whether an end token has come.
  bool ended() const { return ended_; }

 private:
  std::shared_ptr<JsonMasks> masks_;
  JsonState state_;
  std::shared_ptr<const TokenSet> allowed_;  // of the state, once asked for
  bool ended_ = false;
};

// The grammar of a format that is not text. Error, naming the field, for a schema that is not supported.
JsonGrammar json_grammar(const ResponseFormat& format);

// Null for a format that is text.
std::shared_ptr<const Constraint> make_json_constraint(const Tokenizer& tokenizer, const ResponseFormat& format,
                                                       std::span<const int32_t> end_tokens);

}  // namespace megalith
