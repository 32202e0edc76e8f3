#include "weights/checkpoint.h"

#include <gmock/gmock.h>

#include "tests/weights/log.h"
#include "tests/weights/tensor_files.h"

namespace megalith {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

constexpr const char* kIndex = "model.safetensors.index.json";

std::string complaint(const Scratch& scratch) {
  return cause_of([&] { Checkpoint checkpoint(scratch.path()); });
}

// An index and three shards with a tensor each.
void write_three_shards(const Scratch& scratch) {
  scratch.write(kIndex,
                R"({"metadata":{},"weight_map":{"a":"s1.safetensors","b":"s2.safetensors","c":"s3.safetensors"}})");
  write_tensors(scratch / "s1.safetensors", {"a"}, {1});
  write_tensors(scratch / "s2.safetensors", {"b"}, {2});
  write_tensors(scratch / "s3.safetensors", {"c"}, {3});
}

TEST(Checkpoint, OneFileNeedsNoIndex) {
  const Scratch scratch;
  write_tensors(scratch / "model.safetensors", {"a", "b"}, {2, 3}, "BF16");
  const Checkpoint checkpoint(scratch.path());
  EXPECT_EQ(checkpoint.tensors().size(), 2u);
  EXPECT_EQ(checkpoint.info("a").dtype, DType::bf16);
  EXPECT_EQ(checkpoint.info("a").shape, (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(checkpoint.data("b").size(), 12u);
  EXPECT_EQ(checkpoint.bytes(), 24u);
  EXPECT_EQ(checkpoint.directory(), scratch.path());
}

TEST(Checkpoint, ShardsAreOneSetOfTensors) {
  const Scratch scratch;
  write_three_shards(scratch);
  const Checkpoint checkpoint(scratch.path());
  EXPECT_THAT(checkpoint.names(), ElementsAre("a", "b", "c"));
  EXPECT_EQ(checkpoint.bytes(), 24u);
  EXPECT_EQ(checkpoint.data("c").size(), 12u);
}

TEST(Checkpoint, CatalogKnowsWhatIsThere) {
  const Scratch scratch;
  write_tensors(scratch / "model.safetensors", {"a"});
  const Checkpoint checkpoint(scratch.path());
  const TensorCatalog catalog = checkpoint.catalog();
  ASSERT_TRUE(catalog("a").has_value());
  EXPECT_EQ(catalog("a")->dtype, DType::f32);
  EXPECT_FALSE(catalog("b").has_value());
}

TEST(Checkpoint, UnknownTensorIsNamed) {
  const Scratch scratch;
  write_tensors(scratch / "model.safetensors", {"a"});
  const Checkpoint checkpoint(scratch.path());
  EXPECT_THAT(cause_of([&] { checkpoint.info("b"); }), HasSubstr("the tensor b"));
  EXPECT_THAT(cause_of([&] { checkpoint.data("b"); }), HasSubstr("the tensor b"));
}

TEST(Checkpoint, TypeThatIsNotComputedWithIsRefusedOnlyWhenAsked) {
  const Scratch scratch;
  write_tensors(scratch / "model.safetensors", {"a"}, {2}, "I32");
  const Checkpoint checkpoint(scratch.path());
  EXPECT_THAT(cause_of([&] { checkpoint.info("a"); }),
              AllOf(HasSubstr("model.safetensors: a"), HasSubstr("found I32")));
}

TEST(Checkpoint, DirectoryWithoutWeightsIsNamed) {
  const Scratch scratch;
  EXPECT_THAT(complaint(scratch), AllOf(HasSubstr(scratch.path().string()), HasSubstr("model.safetensors")));
  EXPECT_THAT(cause_of([&] { Checkpoint checkpoint(scratch / "nowhere"); }), HasSubstr("nowhere"));
}

TEST(Checkpoint, ShardsWithoutTheirIndexAreNamed) {
  const Scratch scratch;
  write_tensors(scratch / "model-00001-of-00002.safetensors", {"a"});
  EXPECT_THAT(complaint(scratch), AllOf(HasSubstr("model.safetensors.index.json with its shards"),
                                        HasSubstr("found only model-00001-of-00002.safetensors")));
}

TEST(Checkpoint, LinkToAFileThatWasNotDownloadedIsNamed) {
  const Scratch scratch;
  std::filesystem::create_symlink("../blobs/gone", scratch / "model.safetensors");
  EXPECT_THAT(complaint(scratch), HasSubstr("only model.safetensors (a link to a file that is missing)"));
}

TEST(CheckpointIndex, LinkToAnIndexThatWasNotDownloadedIsNotPassedOver) {
  const Scratch scratch;
  write_tensors(scratch / "model.safetensors", {"stray"});
  std::filesystem::create_symlink("../blobs/gone", scratch / kIndex);
  EXPECT_THAT(complaint(scratch), HasSubstr(kIndex));
}

TEST(CheckpointIndex, AllMissingShardsAreInOneMessage) {
  const Scratch scratch;
  write_three_shards(scratch);
  std::filesystem::remove(scratch / "s1.safetensors");
  std::filesystem::remove(scratch / "s3.safetensors");
  EXPECT_THAT(complaint(scratch), AllOf(HasSubstr(kIndex), HasSubstr("2 of them missing"), HasSubstr("s1.safetensors"),
                                        HasSubstr("s3.safetensors"), Not(HasSubstr("s2.safetensors"))));
}

TEST(CheckpointIndex, DanglingLinkIsAMissingShard) {
  const Scratch scratch;
  write_three_shards(scratch);
  std::filesystem::remove(scratch / "s2.safetensors");
  std::filesystem::create_symlink("../blobs/gone", scratch / "s2.safetensors");
  EXPECT_THAT(complaint(scratch), AllOf(HasSubstr("1 of them missing"), HasSubstr("s2.safetensors (a link")));
}

TEST(CheckpointIndex, SecondShardOfThreeMissingIsNamed) {
  const Scratch scratch;
  write_three_shards(scratch);
  std::filesystem::remove(scratch / "s2.safetensors");
  EXPECT_EQ(complaint(scratch),
            (scratch / kIndex).string() + ": expected 3 shards, found 1 of them missing: s2.safetensors");
}

TEST(CheckpointIndex, StrayFilesAndTensorsAreToldInOneLineEach) {
  const Scratch scratch;
  write_three_shards(scratch);
  write_tensors(scratch / "model.safetensors", {"a"}, {7}, "F16");
  write_tensors(scratch / "mtp.safetensors", {"m"});
  write_tensors(scratch / "s1.safetensors", {"a", "extra"}, {1});
  const Log log;
  const Checkpoint checkpoint(scratch.path());
  EXPECT_THAT(log.lines(),
              ElementsAre(AllOf(HasSubstr("1 tensors of the shards are not in the index"), HasSubstr("extra in s1")),
                          AllOf(HasSubstr("2 files are not in the index and are not read"),
                                HasSubstr("model.safetensors, mtp.safetensors"))));
}

TEST(CheckpointIndex, FilesThatAreAllInTheIndexAreNotTold) {
  const Scratch scratch;
  write_three_shards(scratch);
  const Log log;
  const Checkpoint checkpoint(scratch.path());
  EXPECT_THAT(log.lines(), IsEmpty());
}

TEST(CheckpointIndex, StraySingleFileIsNotRead) {
  const Scratch scratch;
  write_three_shards(scratch);
  write_tensors(scratch / "model.safetensors", {"a", "stray"}, {7}, "F16");
  const Checkpoint checkpoint(scratch.path());
  EXPECT_FALSE(checkpoint.has("stray"));
  EXPECT_EQ(checkpoint.info("a").dtype, DType::f32);
}

TEST(CheckpointIndex, StrayDamagedFileDoesNotMatter) {
  const Scratch scratch;
  write_three_shards(scratch);
  scratch.write("model.safetensors", "damaged");
  EXPECT_EQ(Checkpoint(scratch.path()).tensors().size(), 3u);
}

TEST(CheckpointIndex, TensorMissingFromItsShardIsNamedWithIt) {
  const Scratch scratch;
  write_three_shards(scratch);
  write_tensors(scratch / "s2.safetensors", {"other"});
  EXPECT_THAT(complaint(scratch), AllOf(HasSubstr("b in s2.safetensors"), HasSubstr("1 missing")));
}

TEST(CheckpointIndex, TensorOfAShardThatIsNotInTheIndexIsNotRead) {
  const Scratch scratch;
  write_three_shards(scratch);
  write_tensors(scratch / "s1.safetensors", {"a", "extra"}, {1});
  EXPECT_FALSE(Checkpoint(scratch.path()).has("extra"));
}

TEST(CheckpointIndex, TensorOfTwoShardsComesFromTheOneThatTheIndexNames) {
  const Scratch scratch;
  write_three_shards(scratch);
  write_tensors(scratch / "s1.safetensors", {"a", "b"}, {1});
  EXPECT_EQ(Checkpoint(scratch.path()).info("b").shape, (std::vector<int64_t>{2}));
}

TEST(CheckpointIndex, EveryTensorThatItsShardLacksIsInOneMessage) {
  const Scratch scratch;
  write_three_shards(scratch);
  write_tensors(scratch / "s1.safetensors", {"other"});
  write_tensors(scratch / "s3.safetensors", {"other"});
  EXPECT_THAT(complaint(scratch),
              AllOf(HasSubstr("2 missing"), HasSubstr("a in s1.safetensors"), HasSubstr("c in s3.safetensors")));
}

TEST(CheckpointIndex, DamagedShardIsNamed) {
  const Scratch scratch;
  write_three_shards(scratch);
  scratch.write("s2.safetensors", "short");
  EXPECT_THAT(complaint(scratch), HasSubstr("s2.safetensors: expected a safetensors file"));
}

TEST(CheckpointIndex, ShardOutsideTheDirectoryIsRefused) {
  for (const char* shard : {R"("../s.safetensors")", R"("/etc/passwd")", R"("sub/s.safetensors")", R"("..")", R"("")",
                            "5", "null", R"(["s"])"}) {
    const Scratch scratch;
    scratch.write(kIndex, std::string(R"({"weight_map":{"a":)") + shard + "}}");
    EXPECT_THAT(complaint(scratch), AllOf(HasSubstr("weight_map.a"), HasSubstr("beside the index"))) << shard;
  }
}

TEST(CheckpointIndex, IndexWithoutMapIsRefused) {
  for (const char* index : {"{}", "[]", R"({"weight_map":[]})", R"({"weight_map":{}})", "7"}) {
    const Scratch scratch;
    scratch.write(kIndex, index);
    EXPECT_THAT(complaint(scratch), HasSubstr("weight_map: expected an object")) << index;
  }
  const Scratch scratch;
  scratch.write(kIndex, "{\"weight_map\":");
  EXPECT_THAT(complaint(scratch), HasSubstr("expected JSON"));
}

Weight wanted(const std::string& name, const std::vector<int64_t>& shape) {
  return {name, shape, DType::f32, WeightLayout::plain, {}};
}

TEST(CheckTensors, MissingWrongAndUnknownAreInOneMessage) {
  const Scratch scratch;
  write_tensors(scratch / "model.safetensors", {"a", "b", "unknown.1", "unknown.2", "visual.1"});
  const Checkpoint checkpoint(scratch.path());
  const std::string cause = cause_of([&] {
    check_tensors(checkpoint, {wanted("a", {2}), wanted("b", {2, 1}), wanted("gone.1", {1}), wanted("gone.2", {1})},
                  [](const std::string& name) { return name.starts_with("visual."); });
  });
  EXPECT_THAT(cause, AllOf(HasSubstr(scratch.path().string()), HasSubstr("gone.1"), HasSubstr("gone.2"),
                           HasSubstr("b: expected [2, 1], found [2]"), HasSubstr("unknown.1"), HasSubstr("unknown.2")));
  EXPECT_THAT(cause, Not(HasSubstr("visual")));
}

TEST(CheckTensors, EachMissingTensorIsNamed) {
  const Scratch scratch;
  write_tensors(scratch / "model.safetensors", {"a"});
  const Checkpoint checkpoint(scratch.path());
  std::vector<Weight> weights = {wanted("a", {2})};
  for (int i = 0; i < 50; ++i) weights.push_back(wanted("layer." + std::to_string(i) + ".up", {1}));
  const std::string cause =
      cause_of([&] { check_tensors(checkpoint, weights, [](const std::string&) { return false; }); });
  EXPECT_THAT(cause, AllOf(HasSubstr("50"), HasSubstr("layer.0.up"), HasSubstr("layer.49.up")));
}

TEST(CheckTensors, IgnoredTensorsAreCounted) {
  const Scratch scratch;
  write_tensors(scratch / "model.safetensors", {"a", "mtp.1", "visual.1", "visual.2"}, {5});
  const Checkpoint checkpoint(scratch.path());
  const Ignored ignored =
      check_tensors(checkpoint, {wanted("a", {5})}, [](const std::string& name) { return name != "a"; });
  EXPECT_EQ(ignored.tensors, 3u);
  EXPECT_EQ(ignored.bytes, 60u);
}

// What check_tensors warns of where lm_head.weight is ignored beside this embedding.
std::vector<std::string> warnings_of_head(const std::vector<int64_t>& embedding, const std::string& dtype, int fill) {
  const Scratch scratch;
  scratch.write(kIndex, R"({"weight_map":{"lm_head.weight":"head.safetensors",
                            "model.embed_tokens.weight":"embedding.safetensors"}})");
  write_tensors(scratch / "head.safetensors", {"lm_head.weight"}, {4, 2}, "F32", 1);
  write_tensors(scratch / "embedding.safetensors", {"model.embed_tokens.weight"}, embedding, dtype, fill);
  const Checkpoint checkpoint(scratch.path());
  const Log log;
  check_tensors(checkpoint, {wanted("model.embed_tokens.weight", embedding)},
                [](const std::string& name) { return name == "lm_head.weight"; });
  return log.lines();
}

TEST(CheckTensors, HeadThatIsNotReadAndDiffersFromTheEmbeddingIsWarnedOf) {
  const auto warning = ElementsAre(AllOf(HasSubstr("lm_head.weight is not read"), HasSubstr("tie_word_embeddings"),
                                         HasSubstr("model.embed_tokens.weight")));
  EXPECT_THAT(warnings_of_head({4, 2}, "F32", 2), warning);
  EXPECT_THAT(warnings_of_head({2, 4}, "F32", 1), warning);
  EXPECT_THAT(warnings_of_head({4, 2}, "BF16", 1), warning);
}

TEST(CheckTensors, HeadThatEqualsTheEmbeddingIsNotWarnedOf) {
  EXPECT_THAT(warnings_of_head({4, 2}, "F32", 1), IsEmpty());
}

TEST(CheckTensors, WantedTensorIsNeverIgnored) {
  const Scratch scratch;
  write_tensors(scratch / "model.safetensors", {"mtp.1"}, {5});
  const Checkpoint checkpoint(scratch.path());
  EXPECT_EQ(check_tensors(checkpoint, {wanted("mtp.1", {5})}, [](const std::string&) { return true; }).tensors, 0u);
}

}  // namespace
}  // namespace megalith
