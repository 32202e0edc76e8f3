#include "weights/json_text.h"

#include <utility>
#include <vector>

namespace megalith {

namespace {

using json = nlohmann::json;

// Builds the value as the parser goes (nlohmann's SAX interface).
class Builder {
 public:
  ParsedJson result;

  bool null() { return put(nullptr); }
  bool boolean(bool value) { return put(value); }
  bool number_integer(json::number_integer_t value) { return put(value); }
  bool number_unsigned(json::number_unsigned_t value) { return put(value); }
  bool number_float(json::number_float_t value, const std::string&) { return put(value); }
  bool string(std::string& value) { return put(std::move(value)); }
  bool binary(json::binary_t&) { return false; }  // no part of text

  bool start_object(size_t) { return open(json::object()); }
  bool end_object() { return close(); }
  bool start_array(size_t) { return open(json::array()); }
  bool end_array() { return close(); }

  bool key(std::string& name) {
    const auto [member, fresh] = open_.back()->get_ref<json::object_t&>().try_emplace(name);
    if (!fresh && !result.twice) result.twice = name;
    member_ = &member->second;
    return true;
  }

  template <class Exception>
  bool parse_error(size_t, const std::string&, const Exception& error) {
    throw error;
  }

 private:
  json* place(json value) {
    if (open_.empty()) return &(result.value = std::move(value));
    if (!open_.back()->is_array()) return &(*member_ = std::move(value));
    open_.back()->push_back(std::move(value));
    return &open_.back()->back();
  }

  bool put(json value) {
    place(std::move(value));
    return true;
  }

  // A list does not grow while one of its elements is open, so the pointers stay good.
  bool open(json container) {
    open_.push_back(place(std::move(container)));
    result.too_deep = open_.size() > kDeepestJson;
    return !result.too_deep;
  }

  bool close() {
    open_.pop_back();
    return true;
  }

  std::vector<json*> open_;  // the lists and objects around, the innermost last
  json* member_ = nullptr;   // of the innermost object, whose value comes next
};

}  // namespace

ParsedJson parse_json(std::string_view text) {
  Builder builder;
  json::sax_parse(text.begin(), text.end(), &builder);
  return std::move(builder.result);
}

}  // namespace megalith
