#include "base/memory.h"

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <string>
#include <utility>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "tests/support/scratch.h"

namespace megalith {
namespace {

using testing::AllOf;
using testing::HasSubstr;

std::string text_of(const MappedFile& file) {
  return {reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()};
}

std::string cause_of(const std::filesystem::path& path) {
  try {
    const MappedFile file(path);
  } catch (const Error& error) {
    return error.cause();
  }
  return "no Error";
}

TEST(Pages, AreAlignedToHugePages) {
  for (const size_t bytes : {size_t{1}, size_t{4096}, size_t{2} << 20, (size_t{2} << 20) + 1, size_t{5'000'000}}) {
    const Pages pages(bytes);
    EXPECT_EQ(pages.size(), bytes);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(pages.data()) % (size_t{2} << 20), 0u);
  }
}

TEST(Pages, AreZeroedAndWritableToTheLastByte) {
  const size_t bytes = (size_t{4} << 20) + 123;
  const Pages pages(bytes);
  EXPECT_TRUE(std::all_of(pages.data(), pages.data() + bytes, [](std::byte b) { return b == std::byte{0}; }));
  std::memset(pages.data(), 0xa5, bytes);
  EXPECT_EQ(pages.data()[bytes - 1], std::byte{0xa5});
}

TEST(Pages, NothingIsNoMemory) {
  EXPECT_EQ(Pages().data(), nullptr);
  EXPECT_EQ(Pages(0).data(), nullptr);
  EXPECT_EQ(Pages(0).size(), 0u);
}

TEST(Pages, MovedPagesKeepTheirBytes) {
  Pages first(100);
  first.data()[99] = std::byte{7};
  std::byte* const place = first.data();
  Pages second(std::move(first));
  EXPECT_EQ(second.data(), place);
  EXPECT_EQ(second.size(), 100u);
  EXPECT_EQ(second.data()[99], std::byte{7});
  Pages third(50);
  third = std::move(second);
  EXPECT_EQ(third.data(), place);
  EXPECT_EQ(third.size(), 100u);
  EXPECT_EQ(third.data()[99], std::byte{7});
}

TEST(Pages, SizesThatNoSystemGrantsAreAnError) {
  for (const size_t bytes : {std::numeric_limits<size_t>::max(), std::numeric_limits<size_t>::max() - 4096,
                             std::numeric_limits<size_t>::max() / 2}) {
    EXPECT_THROW(Pages{bytes}, Error) << bytes;
  }
}

TEST(MappedFile, HasTheBytesOfTheFile) {
  const Scratch directory;
  const std::string text = std::string(10'000, 'x') + '\0' + "end";
  EXPECT_EQ(text_of(MappedFile(directory.write("a", text))), text);
}

TEST(MappedFile, EmptyFileIsNoBytes) {
  const Scratch directory;
  EXPECT_TRUE(MappedFile(directory.write("empty", "")).bytes().empty());
  EXPECT_TRUE(MappedFile().bytes().empty());
}

TEST(MappedFile, MovedFileStaysMapped) {
  const Scratch directory;
  MappedFile first(directory.write("a", "first"));
  MappedFile second(std::move(first));
  EXPECT_EQ(text_of(second), "first");
  MappedFile third(directory.write("b", "other"));
  third = std::move(second);
  EXPECT_EQ(text_of(third), "first");
}

TEST(MappedFile, OutlivesTheNameOfTheFile) {
  const Scratch directory;
  const MappedFile file(directory.write("a", "still here"));
  std::filesystem::remove(directory.path() / "a");
  EXPECT_EQ(text_of(file), "still here");
}

TEST(MappedFile, ReleasedPartsComeBackFromDisk) {
  const Scratch directory;
  std::string text(100'000, ' ');
  for (size_t i = 0; i < text.size(); ++i) text[i] = static_cast<char>('a' + i % 26);
  const MappedFile file(directory.write("a", text));
  EXPECT_EQ(text_of(file), text);
  for (const auto& [offset, size] :
       {std::pair<size_t, size_t>{0, 100'000}, {1, 4095}, {4097, 50'000}, {99'999, 1}, {5, 0}}) {
    file.release(offset, size);
    EXPECT_EQ(text_of(file), text) << offset << " " << size;
  }
  MappedFile().release(0, 0);
}

TEST(MappedFile, MissingFileIsNamed) {
  const Scratch directory;
  const auto path = directory.path() / "nowhere";
  EXPECT_EQ(cause_of(path), path.string() + ": expected a readable file, found No such file or directory");
}

TEST(MappedFile, DirectoryIsRefused) {
  const Scratch directory;
  EXPECT_THAT(cause_of(directory.path()), AllOf(HasSubstr(directory.path().string()), HasSubstr("found a directory")));
}

TEST(MappedFile, PipeIsRefusedWithoutWaitingForAWriter) {
  const Scratch directory;
  const auto pipe = directory.path() / "pipe";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_THAT(cause_of(pipe), HasSubstr("expected a regular file"));
}

TEST(MappedFile, FileWithoutPermissionIsRefused) {
  if (geteuid() == 0) GTEST_SKIP() << "root may read all files";
  const Scratch directory;
  const auto path = directory.write("secret", "text");
  ASSERT_EQ(chmod(path.c_str(), 0), 0);
  EXPECT_THAT(cause_of(path), HasSubstr("Permission denied"));
}

}  // namespace
}  // namespace megalith
