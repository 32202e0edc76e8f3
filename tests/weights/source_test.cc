#include "weights/source.h"

#include <map>

#include <gmock/gmock.h>

#include "tests/weights/tensor_files.h"
#include "weights/checkpoint.h"

namespace megalith {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

namespace fs = std::filesystem;

Environment environment_of(std::map<std::string, std::string> values) {
  return [values = std::move(values)](const std::string& name) -> std::optional<std::string> {
    const auto found = values.find(name);
    return found == values.end() ? std::nullopt : std::optional(found->second);
  };
}

// Puts a snapshot into a cache as the hub's client does: files are links to blobs.
fs::path add_snapshot(const fs::path& cache, const std::string& folder, const std::string& commit,
                      const std::string& reference = "") {
  const fs::path repository = cache / folder;
  const fs::path snapshot = repository / "snapshots" / commit;
  fs::create_directories(snapshot);
  fs::create_directories(repository / "blobs");
  std::ofstream(repository / "blobs" / "b10b") << "{}";
  fs::create_symlink("../../blobs/b10b", snapshot / "config.json");
  if (!reference.empty()) {
    fs::create_directories((repository / "refs" / reference).parent_path());
    std::ofstream(repository / "refs" / reference) << commit << "\n";
  }
  return snapshot;
}

TEST(ResolveModel, DirectoryIsItself) {
  const Scratch scratch;
  EXPECT_EQ(resolve_model(scratch.path().string(), std::nullopt, environment_of({})), scratch.path());
}

TEST(ResolveModel, TildeIsTheHomeDirectory) {
  const Scratch scratch;
  fs::create_directories(scratch / "models/m");
  const auto environment = environment_of({{"HOME", scratch.path().string()}});
  EXPECT_TRUE(fs::equivalent(resolve_model("~/models/m", std::nullopt, environment), scratch / "models/m"));
  EXPECT_TRUE(fs::equivalent(resolve_model("~", std::nullopt, environment), scratch.path()));
  EXPECT_THAT(cause_of([&] { resolve_model("~/gone", std::nullopt, environment); }),
              HasSubstr((scratch / "gone").string()));
}

TEST(ResolveModel, PathsAreNeverLookedUpInTheCache) {
  const Scratch scratch;
  add_snapshot(scratch.path(), "models--org--name", "c1", "main");
  const auto environment = environment_of({{"HF_HUB_CACHE", scratch.path().string()}});
  for (const char* path : {"/nowhere/at/all", "./org/name", "../org/name", ".hidden/name"}) {
    EXPECT_THAT(cause_of([&] { resolve_model(path, std::nullopt, environment); }),
                AllOf(HasSubstr(path), HasSubstr("does not exist")))
        << path;
  }
}

TEST(ResolveModel, FileIsNoModel) {
  const Scratch scratch;
  const auto path = scratch.write("file", "text");
  EXPECT_THAT(cause_of([&] { resolve_model(path.string(), std::nullopt, environment_of({})); }),
              HasSubstr("is not a directory"));
}

TEST(ResolveModel, CachesAreAskedInOrder) {
  const Scratch scratch;
  const auto path = [&](const char* name) { return (scratch / name).string(); };
  const auto environment =
      environment_of({{"HF_HUB_CACHE", path("first")}, {"HF_HOME", path("second")}, {"HOME", path("third")}});
  const auto third = add_snapshot(scratch / "third/.cache/huggingface/hub", "models--org--name", "c3", "main");
  EXPECT_EQ(resolve_model("org/name", std::nullopt, environment), third);
  const auto second = add_snapshot(scratch / "second/hub", "models--org--name", "c2", "main");
  EXPECT_EQ(resolve_model("org/name", std::nullopt, environment), second);
  const auto first = add_snapshot(scratch / "first", "models--org--name", "c1", "main");
  EXPECT_EQ(resolve_model("org/name", std::nullopt, environment), first);
  EXPECT_EQ(file_text(first / "config.json"), "{}");
}

TEST(ResolveModel, OlderNameOfTheCacheVariableCountsWhereTheNewOneIsNotSet) {
  const Scratch scratch;
  const auto older = add_snapshot(scratch / "older", "models--org--name", "c1", "main");
  const auto path = [&](const char* name) { return (scratch / name).string(); };
  EXPECT_EQ(resolve_model("org/name", std::nullopt, environment_of({{"HUGGINGFACE_HUB_CACHE", path("older")}})), older);
  EXPECT_THAT(cause_of([&] {
                resolve_model(
                    "org/name", std::nullopt,
                    environment_of({{"HF_HUB_CACHE", path("new")}, {"HUGGINGFACE_HUB_CACHE", path("older")}}));
              }),
              Not(HasSubstr("older")));
}

TEST(ResolveModel, DefaultCacheIsBelowTheHomeOrTheCacheDirectory) {
  const Scratch scratch;
  const auto path = [&](const char* name) { return (scratch / name).string(); };
  const auto home = add_snapshot(scratch / "home/.cache/huggingface/hub", "models--org--name", "c1", "main");
  const auto other = add_snapshot(scratch / "cache/huggingface/hub", "models--org--name", "c2", "main");
  EXPECT_EQ(resolve_model("org/name", std::nullopt, environment_of({{"HOME", path("home")}})), home);
  EXPECT_EQ(resolve_model("org/name", std::nullopt,
                          environment_of({{"HOME", path("home")}, {"XDG_CACHE_HOME", path("cache")}})),
            other);
}

TEST(ResolveModel, TildeInTheCacheVariablesIsTheHomeDirectory) {
  const Scratch scratch;
  const auto snapshot = add_snapshot(scratch / "data/hub", "models--org--name", "c1", "main");
  for (const auto& [variable, value] : {std::pair{"HF_HOME", "~/data"}, {"HF_HUB_CACHE", "~/data/hub"}}) {
    const auto environment = environment_of({{variable, value}, {"HOME", scratch.path().string()}});
    EXPECT_TRUE(fs::equivalent(resolve_model("org/name", std::nullopt, environment), snapshot)) << variable;
  }
}

TEST(ResolveModel, SnapshotOfLinksToBlobsIsReadAsACheckpoint) {
  const Scratch scratch;
  const auto snapshot = add_snapshot(scratch.path(), "models--org--name", "c1", "main");
  const auto blobs = scratch / "models--org--name/blobs";
  write_tensors(blobs / "f1", {"a"});
  write_tensors(blobs / "f2", {"b"});
  std::ofstream(blobs / "f3") << R"({"weight_map":{"a":"s1.safetensors","b":"s2.safetensors"}})";
  fs::create_symlink("../../blobs/f1", snapshot / "s1.safetensors");
  fs::create_symlink("../../blobs/f2", snapshot / "s2.safetensors");
  fs::create_symlink("../../blobs/f3", snapshot / "model.safetensors.index.json");
  const auto environment = environment_of({{"HF_HUB_CACHE", scratch.path().string()}});
  EXPECT_EQ(Checkpoint(resolve_model("org/name", std::nullopt, environment)).tensors().size(), 2u);
  fs::remove(blobs / "f2");
  EXPECT_THAT(cause_of([&] { Checkpoint checkpoint(resolve_model("org/name", std::nullopt, environment)); }),
              HasSubstr("s2.safetensors (a link to a file that is missing)"));
}

TEST(ResolveModel, RevisionIsAReferenceOrACommit) {
  const Scratch scratch;
  const auto environment = environment_of({{"HF_HUB_CACHE", scratch.path().string()}});
  const auto c1 = add_snapshot(scratch.path(), "models--org--name", "c1", "main");
  const auto c2 = add_snapshot(scratch.path(), "models--org--name", "c2", "refs/pr/7");
  const auto c3 = add_snapshot(scratch.path(), "models--org--name", "c3");
  EXPECT_EQ(resolve_model("org/name", std::nullopt, environment), c1);
  EXPECT_EQ(resolve_model("org/name", "main", environment), c1);
  EXPECT_EQ(resolve_model("org/name", "refs/pr/7", environment), c2);
  EXPECT_EQ(resolve_model("org/name", "c3", environment), c3);
}

TEST(ResolveModel, MissingRevisionNamesThoseThatAreThere) {
  const Scratch scratch;
  const auto environment = environment_of({{"HF_HUB_CACHE", scratch.path().string()}});
  add_snapshot(scratch.path(), "models--org--name", "c1", "v1");
  add_snapshot(scratch.path(), "models--org--name", "c3");
  EXPECT_THAT(cause_of([&] { resolve_model("org/name", std::nullopt, environment); }),
              AllOf(HasSubstr("org/name"), HasSubstr("snapshots/main"), HasSubstr("v1 (c1)"), HasSubstr("c3")));
}

TEST(ResolveModel, RepositoryWithoutAnyRevisionIsToldApartFromNoRepository) {
  const Scratch scratch;
  const auto environment = environment_of({{"HF_HUB_CACHE", scratch.path().string()}});
  EXPECT_THAT(cause_of([&] { resolve_model("org/name", std::nullopt, environment); }),
              Not(HasSubstr("the repository is there")));
  fs::create_directories(scratch / "models--org--name/refs");
  EXPECT_THAT(cause_of([&] { resolve_model("org/name", std::nullopt, environment); }),
              HasSubstr("the repository is there, without any revision"));
}

TEST(ResolveModel, PinThatIsNotThereIsNamedByItsVariable) {
  const Scratch scratch;
  add_snapshot(scratch.path(), "models--Qwen--Qwen3.8-27B", "c1", "main");
  const auto environment =
      environment_of({{"HF_HUB_CACHE", scratch.path().string()}, {"QWEN_CHECKPOINT_REVISION", "c2"}});
  EXPECT_THAT(cause_of([&] { resolve_model("Qwen/Qwen3.8-27B", std::nullopt, environment); }),
              AllOf(HasSubstr("revision c2 (from QWEN_CHECKPOINT_REVISION)"), HasSubstr("main (c1)")));
  EXPECT_THAT(cause_of([&] { resolve_model("Qwen/Qwen3.8-27B", "c3", environment); }),
              AllOf(HasSubstr("revision c3"), Not(HasSubstr("QWEN_CHECKPOINT_REVISION"))));
}

TEST(ResolveModel, ReferenceWithoutItsSnapshotIsMissing) {
  const Scratch scratch;
  const auto environment = environment_of({{"HF_HUB_CACHE", scratch.path().string()}});
  const auto snapshot = add_snapshot(scratch.path(), "models--org--name", "c1", "main");
  fs::remove_all(snapshot);
  EXPECT_THAT(cause_of([&] { resolve_model("org/name", std::nullopt, environment); }), HasSubstr(snapshot.string()));
}

TEST(ResolveModel, AllPathsTriedAreListedWithWhatToDo) {
  const Scratch scratch;
  const auto environment = environment_of({{"HF_HUB_CACHE", (scratch / "first").string()},
                                           {"HF_HOME", (scratch / "second").string()},
                                           {"HOME", (scratch / "third").string()}});
  try {
    resolve_model("org/name", std::nullopt, environment);
    ADD_FAILURE() << "no Error";
  } catch (const Error& error) {
    for (const char* cache : {"first", "second/hub", "third/.cache/huggingface/hub"}) {
      EXPECT_THAT(error.cause(), HasSubstr((scratch / cache / "models--org--name/snapshots/main").string()));
    }
    EXPECT_THAT(error.fault().next, AllOf(HasSubstr("org/name"), HasSubstr("HF_HOME")));
  }
}

TEST(ResolveModel, IdsThatLeaveTheCacheAreRefused) {
  const Scratch scratch;
  const auto environment = environment_of({{"HF_HUB_CACHE", (scratch / "hub").string()}});
  fs::create_directories(scratch / "hub");
  for (const char* id : {"", "a/b/c", "org/", "a/../b", "org/..", "org name/x", "org/na\\me", "org//name"}) {
    EXPECT_THAT(cause_of([&] { resolve_model(id, std::nullopt, environment); }), HasSubstr("a directory")) << id;
  }
}

TEST(ResolveModel, RevisionsThatLeaveTheRepositoryAreRefused) {
  const Scratch scratch;
  const auto environment = environment_of({{"HF_HUB_CACHE", scratch.path().string()}});
  add_snapshot(scratch.path(), "models--org--name", "c1", "main");
  for (const char* revision : {"", "..", "../..", "/etc", "a/../../..", "."}) {
    EXPECT_THAT(cause_of([&] { resolve_model("org/name", revision, environment); }), HasSubstr("revision")) << revision;
  }
  std::ofstream(scratch.path() / "models--org--name/refs/main") << "../../..\n";
  EXPECT_THAT(cause_of([&] { resolve_model("org/name", std::nullopt, environment); }), HasSubstr("org/name"));
}

TEST(ResolveModel, PinsCountOnlyForTheDefaultRepositories) {
  const Scratch scratch;
  for (const char* folder : {"models--Qwen--Qwen3.8-27B", "models--moonshotai--Kimi-K3", "models--org--name"}) {
    add_snapshot(scratch.path(), folder, "c1", "main");
    add_snapshot(scratch.path(), folder, "q2");
    add_snapshot(scratch.path(), folder, "k2");
  }
  const auto environment = environment_of({{"HF_HUB_CACHE", scratch.path().string()},
                                           {"QWEN_CHECKPOINT_REVISION", "q2"},
                                           {"KIMI_CHECKPOINT_REVISION", "k2"}});
  EXPECT_EQ(resolve_model("Qwen/Qwen3.8-27B", std::nullopt, environment).filename(), "q2");
  EXPECT_EQ(resolve_model("moonshotai/Kimi-K3", std::nullopt, environment).filename(), "k2");
  EXPECT_EQ(resolve_model("org/name", std::nullopt, environment).filename(), "c1");
  EXPECT_EQ(resolve_model("Qwen/Qwen3.8-27B", "main", environment).filename(), "c1");
}

TEST(ResolveModel, EmptyVariablesCountAsNotSet) {
  const Scratch scratch;
  const auto home = add_snapshot(scratch / ".cache/huggingface/hub", "models--Qwen--Qwen3.8-27B", "c1", "main");
  const auto environment = environment_of(
      {{"HF_HUB_CACHE", ""}, {"HF_HOME", ""}, {"QWEN_CHECKPOINT_REVISION", ""}, {"HOME", scratch.path().string()}});
  EXPECT_EQ(resolve_model("Qwen/Qwen3.8-27B", std::nullopt, environment), home);
}

}  // namespace
}  // namespace megalith
