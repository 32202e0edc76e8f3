#pragma once

#include <filesystem>
#include <string>

namespace megalith {

inline constexpr const char* kDefaultModel = "tiny-qwen";

// True for the names of the small models that come with Megalith.
bool is_embedded(const std::string& name);

// Its directory: models/NAME in the source tree that this program was built in, or share/megalith/models/NAME beside an
// installed one. Throws Error with the places that were tried.
std::filesystem::path embedded_model(const std::string& name);

}  // namespace megalith
