#include "weights/files.h"

#include <algorithm>

#include <fmt/format.h>

#include "base/error.h"
#include "base/memory.h"
#include "weights/json_text.h"

namespace megalith {

namespace {

using nlohmann::json;

constexpr int64_t kMaxTokenId = int64_t{1} << 24;
constexpr size_t kBriefBytes = 80;

Error bad_field(const std::filesystem::path& path, const std::string& field, const std::string& expected,
                const json& found) {
  return Error({.where = path.string() + (field.empty() ? "" : ": " + field),
                .expected = expected,
                .found = brief(found),
                .next = "Correct the file, or download it again."});
}

// The field, or null where it is absent or null.
const json* find(const json& object, const char* field) {
  const auto found = object.find(field);
  return found == object.end() || found->is_null() ? nullptr : &*found;
}

std::vector<int32_t> token_ids(const json& value, const std::filesystem::path& path) {
  std::vector<int32_t> ids;
  const auto add = [&](const json& id) {
    if (!id.is_number_unsigned() || id.get<uint64_t>() > static_cast<uint64_t>(kMaxTokenId)) {
      throw bad_field(path, "eos_token_id", "a token id, or a list of them", id);
    }
    if (std::find(ids.begin(), ids.end(), id.get<int32_t>()) == ids.end()) ids.push_back(id.get<int32_t>());
  };
  if (value.is_array()) {
    for (const json& id : value) add(id);
  } else {
    add(value);
  }
  return ids;
}

std::optional<float> read_number(const json& object, const char* field, float least, float most,
                                 const std::filesystem::path& path) {
  const json* value = find(object, field);
  if (!value) return std::nullopt;
  const double number = value->is_number() ? value->get<double>() : -1;
  if (!value->is_number() || !(number >= least && number <= most)) {
    throw bad_field(path, field, fmt::format("a number from {} to {}", least, most), *value);
  }
  return static_cast<float>(number);
}

// What generation_config.json says about sampling. A top_k of -1 or 0 keeps all tokens.
void read_sampling(const json& object, const std::filesystem::path& path, GenerationConfig& result) {
  if (const json* value = find(object, "do_sample")) {
    if (!value->is_boolean()) throw bad_field(path, "do_sample", "true or false", *value);
    result.do_sample = *value;
  }
  result.temperature = read_number(object, "temperature", 0, 100, path);
  result.top_p = read_number(object, "top_p", 0, 1, path);
  result.min_p = read_number(object, "min_p", 0, 1, path);
  if (const json* value = find(object, "top_k")) {
    const double number = value->is_number_integer() ? value->get<double>() : -2;
    if (number < -1 || number > static_cast<double>(kMaxTokenId)) {
      throw bad_field(path, "top_k", fmt::format("an integer from -1 to {}", kMaxTokenId), *value);
    }
    result.top_k = std::max(0, value->get<int32_t>());
  }
}

// The template of a JSON file, where it has one.
std::optional<std::string> template_in(const std::filesystem::path& path) {
  if (!file_exists(path)) return std::nullopt;
  const json object = read_json(path);
  if (!object.is_object()) throw bad_field(path, "", "a JSON object", object);
  const json* value = find(object, "chat_template");
  if (!value) return std::nullopt;
  if (value->is_string()) return value->get<std::string>();
  for (const json& entry : value->is_array() ? *value : json::array()) {
    const json* name = entry.is_object() ? find(entry, "name") : nullptr;
    const json* text = entry.is_object() ? find(entry, "template") : nullptr;
    if (name && *name == "default" && text && text->is_string()) return text->get<std::string>();
  }
  throw bad_field(path, "chat_template", "a text, or a list with an entry named default", *value);
}

}  // namespace

bool file_exists(const std::filesystem::path& path) {
  std::error_code ignored;
  return std::filesystem::exists(path, ignored);
}

std::string read_text(const std::filesystem::path& path) {
  const MappedFile file(path);
  const auto bytes = file.bytes();
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

std::string brief(const json& value) {
  if (value.is_object()) return fmt::format("an object with {} fields", value.size());
  if (value.is_array()) return fmt::format("a list of {}", value.size());
  std::string text = value.dump(-1, ' ', true);
  if (text.size() > kBriefBytes) text = text.substr(0, kBriefBytes - 3) + "...";
  return text;
}

json read_json(const std::filesystem::path& path) {
  const std::string text = read_text(path);
  try {
    ParsedJson parsed = parse_json(text);
    if (!parsed.too_deep) return std::move(parsed.value);
    throw Error({.where = path.string(),
                 .expected = fmt::format("at most {} lists and objects inside each other", kDeepestJson),
                 .found = "more",
                 .next = "Download the file again."});
  } catch (const json::exception& error) {
    const auto* syntax = dynamic_cast<const json::parse_error*>(&error);
    throw Error({.where = path.string(),
                 .expected = "JSON",
                 .found = syntax ? fmt::format("a syntax error at byte {} of {}", syntax->byte, text.size())
                                 : "a number that is out of range",
                 .next = "Download the file again."});
  }
}

GenerationConfig load_generation_config(const std::filesystem::path& directory, const json& config) {
  GenerationConfig result;
  const auto path = directory / "generation_config.json";
  const json object = file_exists(path) ? read_json(path) : json::object();
  if (!object.is_object()) throw bad_field(path, "", "a JSON object", object);
  if (const json* value = find(object, "eos_token_id")) result.end_tokens = token_ids(*value, path);
  read_sampling(object, path, result);
  if (!config.is_object()) return result;
  for (const json* place : {find(config, "text_config"), &config}) {
    const json* value = place && place->is_object() ? find(*place, "eos_token_id") : nullptr;
    if (value && result.end_tokens.empty()) result.end_tokens = token_ids(*value, directory / "config.json");
  }
  return result;
}

std::optional<std::string> load_chat_template(const std::filesystem::path& directory) {
  const auto text = directory / "chat_template.jinja";
  if (file_exists(text)) return read_text(text);
  for (const char* name : {"tokenizer_config.json", "chat_template.json"}) {
    if (auto found = template_in(directory / name)) return found;
  }
  return std::nullopt;
}

}  // namespace megalith
