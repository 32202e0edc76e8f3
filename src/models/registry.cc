#include <array>

#include "base/error.h"
#include "models/dflash.h"
#include "models/dspark.h"
#include "models/fields.h"
#include "models/kimi_k3.h"
#include "models/model.h"
#include "models/qwen35.h"

namespace megalith {

namespace {

struct Family {
  bool (*recognises)(const nlohmann::json& config);
  std::unique_ptr<Model> (*make)(const nlohmann::json& config, const std::string& file);
};

// A new model is a line here and a file beside.
constexpr std::array kFamilies = {Family{recognises_qwen35, make_qwen35}, Family{recognises_kimi_k3, make_kimi_k3}};

struct DraftFamily {
  bool (*recognises)(const nlohmann::json& config);
  std::unique_ptr<Draft> (*make)(const nlohmann::json& config, const std::string& file);
};

constexpr std::array kDrafts = {DraftFamily{recognises_dflash, make_dflash}, DraftFamily{recognises_dspark, make_dspark}};

}  // namespace

std::unique_ptr<Draft> make_draft(const nlohmann::json& config, const std::string& file) {
  for (const DraftFamily& family : kDrafts) {
    if (family.recognises(config)) return family.make(config, file);
  }
  throw Fields(config, file)
      .error("architectures", "a draft that Megalith runs (DFlash2DraftModel, DFlashDraftModel; or speculators_model_type dspark)",
             "Give another draft, or --no-draft.");
}

std::unique_ptr<Model> make_model(const nlohmann::json& config, const std::string& file) {
  for (const Family& family : kFamilies) {
    if (family.recognises(config)) return family.make(config, file);
  }
  throw Fields(config, file)
      .error("model_type", "an architecture that Megalith runs (qwen3_5, qwen3_5_text, kimi_k3, kimi_linear)",
             "docs/adding-a-model.md tells how a model is added.");
}

}  // namespace megalith
