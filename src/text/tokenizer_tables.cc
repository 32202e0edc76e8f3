#include "text/tokenizer_tables.h"

#include <algorithm>

#include <fmt/format.h>

#include "base/error.h"
#include "text/characters.h"
#include "text/tokenizer_file.h"

namespace megalith {

namespace {

using Json = nlohmann::ordered_json;

// GPT-2's pattern, which a ByteLevel pre-tokenizer with use_regex stands for.
constexpr const char* kByteLevelPattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

constexpr size_t kAhead = 16;           // entries whose places in the map are being fetched
constexpr size_t kAtOnce = 32;          // merges whose parts are looked up together
constexpr int64_t kMostGaps = 1 << 16;  // ids without a token, before an id counts as damaged

std::string shown(const Json& value) {
  return shortened(value.dump(-1, ' ', false, Json::error_handler_t::replace));
}

// The characters in which byte-level vocabularies write bytes: printable Latin-1 as itself, the rest from U+0100 on.
struct ByteAlphabet {
  std::array<int16_t, 512> byte_of;           // by character, -1 for those not used
  std::array<std::string, 256> character_of;  // by byte

  ByteAlphabet() {
    byte_of.fill(-1);
    int other = 0x100;
    for (int byte = 0; byte < 256; ++byte) {
      bool printable = (byte >= '!' && byte <= '~') || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae;
      int code = printable ? byte : other++;
      byte_of[static_cast<size_t>(code)] = static_cast<int16_t>(byte);
      std::string& character = character_of[static_cast<size_t>(byte)];
      if (code >= 0x80) character = static_cast<char>(0xc0 | code >> 6);
      character += static_cast<char>(code < 0x80 ? code : 0x80 | (code & 0x3f));
    }
  }

  // Appends what a token's characters stand for. Where one of them is not of the alphabet, nothing, and false.
  bool append_bytes(std::string_view token, std::string& to) const {
    const size_t before = to.size();
    for (size_t i = 0; i < token.size();) {
      size_t code = static_cast<uint8_t>(token[i++]);
      // Of the longer characters those of two bytes may be of the alphabet.
      if (code >= 0xc2 && code < 0xc8 && i < token.size() && (static_cast<uint8_t>(token[i]) & 0xc0) == 0x80) {
        code = (code & 0x1f) << 6 | (static_cast<uint8_t>(token[i++]) & 0x3f);
      } else if (code >= 0x80) {
        code = 0;
      }
      if (byte_of[code] < 0) {
        to.resize(before);
        return false;
      }
      to += static_cast<char>(byte_of[code]);
    }
    return true;
  }
};

// Reads one file into tables; the methods are the steps, in order.
class Maker {
 public:
  Maker(std::string_view json, const std::string& name)
      : name_(name),
        file_(parse_tokenizer_file(json, name)),
        rest_(file_.rest),
        count_(static_cast<int64_t>(file_.vocabulary.size() + optional_field(rest_, "added_tokens").size())) {}

  TokenizerTables make(int32_t model_rows) {
    check_model();
    read_normalizer();
    read_pre_tokenizer();
    check_post_processor();
    check_decoder();
    read_added();
    read_vocabulary();
    read_merges();
    tables_.rows = std::max(model_rows, tables_.size());
    return std::move(tables_);
  }

 private:
  // As the file has it.
  struct Token {
    enum class List { none, added, vocabulary };
    List list = List::none;
    std::string_view text = {};
  };

  [[noreturn]] void damaged(const std::string& field, std::string expected, std::string found) const {
    throw Error({.where = fmt::format("{}: {}", name_, field),
                 .expected = std::move(expected),
                 .found = std::move(found),
                 .next = "Download the file again."});
  }

  [[noreturn]] void unsupported(const std::string& field, std::string expected, const Json& found) const {
    throw Error({.where = fmt::format("{}: {}", name_, field),
                 .expected = std::move(expected),
                 .found = shown(found),
                 .next = "This tokenizer is not supported; report it with the name of the model."});
  }

  const Json& field(const Json& object, const std::string& path, const char* name) const {
    auto found = object.find(name);
    if (found == object.end()) damaged(path.empty() ? name : path + "." + name, "a value", "nothing");
    return *found;
  }

  // Absent and null are the same.
  static const Json& optional_field(const Json& object, const char* name) {
    static const Json null;
    auto found = object.find(name);
    return found == object.end() ? null : *found;
  }

  std::string type_of(const Json& part, const std::string& path) const {
    if (!part.is_object()) damaged(path, "an object", shown(part));
    const Json& type = field(part, path, "type");
    if (!type.is_string()) damaged(path + ".type", "a string", shown(type));
    return type.get<std::string>();
  }

  // Refuses a field that is there and not `wanted` (or null).
  void only(const Json& part, const std::string& path, const char* name, const Json& wanted) const {
    const Json& value = optional_field(part, name);
    if (!value.is_null() && value != wanted) unsupported(path + "." + name, shown(wanted), value);
  }

  // Calls `read` with each part of a Sequence, or with the part itself.
  template <typename Read>
  void each(const Json& part, const std::string& path, const char* list_name, Read read) const {
    if (type_of(part, path) != "Sequence") return read(part, path);
    const Json& list = field(part, path, list_name);
    if (!list.is_array()) damaged(fmt::format("{}.{}", path, list_name), "a list", shown(list));
    for (size_t i = 0; i < list.size(); ++i) {
      each(list[i], fmt::format("{}.{}[{}]", path, list_name, i), list_name, read);
    }
  }

  void check_model() const {
    const Json& model = field(rest_, "", "model");
    // Files of older versions leave the type out.
    if (!model.is_object()) damaged("model", "an object", shown(model));
    only(model, "model", "type", "BPE");
    only(model, "model", "dropout", 0.0);
    only(model, "model", "unk_token", nullptr);
    only(model, "model", "continuing_subword_prefix", "");
    only(model, "model", "end_of_word_suffix", "");
    only(model, "model", "byte_fallback", false);
    for (const char* name : {"vocab", "merges"}) {
      const Json& value = field(model, "model", name);
      if (value != true) damaged(fmt::format("model.{}", name), name[0] == 'v' ? "an object" : "a list", shown(value));
    }
  }

  void read_normalizer() {
    const Json& normalizer = optional_field(rest_, "normalizer");
    if (normalizer.is_null()) return;
    each(normalizer, "normalizer", "normalizers", [this](const Json& part, const std::string& path) {
      if (type_of(part, path) != "NFC") unsupported(path + ".type", "NFC", part["type"]);
      tables_.normalise = true;
    });
  }

  void read_pre_tokenizer() {
    bool byte_level = false;
    const Json& pre = field(rest_, "", "pre_tokenizer");
    each(pre, "pre_tokenizer", "pretokenizers", [&](const Json& part, const std::string& path) {
      std::string type = type_of(part, path);
      if (byte_level) unsupported(path, "nothing after ByteLevel", part);
      if (type == "Split") {
        read_split(part, path);
      } else if (type == "ByteLevel") {
        byte_level = true;
        only(part, path, "add_prefix_space", false);
        if (part.value("use_regex", Json(true)) != false)
          tables_.splitters.emplace_back(kByteLevelPattern, where(path));
      } else {
        unsupported(path + ".type", "Split or ByteLevel", part["type"]);
      }
    });
    if (!byte_level) unsupported("pre_tokenizer", "a ByteLevel part", pre);
  }

  void read_split(const Json& part, const std::string& path) {
    const Json& behavior = field(part, path, "behavior");
    if (behavior != "Isolated") unsupported(path + ".behavior", "\"Isolated\"", behavior);
    const Json& pattern = field(part, path, "pattern");
    const Json& regex = pattern.is_object() ? optional_field(pattern, "Regex") : pattern;
    if (!pattern.is_object() || !regex.is_string()) unsupported(path + ".pattern", "{\"Regex\": \"...\"}", pattern);
    tables_.splitters.emplace_back(regex.get<std::string>(), where(path + ".pattern.Regex"));
  }

  std::string where(const std::string& path) const { return fmt::format("{}: {}", name_, path); }

  void check_post_processor() const {
    const Json& post = optional_field(rest_, "post_processor");
    if (post.is_null()) return;
    each(post, "post_processor", "processors", [this](const Json& part, const std::string& path) {
      // ByteLevel here only trims offsets, which nobody asks for; other types add tokens.
      if (type_of(part, path) != "ByteLevel") unsupported(path + ".type", "ByteLevel", part["type"]);
    });
  }

  void check_decoder() const {
    const Json& decoder = field(rest_, "", "decoder");
    if (decoder.is_null()) unsupported("decoder", "ByteLevel", decoder);
    each(decoder, "decoder", "decoders", [this](const Json& part, const std::string& path) {
      if (type_of(part, path) != "ByteLevel") unsupported(path + ".type", "ByteLevel", part["type"]);
    });
  }

  void read_added() {
    const Json& list = optional_field(rest_, "added_tokens");
    if (list.is_null()) return;
    if (!list.is_array()) damaged("added_tokens", "a list", shown(list));
    for (size_t i = 0; i < list.size(); ++i) read_added_token(list[i], fmt::format("added_tokens[{}]", i));
  }

  void read_added_token(const Json& token, const std::string& path) {
    if (!token.is_object()) damaged(path, "an object", shown(token));
    const Json& id = field(token, path, "id");
    if (!id.is_number_integer()) damaged(path + ".id", "an id", shown(id));
    const Json& content = field(token, path, "content");
    if (!content.is_string() || content == "") damaged(path + ".content", "a text", shown(content));
    for (const char* flag : {"lstrip", "rstrip", "single_word"}) only(token, path, flag, false);
    // Such a token is looked for in the normalised text; without a normaliser that is the raw text.
    if (tables_.normalise) only(token, path, "normalized", false);
    const Json& special = optional_field(token, "special");
    if (!special.is_null() && !special.is_boolean()) damaged(path + ".special", "true or false", shown(special));
    for (const auto& other : added_) {
      if (other.text == content) damaged(path + ".content", "a token that is new", shown(content));
    }
    int32_t checked = checked_id(id.get<int64_t>(), [&] { return path + ".id"; });
    added_.push_back({content.get<std::string>(), checked, special == true});
  }

  // Ids decide how much memory the tables take, so a damaged one is refused before they are made. `path` makes the
  // name of the field, which is costly for all that are good.
  template <typename Path>
  int32_t checked_id(int64_t id, Path path) const {
    int64_t end = count_ + kMostGaps;
    if (id < 0 || id >= end) {
      damaged(path(), fmt::format("an id from 0 to {}, for {} tokens", end - 1, count_), std::to_string(id));
    }
    return static_cast<int32_t>(id);
  }

  void read_vocabulary() {
    auto put = [&](int32_t id, Token token, auto path) {
      auto at = static_cast<size_t>(id);
      if (at >= tokens_.size()) tokens_.resize(at + 1);
      if (tokens_[at].list != Token::List::none) {
        damaged(path(), "an id of its own", fmt::format("{}, which another token has", id));
      }
      tokens_[at] = token;
    };
    tokens_.reserve(static_cast<size_t>(count_));
    for (const auto& added : added_) {
      put(added.id, {Token::List::added, added.text}, [&] { return fmt::format("added_tokens (\"{}\")", added.text); });
    }
    ids_ = TextMap(file_.vocabulary.size());
    for (size_t i = 0; i < file_.vocabulary.size(); ++i) {
      if (i + kAhead < file_.vocabulary.size()) ids_.prefetch(file_.vocabulary[i + kAhead].text);
      const VocabularyEntry& entry = file_.vocabulary[i];
      if (is_added(entry)) continue;
      auto path = [&] { return fmt::format("model.vocab[\"{}\"]", entry.text); };
      int32_t id = checked_id(entry.id, path);
      put(id, {Token::List::vocabulary, entry.text}, path);
      if (!ids_.insert(entry.text, id)) damaged(path(), "a token that is new", "it a second time");
    }
    join_tokens();
    tables_.special.resize(tokens_.size());
    for (const auto& added : added_) tables_.special[static_cast<size_t>(added.id)] = added.special;
    tables_.added = AddedTokens(added_);
  }

  // Listed in both places; plain text must not reach it.
  bool is_added(const VocabularyEntry& entry) const {
    const auto at = static_cast<size_t>(entry.id);
    return at < tokens_.size() && tokens_[at].list == Token::List::added && tokens_[at].text == entry.text;
  }

  void join_tokens() {
    tables_.begins.reserve(tokens_.size() + 1);
    size_t most = 0;
    for (const Token& token : tokens_) most += token.text.size();
    tables_.bytes.reserve(most);
    for (const Token& token : tokens_) {
      tables_.begins.push_back(tables_.bytes.size());
      // As the ByteLevel decoder has it, a token outside the alphabet stands for itself.
      bool bytes = token.list == Token::List::vocabulary && alphabet_.append_bytes(token.text, tables_.bytes);
      if (!bytes) tables_.bytes += token.text;
    }
    tables_.begins.push_back(tables_.bytes.size());
  }

  void read_merges() {
    std::array<int32_t, 256> bytes;
    for (size_t byte = 0; byte < bytes.size(); ++byte) {
      bytes[byte] = ids_.find(alphabet_.character_of[byte]).value_or(-1);
      bool in_utf8 = byte != 0xc0 && byte != 0xc1 && byte < 0xf5;
      if (in_utf8 && bytes[byte] < 0) damaged("model.vocab", fmt::format("a token for byte {:#04x}", byte), "none");
    }
    LargeVector<Merge> merges;
    merges.reserve(file_.merges.size());
    std::array<std::string_view, 2 * kAtOnce> parts;
    std::array<int32_t, 2 * kAtOnce> ids;
    int32_t result = -1;
    for (size_t i = 0; i < file_.merges.size(); ++i) {
      const size_t at = i % kAtOnce;
      if (at == 0) {
        const size_t count = std::min(file_.merges.size() - i, kAtOnce);
        for (size_t j = 0; j < count; ++j) {
          parts[2 * j] = file_.merges[i + j].left;
          parts[2 * j + 1] = file_.merges[i + j].right;
        }
        ids_.find(std::span(parts).first(2 * count), ids);
      }
      const MergeEntry& entry = file_.merges[i];
      int32_t left = ids[2 * at];
      int32_t right = ids[2 * at + 1];
      if (left < 0) not_in_vocabulary(entry.left, i);
      if (right < 0) not_in_vocabulary(entry.right, i);
      // Nearly every merge makes the token that follows the one before it; to see that is quicker than to look it up.
      result = is_result(result + 1, entry) ? result + 1 : merge_id(std::string(entry.left).append(entry.right), i);
      merges.push_back({left, right, result, static_cast<int32_t>(i)});
    }
    tables_.bpe.emplace(bytes, merges);
    read_ignore_merges();
  }

  bool is_result(int32_t id, const MergeEntry& merge) const {
    auto at = static_cast<size_t>(id);
    if (at >= tokens_.size() || tokens_[at].list != Token::List::vocabulary) return false;
    std::string_view text = tokens_[at].text;
    return text.size() == merge.left.size() + merge.right.size() && text.starts_with(merge.left) &&
           text.ends_with(merge.right);
  }

  int32_t merge_id(std::string_view token, size_t merge) const {
    if (auto id = ids_.find(token)) return *id;
    not_in_vocabulary(token, merge);
  }

  [[noreturn]] void not_in_vocabulary(std::string_view token, size_t merge) const {
    damaged(fmt::format("model.merges[{}]", merge), "tokens of model.vocab", fmt::format("\"{}\"", token));
  }

  void read_ignore_merges() {
    const Json& ignore = optional_field(rest_["model"], "ignore_merges");
    if (!ignore.is_null() && !ignore.is_boolean()) damaged("model.ignore_merges", "true or false", shown(ignore));
    tables_.ignore_merges = ignore == true;
    if (!tables_.ignore_merges) return;
    tables_.whole = TextMap(tokens_.size());
    std::string bytes;
    for (size_t at = 0; at < tokens_.size(); ++at) {
      auto id = static_cast<int32_t>(at);
      bool reached = tokens_[at].list == Token::List::vocabulary && alphabet_.append_bytes(tokens_[at].text, bytes);
      bytes.clear();
      if (reached) tables_.whole.insert(tables_.token(id), id);
    }
  }

  const std::string& name_;
  TokenizerFile file_;
  const Json& rest_;
  const int64_t count_;  // of tokens, those listed twice too
  const ByteAlphabet alphabet_;
  TokenizerTables tables_;
  std::vector<AddedTokens::Added> added_;
  LargeVector<Token> tokens_;  // by id
  TextMap ids_;                // of file_.vocabulary's texts
};

}  // namespace

AddedTokens::AddedTokens(std::vector<Added> tokens) : tokens_(std::move(tokens)) {
  auto first = [](const Added& token) { return static_cast<uint8_t>(token.text[0]); };
  std::sort(tokens_.begin(), tokens_.end(), [&](const Added& a, const Added& b) {
    if (first(a) != first(b)) return first(a) < first(b);
    return a.text.size() > b.text.size();
  });
  ranges_.fill({0, 0});
  for (size_t i = 0; i < tokens_.size(); ++i) {
    auto& [begin, end] = ranges_[first(tokens_[i])];
    if (end == 0) begin = i;
    end = i + 1;
  }
}

std::optional<AddedTokens::Match> AddedTokens::find(std::string_view text, size_t begin) const {
  if (tokens_.empty()) return std::nullopt;
  for (size_t at = begin; at < text.size(); ++at) {
    auto [first, end] = ranges_[static_cast<uint8_t>(text[at])];
    for (size_t i = first; i < end; ++i) {
      if (text.substr(at).starts_with(tokens_[i].text)) return Match{at, at + tokens_[i].text.size(), tokens_[i].id};
    }
  }
  return std::nullopt;
}

std::optional<int32_t> AddedTokens::id(std::string_view text) const {
  for (const Added& token : tokens_) {
    if (token.text == text) return token.id;
  }
  return std::nullopt;
}

TokenizerTables make_tokenizer_tables(std::string_view json, const std::string& name, int32_t model_rows) {
  return Maker(json, name).make(model_rows);
}

}  // namespace megalith
