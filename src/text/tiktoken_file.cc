#include "text/tiktoken_file.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <set>

#include <fmt/format.h>

#include "base/error.h"
#include "text/characters.h"
#include "text/request_json.h"

namespace megalith {

namespace {

using Json = nlohmann::ordered_json;

// Han first, and out of the classes of letters. Script is meant, not script extensions, which hold punctuation too.
std::string split_pattern() {
  const std::string before = R"([^\r\n\p{L}\p{N}]?)";
  const std::string upper = R"((?:(?!\p{sc:Han})[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]))";
  const std::string lower = R"((?:(?!\p{sc:Han})[\p{Ll}\p{Lm}\p{Lo}\p{M}]))";
  const std::string after = R"((?i:'s|'t|'re|'ve|'m|'ll|'d)?)";
  return R"(\p{sc:Han}+|)" + before + upper + "*" + lower + "+" + after + "|" + before + upper + "+" + lower + "*" +
         after + R"(|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
}

constexpr size_t kControlTokens = 256;
// Every cut of a token into two is looked at, so its length has a limit.
constexpr size_t kLongestToken = 1024;

int digit_of(char c) {
  constexpr std::string_view kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  size_t at = kDigits.find(c);
  return at == std::string_view::npos ? -1 : static_cast<int>(at);
}

// The bytes of a base64 text with its padding; nothing where it has not that form.
std::optional<std::string> from_base64(std::string_view text) {
  if (text.empty() || text.size() % 4 != 0) return std::nullopt;
  size_t padding = text.ends_with("==") ? 2 : text.ends_with('=') ? 1 : 0;
  std::string bytes;
  uint32_t bits = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    int digit = i + padding >= text.size() ? 0 : digit_of(text[i]);
    if (digit < 0) return std::nullopt;
    bits = bits << 6 | static_cast<uint32_t>(digit);
    if (i % 4 != 3) continue;
    for (int shift : {16, 8, 0}) bytes += static_cast<char>(bits >> shift & 0xff);
    bits = 0;
  }
  bytes.resize(bytes.size() - padding);
  return bytes;
}

// A whole number that is not negative; nothing where the text is anything else.
std::optional<int64_t> number_of(std::string_view text) {
  int64_t number = 0;
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size() || number < 0) return std::nullopt;
  return number;
}

// A piece of a damaged file, as an Error shows it.
std::string shown(std::string_view text) {
  std::string json = Json(text).dump(-1, ' ', true, Json::error_handler_t::replace);
  return shortened(json);
}

// Reads the two files into tables; the methods are the steps, in order.
class Maker {
 public:
  Maker(NamedText ranks, NamedText config) : ranks_(ranks), config_(config) {}

  TokenizerTables make(int32_t model_rows) {
    read_lines();
    order_tokens();
    read_control();
    fill_tables();
    make_merges();
    tables_.splitters.emplace_back(split_pattern(), ranks_.name);
    tables_.rows = std::max(model_rows, tables_.size());
    return std::move(tables_);
  }

 private:
  struct Line {
    size_t number = 0;  // from 1
    std::string token;
    int64_t rank = 0;
  };

  [[noreturn]] static void damaged(std::string where, std::string expected, std::string found) {
    throw Error({.where = std::move(where),
                 .expected = std::move(expected),
                 .found = std::move(found),
                 .next = "Download the file again."});
  }

  std::string at_line(size_t number) const { return fmt::format("{}:{}", ranks_.name, number); }
  static std::string at_field(NamedText file, const std::string& field) {
    return fmt::format("{}: {}", file.name, field);
  }

  void read_lines() {
    std::string_view rest = ranks_.text;
    for (size_t number = 1; !rest.empty(); ++number) {
      size_t end = std::min(rest.find('\n'), rest.size());
      std::string_view line = rest.substr(0, end);
      rest.remove_prefix(std::min(end + 1, rest.size()));
      if (line.ends_with('\r')) line.remove_suffix(1);
      if (!line.empty()) read_line(line, number);
    }
    if (lines_.empty()) damaged(ranks_.name, "a token in base64 and its rank on each line", "no line");
  }

  void read_line(std::string_view line, size_t number) {
    size_t blank = line.find(' ');
    if (blank == std::string_view::npos) damaged(at_line(number), "a token in base64, a blank and a rank", shown(line));
    std::string_view text = line.substr(0, blank);
    auto token = from_base64(text);
    if (!token) damaged(at_line(number), "a token in base64", shown(text));
    if (token->size() > kLongestToken) {
      damaged(at_line(number), fmt::format("a token of at most {} bytes", kLongestToken),
              fmt::format("one of {}", token->size()));
    }
    auto rank = number_of(line.substr(blank + 1));
    if (!rank) damaged(at_line(number), "a rank", shown(line.substr(blank + 1)));
    lines_.push_back({number, std::move(*token), *rank});
  }

  // Ranks that are all different and below their number have no gaps.
  void order_tokens() {
    std::vector<const Line*> by_rank(lines_.size());
    ids_ = TextMap(lines_.size());
    for (const Line& line : lines_) {
      if (static_cast<uint64_t>(line.rank) >= lines_.size()) {
        damaged(at_line(line.number),
                fmt::format("a rank from 0 to {}, for {} tokens", lines_.size() - 1, lines_.size()),
                std::to_string(line.rank));
      }
      const Line*& place = by_rank[static_cast<size_t>(line.rank)];
      if (place != nullptr) {
        damaged(at_line(line.number), "a rank of its own", fmt::format("{}, as in line {}", line.rank, place->number));
      }
      place = &line;
      if (!ids_.insert(line.token, static_cast<int32_t>(line.rank))) {
        damaged(at_line(line.number), "a token that is new", fmt::format("{} a second time", shown(line.token)));
      }
    }
    for (const Line* line : by_rank) tokens_.push_back(line->token);
  }

  // The control tokens that the configuration names, and a filler for each of the others.
  void read_control() {
    Json config = parse_request_json(config_.text, config_.name);
    if (!config.is_object()) damaged(config_.name, "a JSON object", std::string("a ") + config.type_name());
    std::vector<AddedTokens::Added> control(kControlTokens);
    for (size_t i = 0; i < kControlTokens; ++i) {
      size_t id = lines_.size() + i;
      control[i] = {fmt::format("<|reserved_token_{}|>", id), static_cast<int32_t>(id), true};
    }
    auto named = config.find("added_tokens_decoder");
    if (named != config.end() && !named->is_null()) {
      if (!named->is_object()) damaged(at_field(config_, "added_tokens_decoder"), "an object", named->type_name());
      for (const auto& [id, token] : named->items()) read_named(id, token, control);
    }
    check_different(control);
    control_ = std::move(control);
  }

  void read_named(const std::string& id, const Json& token, std::vector<AddedTokens::Added>& control) const {
    std::string path = at_field(config_, fmt::format("added_tokens_decoder.{}", shortened(id)));
    auto number = number_of(id);
    auto first = static_cast<int64_t>(lines_.size());
    auto end = first + static_cast<int64_t>(kControlTokens);
    if (!number || *number < first || *number >= end) {
      damaged(path, fmt::format("an id from {} to {}, after {} ranks", first, end - 1, first), "this one");
    }
    if (!token.is_object()) damaged(path, "an object", token.type_name());
    auto content = token.find("content");
    if (content == token.end() || !content->is_string() || *content == "") {
      damaged(path + ".content", "a text", content == token.end() ? "nothing" : shown(content->dump()));
    }
    for (const char* flag : {"lstrip", "rstrip", "single_word"}) {
      if (flag_of(token, path, flag)) damaged(fmt::format("{}.{}", path, flag), "false", "true");
    }
    control[static_cast<size_t>(*number - first)] = {content->get<std::string>(), static_cast<int32_t>(*number),
                                                     flag_of(token, path, "special")};
  }

  // Absent is false.
  static bool flag_of(const Json& token, const std::string& path, const char* name) {
    auto flag = token.find(name);
    if (flag == token.end()) return false;
    if (!flag->is_boolean()) damaged(fmt::format("{}.{}", path, name), "true or false", flag->type_name());
    return flag->get<bool>();
  }

  void check_different(const std::vector<AddedTokens::Added>& control) const {
    std::set<std::string_view> texts;
    for (const auto& token : control) {
      if (texts.insert(token.text).second) continue;
      damaged(at_field(config_, fmt::format("added_tokens_decoder.{}.content", token.id)), "a token that is new",
              fmt::format("{} a second time", shown(token.text)));
    }
  }

  void fill_tables() {
    size_t size = tokens_.size() + control_.size();
    tables_.special.resize(size, false);
    auto add = [&](std::string_view text) {
      tables_.begins.push_back(tables_.bytes.size());
      tables_.bytes += text;
    };
    for (std::string_view token : tokens_) add(token);
    for (const auto& token : control_) {
      add(token.text);
      tables_.special[static_cast<size_t>(token.id)] = token.special;
    }
    tables_.begins.push_back(tables_.bytes.size());
    tables_.added = AddedTokens(control_);
    tables_.segments_apart = true;
  }

  // Any two neighbours that make a token together may be merged, so a token has as many merges as cuts into two.
  void make_merges() {
    std::array<int32_t, 256> bytes;
    for (size_t byte = 0; byte < bytes.size(); ++byte) {
      char text = static_cast<char>(byte);
      bytes[byte] = ids_.find(std::string_view(&text, 1)).value_or(-1);
      bool in_utf8 = byte != 0xc0 && byte != 0xc1 && byte < 0xf5;
      if (in_utf8 && bytes[byte] < 0) damaged(ranks_.name, fmt::format("a token for byte {:#04x}", byte), "none");
    }
    std::vector<Merge> merges;
    for (size_t rank = 0; rank < tokens_.size(); ++rank) {
      std::string_view token = tokens_[rank];
      auto id = static_cast<int32_t>(rank);
      for (size_t cut = 1; cut < token.size(); ++cut) {
        auto left = ids_.find(token.substr(0, cut));
        auto right = left ? ids_.find(token.substr(cut)) : left;
        if (right) merges.push_back({*left, *right, id, id});
      }
    }
    tables_.bpe.emplace(bytes, merges);
    tables_.ignore_merges = true;
    tables_.whole = TextMap(tokens_.size());
    for (size_t rank = 0; rank < tokens_.size(); ++rank) {
      auto id = static_cast<int32_t>(rank);
      tables_.whole.insert(tables_.token(id), id);
    }
  }

  const NamedText ranks_;
  const NamedText config_;
  std::vector<Line> lines_;
  std::vector<std::string_view> tokens_;  // by rank
  TextMap ids_;                           // by token
  std::vector<AddedTokens::Added> control_;
  TokenizerTables tables_;
};

}  // namespace

TokenizerTables make_tiktoken_tables(NamedText ranks, NamedText config, int32_t model_rows) {
  return Maker(ranks, config).make(model_rows);
}

}  // namespace megalith
