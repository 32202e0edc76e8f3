#include "text/json_schema.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <deque>
#include <map>
#include <set>
#include <span>
#include <unordered_map>

#include <fmt/format.h>

#include "base/error.h"
#include "text/characters.h"

namespace megalith {

namespace {

using Json = nlohmann::ordered_json;
using Kind = JsonRule::Kind;

constexpr size_t kMostBytes = 256 * 1024;  // of a schema
constexpr size_t kMostSchemas = 10'000;    // inside a schema
constexpr size_t kMostForms = 256;         // of one value
constexpr size_t kMostSteps = 32;          // from one schema to another at the same place, by $ref and the like
constexpr size_t kMostPairs = 100'000;     // of alternatives of oneOf, in a schema

// Keywords that would change which documents are valid.
constexpr std::array kUnsupported = {"additionalItems",
                                     "contains",
                                     "dependencies",
                                     "dependentRequired",
                                     "dependentSchemas",
                                     "else",
                                     "exclusiveMaximum",
                                     "exclusiveMinimum",
                                     "if",
                                     "maxContains",
                                     "maxProperties",
                                     "maximum",
                                     "minContains",
                                     "minProperties",
                                     "minimum",
                                     "multipleOf",
                                     "not",
                                     "pattern",
                                     "patternProperties",
                                     "propertyNames",
                                     "then",
                                     "unevaluatedProperties",
                                     "uniqueItems",
                                     "unevaluatedItems",
                                     "$dynamicRef",
                                     "$recursiveRef"};
constexpr std::array kObjectKeywords = {"properties", "required", "additionalProperties"};
constexpr std::array kArrayKeywords = {"items", "prefixItems", "minItems", "maxItems"};
constexpr std::array kStringKeywords = {"minLength", "maxLength"};
constexpr std::array kTypes = {"string", "number", "integer", "boolean", "null", "object", "array"};

[[noreturn]] void refuse(const std::string& where, std::string expected, std::string found, std::string next = "") {
  throw Error({.where = where, .expected = std::move(expected), .found = std::move(found), .next = std::move(next)});
}

std::string shown(const Json& value) {
  return shortened(value.dump());
}

const Json* find(const Json& object, const char* name) {
  auto found = object.find(name);
  return found == object.end() ? nullptr : &*found;
}

template <size_t n>
bool has_any(const Json& schema, const std::array<const char*, n>& keywords) {
  return std::any_of(keywords.begin(), keywords.end(), [&](const char* one) { return schema.contains(one); });
}

template <size_t n>
void refuse_beside(const Json& schema, const std::string& path, const char* keyword,
                   const std::array<const char*, n>& keywords) {
  for (const char* other : keywords) {
    if (schema.contains(other)) {
      refuse(path + "." + other, fmt::format("nothing that restricts a value next to {}", keyword), "this keyword",
             "Write it into the schemas there.");
    }
  }
}

bool is_integer(const Json& value) {
  return value.is_number_integer() ||
         (value.is_number_float() && value.get<double>() == std::trunc(value.get<double>()));
}

bool has_type(const Json& value, std::string_view type) {
  if (type == "string") return value.is_string();
  if (type == "number") return value.is_number();
  if (type == "integer") return is_integer(value);
  if (type == "boolean") return value.is_boolean();
  if (type == "null") return value.is_null();
  return type == "object" ? value.is_object() : value.is_array();
}

std::string text_of_name(const std::string& name) {
  const std::string quoted = Json(name).dump();
  return quoted.substr(1, quoted.size() - 2);
}

// What containers have at least inside each other; the smallest that satisfies all rules.
class Heights {
 public:
  Heights(std::vector<JsonRule>& rules, std::vector<JsonValue>& values) : rules_(rules), values_(values) {}

  // A height that is found in round n is n; those not found by then have no end, or are too deep for any text.
  void find() {
    for (JsonRule& rule : rules_) rule.height = kNoLimit;
    for (JsonValue& value : values_) value.height = kNoLimit;
    constexpr int kRounds = 2 * 66;
    bool changed = true;
    for (int round = 0; round < kRounds && changed; ++round) {
      changed = false;
      for (JsonRule& rule : rules_) changed |= lower(rule.height, height_of(rule));
      for (JsonValue& value : values_) {
        for (uint32_t form : value.rules) changed |= lower(value.height, rules_[form].height);
      }
    }
  }

 private:
  static bool lower(uint32_t& height, uint32_t to) {
    const bool lower = to < height;
    height = std::min(height, to);
    return lower;
  }

  uint32_t height_of(const JsonRule& rule) const {
    if (rule.min > rule.max) return kNoLimit;
    uint32_t inside = 0;
    if (rule.kind == Kind::object) {
      for (const auto& property : rule.properties) {
        if (property.required) inside = std::max(inside, values_[property.value].height);
      }
    } else if (rule.kind == Kind::array) {
      for (uint32_t i = 0; i < std::min<size_t>(rule.min, rule.first_items.size()); ++i) {
        inside = std::max(inside, values_[rule.first_items[i]].height);
      }
      if (rule.min > rule.first_items.size())
        inside = std::max(inside, rule.others ? values_[*rule.others].height : kNoLimit);
    } else {
      return 0;
    }
    return inside == kNoLimit ? kNoLimit : inside + 1;
  }

  std::vector<JsonRule>& rules_;
  std::vector<JsonValue>& values_;
};

class Compiler {
 public:
  Compiler(const Json& schema, bool strict, std::string where)
      : root_(schema), strict_(strict), where_(std::move(where)) {}

  JsonGrammar compile() {
    if (root_.dump().size() > kMostBytes) refuse(where_, fmt::format("at most {} bytes", kMostBytes), "more");
    rules_.push_back({.kind = Kind::document});
    const uint32_t value = value_of(root_, where_);
    rules_[0].others = value;
    while (!waiting_.empty()) {
      auto [index, schema, path] = std::move(waiting_.front());
      waiting_.pop_front();
      Forms forms = forms_of(*schema, path);
      values_[index].rules = std::move(forms);
    }
    for (const auto& [path, groups] : choices_) check_disjoint(path, groups);
    Heights(rules_, values_).find();
    JsonGrammar grammar(std::move(rules_), std::move(values_));
    if (!grammar.possible()) {
      refuse(where_, "a schema that some document satisfies", "one that none does, or none that is at most 64 deep");
    }
    return grammar;
  }

  static JsonGrammar any_object() {
    static const Json kNone = true;
    Compiler compiler(kNone, false, "");
    compiler.rules_.push_back({.kind = Kind::document});
    compiler.any_value();
    compiler.values_.push_back({.rules = {*compiler.any_object_}});
    compiler.rules_[0].others = static_cast<uint32_t>(compiler.values_.size() - 1);
    Heights(compiler.rules_, compiler.values_).find();
    return JsonGrammar(std::move(compiler.rules_), std::move(compiler.values_));
  }

 private:
  using Forms = std::vector<uint32_t>;
  struct Waiting {
    uint32_t value = 0;
    const Json* schema = nullptr;
    std::string path;
  };

  uint32_t new_rule(JsonRule rule) {
    rules_.push_back(std::move(rule));
    return static_cast<uint32_t>(rules_.size() - 1);
  }

  // Its forms are found later, so that schemas may be inside themselves.
  uint32_t value_of(const Json& schema, const std::string& path) {
    if (schema == true || (schema.is_object() && schema.empty())) return any_value();
    auto [found, is_new] = value_of_.try_emplace(&schema, static_cast<uint32_t>(values_.size()));
    if (is_new) {
      if (values_.size() > kMostSchemas)
        refuse(where_, fmt::format("at most {} schemas inside it", kMostSchemas), "more");
      values_.emplace_back();
      waiting_.push_back({found->second, &schema, path});
    }
    return found->second;
  }

  uint32_t any_value() {
    if (any_) return *any_;
    any_ = static_cast<uint32_t>(values_.size());
    values_.emplace_back();
    JsonRule object{.kind = Kind::object, .first_required = {0}, .others = any_};
    any_object_ = new_rule(std::move(object));
    properties_[*any_object_] = {};
    const uint32_t array = new_rule({.kind = Kind::array, .others = any_});
    const uint32_t string = new_rule({.kind = Kind::string});
    const uint32_t number = new_rule({.kind = Kind::number});
    values_[*any_].rules = {*any_object_, array, string, number, literal({true, false, nullptr})};
    return *any_;
  }

  uint32_t literal(std::vector<Json> values) {
    JsonRule rule{.kind = Kind::literal};
    for (const Json& value : values) rule.texts.add(value.dump());
    const uint32_t index = new_rule(std::move(rule));
    literals_[index] = std::move(values);
    return index;
  }

  // The forms that a schema allows, once for each schema.
  Forms forms_of(const Json& schema, const std::string& path) {
    if (auto known = forms_.find(&schema); known != forms_.end()) return known->second;
    if (schema == true) return values_[any_value()].rules;
    if (schema == false) return {};
    if (!schema.is_object()) refuse(path, "a schema: an object, true or false", shown(schema));
    if (!open_.insert(&schema).second)
      refuse(path, "a reference that leads to a value", "one that leads back to itself");
    if (open_.size() > kMostSteps) {
      refuse(path, fmt::format("at most {} references and choices inside each other", kMostSteps), "more");
    }
    for (const char* keyword : kUnsupported) {
      if (schema.contains(keyword))
        refuse(path + "." + keyword, "a schema of supported keywords", "this keyword", "Leave it out.");
    }
    Forms forms = forms_of_object(schema, path);
    if (const Json* nullable = find(schema, "nullable")) {
      if (!nullable->is_boolean()) refuse(path + ".nullable", "true or false", shown(*nullable));
      if (*nullable == true) forms.push_back(literal({nullptr}));
    }
    std::set<uint32_t> seen;
    std::erase_if(forms, [&](uint32_t form) { return !seen.insert(form).second; });
    if (forms.size() > kMostForms)
      refuse(path, fmt::format("at most {} alternatives for one value", kMostForms), "more");
    open_.erase(&schema);
    forms_[&schema] = forms;
    return forms;
  }

  Forms forms_of_object(const Json& schema, const std::string& path) {
    constexpr std::array kDelegates = {"$ref", "allOf", "anyOf", "oneOf"};
    for (const char* keyword : kDelegates) {
      const Json* value = find(schema, keyword);
      if (value == nullptr) continue;
      refuse_others(schema, path, keyword);
      const std::string inner = path + "." + keyword;
      if (keyword == kDelegates[0]) return forms_of_reference(*value, inner);
      return forms_of_list(*value, inner, keyword);
    }
    if (schema.contains("enum") || schema.contains("const")) return forms_of_enum(schema, path);
    return forms_of_types(schema, path);
  }

  static void refuse_others(const Json& schema, const std::string& path, const char* keyword) {
    for (const char* other : {"$ref", "allOf", "anyOf", "oneOf"}) {
      if (std::string_view(other) != keyword) refuse_beside(schema, path, keyword, std::array{other});
    }
    refuse_beside(schema, path, keyword, std::array{"type", "enum", "const"});
    refuse_beside(schema, path, keyword, kObjectKeywords);
    refuse_beside(schema, path, keyword, kArrayKeywords);
    refuse_beside(schema, path, keyword, kStringKeywords);
  }

  Forms forms_of_reference(const Json& reference, const std::string& path) {
    constexpr const char* kNext = "Refer to \"#\" or to what \"#/$defs/...\" or \"#/definitions/...\" has.";
    if (!reference.is_string()) refuse(path, "a string", shown(reference), kNext);
    const auto& text = reference.get_ref<const std::string&>();
    const bool known = text == "#" || text.starts_with("#/$defs/") || text.starts_with("#/definitions/");
    if (!known) refuse(path, "a reference within the schema", fmt::format("\"{}\"", shortened(text)), kNext);
    const Json* target = &root_;
    try {
      const Json::json_pointer pointer(text.substr(1));
      target = root_.contains(pointer) ? &root_.at(pointer) : nullptr;
    } catch (const nlohmann::json::exception&) {
      target = nullptr;
    }
    if (target == nullptr) refuse(path, "a reference to what is there", fmt::format("\"{}\"", shortened(text)), kNext);
    std::string target_path = where_ + text.substr(1);
    std::replace(target_path.begin() + static_cast<std::ptrdiff_t>(where_.size()), target_path.end(), '/', '.');
    return forms_of(*target, target_path);
  }

  Forms forms_of_list(const Json& list, const std::string& path, std::string_view keyword) {
    if (!list.is_array() || list.empty()) refuse(path, "a list of schemas", shown(list));
    if (keyword == "allOf" && list.size() > 1)
      refuse(path, "one schema", fmt::format("{} of them", list.size()), "Merge them.");
    Forms forms;
    std::vector<Forms> groups;
    for (size_t i = 0; i < list.size(); ++i) {
      groups.push_back(forms_of(list[i], fmt::format("{}[{}]", path, i)));
      forms.insert(forms.end(), groups.back().begin(), groups.back().end());
      if (forms.size() > 16 * kMostForms) refuse(path, fmt::format("at most {} alternatives", kMostForms), "more");
    }
    if (keyword == "oneOf") choices_.emplace_back(path, std::move(groups));
    return forms;
  }

  std::vector<std::string> types_of(const Json& schema, const std::string& path) {
    const Json* given = find(schema, "type");
    if (given == nullptr) return {};
    std::vector<std::string> types;
    for (const Json& one : given->is_array() ? *given : Json::array({*given})) {
      const bool known =
          one.is_string() && std::find(kTypes.begin(), kTypes.end(), one.get<std::string>()) != kTypes.end();
      if (!known) refuse(path + ".type", fmt::format("types: {}", fmt::join(kTypes, ", ")), shown(one));
      types.push_back(one.get<std::string>());
    }
    if (types.empty()) refuse(path + ".type", "at least one type", "none");
    return types;
  }

  Forms forms_of_enum(const Json& schema, const std::string& path) {
    const Json* list = find(schema, "enum");
    const Json* constant = find(schema, "const");
    const char* keyword = list != nullptr ? "enum" : "const";
    refuse_beside(schema, path, keyword, kObjectKeywords);
    refuse_beside(schema, path, keyword, kArrayKeywords);
    refuse_beside(schema, path, keyword, kStringKeywords);
    if (list != nullptr && !list->is_array()) refuse(path + ".enum", "a list of values", shown(*list));
    const auto types = types_of(schema, path);
    std::vector<Json> values;
    auto add = [&](const Json& value) {
      auto fits = [&](const std::string& type) { return has_type(value, type); };
      if (types.empty() || std::any_of(types.begin(), types.end(), fits)) values.push_back(value);
    };
    if (list == nullptr) {
      add(*constant);
    } else {
      for (const Json& value : *list) {
        if (constant == nullptr || value == *constant) add(value);
      }
    }
    return values.empty() ? Forms{} : Forms{literal(std::move(values))};
  }

  Forms forms_of_types(const Json& schema, const std::string& path) {
    std::vector<std::string> types = types_of(schema, path);
    if (types.empty()) {
      if (has_any(schema, kObjectKeywords)) types.emplace_back("object");
      if (has_any(schema, kArrayKeywords)) types.emplace_back("array");
      if (has_any(schema, kStringKeywords)) types.emplace_back("string");
      if (types.empty()) return values_[any_value()].rules;
    }
    const bool number = std::find(types.begin(), types.end(), "number") != types.end();
    Forms forms;
    for (const std::string& type : types) {
      if (type == "object") forms.push_back(object(schema, path));
      if (type == "array") forms.push_back(array(schema, path));
      if (type == "string") forms.push_back(string(schema, path));
      if (type == "number") forms.push_back(new_rule({.kind = Kind::number}));
      if (type == "integer" && !number) forms.push_back(new_rule({.kind = Kind::number, .integer = true}));
      if (type == "boolean") forms.push_back(literal({true, false}));
      if (type == "null") forms.push_back(literal({nullptr}));
    }
    return forms;
  }

  // A length; lengths of over four billion are all the same.
  static uint32_t length(const Json& schema, const std::string& path, const char* name, uint32_t absent) {
    const Json* value = find(schema, name);
    if (value == nullptr) return absent;
    const bool good = value->is_number() && is_integer(*value) && value->get<double>() >= 0;
    if (!good) refuse(path + "." + name, "a number that is not negative", shown(*value));
    return static_cast<uint32_t>(std::min(value->get<double>(), double{kNoLimit - 1}));
  }

  uint32_t string(const Json& schema, const std::string& path) {
    return new_rule({.kind = Kind::string,
                     .min = length(schema, path, "minLength", 0),
                     .max = length(schema, path, "maxLength", kNoLimit)});
  }

  uint32_t array(const Json& schema, const std::string& path) {
    JsonRule rule{.kind = Kind::array,
                  .min = length(schema, path, "minItems", 0),
                  .max = length(schema, path, "maxItems", kNoLimit)};
    if (const Json* first = find(schema, "prefixItems")) {
      if (!first->is_array()) refuse(path + ".prefixItems", "a list of schemas", shown(*first));
      for (size_t i = 0; i < first->size(); ++i) {
        rule.first_items.push_back(value_of((*first)[i], fmt::format("{}.prefixItems[{}]", path, i)));
      }
    }
    const Json* items = find(schema, "items");
    if (items != nullptr && items->is_array()) {
      refuse(path + ".items", "a schema", "a list", "Schemas of single items go into prefixItems.");
    }
    if (items == nullptr) {
      rule.others = any_value();
    } else if (*items != false) {
      rule.others = value_of(*items, path + ".items");
    }
    return new_rule(std::move(rule));
  }

  uint32_t object(const Json& schema, const std::string& path) {
    JsonRule rule{.kind = Kind::object};
    std::map<std::string, uint32_t>& places = properties_[static_cast<uint32_t>(rules_.size())];
    rules_.push_back({.kind = Kind::object});
    const auto index = static_cast<uint32_t>(rules_.size() - 1);
    rule.others = others_of(schema, path);
    if (const Json* properties = find(schema, "properties")) {
      if (!properties->is_object()) refuse(path + ".properties", "an object", shown(*properties));
      for (const auto& [name, of] : properties->items()) {
        places[name] = rule.texts.add(text_of_name(name));
        rule.properties.push_back({value_of(of, fmt::format("{}.properties.{}", path, shortened(name)))});
      }
    }
    read_required(schema, path, places, rule);
    const auto count = static_cast<uint32_t>(rule.properties.size());
    rule.first_required.assign(count + 1, count);
    for (uint32_t i = count; i-- > 0;)
      rule.first_required[i] = rule.properties[i].required ? i : rule.first_required[i + 1];
    rules_[index] = std::move(rule);
    return index;
  }

  // Of properties that are not declared.
  std::optional<uint32_t> others_of(const Json& schema, const std::string& path) {
    const Json* others = find(schema, "additionalProperties");
    if (others != nullptr && *others == false) return std::nullopt;
    if (strict_ && others != nullptr) {
      refuse(path + ".additionalProperties", "false, with strict", shown(*others),
             "Declare all properties, or leave strict out.");
    }
    if (strict_) return std::nullopt;
    return others == nullptr ? any_value() : value_of(*others, path + ".additionalProperties");
  }

  // What is required and not declared comes after what is declared, in this order.
  void read_required(const Json& schema, const std::string& path, std::map<std::string, uint32_t>& places,
                     JsonRule& rule) {
    const Json* required = find(schema, "required");
    if (required == nullptr) return;
    if (!required->is_array()) refuse(path + ".required", "a list of names", shown(*required));
    for (const Json& name : *required) {
      if (!name.is_string()) refuse(path + ".required", "a list of names", shown(name));
      const auto& text = name.get_ref<const std::string&>();
      auto [place, is_new] = places.try_emplace(text, 0);
      if (is_new) {
        if (!rule.others) {
          refuse(path + ".required", "names of properties that may be there", fmt::format("\"{}\"", shortened(text)));
        }
        place->second = rule.texts.add(text_of_name(text));
        rule.properties.push_back({*rule.others});
      }
      rule.properties[place->second].required = true;
    }
  }

  void check_disjoint(const std::string& path, const std::vector<Forms>& groups) {
    for (size_t i = 0; i < groups.size(); ++i) {
      for (size_t j = 0; j < i; ++j) {
        pairs_ += groups[i].size() * groups[j].size();
        if (pairs_ > kMostPairs) refuse(path, fmt::format("at most {} pairs of alternatives", kMostPairs), "more");
        for (uint32_t a : groups[i]) {
          for (uint32_t b : groups[j]) {
            if (disjoint(a, b)) continue;
            refuse(path, "alternatives of which no value satisfies two", fmt::format("such as {} and {}", j, i),
                   "Use anyOf, or give the objects a required property with different constants.");
          }
        }
      }
    }
  }

  // Whether no value has both forms. May say no where that is so.
  bool disjoint(uint32_t a, uint32_t b) const {
    const JsonRule& first = rules_[a];
    const JsonRule& second = rules_[b];
    if (second.kind == Kind::literal && first.kind != Kind::literal) return disjoint(b, a);
    if (first.kind == Kind::literal) {
      const auto& values = literals_.at(a);
      return std::none_of(values.begin(), values.end(), [&](const Json& value) { return may_be(value, b); });
    }
    if (first.kind != second.kind) return true;
    return first.kind == Kind::object && (told_apart(a, b) || told_apart(b, a));
  }

  bool may_be(const Json& value, uint32_t form) const {
    switch (rules_[form].kind) {
      case Kind::string:
        return value.is_string();
      case Kind::number:
        return value.is_number() && (!rules_[form].integer || is_integer(value));
      case Kind::object:
        return value.is_object();
      case Kind::array:
        return value.is_array();
      case Kind::literal: {
        const auto& others = literals_.at(form);
        return std::find(others.begin(), others.end(), value) != others.end();
      }
      case Kind::document:
        break;
    }
    return true;
  }

  // Whether a property that the one requires cannot have the same value in the other.
  bool told_apart(uint32_t a, uint32_t b) const {
    for (const auto& [name, place] : properties_.at(a)) {
      const auto& property = rules_[a].properties[place];
      if (!property.required) continue;
      auto other = properties_.at(b).find(name);
      if (other == properties_.at(b).end()) {
        if (!rules_[b].others) return true;
        continue;
      }
      if (no_common_constant(property.value, rules_[b].properties[other->second].value)) return true;
    }
    return false;
  }

  bool no_common_constant(uint32_t a, uint32_t b) const {
    auto constants = [&](uint32_t value) {
      const Forms& forms = values_[value].rules;
      return !forms.empty() &&
             std::all_of(forms.begin(), forms.end(), [&](uint32_t f) { return literals_.contains(f); });
    };
    if (!constants(a) || !constants(b)) return false;
    for (uint32_t one : values_[a].rules) {
      for (uint32_t other : values_[b].rules) {
        if (!disjoint(one, other)) return false;
      }
    }
    return true;
  }

  const Json& root_;
  const bool strict_;
  const std::string where_;
  std::vector<JsonRule> rules_;
  std::vector<JsonValue> values_;
  std::deque<Waiting> waiting_;  // values whose forms are to be found
  std::unordered_map<const Json*, uint32_t> value_of_;
  std::unordered_map<const Json*, Forms> forms_;
  std::set<const Json*> open_;  // whose forms are being found
  std::optional<uint32_t> any_, any_object_;
  std::map<uint32_t, std::vector<Json>> literals_;                   // by rule
  std::map<uint32_t, std::map<std::string, uint32_t>> properties_;   // places by name, by rule
  std::vector<std::pair<std::string, std::vector<Forms>>> choices_;  // of oneOf
  size_t pairs_ = 0;
};

}  // namespace

JsonGrammar any_object_grammar() {
  return Compiler::any_object();
}

JsonGrammar schema_grammar(const Json& schema, bool strict, const std::string& where) {
  return Compiler(schema, strict, where).compile();
}

}  // namespace megalith
