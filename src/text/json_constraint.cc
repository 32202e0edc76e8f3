#include "text/json_constraint.h"

#include <algorithm>

#include "base/check.h"
#include "text/json_masks.h"
#include "text/json_schema.h"

namespace megalith {

JsonConstraint::JsonConstraint(JsonGrammar grammar, const Tokenizer& tokenizer, std::span<const int32_t> end_tokens)
    : masks_(std::make_shared<JsonMasks>(std::move(grammar), tokenizer, end_tokens)),
      state_(masks_->grammar().start()) {
  CHECK(masks_->grammar().possible(), "a grammar without documents");
}

std::shared_ptr<const TokenSet> JsonConstraint::allowed() {
  if (ended_) return nullptr;
  if (!allowed_) allowed_ = masks_->allowed(state_);
  return allowed_;
}

bool JsonConstraint::take(int32_t token) {
  if (ended_) return true;
  const auto& ends = masks_->end_tokens();
  if (std::find(ends.begin(), ends.end(), token) != ends.end()) {
    ended_ = complete();
    return ended_;
  }
  const Tokenizer& tokenizer = masks_->tokenizer();
  if (!tokenizer.trie().has_token(token) || !take_text(tokenizer.token_bytes(token))) return false;
  ended_ = ends.empty() && complete();
  return true;
}

bool JsonConstraint::take_text(std::string_view bytes) {
  JsonState state = state_;
  JsonState after;
  for (char byte : bytes) {
    masks_->grammar().take(state, static_cast<uint8_t>(byte), after);
    if (after.empty()) return false;
    std::swap(state, after);
  }
  state_ = std::move(state);
  allowed_.reset();
  return true;
}

bool JsonConstraint::complete() const {
  return masks_->grammar().complete(state_);
}

JsonGrammar json_grammar(const ResponseFormat& format) {
  CHECK(format.kind != ResponseFormat::Kind::text, "text has no grammar");
  if (format.kind == ResponseFormat::Kind::json_object) return any_object_grammar();
  return schema_grammar(format.schema, format.strict, format.schema_path);
}

std::shared_ptr<const Constraint> make_json_constraint(const Tokenizer& tokenizer, const ResponseFormat& format,
                                                       std::span<const int32_t> end_tokens) {
  if (format.kind == ResponseFormat::Kind::text) return nullptr;
  return std::make_shared<const JsonConstraint>(json_grammar(format), tokenizer, end_tokens);
}

}  // namespace megalith
