// megalith chat: a conversation in the terminal.

#include <fmt/format.h>

#include <cstdio>

#include "cli/answer.h"
#include "cli/options.h"
#include "cli/terminal.h"

namespace megalith {

namespace {

struct Chat {
  ModelOptions model;
  MachineFlags machine;
  SamplingFlags sampling;
  DraftFlags draft;
  std::vector<std::string> prompts;  // turns that are said before, or instead of, reading the terminal
  std::string system;
  std::string thinking;

  void run() const;
};

constexpr const char* kHelp =
    "/reset forgets the conversation, /think on|off switches thinking, exit leaves.\n"
    "Ctrl-C stops an answer; twice leaves.\n";

// A conversation with a loaded model.
class Conversation {
 public:
  Conversation(const LoadedModel& loaded, const Chat& chat)
      : loaded_(loaded),
        chat_(chat),
        engine_(*loaded.machine, loaded.model->vocabulary(), chat.machine.rows_per_step, chat.draft.speculation(loaded)),
        speed_(*loaded.machine) {
    if (!chat.thinking.empty()) request_.enable_thinking = chat.thinking == "on";
    reset();
  }

  void reset() {
    request_.messages.clear();
    if (!chat_.system.empty()) request_.messages.push_back({.role = Role::system, .content = chat_.system});
  }

  void set_thinking(bool on) { request_.enable_thinking = on; }
  void say(const std::string& text);

 private:
  void print(const OutputEvent& event);

  const LoadedModel& loaded_;
  const Chat& chat_;
  Engine engine_;
  ChatRequest request_;
  MemorySpeed speed_;
  const Style style_ = terminal_style();
  bool dimmed_ = false;
};

// Thoughts are dim; where there are no colours, a line tells them from the answer.
void Conversation::print(const OutputEvent& event) {
  const bool thought = event.kind == OutputEvent::Kind::reasoning;
  if (thought != dimmed_) {
    fmt::print("{}", thought ? style_.dim + "[thinking]\n" : style_.plain + "\n[answer]\n");
    dimmed_ = thought;
  }
  if (event.kind == OutputEvent::Kind::call_begin) fmt::print("\n[call {}] ", event.text);
  if (event.kind != OutputEvent::Kind::call_begin) std::fwrite(event.text.data(), 1, event.text.size(), stdout);
  std::fflush(stdout);
}

void Conversation::say(const std::string& text) {
  request_.messages.push_back({.role = Role::user, .content = text});
  const ChatFormat& format = loaded_.text.require_format();
  const Tokenizer& tokenizer = loaded_.text.require_tokenizer();
  const auto parser = format.parser(tokenizer, request_);
  MessageOutput message;
  const auto take = [&](const std::vector<OutputEvent>& events) {
    for (const OutputEvent& event : events) {
      message.add(event);
      if (event.kind != OutputEvent::Kind::finish) print(event);
    }
  };
  reset_interrupts();
  Generation g;
  try {
    g = answer(engine_, chat_.sampling.request(tokenizer.encode(format.render(request_)), loaded_), chat_.draft.steps_per_call,
               [&](std::span<const int32_t> tokens) { take(parser->feed(tokens)); }, [] { return interrupts() > 0; });
  } catch (...) {
    request_.messages.pop_back();
    throw;
  }
  take(parser->finish(g.finish == Finish::end_token ? FinishReason::stop : FinishReason::length));
  fmt::print("{}\n", style_.plain);
  dimmed_ = false;
  require_success(g);
  if (!chat_.machine.quiet) fmt::print("{}{}{}\n", style_.dim, statistics(g, speed_.share(g)), style_.plain);
  if (chat_.draft.baseline) {
    Engine without(*loaded_.machine, loaded_.model->vocabulary(), chat_.machine.rows_per_step);
    const Generation plain = answer(without, chat_.sampling.request(g.prompt, loaded_), 1, [](auto) {});
    fmt::print("{}[{}]{}\n", style_.dim, comparison(g, plain), style_.plain);
  }
  std::fflush(stdout);
  Message said = {.role = Role::assistant, .content = message.content};
  said.reasoning_content = message.reasoning_content;
  request_.messages.push_back(std::move(said));
}

// Does a command of the chat; false for text that is meant for the model.
bool command(Conversation& conversation, const std::string& line) {
  if (line == "/reset") conversation.reset();
  else if (line == "/think on" || line == "/think off") conversation.set_thinking(line == "/think on");
  else if (line == "/help" || line == "/?") fmt::print("{}", kHelp);
  else return false;
  return true;
}

std::string trimmed(const std::string& text) {
  const size_t first = text.find_first_not_of(" \t\r\n");
  return first == std::string::npos ? "" : text.substr(first, text.find_last_not_of(" \t\r\n") - first + 1);
}

void converse(Conversation& conversation, const Style& style) {
  std::string line;
  while (read_line(fmt::format("{}> {}", style.bold, style.plain), line)) {
    if (interrupts() > 1) return;
    if (interrupts() == 1) {
      fmt::print("\nPress Ctrl-C again, or type exit, to leave.\n");
      continue;
    }
    line = trimmed(line);
    if (line == "exit" || line == "quit" || line == "/exit" || line == "/quit") return;
    if (line.empty() || command(conversation, line)) continue;
    conversation.say(line);
    if (interrupts() > 1) return;
    reset_interrupts();
  }
  fmt::print("\n");
}

void Chat::run() const {
  LoadOptions options = machine.load_options(model, 1);
  draft.apply(model, options);
  const LoadedModel loaded = open_model(model, machine, options);
  loaded.text.require_tokenizer();
  loaded.text.require_format();
  const Style style = terminal_style();
  if (!machine.quiet) {
    sampling.announce(loaded);
    fmt::print("{}{} ({} layers, vocabulary {}); {}{}\n", style.dim, loaded.directory.filename().string(),
               loaded.model->layers(), loaded.model->vocabulary(), loaded.machine->describe(), style.plain);
  }
  Conversation conversation(loaded, *this);
  catch_interrupts();
  for (const std::string& prompt : prompts) {
    fmt::print("{}> {}{}\n", style.bold, style.plain, prompt);
    conversation.say(prompt);
    if (interrupts() > 1) return;
  }
  if (prompts.empty()) {
    if (!machine.quiet) fmt::print("{}{}{}", style.dim, kHelp, style.plain);
    converse(conversation, style);
  }
}

}  // namespace

void add_chat(CLI::App& app) {
  auto chat = std::make_shared<Chat>();
  CLI::App* sub = app.add_subcommand("chat", "talk with a model in the terminal");
  chat->model.add_model(*sub);
  chat->model.add_chat_format(*sub);
  auto* prompt = sub->add_option("-p,--prompt", chat->prompts, "say this and leave; several are the turns of one conversation");
  prompt->expected(1)->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  sub->add_option("--system", chat->system, "a system message");
  sub->add_option("--thinking", chat->thinking, "on|off (default: as the model's chat template says)")
      ->check(CLI::IsMember({"on", "off"}));
  chat->sampling.as_model = true;
  chat->sampling.add(*sub);
  chat->draft.add(*sub);
  chat->machine.add(*sub);
  sub->callback([chat] { chat->run(); });
}

}  // namespace megalith
