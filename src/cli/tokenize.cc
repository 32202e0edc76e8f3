// megalith tokenize, detokenize: text and token ids.

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstdio>
#include <iostream>
#include <iterator>

#include "cli/options.h"

namespace megalith {

namespace {

struct Tokenize {
  ModelOptions model;
  std::string text;
  bool plain = false;
  bool pieces = false;

  void run() const {
    const TextModel loaded = load_text(model.directory(), model.format());
    const Tokenizer& tokenizer = loaded.require_tokenizer();
    const auto ids = tokenizer.encode(text == "-" ? read_input() : text, plain ? Specials::plain_text : Specials::recognised);
    if (!pieces) return fmt::print("{}\n", fmt::join(ids, ","));
    for (const int32_t id : ids) fmt::print("{}\t{:?}\n", id, tokenizer.token_bytes(id));
  }

  static std::string read_input() { return {std::istreambuf_iterator<char>(std::cin), {}}; }
};

struct Detokenize {
  ModelOptions model;
  std::string ids;
  bool skip_special = false;

  void run() const {
    const TextModel loaded = load_text(model.directory(), model.format());
    const std::string text = loaded.require_tokenizer().decode(parse_ids(ids), skip_special);
    std::fwrite(text.data(), 1, text.size(), stdout);
    std::fputc('\n', stdout);
  }
};

}  // namespace

void add_tokenize(CLI::App& app) {
  auto tokenize = std::make_shared<Tokenize>();
  CLI::App* sub = app.add_subcommand("tokenize", "text to token ids");
  tokenize->model.add_model(*sub);
  sub->add_option("text", tokenize->text, "the text; - reads standard input")->required();
  sub->add_flag("--plain", tokenize->plain, "control tokens spelled in the text stay text");
  sub->add_flag("--pieces", tokenize->pieces, "a line for each token, with its bytes");
  sub->callback([tokenize] { tokenize->run(); });
}

void add_detokenize(CLI::App& app) {
  auto detokenize = std::make_shared<Detokenize>();
  CLI::App* sub = app.add_subcommand("detokenize", "token ids to text");
  detokenize->model.add_model(*sub);
  sub->add_option("ids", detokenize->ids, "1,2,3")->required();
  sub->add_flag("--skip-special", detokenize->skip_special, "leave control tokens out");
  sub->callback([detokenize] { detokenize->run(); });
}

}  // namespace megalith
