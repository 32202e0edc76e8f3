#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

namespace megalith {

// Whether a file (or a link to one) is there. A directory that may not be read counts as one without files.
bool file_exists(const std::filesystem::path& path);
// Reads a whole file; throws Error naming it.
std::string read_text(const std::filesystem::path& path);
// The same, parsed. Throws Error with the place of a syntax error, and for more than 100 lists and objects inside each
// other, since values are copied and shown by recursion.
nlohmann::json read_json(const std::filesystem::path& path);
// A value as an Error shows it: short, whatever its size and depth.
std::string brief(const nlohmann::json& value);

// What generation_config.json and config.json say about ending and sampling. What they don't say is absent.
struct GenerationConfig {
  std::vector<int32_t> end_tokens;
  bool do_sample = false;
  std::optional<float> temperature, top_p, min_p;
  std::optional<int32_t> top_k;
};

// End tokens come from generation_config.json's eos_token_id (a number or a list), else from config.json (text_config,
// or root). generation_config.json may be absent. Throws Error, naming file and field, for values that make no sense.
GenerationConfig load_generation_config(const std::filesystem::path& directory, const nlohmann::json& config);

// The chat template's text: chat_template.jinja, else chat_template in tokenizer_config.json (text, or a list with a
// "default" entry), else chat_template in chat_template.json. Nothing where there is none.
std::optional<std::string> load_chat_template(const std::filesystem::path& directory);

}  // namespace megalith
