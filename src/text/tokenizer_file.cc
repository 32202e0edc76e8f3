#include "text/tokenizer_file.h"

#include <optional>

#include <fmt/format.h>
#include <simdjson.h>

#include "base/error.h"

namespace megalith {

namespace {

using Json = nlohmann::ordered_json;
namespace ondemand = simdjson::ondemand;

constexpr std::string_view kDownload = "Download the file again.";

// Follows the parser's events. A document tree of half a million small strings would cost most of the loading time.
class Reader {
 public:
  using number_integer_t = Json::number_integer_t;
  using number_unsigned_t = Json::number_unsigned_t;
  using number_float_t = Json::number_float_t;
  using string_t = Json::string_t;
  using binary_t = Json::binary_t;

  // Where the texts of the events outlive them, `kept` is null; else it takes them, and has room for all.
  Reader(TokenizerFile& file, const std::string& name, std::vector<char>* kept)
      : file_(file), name_(name), kept_(kept) {}

  bool null() { return value(nullptr, "null"); }
  bool boolean(bool flag) { return value(flag, "a boolean"); }
  bool number_float(number_float_t number, const string_t&) { return value(number, "a fraction"); }
  bool binary(binary_t&) { return false; }
  bool number_integer(number_integer_t number) { return integer(number); }
  bool number_unsigned(number_unsigned_t number) {
    constexpr uint64_t kLargest = INT64_MAX;
    return integer(static_cast<int64_t>(std::min(number, kLargest)));
  }

  bool string(std::string_view text) {
    if (place_ == Place::merges) return merge(text);
    if (place_ == Place::merge) {
      ++parts_;
      if (parts_ == 1) left_ = keep(text);
      if (parts_ == 2) right_ = keep(text);
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

  bool key(std::string_view text) {
    if (place_ == Place::vocabulary) {
      token_ = keep(text);
    } else {
      key_ = text;
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
      file_.merges.push_back({left_, right_});
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
    file_.merges.push_back({keep(text.substr(0, blank)), keep(text.substr(blank + 1))});
    return true;
  }

  std::string_view keep(std::string_view text) {
    if (kept_ == nullptr) return text;
    size_t begin = kept_->size();
    kept_->insert(kept_->end(), text.begin(), text.end());
    return std::string_view(kept_->data(), kept_->size()).substr(begin);
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
  std::vector<char>* kept_;
  Place place_ = Place::rest;
  std::vector<Json*> stack_;  // the open containers of the rest, the innermost last
  const Json* model_ = nullptr;
  std::string key_;
  std::string_view token_;
  std::string_view left_;  // of the merge being read
  std::string_view right_;
  size_t parts_ = 0;
};

// Where simdjson reads, and the texts are views of: the file, with what may be read beyond its end, and the texts that
// have escapes.
struct QuickSource {
  explicit QuickSource(std::string_view json) : size(json.size()) {
    padded.reserve(size + simdjson::SIMDJSON_PADDING);
    padded.assign(json.begin(), json.end());
    padded.resize(size + simdjson::SIMDJSON_PADDING);
  }

  size_t size;
  LargeVector<char> padded;
  ondemand::parser parser;
};

// Sends the reader the events that sax_parse would, quicker. simdjson_error where the document isn't an object, has a
// fault, or has something that is better left to sax_parse.
class Sender {
 public:
  explicit Sender(Reader& reader) : reader_(reader) {}

  void send(QuickSource& source) {
    simdjson::padded_string_view json(source.padded.data(), source.size, source.padded.size());
    ondemand::document document = source.parser.iterate(json);
    send(document.get_object());
    if (document.current_location().error() != simdjson::OUT_OF_BOUNDS) refuse();
  }

 private:
  using Type = ondemand::json_type;

  [[noreturn]] static void refuse() { throw simdjson::simdjson_error(simdjson::TAPE_ERROR); }

  // Each level takes stack; sax_parse has none, so what nests deeper is left to it.
  void deeper() {
    if (++depth_ > kMostLevels) refuse();
  }

  void send(ondemand::object object) {
    deeper();
    reader_.start_object(0);
    for (ondemand::field field : object) {
      auto key = plain_text(field.key().raw());
      reader_.key(key ? *key : std::string_view(field.unescaped_key()));
      send(field.value());
    }
    reader_.end_object();
    --depth_;
  }

  void send(ondemand::value value) {
    switch (value.type()) {
      case Type::object:
        return send(value.get_object());
      case Type::array:
        deeper();
        reader_.start_array(0);
        for (ondemand::value element : value.get_array()) send(element);
        reader_.end_array();
        --depth_;
        return;
      case Type::string:
        return send_string(value);
      case Type::number:
        return send(ondemand::number(value.get_number()));
      case Type::boolean:
        reader_.boolean(value.get_bool());
        return;
      case Type::null:
        if (!value.is_null()) refuse();
        reader_.null();
    }
  }

  void send(ondemand::number number) {
    using Kind = ondemand::number_type;
    switch (number.get_number_type()) {
      case Kind::floating_point_number:
        return refuse();  // simdjson 3.0 makes 0 of some that have many digits; they are rare here
      case Kind::signed_integer:
        reader_.number_integer(number.get_int64());
        return;
      case Kind::unsigned_integer:
        reader_.number_unsigned(number.get_uint64());
    }
  }

  void send_string(ondemand::value value) {
    auto text = plain_text(value.raw_json_token().data() + 1);
    if (text) value.get_raw_json_string().value();
    reader_.string(text ? *text : std::string_view(value.get_string()));
  }

  // The text that begins there, if it stands for itself, as nearly all do; nothing if it has escapes.
  static std::optional<std::string_view> plain_text(const char* begin) {
    const char* at = begin;
    while (*at != '"' && *at != '\\') ++at;
    return *at == '"' ? std::optional(std::string_view(begin, at)) : std::nullopt;
  }

  static constexpr int kMostLevels = 32;

  Reader& reader_;
  int depth_ = 0;
};

// Nothing where the file has a fault, which read_exactly() then names, or something that is better left to it.
std::optional<TokenizerFile> read_quickly(std::string_view json, const std::string& name) {
  TokenizerFile file;
  Reader reader(file, name, nullptr);
  // Memory that is reserved and not used costs nothing, and an entry is seldom shorter.
  constexpr size_t kBytesAnEntry = 24;
  file.vocabulary.reserve(json.size() / kBytesAnEntry);
  file.merges.reserve(json.size() / kBytesAnEntry);
  auto source = std::make_shared<QuickSource>(json);
  try {
    Sender(reader).send(*source);
  } catch (const simdjson::simdjson_error&) {
    return std::nullopt;
  } catch (const Error&) {
    return std::nullopt;
  }
  file.texts = std::move(source);
  return file;
}

TokenizerFile read_exactly(std::string_view json, const std::string& name) {
  TokenizerFile file;
  auto texts = std::make_shared<std::vector<char>>();
  texts->reserve(json.size());  // no text is longer than its JSON, so the views of the entries stay good
  Reader reader(file, name, texts.get());
  Json::sax_parse(json.begin(), json.end(), &reader);
  file.texts = std::move(texts);
  return file;
}

}  // namespace

TokenizerFile parse_tokenizer_file(std::string_view json, const std::string& name) {
  auto quick = read_quickly(json, name);
  TokenizerFile file = quick ? std::move(*quick) : read_exactly(json, name);
  if (!file.rest.is_object()) {
    throw Error({.where = name,
                 .expected = "a JSON object",
                 .found = std::string("a ") + file.rest.type_name(),
                 .next = std::string(kDownload)});
  }
  return file;
}

}  // namespace megalith
