#include "weights/environment.h"

#include <cstdlib>

#include <gmock/gmock.h>

#include "tests/weights/tensor_files.h"

namespace megalith {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

std::string value_of(const std::string& line) {
  const auto values = parse_env(line, ".env");
  EXPECT_EQ(values.size(), 1u) << line;
  return values.contains("K") ? values.at("K") : "no K";
}

TEST(Env, ValuesArePlainOrQuoted) {
  EXPECT_EQ(value_of("K=plain"), "plain");
  EXPECT_EQ(value_of("K='single $HOME \"quoted\" # `not`'"), "single $HOME \"quoted\" # `not`");
  EXPECT_EQ(value_of("K=\"double 'quoted' # \\\" \\$x \\\\\""), "double 'quoted' # \" $x \\");
  EXPECT_EQ(value_of("K="), "");
  EXPECT_EQ(value_of("K=''"), "");
  EXPECT_EQ(value_of("K=a=b"), "a=b");
  EXPECT_EQ(value_of("K=/data/hub"), "/data/hub");
}

TEST(Env, ExportBlanksAndCommentsAreAround) {
  EXPECT_EQ(value_of("export K=x"), "x");
  EXPECT_EQ(value_of("  export\t K=x  "), "x");
  EXPECT_EQ(value_of("K=x # comment"), "x");
  EXPECT_EQ(value_of("K=x#part"), "x#part");
  EXPECT_EQ(value_of("# comment = 'open\n\n   \nK=x\r\n#"), "x");
}

TEST(Env, ExportMayBeANameToo) {
  EXPECT_EQ(parse_env("export=1", ".env").at("export"), "1");
}

TEST(Env, TheLaterLineCounts) {
  EXPECT_EQ(value_of("K=1\nK=2\n"), "2");
}

TEST(Env, CarriageReturnsAreNotPartOfValues) {
  const auto values = parse_env("A=1\r\nB='2'\r\nC=3 # x\r\n", ".env");
  EXPECT_EQ(values.at("A"), "1");
  EXPECT_EQ(values.at("B"), "2");
  EXPECT_EQ(values.at("C"), "3");
}

TEST(Env, MalformedLinesAreRefusedWithTheirNumber) {
  for (const char* line : {"K", "K =x", "=x", "1K=x", "K-L=x", "K=a b", "K='open", "K=\"open", "export", "K='a' b",
                           "export K", "source other", "K=a;rm", "\"K\"=x"}) {
    EXPECT_THAT(cause_of([&] { parse_env(std::string("A=1\n\n") + line + "\nB=2", "some.env"); }),
                HasSubstr("some.env:3"))
        << line;
  }
}

TEST(Env, ErrorNamesTheFirstMalformedLineAndWhatALineIs) {
  try {
    parse_env("A=1\nB\nC D\n", ".env");
    ADD_FAILURE() << "no Error";
  } catch (const Error& error) {
    EXPECT_EQ(error.cause(), ".env:2: expected '=' directly after B, found the end of the line");
    EXPECT_THAT(error.fault().next, HasSubstr("KEY=VALUE"));
  }
}

TEST(Env, SubstitutionIsRefusedInsteadOfTakenLiterally) {
  for (const char* line : {"K=$HOME/x", "K=${HOME}", "K=$(pwd)", "K=`pwd`", "K=\"$HOME\"", "K=\"`pwd`\""}) {
    EXPECT_THAT(cause_of([&] { parse_env(line, ".env"); }), AllOf(HasSubstr(".env:1"), HasSubstr("substitution")))
        << line;
  }
}

TEST(Env, RefusalsDoNotTellTheValue) {
  EXPECT_THAT(cause_of([] { parse_env("TOKEN=secret word", ".env"); }), Not(HasSubstr("secret")));
}

TEST(CombinedEnvironment, TheFileOverridesTheProcess) {
  const Scratch scratch;
  setenv("MEGALITH_TEST_BOTH", "process", 1);
  setenv("MEGALITH_TEST_ONE", "process", 1);
  unsetenv("MEGALITH_TEST_NONE");
  const auto environment = combined_environment(scratch.write(".env", "MEGALITH_TEST_BOTH=file\n"));
  EXPECT_EQ(environment("MEGALITH_TEST_BOTH"), "file");
  EXPECT_EQ(environment("MEGALITH_TEST_ONE"), "process");
  EXPECT_EQ(environment("MEGALITH_TEST_NONE"), std::nullopt);
}

TEST(CombinedEnvironment, MissingFileIsFine) {
  const Scratch scratch;
  setenv("MEGALITH_TEST_ONE", "process", 1);
  EXPECT_EQ(combined_environment(scratch / ".env")("MEGALITH_TEST_ONE"), "process");
}

TEST(CombinedEnvironment, DirectoryOfThatNameIsNoFile) {
  const Scratch scratch;
  scratch.write(".env/bin/python", "");
  setenv("MEGALITH_TEST_ONE", "process", 1);
  EXPECT_EQ(combined_environment(scratch / ".env")("MEGALITH_TEST_ONE"), "process");
}

TEST(CombinedEnvironment, MalformedFileIsNamed) {
  const Scratch scratch;
  const auto path = scratch.write(".env", "A=1\nB\n");
  EXPECT_THAT(cause_of([&] { combined_environment(path); }), HasSubstr(path.string() + ":2"));
}

}  // namespace
}  // namespace megalith
