#include "text/split.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <fmt/format.h>
#include <pcre2.h>

#include "base/check.h"
#include "base/error.h"

namespace megalith {

namespace {

constexpr uint32_t kMatchLimit = 50'000'000;    // steps; a run of 200,000 characters needs about one each
constexpr uint32_t kHeapLimitKib = 256 * 1024;  // of the interpreter, where there is no JIT
constexpr size_t kStackBytes = 32 * 1024;       // of the JIT; this family's patterns need less
constexpr size_t kLargestStackBytes = 8 << 20;

// A class of blanks as Unicode's White_Space has it. PCRE2's own \s also holds U+180E.
constexpr std::string_view kBlanks = "\\x{09}-\\x{0d}\\x{85}\\p{Z}";

// The pattern with \s and \S spelled out.
std::string spell_blanks(std::string_view pattern, const std::string& where) {
  std::string spelled;
  bool in_class = false;
  for (size_t i = 0; i < pattern.size(); ++i) {
    char c = pattern[i];
    if (c != '\\' || i + 1 == pattern.size()) {
      if (c == '[') in_class = true;
      if (c == ']') in_class = false;
      spelled += c;
      continue;
    }
    char escaped = pattern[++i];
    if (escaped == 's') {
      spelled += in_class ? std::string(kBlanks) : fmt::format("[{}]", kBlanks);
    } else if (escaped == 'S' && !in_class) {
      spelled += fmt::format("[^{}]", kBlanks);
    } else if (escaped == 'S') {
      throw Error({.where = where,
                   .expected = "a pattern without \\S inside brackets",
                   .found = std::string(pattern),
                   .next = "This tokenizer is not supported."});
    } else {
      spelled += {c, escaped};
    }
  }
  return spelled;
}

std::string message(int code) {
  PCRE2_UCHAR text[256];
  pcre2_get_error_message(code, text, sizeof(text));
  return reinterpret_cast<const char*>(text);
}

struct Free {
  void operator()(pcre2_code* p) const { pcre2_code_free(p); }
  void operator()(pcre2_match_data* p) const { pcre2_match_data_free(p); }
  void operator()(pcre2_match_context* p) const { pcre2_match_context_free(p); }
  void operator()(pcre2_jit_stack* p) const { pcre2_jit_stack_free(p); }
};

template <typename T>
using Owned = std::unique_ptr<T, Free>;

}  // namespace

struct Splitter::Compiled {
  Owned<pcre2_code> code;
};

Splitter::Splitter(const std::string& pattern, const std::string& where) : where_(where) {
  std::string spelled = spell_blanks(pattern, where);
  int code = 0;
  PCRE2_SIZE offset = 0;
  Owned<pcre2_code> compiled(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(spelled.data()), spelled.size(),
                                           PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C, &code, &offset, nullptr));
  if (!compiled) {
    throw Error({.where = where,
                 .expected = "a regular expression",
                 .found = fmt::format("{} ({} at {})", pattern, message(code), offset),
                 .next = "Download the file again; if it stays so, this tokenizer is not supported."});
  }
  // Where code may not be generated, matching falls back to PCRE2's interpreter: slower, same pieces.
  pcre2_jit_compile(compiled.get(), PCRE2_JIT_COMPLETE);
  compiled_ = std::make_shared<const Compiled>(Compiled{std::move(compiled)});
}

void Splitter::split(std::string_view text, const std::function<void(std::string_view)>& piece) const {
  Owned<pcre2_match_data> match(pcre2_match_data_create(1, nullptr));
  Owned<pcre2_match_context> context(pcre2_match_context_create(nullptr));
  Owned<pcre2_jit_stack> stack(pcre2_jit_stack_create(kStackBytes, kLargestStackBytes, nullptr));
  CHECK(match && context, "no memory for a match");
  pcre2_set_match_limit(context.get(), kMatchLimit);
  pcre2_set_heap_limit(context.get(), kHeapLimitKib);
  if (stack) pcre2_jit_stack_assign(context.get(), nullptr, stack.get());
  size_t done = 0;
  while (done < text.size()) {
    // The text was checked once by the caller; checking it at each match would make the whole quadratic.
    int n = pcre2_match(compiled_->code.get(), reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), done,
                        PCRE2_NO_UTF_CHECK | PCRE2_NOTEMPTY, match.get(), context.get());
    if (n == PCRE2_ERROR_NOMATCH) break;
    if (n < 0) {
      throw Error({.where = where_,
                   .expected = "a pattern that matches within its limits",
                   .found = fmt::format("\"{}\" at byte {} of a text of {}", message(n), done, text.size()),
                   .next = "Send a shorter text."});
    }
    const PCRE2_SIZE* at = pcre2_get_ovector_pointer(match.get());
    if (at[0] > done) piece(text.substr(done, at[0] - done));
    piece(text.substr(at[0], at[1] - at[0]));
    done = at[1];
  }
  if (done < text.size()) piece(text.substr(done));
}

}  // namespace megalith
