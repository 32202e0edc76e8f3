#pragma once

// Typed fields of JSON that a client sent.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

namespace megalith {

// A value as an Error shows it: short, whatever it is.
std::string shown(const nlohmann::ordered_json& value);

// Read values that are not fields of an object; `path` names them. Whole numbers may be written as 8.0.
int64_t read_integer(const nlohmann::ordered_json& value, const std::string& path, int64_t least, int64_t most);
double read_number(const nlohmann::ordered_json& value, const std::string& path, double least, double most);
std::vector<int32_t> read_token_ids(const nlohmann::ordered_json& value, const std::string& path, int64_t vocabulary);

// The fields of an object. An absent field and one that is null are the same. Wrong ones are an Error with their path.
class RequestFields {
 public:
  // `path` stands before names, as "stream_options."; "" is the whole body. The object must outlive this.
  explicit RequestFields(const nlohmann::ordered_json& object, std::string path = "");

  // Null where the field is absent.
  const nlohmann::ordered_json* find(const char* name) const;
  std::optional<bool> flag(const char* name) const;
  std::optional<int64_t> integer(const char* name, int64_t least, int64_t most) const;
  std::optional<double> number(const char* name, double least, double most) const;
  std::optional<std::string> text(const char* name) const;
  std::optional<RequestFields> object(const char* name) const;
  // Empty where the field is absent.
  std::vector<int32_t> token_ids(const char* name, int64_t vocabulary) const;

  // Throws the Error that a field has a value which cannot be used.
  [[noreturn]] void refuse(const char* name, std::string expected, std::string next = "") const;

 private:
  const nlohmann::ordered_json& object_;
  const std::string path_;
};

}  // namespace megalith
