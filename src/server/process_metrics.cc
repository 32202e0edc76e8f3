#include "server/process_metrics.h"

#include <ctime>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <sstream>
#include <string>
#include <system_error>

#include <unistd.h>

namespace megalith {
namespace {

std::optional<double> resident_bytes() {
  std::ifstream file("/proc/self/statm");
  double all = 0, resident = 0;
  if (!(file >> all >> resident)) return std::nullopt;
  return resident * static_cast<double>(sysconf(_SC_PAGESIZE));
}

std::optional<double> open_files() {
  std::error_code failed;
  std::filesystem::directory_iterator files("/proc/self/fd", failed);
  double count = 0;
  for (; !failed && files != std::filesystem::directory_iterator(); files.increment(failed)) count += 1;
  if (failed) return std::nullopt;
  return count - 1;  // without the one that lists them
}

std::optional<double> processor_seconds() {
  timespec time{};
  if (clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time) != 0) return std::nullopt;
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

std::optional<double> boot_time() {
  std::ifstream file("/proc/stat");
  std::string word;
  while (file >> word) {
    double seconds = 0;
    if (word == "btime" && file >> seconds) return seconds;
  }
  return std::nullopt;
}

std::optional<double> start_time() {
  std::ifstream file("/proc/self/stat");
  const std::string all{std::istreambuf_iterator<char>(file), {}};
  // The second field is the program's name, which may hold blanks and brackets.
  const size_t name_end = all.rfind(')');
  const std::optional<double> boot = boot_time();
  if (name_end == std::string::npos || !boot) return std::nullopt;
  std::istringstream fields(all.substr(name_end + 1));
  std::string field;
  for (int i = 3; i <= 22; ++i) fields >> field;
  double ticks = 0;
  if (!(std::istringstream(field) >> ticks)) return std::nullopt;
  return *boot + ticks / static_cast<double>(sysconf(_SC_CLK_TCK));
}

}  // namespace

std::vector<prometheus::MetricFamily> process_metrics() {
  using prometheus::MetricType;
  std::vector<prometheus::MetricFamily> families;
  auto add = [&](const char* name, const char* help, MetricType type, std::optional<double> value) {
    if (!value) return;
    prometheus::ClientMetric metric;
    (type == MetricType::Counter ? metric.counter.value : metric.gauge.value) = *value;
    families.push_back({name, help, type, {metric}});
  };
  static const std::optional<double> start = start_time();
  add("process_resident_memory_bytes", "Memory of the process that is in RAM.", MetricType::Gauge, resident_bytes());
  add("process_open_fds", "Open file descriptors.", MetricType::Gauge, open_files());
  add("process_cpu_seconds_total", "Processor time of all threads.", MetricType::Counter, processor_seconds());
  add("process_start_time_seconds", "Unix time at which the process began.", MetricType::Gauge, start);
  return families;
}

}  // namespace megalith
