#include "text/kimi_k3_call.h"

#include <fmt/format.h>

#include "text/characters.h"
#include "text/json_members.h"
#include "text/python_json.h"
#include "text/request_json.h"

namespace megalith {

namespace {

bool is_object(std::string_view text) {
  return text.starts_with('{') && is_json(text);
}

}  // namespace

void KimiK3Call::add_argument(std::string key, std::string_view type, std::string_view value) {
  std::string_view bare = trim(value);
  bool typed = type != "string" && is_json(bare);
  set(std::move(key), typed ? std::string(bare) : json_string(value));
}

void KimiK3Call::add_json(std::string_view text) {
  std::string_view bare = trim(text);
  if (bare.empty()) return;
  if (!is_object(bare)) {
    shapeless_ += text;
    return;
  }
  bool first = arguments_.empty();
  for (const JsonMember& member : json_members(bare)) set(member.name, std::string(member.value));
  if (first) written_ = bare;
}

void KimiK3Call::set(std::string key, std::string json) {
  written_.clear();
  auto [place, is_new] = places_.try_emplace(key, arguments_.size());
  if (is_new) {
    arguments_.emplace_back(std::move(key), std::move(json));
  } else {
    arguments_[place->second].second = std::move(json);
  }
}

std::string KimiK3Call::object() const {
  if (!written_.empty()) return written_;
  std::string text;
  for (const auto& [key, json] : arguments_) {
    if (!text.empty()) text += ", ";
    text += json_string(key);
    text += ": ";
    text += json;
  }
  return "{" + text + "}";
}

std::optional<std::string> KimiK3Call::arguments() {
  if (arguments_.empty() && is_object(trim(text_))) add_json(std::exchange(text_, {}));
  if (name_.empty() || !shapeless_.empty()) return std::nullopt;
  return object();
}

std::string KimiK3Call::shown() const {
  std::string text = name_;
  auto add = [&](std::string_view part) {
    if (!text.empty() && !part.empty()) text += ' ';
    text += part;
  };
  if (!arguments_.empty()) add(object());
  add(trim(shapeless_));
  add(trim(text_));
  return text;
}

}  // namespace megalith
