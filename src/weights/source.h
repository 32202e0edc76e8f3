#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include "weights/environment.h"

namespace megalith {

// Finds the directory that `spec` means: an existing directory (~ is expanded), or else a repository id such as
// "Qwen/Qwen3.8-27B" in the hub's cache. Caches are looked into in this order: $HF_HUB_CACHE (or its older name,
// $HUGGINGFACE_HUB_CACHE), $HF_HOME/hub, ~/.cache/huggingface/hub ($XDG_CACHE_HOME in place of ~/.cache where it is
// set). `revision` (default: "main") is a branch or tag that the cache knows, or a whole commit; a directory has none.
// Where no revision is given, one that the environment pins for the repository counts (pinned_revision). Never asks the
// network, and does not check whether the snapshot is complete: Checkpoint does.
//
// Throws Error listing all paths that were tried and the revisions that the cache does have.
std::filesystem::path resolve_model(const std::string& spec, const std::optional<std::string>& revision,
                                    const Environment& environment);

// The revision that the environment pins for a default repository: QWEN_CHECKPOINT_REVISION for Qwen/Qwen3.8-27B,
// QWEN_DRAFT_REVISION for its draft, KIMI_CHECKPOINT_REVISION and KIMI_DRAFT_REVISION. Nothing for other repositories.
std::optional<std::string> pinned_revision(std::string_view repository, const Environment& environment);

}  // namespace megalith
