#include "weights/environment.h"

#include <cstdlib>
#include <utility>

#include <fmt/format.h>

#include "base/error.h"
#include "weights/files.h"

namespace megalith {

namespace {

bool is_blank(char c) {
  return c == ' ' || c == '\t';
}
bool is_digit(char c) {
  return c >= '0' && c <= '9';
}
bool is_name(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || is_digit(c);
}

class EnvReader {
 public:
  EnvReader(std::string_view text, const std::string& name) : text_(text), name_(name) {}

  std::map<std::string, std::string> read() {
    std::map<std::string, std::string> values;
    for (; !at_end(); ++line_) {
      skip_blanks();
      if (!at_line_end() && peek() != '#') {
        std::string key = read_key();
        values[std::move(key)] = read_value();
        skip_blanks();
      }
      if (peek() == '#') skip_comment();
      if (!at_line_end()) fail("the end of the line, or a comment", "more text (a value with blanks needs quotes)");
      if (!at_end()) ++at_;
    }
    return values;
  }

 private:
  [[noreturn]] void fail(const std::string& expected, const std::string& found) const {
    throw Error({.where = fmt::format("{}:{}", name_, line_),
                 .expected = expected,
                 .found = found,
                 .next = "Lines are KEY=VALUE, where VALUE may stand in quotes."});
  }

  bool at_end() const { return at_ >= text_.size(); }
  char peek(size_t ahead = 0) const { return at_ + ahead < text_.size() ? text_[at_ + ahead] : '\n'; }
  // A carriage return before the end of a line belongs to it.
  bool at_line_end() const { return peek() == '\n' || (peek() == '\r' && peek(1) == '\n'); }
  void skip_comment() {
    while (!at_line_end()) ++at_;
    if (peek() == '\r') ++at_;
  }
  void skip_blanks() {
    while (is_blank(peek())) ++at_;
    if (peek() == '\r' && peek(1) == '\n') ++at_;
  }

  std::string read_word() {
    const size_t begin = at_;
    while (!at_end() && is_name(peek())) ++at_;
    return std::string(text_.substr(begin, at_ - begin));
  }

  std::string read_key() {
    std::string key = read_word();
    if (key == "export" && is_blank(peek())) {
      skip_blanks();
      key = read_word();
    }
    if (key.empty() || is_digit(key[0])) fail("the name of a variable", "none");
    if (peek() != '=')
      fail(fmt::format("'=' directly after {}", key),
           at_line_end() ? "the end of the line" : fmt::format("'{}'", peek()));
    ++at_;
    return key;
  }

  // Quoted and plain pieces without blanks between them make up one value.
  std::string read_value() {
    std::string value;
    while (!at_line_end() && !is_blank(peek())) {
      const char c = text_[at_++];
      if (c == '\'') {
        read_single(value);
      } else if (c == '"') {
        read_double(value);
      } else if (c == '\\') {
        if (at_line_end()) fail("a value on one line", "a continued line");
        value += text_[at_++];
      } else if (std::string_view(";&|<>()").find(c) != std::string_view::npos) {
        fail("a value without a shell's characters, or in quotes", fmt::format("'{}'", c));
      } else {
        refuse_substitution(c);
        value += c;
      }
    }
    return value;
  }

  void read_single(std::string& value) {
    while (peek() != '\'') value += next_quoted();
    ++at_;
  }

  // Inside, a backslash only takes away the meaning of $, `, " and itself.
  void read_double(std::string& value) {
    while (peek() != '"') {
      char c = next_quoted();
      if (c == '\\' && std::string_view("$`\"\\").find(peek()) != std::string_view::npos) {
        c = next_quoted();
      } else {
        refuse_substitution(c);
      }
      value += c;
    }
    ++at_;
  }

  char next_quoted() {
    if (at_line_end()) fail("a closing quote", "the end of the line");
    return text_[at_++];
  }

  // `c` has been read already.
  void refuse_substitution(char c) const {
    const bool variable = c == '$' && (is_name(peek()) || peek() == '{' || peek() == '(');
    if (variable || c == '`') fail("a value as it is", "a substitution, which only a shell can make");
  }

  std::string_view text_;
  const std::string& name_;
  size_t at_ = 0;
  int line_ = 1;
};

}  // namespace

std::map<std::string, std::string> parse_env(std::string_view text, const std::string& name) {
  return EnvReader(text, name).read();
}

Environment combined_environment(const std::filesystem::path& file) {
  std::map<std::string, std::string> values;
  // A directory of this name (a Python environment, most often) holds no variables.
  std::error_code ignored;
  if (file_exists(file) && !std::filesystem::is_directory(file, ignored))
    values = parse_env(read_text(file), file.string());
  return [values = std::move(values)](const std::string& name) -> std::optional<std::string> {
    if (const auto found = values.find(name); found != values.end()) return found->second;
    const char* value = std::getenv(name.c_str());
    return value ? std::optional<std::string>(value) : std::nullopt;
  };
}

}  // namespace megalith
