#include "text/chat.h"

#include <algorithm>
#include <array>

#include <fmt/format.h>

#include "base/error.h"
#include "text/chatml_qwen.h"
#include "text/kimi_k3.h"

namespace megalith {

namespace {

struct Format {
  std::string_view name;
  std::unique_ptr<const ChatFormat> (*make)(std::optional<bool> thinking);
  // Whether a template is this format's; formats are asked in order.
  bool (*recognises)(std::string_view template_text);
};

template <const ChatmlQwen& form>
std::unique_ptr<const ChatFormat> make_qwen(std::optional<bool> thinking) {
  ChatmlQwen with = form;
  with.thinking = thinking.value_or(form.thinking);
  return make_chatml_qwen(with);
}

bool is_qwen35(std::string_view text) {
  return recognises_chatml_qwen(kQwen35, text);
}
bool is_qwen38(std::string_view text) {
  return recognises_chatml_qwen(kQwen38, text);
}

std::unique_ptr<const ChatFormat> make_k3(std::optional<bool> thinking) {
  return make_kimi_k3({.thinking = thinking.value_or(true)});
}

constexpr std::array kFormats = {
    Format{kQwen35.name, make_qwen<kQwen35>, is_qwen35},
    Format{kQwen38.name, make_qwen<kQwen38>, is_qwen38},
    Format{KimiK3::kName, make_k3, recognises_kimi_k3},
};

// Templates test their switch in one of two ways, and so tell what an absent one means: where only `true` is looked
// for, thinking is off by default.
bool thinks_by_default(std::string_view text) {
  for (std::string_view only_true : {"enable_thinking is true", "enable_thinking == true", "if enable_thinking %}"}) {
    if (text.find(only_true) == std::string_view::npos) continue;
    return text.find("enable_thinking is false") != std::string_view::npos;
  }
  return true;
}

}  // namespace

std::vector<std::string> chat_format_names() {
  std::vector<std::string> names;
  for (const Format& format : kFormats) names.emplace_back(format.name);
  return names;
}

DetectedFormat detect_chat_format(std::string_view template_text) {
  for (const Format& format : kFormats) {
    if (format.recognises(template_text)) return {std::string(format.name), thinks_by_default(template_text)};
  }
  throw Error({.where = "chat template",
               .expected = fmt::format("the template of a known format ({})", fmt::join(chat_format_names(), ", ")),
               .found = "another one",
               .next = "Name the format with --chat-format."});
}

std::optional<DetectedFormat> detect_chat_format(const Tokenizer& tokenizer) {
  if (has_kimi_k3_marks(tokenizer)) return DetectedFormat{std::string(KimiK3::kName), true};
  return std::nullopt;
}

std::unique_ptr<const ChatFormat> chat_format(std::string_view name, std::optional<bool> thinking) {
  auto found = std::find_if(kFormats.begin(), kFormats.end(), [&](const Format& f) { return f.name == name; });
  if (found == kFormats.end()) {
    throw Error({.where = "chat format",
                 .expected = fmt::format("one of {}", fmt::join(chat_format_names(), ", ")),
                 .found = fmt::format("\"{}\"", name),
                 .next = "Give one of these with --chat-format."});
  }
  return found->make(thinking);
}

}  // namespace megalith
