#include "server/request_log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <spdlog/sinks/ostream_sink.h>
#include <spdlog/spdlog.h>

#include <memory>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include <nlohmann/json.hpp>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/support/errors.h"
#include "tests/support/scratch.h"

namespace megalith {
namespace {

using nlohmann::ordered_json;
using ::testing::HasSubstr;

std::vector<ordered_json> lines_of(const std::filesystem::path& path) {
  std::vector<ordered_json> lines;
  std::istringstream text(file_text(path));
  for (std::string line; std::getline(text, line);) lines.push_back(ordered_json::parse(line));
  return lines;
}

// What is reported while it lives.
class Reports {
 public:
  Reports() : logger_(spdlog::default_logger()) {
    spdlog::set_default_logger(
        std::make_shared<spdlog::logger>("test", std::make_shared<spdlog::sinks::ostream_sink_mt>(text_)));
  }
  ~Reports() { spdlog::set_default_logger(logger_); }
  std::string text() const { return text_.str(); }
  size_t count() const {
    const std::string all = text();
    return static_cast<size_t>(std::count(all.begin(), all.end(), '\n'));
  }

 private:
  std::ostringstream text_;
  std::shared_ptr<spdlog::logger> logger_;
};

TEST(RequestLog, ALineHoldsAllFieldsOfAText) {
  Scratch scratch;
  RequestLog log(scratch / "log");
  log.write({.id = "r1",
             .kind = "chat",
             .prompt_tokens = 100,
             .cached_tokens = 64,
             .completion_tokens = 41,
             .queue_s = 0.0015,
             .prefill_s = 0.25,
             .decode_s = 1.2345678,
             .steps = 10,
             .guesses = 70,
             .accepted = 30,
             .finish = "tool_calls",
             .scored = true,
             .temperature = 0.7F,
             .top_p = 0.95F,
             .status = 499});
  const std::string text = file_text(scratch / "log");
  EXPECT_TRUE(text.ends_with("}\n"));
  ordered_json line = ordered_json::parse(text);
  EXPECT_TRUE(std::regex_match(line["time"].get<std::string>(),
                               std::regex(R"(20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z)")))
      << line["time"];
  line.erase("time");
  EXPECT_EQ(line.dump(), ordered_json::parse(R"({"id":"r1","kind":"chat","status":499,"finish":"tool_calls",
    "prompt_tokens":100,"cached_tokens":64,"completion_tokens":41,"queue_ms":1.5,"prefill_ms":250.0,"decode_ms":1234.568,
    "steps":10,"guesses":70,"accepted":30,"tags":["scored","sampled 0.7/0.95"]})").dump());
}

TEST(RequestLog, GreedyTextsHaveNoTags) {
  Scratch scratch;
  RequestLog(scratch / "log").write({.id = "r", .finish = "stop"});
  EXPECT_EQ(lines_of(scratch / "log").at(0)["tags"], ordered_json::array());
}

TEST(RequestLog, AnIdMayHoldAnything) {
  Scratch scratch;
  RequestLog log(scratch / "log");
  const std::string ids[] = {"a\"b\\c\nd", "\xff\xfe", std::string("\0x", 2), std::string(60000, 'i'), "語"};
  for (const std::string& id : ids) log.write({.id = id, .finish = "stop"});
  const auto lines = lines_of(scratch / "log");
  ASSERT_EQ(lines.size(), 5U);
  for (size_t i : {0, 2, 3, 4}) EXPECT_EQ(lines[i]["id"], ids[i]);
  EXPECT_EQ(lines[1]["id"], "\ufffd\ufffd");
}

TEST(RequestLog, AppendsToWhatIsThere) {
  Scratch scratch;
  for (int i = 0; i < 3; ++i) RequestLog(scratch / "log").write({.id = std::to_string(i), .finish = "stop"});
  EXPECT_EQ(lines_of(scratch / "log").size(), 3U);
}

TEST(RequestLog, WritersOfSeveralThreadsAndProcessesKeepLinesWhole) {
  Scratch scratch;
  const auto write_some = [&](const std::string& who) {
    RequestLog log(scratch / "log");
    std::vector<std::thread> threads;
    for (int thread = 0; thread < 4; ++thread) {
      threads.emplace_back([&, thread] {
        for (int i = 0; i < 200; ++i) {
          log.write({.id = who + std::to_string(thread) + "-" + std::to_string(i) + std::string(i * 20, '.'),
                     .finish = "stop"});
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
  };
  const pid_t child = fork();
  if (child == 0) {
    write_some("child");
    _exit(0);
  }
  write_some("parent");
  int status = -1;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  std::set<std::string> ids;
  for (const ordered_json& line : lines_of(scratch / "log")) ids.insert(line["id"]);
  EXPECT_EQ(ids.size(), 1600U);
}

TEST(RequestLog, AFullDiskIsReportedOnceAndFailsNothing) {
  Reports reports;
  RequestLog log("/dev/full");
  for (int i = 0; i < 100; ++i) log.write({.id = "r", .finish = "stop"});
  EXPECT_EQ(reports.count(), 1U);
  EXPECT_THAT(reports.text(), HasSubstr("/dev/full lacks lines: No space left on device"));
  log.reopen();
  log.write({.id = "r", .finish = "stop"});
  EXPECT_EQ(reports.count(), 2U);
}

// A line that the disk took a part of must not spoil the next one.
TEST(RequestLog, ATornLineIsClosedBeforeTheNext) {
  Scratch scratch;
  Reports reports;
  RequestLog log(scratch / "log");
  log.write({.id = "whole", .finish = "stop"});
  rlimit before{};
  getrlimit(RLIMIT_FSIZE, &before);
  const auto ignore = signal(SIGXFSZ, SIG_IGN);
  const rlimit small{file_text(scratch / "log").size() + 40, before.rlim_max};
  setrlimit(RLIMIT_FSIZE, &small);
  log.write({.id = "torn", .finish = "stop"});
  log.write({.id = "lost", .finish = "stop"});
  setrlimit(RLIMIT_FSIZE, &before);
  signal(SIGXFSZ, ignore);
  log.write({.id = "next", .finish = "stop"});
  std::vector<std::string> lines;
  std::istringstream text(file_text(scratch / "log"));
  for (std::string line; std::getline(text, line);) lines.push_back(line);
  ASSERT_EQ(lines.size(), 3U);
  EXPECT_EQ(ordered_json::parse(lines[0])["id"], "whole");
  EXPECT_EQ(lines[1].size(), 40U);
  EXPECT_EQ(ordered_json::parse(lines[2])["id"], "next");
  EXPECT_EQ(reports.count(), 1U);
}

TEST(RequestLog, GoesOnInANewFileAfterRotation) {
  Scratch scratch;
  RequestLog log(scratch / "log");
  log.write({.id = "a", .finish = "stop"});
  std::filesystem::rename(scratch / "log", scratch / "log.1");
  log.write({.id = "b", .finish = "stop"});
  log.reopen();
  log.write({.id = "c", .finish = "stop"});
  EXPECT_EQ(lines_of(scratch / "log.1").size(), 2U);
  const auto lines = lines_of(scratch / "log");
  ASSERT_EQ(lines.size(), 1U);
  EXPECT_EQ(lines[0]["id"], "c");
}

TEST(RequestLog, RotationDuringWritesLosesNothing) {
  Scratch scratch;
  RequestLog log(scratch / "log");
  std::thread writer([&] {
    for (int i = 0; i < 2000; ++i) log.write({.id = std::to_string(i), .finish = "stop"});
  });
  for (int i = 0; i < 20; ++i) {
    std::filesystem::rename(scratch / "log", scratch / ("log." + std::to_string(i)));
    log.reopen();
  }
  writer.join();
  size_t lines = 0;
  for (const auto& entry : std::filesystem::directory_iterator(scratch.path())) lines += lines_of(entry.path()).size();
  EXPECT_EQ(lines, 2000U);
}

TEST(RequestLog, KeepsTheOldFileWhereTheNewOneCannotBeOpened) {
  Scratch scratch;
  std::filesystem::create_directory(scratch / "logs");
  RequestLog log(scratch / "logs/log");
  std::filesystem::rename(scratch / "logs", scratch / "old");
  Reports reports;
  log.reopen();
  log.write({.id = "a", .finish = "stop"});
  EXPECT_THAT(reports.text(), HasSubstr("is not reopened: No such file or directory"));
  EXPECT_EQ(lines_of(scratch / "old/log").size(), 1U);
}

TEST(RequestLog, AFileThatCannotBeOpenedIsRefused) {
  Scratch scratch;
  EXPECT_EQ(cause_of([&] { RequestLog log(scratch.path()); }),
            "--request-log: expected a file that can be written, found " + scratch.path().string() + ": Is a directory");
  EXPECT_THAT(cause_of([&] { RequestLog log(scratch / "none/log"); }), HasSubstr("No such file or directory"));
  // Nobody reads it: opening must not wait.
  ASSERT_EQ(mkfifo((scratch / "pipe").c_str(), 0600), 0);
  EXPECT_THAT(cause_of([&] { RequestLog log(scratch / "pipe"); }), HasSubstr("No such device or address"));
}

}  // namespace
}  // namespace megalith
