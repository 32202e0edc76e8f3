#include <fmt/format.h>
#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>

#include <cstdio>
#include <exception>

#include "base/error.h"
#include "cli/options.h"

namespace {

// The last line that a failing program prints is the cause, or what to do about it.
int report(const char* text) {
  std::fflush(stdout);
  fmt::print(stderr, "megalith: {}\n", text);
  return 1;
}

void set_up_log(bool verbose) {
  auto logger = spdlog::stderr_color_mt("megalith");
  logger->set_pattern("%v");
  logger->set_level(verbose ? spdlog::level::info : spdlog::level::warn);
  spdlog::set_default_logger(logger);
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Megalith decodes large hybrid language models as fast as memory delivers their weights.", "megalith");
  app.require_subcommand(1);
  app.set_version_flag("--version", "megalith " MEGALITH_VERSION);
  bool verbose = false;
  app.add_flag("-v,--verbose", verbose, "say what is read and what is left out");
  app.fallthrough(false);
  for (const megalith::Subcommand add :
       {megalith::add_chat, megalith::add_generate, megalith::add_tokenize, megalith::add_detokenize,
        megalith::add_render, megalith::add_logits, megalith::add_program, megalith::add_check, megalith::add_bench, megalith::add_serve}) {
    add(app);
  }
  app.parse_complete_callback([&] { set_up_log(verbose); });
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    const int code = app.exit(error);
    return code == 0 ? 0 : 2;
  } catch (const std::exception& error) {
    return report(error.what());
  }
  return 0;
}
