#include "base/pending_file.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "tests/support/scratch.h"

namespace megalith {
namespace {

size_t entries(const std::filesystem::path& directory) {
  return static_cast<size_t>(std::distance(std::filesystem::directory_iterator(directory), {}));
}

TEST(PendingFile, TheOldFileStaysUntilTheNewOneIsWhole) {
  const Scratch scratch;
  const auto path = scratch.write("a.txt", "old");
  {
    PendingFile file(path);
    file.write("new", 3);
    EXPECT_EQ(file_text(path), "old");
    file.finish();
  }
  EXPECT_EQ(file_text(path), "new");
  EXPECT_EQ(entries(scratch.path()), 1u);
}

TEST(PendingFile, NothingStaysOfAFileThatWasNotFinished) {
  const Scratch scratch;
  {
    PendingFile file(scratch / "a.txt");
    file.write("half", 4);
  }
  EXPECT_EQ(entries(scratch.path()), 0u);
}

TEST(PendingFile, ADirectoryThatDoesNotExistIsAnErrorWithThePath) {
  const Scratch scratch;
  try {
    write_file(scratch / "no/a.txt", "text");
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(error.cause().find("no/a.txt"), std::string::npos);
  }
}

}  // namespace
}  // namespace megalith
