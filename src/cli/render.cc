// megalith render: the prompt that a chat request becomes.

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstdio>
#include <iostream>
#include <iterator>

#include "cli/options.h"
#include "text/request_json.h"

namespace megalith {

namespace {

struct Render {
  ModelOptions model;
  std::string request;
  bool ids = false;

  void run() const {
    const auto segments = render(parse_chat_request(read_request()));
    if (ids) {
      const TextModel loaded = load_text(model.directory(), model.format());
      return fmt::print("{}\n", fmt::join(loaded.require_tokenizer().encode(segments), ","));
    }
    const std::string text = joined(segments);
    std::fwrite(text.data(), 1, text.size(), stdout);
  }

  // With a format named, the text needs no model.
  std::vector<Segment> render(const ChatRequest& chat) const {
    if (model.format()) return chat_format(*model.format())->render(chat);
    return load_text(model.directory(), std::nullopt).require_format().render(chat);
  }

  nlohmann::ordered_json read_request() const {
    const std::string text = request == "-" ? std::string(std::istreambuf_iterator<char>(std::cin), {}) : read_text(request);
    return parse_request_json(text, request == "-" ? "standard input" : request);
  }
};

}  // namespace

void add_render(CLI::App& app) {
  auto render = std::make_shared<Render>();
  CLI::App* sub = app.add_subcommand("render", "the prompt that a chat request becomes");
  render->model.add_model(*sub);
  render->model.add_chat_format(*sub);
  sub->add_option("--request", render->request, "a file with an OpenAI chat request; - reads standard input")->required();
  sub->add_flag("--ids", render->ids, "token ids instead of text");
  sub->callback([render] { render->run(); });
}

}  // namespace megalith
