#pragma once

#include <filesystem>
#include <optional>
#include <string>

namespace megalith {

inline constexpr const char* kDefaultModel = "tiny-qwen";

// True for the names of the small models, and their drafts, that come with Megalith.
bool is_embedded(const std::string& name);

// Its directory: models/NAME in the source tree that this program was built in, or share/megalith/models/NAME beside an
// installed one. Throws Error with the places that were tried.
std::filesystem::path embedded_model(const std::string& name);

// The draft that was made for a model, by the name that --model has (empty: the default model); nothing where none is known.
std::optional<std::string> known_draft(const std::string& model);

}  // namespace megalith
