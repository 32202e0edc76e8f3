#pragma once

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <system_error>

#include <unistd.h>

#include "base/check.h"

namespace megalith {

// A directory for parsers that read files: they are written anew for each input. It ends with the process.
class InputDirectory {
 public:
  InputDirectory() {
    std::string name = (std::filesystem::temp_directory_path() / "megalith_fuzz.XXXXXX").string();
    CHECK(mkdtemp(name.data()), "{}: {}", name, std::strerror(errno));
    path_ = name;
  }
  ~InputDirectory() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  InputDirectory(const InputDirectory&) = delete;

  std::filesystem::path write(const std::string& name, std::string_view text) const {
    const auto path = path_ / name;
    std::filesystem::remove(path);  // a file system may flush one that is cut and written again
    std::ofstream file(path, std::ios::binary);
    file.write(text.data(), static_cast<std::streamsize>(text.size()));
    file.close();
    CHECK(file, "{} cannot be written", path.string());
    return path;
  }
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

}  // namespace megalith
