#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>

namespace megalith {

// Looks a variable up by name; nothing where it is not set.
using Environment = std::function<std::optional<std::string>(const std::string& name)>;

// The variables of a .env file, and the process's own where the file does not have them: the file wins, as it does
// where a shell sources it. A missing file and a directory have no variables; a file that cannot be read or parsed
// throws Error.
Environment combined_environment(const std::filesystem::path& file = ".env");

// Reads the text of a .env file: lines of KEY=VALUE, optionally after `export`; 'single', "double" and no quotes;
// comments after #. This is the part of the shell's language that needs no shell: $NAME, $(…), `…` and what else a
// shell would act on throws Error, with the line number, as every malformed line does. Of two lines for a key the later
// one counts. `name` is named in errors.
std::map<std::string, std::string> parse_env(std::string_view text, const std::string& name);

}  // namespace megalith
