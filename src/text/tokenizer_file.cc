#include "text/tokenizer_file.h"

#include <fmt/format.h>

#include "base/error.h"

namespace megalith {

namespace {

using Json = nlohmann::ordered_json;

constexpr std::string_view kDownload = "Download the file again.";

// Follows the parser's events. A document tree of half a million small strings would cost most of the loading time.
class Reader {
 public:
  using number_integer_t = Json::number_integer_t;
  using number_unsigned_t = Json::number_unsigned_t;
  using number_float_t = Json::number_float_t;
  using string_t = Json::string_t;
  using binary_t = Json::binary_t;

  Reader(TokenizerFile& file, const std::string& name) : file_(file), name_(name) {}

  bool null() { return value(nullptr, "null"); }
  bool boolean(bool flag) { return value(flag, "a boolean"); }
  bool number_float(number_float_t number, const string_t&) { return value(number, "a fraction"); }
  bool binary(binary_t&) { return false; }
  bool number_integer(number_integer_t number) { return integer(number); }
  bool number_unsigned(number_unsigned_t number) {
    constexpr uint64_t kLargest = INT64_MAX;
    return integer(static_cast<int64_t>(std::min(number, kLargest)));
  }

  bool string(string_t& text) {
    if (place_ == Place::merges) return merge(text);
    if (place_ == Place::merge) {
      if (++parts_ == 2) cut_ = file_.texts.size() - begin_;
      keep(text);
      return true;
    }
    return value(text, "a string");
  }

  bool start_object(size_t) {
    if (place_ != Place::rest) refuse("an object");
    if (at_model_field("vocab")) {
      place_ = Place::vocabulary;
      return true;
    }
    open(Json::object());
    return true;
  }

  bool key(string_t& text) {
    if (place_ == Place::vocabulary) {
      token_ = keep(text);
    } else {
      key_ = std::move(text);
    }
    return true;
  }

  bool end_object() {
    if (place_ == Place::vocabulary) {
      place_ = Place::rest;
      *slot() = true;
      return true;
    }
    stack_.pop_back();
    return true;
  }

  bool start_array(size_t) {
    if (place_ == Place::merges) {
      place_ = Place::merge;
      begin_ = file_.texts.size();
      parts_ = 0;
      return true;
    }
    if (place_ != Place::rest) refuse("a list");
    if (at_model_field("merges")) {
      place_ = Place::merges;
      return true;
    }
    open(Json::array());
    return true;
  }

  bool end_array() {
    if (place_ == Place::merge) {
      if (parts_ != 2) refuse(fmt::format("a list of {}", parts_));
      file_.merges.push_back({kept_from(begin_), cut_});
      place_ = Place::merges;
      return true;
    }
    if (place_ == Place::merges) {
      place_ = Place::rest;
      *slot() = true;
      return true;
    }
    stack_.pop_back();
    return true;
  }

  bool parse_error(size_t position, const std::string&, const nlohmann::detail::exception& error) {
    std::string_view reason = error.what();
    if (size_t colon = reason.rfind("; "); colon != std::string_view::npos) reason.remove_prefix(colon + 2);
    throw Error({.where = name_,
                 .expected = "JSON",
                 .found = fmt::format("an error at byte {} ({})", position, reason),
                 .next = std::string(kDownload)});
  }

 private:
  enum class Place { rest, vocabulary, merges, merge };

  // Whether the value that begins now is that field of the model.
  bool at_model_field(std::string_view field) const {
    return stack_.size() == 2 && key_ == field && model_ != nullptr && stack_.back() == model_;
  }

  // Where in the rest the value that comes now belongs.
  Json* slot() {
    if (stack_.empty()) return &file_.rest;
    Json& parent = *stack_.back();
    if (parent.is_object()) return &parent[key_];
    parent.push_back(nullptr);
    return &parent.back();
  }

  void open(Json container) {
    Json* to = slot();
    *to = std::move(container);
    stack_.push_back(to);
    // The address stays good: the model's own fields are added before the next field of the root is.
    if (stack_.size() == 2) model_ = stack_.front()->is_object() && key_ == "model" && to->is_object() ? to : nullptr;
    if (stack_.size() > kDeepest) throw too_deep();
  }

  bool integer(int64_t number) {
    if (place_ == Place::vocabulary) {
      file_.vocabulary.push_back({token_, number});
      return true;
    }
    return value(number, "a number");
  }

  template <typename T>
  bool value(T&& scalar, std::string_view kind) {
    if (place_ != Place::rest) refuse(kind);
    *slot() = std::forward<T>(scalar);
    return true;
  }

  bool merge(std::string_view text) {
    size_t blank = text.find(' ');
    if (blank == 0 || blank == std::string_view::npos || blank + 1 == text.size() ||
        text.find(' ', blank + 1) != std::string_view::npos) {
      refuse(fmt::format("\"{}\"", text));
    }
    size_t begin = file_.texts.size();
    keep(text.substr(0, blank));
    keep(text.substr(blank + 1));
    file_.merges.push_back({kept_from(begin), blank});
    return true;
  }

  std::string_view keep(std::string_view text) {
    size_t begin = file_.texts.size();
    file_.texts.insert(file_.texts.end(), text.begin(), text.end());
    return kept_from(begin);
  }

  std::string_view kept_from(size_t begin) const {
    return std::string_view(file_.texts.data(), file_.texts.size()).substr(begin);
  }

  // A value of the wrong kind within the vocabulary or the merges.
  [[noreturn]] void refuse(std::string_view found) const {
    bool vocabulary = place_ == Place::vocabulary;
    throw Error({.where = vocabulary ? fmt::format("{}: model.vocab[\"{}\"]", name_, token_)
                                     : fmt::format("{}: model.merges[{}]", name_, file_.merges.size()),
                 .expected = vocabulary ? "an id" : "two tokens, as \"a b\" or [\"a\", \"b\"]",
                 .found = std::string(found),
                 .next = std::string(kDownload)});
  }

  Error too_deep() const {
    return Error({.where = name_,
                  .expected = fmt::format("at most {} lists and objects inside each other", kDeepest),
                  .found = "more",
                  .next = std::string(kDownload)});
  }

  static constexpr size_t kDeepest = 100;

  TokenizerFile& file_;
  const std::string& name_;
  Place place_ = Place::rest;
  std::vector<Json*> stack_;  // the open containers of the rest, the innermost last
  const Json* model_ = nullptr;
  std::string key_;
  std::string_view token_;
  size_t begin_ = 0;  // of the merge being read, in the texts
  size_t cut_ = 0;    // its left part's length
  size_t parts_ = 0;
};

}  // namespace

TokenizerFile parse_tokenizer_file(std::string_view json, const std::string& name) {
  TokenizerFile file;
  file.texts.reserve(json.size());  // no text is longer than its JSON, so the views of the entries stay good
  Reader reader(file, name);
  Json::sax_parse(json.begin(), json.end(), &reader);
  if (!file.rest.is_object()) {
    throw Error({.where = name,
                 .expected = "a JSON object",
                 .found = std::string("a ") + file.rest.type_name(),
                 .next = std::string(kDownload)});
  }
  return file;
}

}  // namespace megalith
