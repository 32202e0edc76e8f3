#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace megalith {

// So that the bytes of a whole model are counted in 64 bits, whatever its configuration says.
inline constexpr int64_t kMaxWidth = int64_t{1} << 20;
inline constexpr int64_t kMaxVocabulary = int64_t{1} << 24;

// Reads typed fields of a configuration object. Errors name the file and the field.
class Fields {
 public:
  Fields(const nlohmann::json& object, std::string file, std::string path = "");

  bool has(const std::string& name) const;  // present, and not null
  // Required fields; the others give `otherwise` when the field is absent or null.
  int64_t integer(const std::string& name, int64_t least, int64_t most) const;
  int64_t integer(const std::string& name, int64_t least, int64_t most, int64_t otherwise) const;
  double number(const std::string& name) const;
  double number(const std::string& name, double otherwise) const;
  // What a norm adds to a mean square: a number from 0 to 1.
  float epsilon(const std::string& name, double otherwise) const;
  bool flag(const std::string& name, bool otherwise) const;
  std::string text(const std::string& name, const std::string& otherwise) const;
  std::vector<int64_t> integers(const std::string& name) const;
  std::vector<std::string> texts(const std::string& name) const;
  Fields object(const std::string& name) const;

  // The Error that a field has a value which cannot be used.
  class Error error(const std::string& name, const std::string& expected, const std::string& next = "") const;

 private:
  const nlohmann::json* find(const std::string& name) const;

  const nlohmann::json& object_;
  std::string file_;
  std::string path_;
};

// layer_types, an entry for each layer and each one of two; empty where the field is absent.
std::vector<std::string> read_layer_types(const Fields& fields, int64_t layers, const std::string& one,
                                          const std::string& other);

}  // namespace megalith
