#include "server/request_log.h"

#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstring>
#include <utility>

#include <fcntl.h>
#include <fmt/chrono.h>
#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include "base/error.h"
#include "server/json_reply.h"

namespace megalith {
namespace {

// Without O_NONBLOCK, a pipe that nobody reads would make everybody wait.
int open_log(const std::filesystem::path& path) {
  return open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NONBLOCK, 0644);
}

std::string time_text() {
  using namespace std::chrono;
  const auto time = time_point_cast<milliseconds>(system_clock::now());
  const auto since = time.time_since_epoch();
  return fmt::format("{:%Y-%m-%dT%H:%M:%S}.{:03}Z", fmt::gmtime(floor<seconds>(since).count()), (since % 1s).count());
}

// Milliseconds, to a thousandth.
double ms(double seconds) { return std::round(seconds * 1e6) / 1e3; }

std::string line_of(const LoggedText& text) {
  nlohmann::ordered_json line = {
      {"time", time_text()},
      {"id", text.id},
      {"kind", text.kind},
      {"status", text.status},
      {"finish", text.finish},
      {"prompt_tokens", text.prompt_tokens},
      {"cached_tokens", text.cached_tokens},
      {"completion_tokens", text.completion_tokens},
      {"queue_ms", ms(text.queue_s)},
      {"prefill_ms", ms(text.prefill_s)},
      {"decode_ms", ms(text.decode_s)},
      {"steps", text.steps},
      {"guesses", text.guesses},
      {"accepted", text.accepted},
      {"tags", nlohmann::ordered_json::array()},
  };
  if (text.scored) line["tags"].push_back("scored");
  if (text.temperature > 0) {
    line["tags"].push_back(fmt::format("sampled {:.6g}/{:.6g}", text.temperature, text.top_p));
  }
  // Ids are the clients' own, and need not be UTF-8.
  return json_line(line) + "\n";
}

}  // namespace

RequestLog::RequestLog(std::filesystem::path path) : path_(std::move(path)), fd_(open_log(path_)) {
  if (fd_ >= 0) return;
  throw Error({.where = "--request-log",
               .expected = "a file that can be written",
               .found = fmt::format("{}: {}", path_.string(), std::strerror(errno)),
               .next = "Make its directory, or name another file."});
}

RequestLog::~RequestLog() { close(fd_); }

void RequestLog::write(const LoggedText& text) {
  const std::string line = line_of(text);
  const std::lock_guard lock(mutex_);
  append(line);
}

void RequestLog::reopen() {
  const std::lock_guard lock(mutex_);
  const int fd = open_log(path_);
  if (fd < 0) return report("is not reopened", errno);
  close(fd_);
  fd_ = fd;
  reported_ = false;
  torn_ = false;
}

// One write for a line: lines of several processes stay whole.
void RequestLog::append(std::string_view line) {
  const std::string sealed = torn_ ? fmt::format("\n{}", line) : std::string();
  if (torn_) line = sealed;
  ssize_t written = 0;
  do {
    written = ::write(fd_, line.data(), line.size());
  } while (written < 0 && errno == EINTR);
  if (written == static_cast<ssize_t>(line.size())) {
    torn_ = false;
    return;
  }
  torn_ = torn_ || written > 0;
  report("lacks lines", written < 0 ? errno : ENOSPC);
}

void RequestLog::report(std::string_view what, int error) {
  if (std::exchange(reported_, true)) return;
  spdlog::error("the request log {} {}: {}", path_.string(), what, std::strerror(error));
}

}  // namespace megalith
