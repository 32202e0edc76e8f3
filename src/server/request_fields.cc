#include "server/request_fields.h"

#include <cmath>
#include <utility>

#include <fmt/format.h>

#include "base/error.h"
#include "text/characters.h"

namespace megalith {

namespace {

using Json = nlohmann::ordered_json;

constexpr double kMostExact = 0x1p53;  // so far, every whole number is a double

[[noreturn]] void refuse_value(const std::string& path, std::string expected, std::string found, std::string next = "") {
  throw Error({.where = path, .expected = std::move(expected), .found = std::move(found), .next = std::move(next)});
}

// Nothing where it is no whole number of 64 bits.
std::optional<int64_t> whole_number(const Json& value) {
  if (value.is_number_unsigned() && value.get<uint64_t>() > INT64_MAX) return std::nullopt;
  if (value.is_number_integer()) return value.get<int64_t>();
  if (!value.is_number_float()) return std::nullopt;
  const auto number = value.get<double>();
  if (std::trunc(number) != number || std::abs(number) > kMostExact) return std::nullopt;
  return static_cast<int64_t>(number);
}

}  // namespace

std::string shown(const Json& value) {
  if (value.is_object()) return "an object";
  if (value.is_array()) return "a list";
  if (value.is_string()) return fmt::format("\"{}\"", shortened(value.get_ref<const std::string&>()));
  return value.dump();
}

int64_t read_integer(const Json& value, const std::string& path, int64_t least, int64_t most) {
  const auto number = whole_number(value);
  if (number && *number >= least && *number <= most) return *number;
  std::string expected = "a whole number";
  if (least != INT64_MIN)
    expected += most == INT64_MAX ? fmt::format(", {} or more", least) : fmt::format(" from {} to {}", least, most);
  refuse_value(path, expected, shown(value));
}

double read_number(const Json& value, const std::string& path, double least, double most) {
  const double number = value.is_number() ? value.get<double>() : NAN;
  if (number >= least && number <= most) return number;
  refuse_value(path, fmt::format("a number from {} to {}", least, most), shown(value));
}

std::vector<int32_t> read_token_ids(const Json& value, const std::string& path, int64_t vocabulary) {
  if (!value.is_array()) refuse_value(path, "a list of token ids", shown(value));
  std::vector<int32_t> ids;
  ids.reserve(value.size());
  for (const Json& id : value) {
    const auto number = whole_number(id);
    if (!number || *number < 0 || *number >= vocabulary) {
      refuse_value(fmt::format("{}[{}]", path, ids.size()), fmt::format("a token id from 0 to {}", vocabulary - 1),
                   shown(id));
    }
    ids.push_back(static_cast<int32_t>(*number));
  }
  return ids;
}

RequestFields::RequestFields(const Json& object, std::string path) : object_(object), path_(std::move(path)) {
  if (object.is_object()) return;
  refuse_value(path_.empty() ? "request" : path_.substr(0, path_.size() - 1), "an object", shown(object));
}

const Json* RequestFields::find(const char* name) const {
  const auto found = object_.find(name);
  return found == object_.end() || found->is_null() ? nullptr : &*found;
}

std::optional<bool> RequestFields::flag(const char* name) const {
  const Json* value = find(name);
  if (value == nullptr) return std::nullopt;
  if (!value->is_boolean()) refuse(name, "true or false");
  return value->get<bool>();
}

std::optional<int64_t> RequestFields::integer(const char* name, int64_t least, int64_t most) const {
  const Json* value = find(name);
  if (value == nullptr) return std::nullopt;
  return read_integer(*value, path_ + name, least, most);
}

std::optional<double> RequestFields::number(const char* name, double least, double most) const {
  const Json* value = find(name);
  if (value == nullptr) return std::nullopt;
  return read_number(*value, path_ + name, least, most);
}

std::optional<std::string> RequestFields::text(const char* name) const {
  const Json* value = find(name);
  if (value == nullptr) return std::nullopt;
  if (!value->is_string()) refuse(name, "a string");
  return value->get<std::string>();
}

std::optional<RequestFields> RequestFields::object(const char* name) const {
  const Json* value = find(name);
  if (value == nullptr) return std::nullopt;
  return RequestFields(*value, path_ + name + ".");
}

std::vector<int32_t> RequestFields::token_ids(const char* name, int64_t vocabulary) const {
  const Json* value = find(name);
  if (value == nullptr) return {};
  return read_token_ids(*value, path_ + name, vocabulary);
}

void RequestFields::refuse(const char* name, std::string expected, std::string next) const {
  const Json* value = find(name);
  refuse_value(path_ + name, std::move(expected), value == nullptr ? "nothing" : shown(*value), std::move(next));
}

}  // namespace megalith
