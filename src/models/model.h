#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "program/builder.h"

namespace megalith {

// A model as its configuration describes it: builds the program of a step.
class Model {
 public:
  virtual ~Model() = default;

  // Throws Error when the rank count is not allowed. With a catalog (the checkpoint's tensors) names are those that the
  // checkpoint uses.
  virtual Program build(const BuildOptions& options) const = 0;
  // True for tensors that this architecture is known to have and that text decoding does not need.
  virtual bool ignores(const std::string& tensor) const = 0;

  virtual std::string family() const = 0;
  virtual int64_t layers() const = 0;
  virtual int64_t hidden() const = 0;         // numbers of the residual stream
  virtual int64_t vocabulary() const = 0;     // rows of the head
  virtual int64_t max_positions() const = 0;  // that the model was made for
  // Into how many segments a whole sum is cut (Program::segments): a power of two, the largest rank count.
  virtual int segments() const = 0;

  std::vector<int> allowed_ranks() const;  // the powers of two up to segments()

 protected:
  // Throws Error where the rank count is not allowed. `file` is the configuration's.
  void require_ranks(int ranks, const std::string& file) const;
  // The end of every program: its outputs, and the draft where one is asked for.
  static void finish(Builder& b, const BuildOptions& options, const DraftInputs& made, Value logits);
};

// Makes the model that config.json describes. `file` is named in errors; an unknown architecture is one.
std::unique_ptr<Model> make_model(const nlohmann::json& config, const std::string& file);

}  // namespace megalith
