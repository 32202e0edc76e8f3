#pragma once

#include <cstdint>
#include <filesystem>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

namespace megalith {

// What is kept of a text that has ended.
struct LoggedText {
  std::string id;                   // of its request; texts of one request have the same
  const char* kind = "completion";  // or "chat"
  int64_t prompt_tokens = 0, cached_tokens = 0, completion_tokens = 0;
  double queue_s = 0, prefill_s = 0, decode_s = 0;
  int64_t steps = 0;                   // after the first token
  int64_t guesses = 0, accepted = 0;   // of a draft, in these steps
  std::string finish;                  // as the client read it; "abort" where it has gone, "error"
  bool scored = false;                 // the prompt's log-probabilities were asked for
  double temperature = 0, top_p = 1;   // temperature 0: tokens were not drawn
  int status = 200;                    // of the reply; 499 where the client has gone
};

// A file with one JSON object a line for each text that has ended. Several processes may append to the same file. A line
// that cannot be written is lost; the first such failure is reported, and nothing else comes of it. For use from any
// thread, but not in a signal's handler.
class RequestLog {
 public:
  // Makes the file where there is none. Throws Error where it cannot be opened.
  explicit RequestLog(std::filesystem::path path);
  ~RequestLog();
  RequestLog(const RequestLog&) = delete;
  RequestLog& operator=(const RequestLog&) = delete;

  void write(const LoggedText& text);
  // Goes on in a new file of the same name, after the old one was moved away. Where that cannot be opened, the old file
  // stays in use.
  void reopen();

 private:
  void append(std::string_view line);
  void report(std::string_view what, int error);

  const std::filesystem::path path_;
  std::mutex mutex_;
  int fd_ = -1;
  bool reported_ = false;
  bool torn_ = false;  // the file ends in a part of a line
};

}  // namespace megalith
