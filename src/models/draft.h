#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "models/model.h"
#include "program/builder.h"

namespace megalith {

// A draft model as its configuration describes it: guesses what follows a step's choices, from the target's residual
// stream. It is part of the target's program. Names of its weights begin with kDraftPrefix.
class Draft {
 public:
  virtual ~Draft() = default;

  // Appends the draft to a step. Outputs: "accepted" [blocks, 1], the guesses that the step found right, and "guesses"
  // [blocks, guesses()], what follows the choice after them; where hidden outputs are asked for, "draft.hidden" and
  // "draft.logits" of the draft rows, too.
  virtual void build(Builder& b, const DraftInputs& target) const = 0;
  // True for tensors that this architecture is known to have and that are not needed.
  virtual bool ignores(const std::string& tensor) const = 0;
  // Throws Error, with the field of the configuration, where the draft was made for another target.
  virtual void require_target(const Model& target) const = 0;

  virtual std::string family() const = 0;
  virtual int guesses() const = 0;  // of a block

  // The most rows of a block that is verified: the known token and its guesses.
  int most_rows() const { return std::min(guesses() + 1, kMaxBlock); }
  // build(), for BuildOptions. Borrows the draft.
  DraftBuilder builder() const {
    return [this](Builder& b, const DraftInputs& target) { build(b, target); };
  }
};

// Makes the draft that config.json describes. `file` is named in errors; an unknown architecture is one.
std::unique_ptr<Draft> make_draft(const nlohmann::json& config, const std::string& file);

}  // namespace megalith
