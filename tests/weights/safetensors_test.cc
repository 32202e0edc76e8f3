#include "weights/safetensors.h"

#include <algorithm>
#include <random>

#include <gmock/gmock.h>
#include <sys/stat.h>

#include "tests/weights/tensor_files.h"

namespace megalith {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;

const std::string kGood = R"({"a":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},)"
                          R"("b":{"dtype":"BF16","shape":[4],"data_offsets":[24,32]}})";

// What opening a file with these bytes says, after checking that it names the file.
std::string complaint(const std::string& text) {
  const Scratch scratch;
  const auto path = scratch.write("x.safetensors", text);
  std::string cause = cause_of([&] { SafetensorsFile file(path); });
  EXPECT_THAT(cause, StartsWith(path.string() + ": "));
  return cause.size() > path.string().size() ? cause.substr(path.string().size() + 2) : cause;
}

std::string complaint_of_header(const std::string& header, size_t data_bytes) {
  return complaint(safetensors_text(header, data_bytes));
}

std::string one(const std::string& dtype, const std::string& shape, const std::string& offsets) {
  return R"({"w":{"dtype":)" + dtype + R"(,"shape":)" + shape + R"(,"data_offsets":)" + offsets + "}}";
}

TEST(Safetensors, GoodFileHasItsTensors) {
  const Scratch scratch;
  const auto path = scratch.write("x.safetensors", safetensors_text(kGood + "   ", 32));
  const SafetensorsFile file(path);
  ASSERT_EQ(file.tensors().size(), 2u);
  EXPECT_EQ(file.tensors().at("a").dtype, "F32");
  EXPECT_EQ(file.tensors().at("a").shape, (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(file.data(file.tensors().at("a")).size(), 24u);
  EXPECT_EQ(file.data(file.tensors().at("b")).size(), 8u);
  EXPECT_EQ(file.path(), path);
}

TEST(Safetensors, NoTensorsEmptyTensorsAndScalarsAreFine) {
  const Scratch scratch;
  EXPECT_TRUE(SafetensorsFile(scratch.write("none", safetensors_text("{}", 0))).tensors().empty());
  const std::string header = R"({"e":{"dtype":"F32","shape":[0,5],"data_offsets":[0,0]},)"
                             R"("s":{"dtype":"F32","shape":[],"data_offsets":[0,4]}})";
  const SafetensorsFile file(scratch.write("some", safetensors_text(header, 4)));
  EXPECT_TRUE(file.data(file.tensors().at("e")).empty());
  EXPECT_TRUE(file.tensors().at("s").shape.empty());
}

TEST(Safetensors, MetadataIsKeptApartFromTensors) {
  const Scratch scratch;
  const SafetensorsFile file(scratch.write("x", safetensors_text(R"({"__metadata__":{"format":"pt"}})", 0)));
  EXPECT_TRUE(file.tensors().empty());
  EXPECT_EQ(file.metadata().at("format"), "pt");
}

TEST(SafetensorsDamage, EmptyFile) {
  EXPECT_EQ(complaint(""), "expected a safetensors file of at least 8 bytes, found 0 bytes");
}

TEST(SafetensorsDamage, TooShortForALength) {
  EXPECT_EQ(complaint("1234567"), "expected a safetensors file of at least 8 bytes, found 7 bytes");
}

TEST(SafetensorsDamage, NothingBehindTheLength) {
  EXPECT_EQ(complaint(std::string("\x10\0\0\0\0\0\0\0", 8)), "expected a header of 16 bytes, found a file of 8 bytes");
  EXPECT_THAT(complaint(std::string(8, '\0')), HasSubstr("0 bytes of JSON"));
}

TEST(SafetensorsDamage, HeaderBeyondTheFile) {
  const std::string text = safetensors_text(kGood, 32);
  EXPECT_THAT(complaint(text.substr(0, 50)), AllOf(HasSubstr("a header of " + std::to_string(kGood.size()) + " bytes"),
                                                   HasSubstr("a file of 50 bytes")));
}

TEST(SafetensorsDamage, HeaderTooLargeToBelieve) {
  std::string text = safetensors_text(kGood, 32);
  for (const uint64_t length : {uint64_t{100'000'001}, uint64_t{1} << 63, ~uint64_t{0}, ~uint64_t{7}}) {
    std::memcpy(text.data(), &length, 8);
    EXPECT_THAT(complaint(text), AllOf(HasSubstr("at most 100000000"), HasSubstr(std::to_string(length))));
  }
}

TEST(SafetensorsDamage, HeaderOfTheLargestSizeThatIsBelievedNeedsAFileOfThatSize) {
  std::string text = safetensors_text(kGood, 32);
  const uint64_t length = 100'000'000;
  std::memcpy(text.data(), &length, 8);
  EXPECT_THAT(complaint(text),
              AllOf(HasSubstr("a header of 100000000 bytes"), HasSubstr(std::to_string(text.size()) + " bytes")));
}

TEST(SafetensorsDamage, HeaderThatIsNotJson) {
  for (const char* header : {"", "{", "{]", "<html>", "{\"a\":1}x", "{\"a\":1e999}", "\xef\xbb\xbf{"}) {
    EXPECT_THAT(complaint_of_header(header, 0), HasSubstr("JSON, found ")) << header;
  }
  EXPECT_EQ(complaint_of_header("{\"a\":1,}", 0), "header: expected 8 bytes of JSON, found a syntax error at byte 8");
}

TEST(SafetensorsDamage, HeaderThatIsNotUtf8) {
  EXPECT_EQ(complaint_of_header("{\"\xc3\x28\":{}}", 0),
            "header: expected 9 bytes of UTF-8, found another encoding at byte 4");
  EXPECT_THAT(complaint_of_header("{\"a\":\"\xff\"}", 0), HasSubstr("UTF-8"));
  EXPECT_THAT(complaint_of_header(std::string("{\"\xed\xa0\x80\":{}}"), 0), HasSubstr("UTF-8"));
}

TEST(SafetensorsDamage, HeaderThatIsNoObject) {
  EXPECT_THAT(complaint_of_header("[1,2]", 0), HasSubstr("expected a JSON object, found a list of 2"));
  EXPECT_THAT(complaint_of_header("7", 0), HasSubstr("expected a JSON object, found 7"));
  EXPECT_THAT(complaint_of_header("null", 0), HasSubstr("expected a JSON object"));
}

TEST(SafetensorsDamage, DeepNestingDoesNotOverflowTheStack) {
  const size_t depth = 100'000;
  const std::string deep = std::string(depth, '[') + std::string(depth, ']');
  for (const std::string& header : {std::string(depth, '['), deep, one("\"F32\"", deep, "[0,0]"), one("\"F32\"", "[]", deep)}) {
    EXPECT_THAT(complaint_of_header(header, 0), HasSubstr("at most 100 levels"));
  }
}

TEST(SafetensorsDamage, NameThatStandsTwice) {
  const std::string twice = R"({"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},)"
                            R"("w":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})";
  EXPECT_THAT(complaint_of_header(twice, 4), HasSubstr("w: expected one entry, found two"));
  EXPECT_THAT(complaint_of_header(R"({"w":{"dtype":"F32","dtype":"F32","shape":[1],"data_offsets":[0,4]}})", 4),
              HasSubstr("two entries"));
}

TEST(SafetensorsDamage, EntryThatDescribesNoTensor) {
  EXPECT_THAT(complaint_of_header(R"({"w":5})", 0), AllOf(StartsWith("w: "), HasSubstr("found 5")));
  EXPECT_THAT(complaint_of_header(R"({"w":[]})", 0), AllOf(StartsWith("w: "), HasSubstr("found a list of 0")));
}

TEST(SafetensorsDamage, EntryWithoutType) {
  EXPECT_EQ(complaint_of_header(R"({"w":{"shape":[1],"data_offsets":[0,4]}})", 4),
            "w: expected the field dtype, found no such field");
}

TEST(SafetensorsDamage, EntryWithoutShape) {
  EXPECT_EQ(complaint_of_header(R"({"w":{"dtype":"F32","data_offsets":[0,4]}})", 4),
            "w: expected the field shape, found no such field");
}

TEST(SafetensorsDamage, EntryWithoutOffsets) {
  EXPECT_EQ(complaint_of_header(R"({"w":{"dtype":"F32","shape":[1]}})", 4),
            "w: expected the field data_offsets, found no such field");
}

TEST(SafetensorsDamage, MetadataThatIsNotStrings) {
  EXPECT_THAT(complaint_of_header(R"({"__metadata__":[1]})", 0), StartsWith("__metadata__: "));
  EXPECT_THAT(complaint_of_header(R"({"__metadata__":{"k":1}})", 0), StartsWith("__metadata__.k: "));
}

TEST(SafetensorsDamage, UnknownType) {
  EXPECT_THAT(complaint_of_header(one("\"F33\"", "[1]", "[0,4]"), 4), AllOf(StartsWith("w.dtype: "), HasSubstr("F33")));
  EXPECT_THAT(complaint_of_header(one("32", "[1]", "[0,4]"), 4), AllOf(StartsWith("w.dtype: "), HasSubstr("found 32")));
}

TEST(SafetensorsDamage, NegativeShape) {
  EXPECT_EQ(complaint_of_header(one("\"F32\"", "[-1]", "[0,4]"), 4), "w.shape: expected sizes of 0 to 2^48, found -1");
  EXPECT_THAT(complaint_of_header(one("\"F32\"", "[2,-2]", "[0,4]"), 4), StartsWith("w.shape: "));
}

TEST(SafetensorsDamage, FractionalShape) {
  for (const char* shape : {"[1.5]", "[1.0]", "[1e3]"}) {
    EXPECT_THAT(complaint_of_header(one("\"F32\"", shape, "[0,4]"), 4), StartsWith("w.shape: expected sizes")) << shape;
  }
}

TEST(SafetensorsDamage, ShapeThatIsNoListOfSizes) {
  for (const char* shape :
       {"5", "\"x\"", "{}", "null", "[\"1\"]", "[null]", "[[1]]", "[18446744073709551615]", "[281474976710657]"}) {
    EXPECT_THAT(complaint_of_header(one("\"F32\"", shape, "[0,4]"), 4), StartsWith("w.shape: ")) << shape;
  }
}

TEST(SafetensorsDamage, ShapeWhoseSizeOverflows) {
  EXPECT_THAT(complaint_of_header(one("\"F32\"", "[281474976710656,65536]", "[0,0]"), 0), StartsWith("w.shape: "));
  EXPECT_THAT(complaint_of_header(one("\"F32\"", "[281474976710656,2048]", "[0,0]"), 0), StartsWith("w.shape: "));
  EXPECT_THAT(complaint_of_header(one("\"F32\"", "[1073741824,134217728]", "[0,4]"), 4),
              AllOf(StartsWith("w: "), HasSubstr("576460752303423488 bytes"), HasSubstr("found 4 bytes")));
}

TEST(SafetensorsDamage, OffsetsThatAreNotTwoNumbers) {
  for (const char* offsets : {"4", "[0]", "[0,2,4]", "[-4,0]", "[0,4.0]", "[null,4]", "{}", "[\"0\",\"4\"]"}) {
    EXPECT_THAT(complaint_of_header(one("\"F32\"", "[1]", offsets), 4), StartsWith("w.data_offsets: ")) << offsets;
  }
}

TEST(SafetensorsDamage, OffsetsReversed) {
  EXPECT_THAT(complaint_of_header(one("\"F32\"", "[1]", "[4,0]"), 4),
              AllOf(StartsWith("w.data_offsets: "), HasSubstr("[4, 0]")));
}

TEST(SafetensorsDamage, OffsetsBeyondTheFile) {
  EXPECT_THAT(complaint_of_header(one("\"F32\"", "[2]", "[0,8]"), 7),
              AllOf(StartsWith("w: "), HasSubstr("byte 8"), HasSubstr("7 bytes")));
  EXPECT_THAT(complaint_of_header(one("\"F32\"", "[1]", "[18446744073709551611,18446744073709551615]"), 4),
              AllOf(StartsWith("w: "), HasSubstr("18446744073709551615"), HasSubstr("4 bytes")));
}

TEST(SafetensorsDamage, SizeThatDoesNotFitTheShape) {
  EXPECT_THAT(complaint_of_header(one("\"F32\"", "[3]", "[0,8]"), 8),
              AllOf(StartsWith("w: "), HasSubstr("expected 12 bytes"), HasSubstr("found 8 bytes")));
  EXPECT_THAT(complaint_of_header(one("\"F4\"", "[3]", "[0,1]"), 1), AllOf(StartsWith("w: "), HasSubstr("2 bytes")));
}

std::string two(const std::string& first, const std::string& second) {
  return R"({"a":{"dtype":"F32","shape":[1],"data_offsets":)" + first +
         R"(},"b":{"dtype":"F32","shape":[1],"data_offsets":)" + second + "}}";
}

TEST(SafetensorsDamage, TensorOfNoBytesInAPlaceOfItsOwnIsNoHole) {
  const std::string header = R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},)"
                             R"("e":{"dtype":"F32","shape":[0],"data_offsets":[4,4]},)"
                             R"("b":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})";
  const Scratch scratch;
  EXPECT_EQ(SafetensorsFile(scratch.write("x", safetensors_text(header, 8))).tensors().size(), 3u);
}

TEST(SafetensorsDamage, HoleBeforeTheFirstTensor) {
  EXPECT_EQ(complaint_of_header(one("\"F32\"", "[1]", "[4,8]"), 8), "w: expected data at byte 0, found data at byte 4");
}

TEST(SafetensorsDamage, HoleBetweenTensors) {
  EXPECT_THAT(complaint_of_header(two("[0,4]", "[8,12]"), 12),
              AllOf(StartsWith("b: "), HasSubstr("data at byte 4"), HasSubstr("found data at byte 8")));
  EXPECT_THAT(complaint_of_header(two("[4,8]", "[8,12]"), 12), StartsWith("a: "));
}

TEST(SafetensorsDamage, TensorsThatOverlap) {
  EXPECT_THAT(complaint_of_header(two("[0,4]", "[2,6]"), 6),
              AllOf(StartsWith("b: "), HasSubstr("data at byte 4"), HasSubstr("found data at byte 2")));
  EXPECT_THAT(complaint_of_header(two("[0,4]", "[0,4]"), 4), StartsWith("b: "));
}

TEST(SafetensorsDamage, BytesAfterTheLastTensor) {
  EXPECT_THAT(complaint(safetensors_text(kGood, 40)),
              AllOf(HasSubstr("32 bytes of data"), HasSubstr("found 40 bytes")));
  EXPECT_THAT(complaint_of_header("{}", 1), AllOf(HasSubstr("0 bytes of data"), HasSubstr("found 1 bytes")));
}

TEST(SafetensorsDamage, DataCutOff) {
  EXPECT_THAT(complaint(safetensors_text(kGood, 31)),
              AllOf(StartsWith("b: "), HasSubstr("byte 32"), HasSubstr("31 bytes")));
  EXPECT_THAT(complaint(safetensors_text(kGood, 0)),
              AllOf(StartsWith("a: "), HasSubstr("byte 24"), HasSubstr("0 bytes")));
}

// Opens a file and reads all bytes that it offers; an Error is as good as success.
void open_and_read(const std::filesystem::path& path) {
  try {
    const SafetensorsFile file(path);
    unsigned sum = 0;
    for (const auto& [name, tensor] : file.tensors()) {
      for (const std::byte b : file.data(tensor)) sum += static_cast<unsigned>(b);
    }
    EXPECT_LE(sum, 255u * 1000);
  } catch (const Error&) {
  }
}

TEST(SafetensorsDamage, RandomByteFlipsNeverCrash) {
  const Scratch scratch;
  const std::string good = safetensors_text(kGood, 32);
  std::mt19937 random(2);
  for (int i = 0; i < 1500; ++i) {
    std::string text = good;
    for (int flips = 1 + static_cast<int>(random() % 4); flips > 0; --flips) {
      text[random() % text.size()] = static_cast<char>(random());
    }
    open_and_read(scratch.write("x", text));
  }
}

TEST(SafetensorsDamage, EveryTruncationIsRefused) {
  const std::string good = safetensors_text(kGood, 32);
  for (size_t size = 0; size < good.size(); ++size) complaint(good.substr(0, size));
}

std::vector<std::byte> bytes_of(size_t size) {
  std::vector<std::byte> bytes(size);
  for (size_t i = 0; i < size; ++i) bytes[i] = static_cast<std::byte>(i);
  return bytes;
}

TEST(SafetensorsWriter, WhatIsWrittenIsRead) {
  const Scratch scratch;
  const auto data = bytes_of(24);
  const std::span<const std::byte> all = data;
  const auto path = scratch / "x.safetensors";
  write_safetensors(path,
                    {{"z", "F32", {2, 3}, all},
                     {"a", "BF16", {3}, all.first(6)},
                     {"s", "F32", {}, all.last(4)},
                     {"e", "F32", {0}, {}},
                     {"näme \"quoted\"", "U8", {1}, all.first(1)}},
                    {{"format", "pt"}});
  const SafetensorsFile file(path);
  ASSERT_EQ(file.tensors().size(), 5u);
  EXPECT_EQ(file.metadata().at("format"), "pt");
  EXPECT_EQ(file.tensors().at("z").shape, (std::vector<int64_t>{2, 3}));
  EXPECT_TRUE(std::ranges::equal(file.data(file.tensors().at("z")), all));
  EXPECT_TRUE(std::ranges::equal(file.data(file.tensors().at("a")), all.first(6)));
  EXPECT_TRUE(std::ranges::equal(file.data(file.tensors().at("s")), all.last(4)));
  EXPECT_EQ(file.data(file.tensors().at("näme \"quoted\"")).size(), 1u);
}

TEST(SafetensorsWriter, ReplacesAFileAsAWholeAndLeavesNothingBeside) {
  const Scratch scratch;
  write_tensors(scratch / "x", {"old"}, {100});
  const SafetensorsFile before(scratch / "x");
  write_tensors(scratch / "x", {"new"}, {1});
  EXPECT_TRUE(SafetensorsFile(scratch / "x").tensors().contains("new"));
  EXPECT_EQ(before.data(before.tensors().at("old")).size(), 400u);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(scratch.path()), {}), 1);
}

TEST(SafetensorsWriter, MissingDirectoryIsNamed) {
  const Scratch scratch;
  const auto path = scratch / "nowhere/x";
  EXPECT_THAT(cause_of([&] { write_tensors(path, {"w"}); }),
              AllOf(HasSubstr(path.string()), HasSubstr("No such file")));
  EXPECT_TRUE(std::filesystem::is_empty(scratch.path()));
}

TEST(SafetensorsWriter, FailureAtTheEndLeavesNothingBehind) {
  const Scratch scratch;
  std::filesystem::create_directories(scratch / "taken/inside");
  EXPECT_THAT(cause_of([&] { write_tensors(scratch / "taken", {"w"}); }), HasSubstr((scratch / "taken").string()));
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(scratch.path()), {}), 1);
}

TEST(SafetensorsWriter, ReadOnlyDirectoryIsRefusedAndTheOldFileStays) {
  if (geteuid() == 0) GTEST_SKIP() << "root may write everywhere";
  const Scratch scratch;
  write_tensors(scratch / "x", {"old"});
  ASSERT_EQ(chmod(scratch.path().c_str(), 0500), 0);
  EXPECT_THAT(cause_of([&] { write_tensors(scratch / "x", {"new"}); }), HasSubstr("Permission denied"));
  ASSERT_EQ(chmod(scratch.path().c_str(), 0700), 0);
  EXPECT_TRUE(SafetensorsFile(scratch / "x").tensors().contains("old"));
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(scratch.path()), {}), 1);
}

TEST(SafetensorsWriter, FullDiskIsAnErrorThatNamesTheFile) {
  if (access("/dev/full", W_OK) != 0) GTEST_SKIP() << "no /dev/full";
  const Scratch scratch;
  const auto path = scratch / "x";
  std::filesystem::create_symlink("/dev/full", path.string() + ".tmp." + std::to_string(getpid()));
  EXPECT_THAT(cause_of([&] { write_tensors(path, {"w"}); }), AllOf(HasSubstr(path.string()), HasSubstr("room")));
  EXPECT_TRUE(std::filesystem::is_empty(scratch.path()));
}

TEST(SafetensorsWriterDeathTest, BytesThatDoNotFitTheShapeAreOurMistake) {
  const Scratch scratch;
  const auto data = bytes_of(8);
  EXPECT_DEATH(write_safetensors(scratch / "x", {{"w", "F32", {3}, data}}), "w: 8 bytes for F32");
}

}  // namespace
}  // namespace megalith
