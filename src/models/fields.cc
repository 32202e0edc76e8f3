#include "models/fields.h"

#include <fmt/format.h>

#include "base/error.h"

namespace megalith {

Fields::Fields(const nlohmann::json& object, std::string file, std::string path)
    : object_(object), file_(std::move(file)), path_(std::move(path)) {
  if (!object.is_object()) {
    throw Error({.where = file_ + (path_.empty() ? "" : ": " + path_),
                 .expected = "a JSON object",
                 .found = object.type_name(),
                 .next = "Download the file again."});
  }
}

const nlohmann::json* Fields::find(const std::string& name) const {
  const auto found = object_.find(name);
  return found == object_.end() || found->is_null() ? nullptr : &*found;
}

bool Fields::has(const std::string& name) const { return find(name) != nullptr; }

Error Fields::error(const std::string& name, const std::string& expected, const std::string& next) const {
  const nlohmann::json* value = find(name);
  std::string found = value ? value->dump() : "nothing";
  if (found.size() > 80) found = found.substr(0, 77) + "...";
  return Error({.where = fmt::format("{}: {}{}{}", file_, path_, path_.empty() ? "" : ".", name),
                .expected = expected,
                .found = found,
                .next = next});
}

int64_t Fields::integer(const std::string& name, int64_t least, int64_t most) const {
  const nlohmann::json* value = find(name);
  const std::string expected = fmt::format("an integer from {} to {}", least, most);
  if (!value || !value->is_number_integer()) throw error(name, expected);
  if (value->is_number_unsigned() && value->get<uint64_t>() > static_cast<uint64_t>(INT64_MAX)) throw error(name, expected);
  const auto number = value->get<int64_t>();
  if (number < least || number > most) throw error(name, expected);
  return number;
}

int64_t Fields::integer(const std::string& name, int64_t least, int64_t most, int64_t otherwise) const {
  return has(name) ? integer(name, least, most) : otherwise;
}

double Fields::number(const std::string& name) const {
  const nlohmann::json* value = find(name);
  if (!value || !value->is_number()) throw error(name, "a number");
  return value->get<double>();
}

double Fields::number(const std::string& name, double otherwise) const { return has(name) ? number(name) : otherwise; }

float Fields::epsilon(const std::string& name, double otherwise) const {
  const double value = number(name, otherwise);
  if (!(value >= 0 && value <= 1)) throw error(name, "a number from 0 to 1");
  return static_cast<float>(value);
}

bool Fields::flag(const std::string& name, bool otherwise) const {
  const nlohmann::json* value = find(name);
  if (!value) return otherwise;
  if (!value->is_boolean()) throw error(name, "true or false");
  return value->get<bool>();
}

std::string Fields::text(const std::string& name, const std::string& otherwise) const {
  const nlohmann::json* value = find(name);
  if (!value) return otherwise;
  if (!value->is_string()) throw error(name, "a string");
  return value->get<std::string>();
}

std::vector<std::string> Fields::texts(const std::string& name) const {
  const nlohmann::json* value = find(name);
  if (!value) return {};
  if (!value->is_array()) throw error(name, "a list of strings");
  std::vector<std::string> list;
  for (const auto& item : *value) {
    if (!item.is_string()) throw error(name, "a list of strings");
    list.push_back(item.get<std::string>());
  }
  return list;
}

std::vector<int64_t> Fields::integers(const std::string& name) const {
  const nlohmann::json* value = find(name);
  if (!value) return {};
  std::vector<int64_t> list;
  for (const auto& item : value->is_array() ? *value : nlohmann::json::array({*value})) {
    const bool small = item.is_number_integer() && (!item.is_number_unsigned() || item.get<uint64_t>() < (uint64_t{1} << 62));
    if (!value->is_array() || !small) throw error(name, "a list of integers");
    list.push_back(item.get<int64_t>());
  }
  return list;
}

Fields Fields::object(const std::string& name) const {
  const nlohmann::json* value = find(name);
  if (!value) throw error(name, "a JSON object");
  return {*value, file_, path_.empty() ? name : path_ + "." + name};
}

std::vector<std::string> read_layer_types(const Fields& fields, int64_t layers, const std::string& one,
                                          const std::string& other) {
  const std::vector<std::string> types = fields.texts("layer_types");
  if (!fields.has("layer_types")) return types;
  if (static_cast<int64_t>(types.size()) != layers) {
    throw fields.error("layer_types", fmt::format("{} entries, as num_hidden_layers says", layers));
  }
  for (const std::string& type : types) {
    if (type != one && type != other) throw fields.error("layer_types", fmt::format("{} or {} for each layer", one, other));
  }
  return types;
}

}  // namespace megalith
