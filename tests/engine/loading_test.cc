// What a start does at once: the tokenizer beside the weights, and each worker's weights beside the others'.

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <functional>
#include <map>
#include <mutex>
#include <stdexcept>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/loaded_model.h"
#include "program/builder.h"
#include "tests/support/errors.h"
#include "tests/support/golden.h"
#include "tests/support/scratch.h"

namespace megalith {
namespace {

using testing::HasSubstr;
namespace fs = std::filesystem;

LoadOptions options() {
  LoadOptions o;
  o.machine = {.threads = 2, .max_rows = 32, .max_chosen = 2, .max_sequences = 2, .context = 64};
  o.quiet = true;
  return o;
}

void copy_model(const std::string& name, const Scratch& directory) {
  fs::copy(test_data(name), directory.path(), fs::copy_options::recursive);
}

// Gives an expert's matrix a scale that no number has.
void damage_a_scale(const fs::path& directory) {
  for (const auto& entry : fs::directory_iterator(directory)) {
    if (entry.path().extension() != ".safetensors") continue;
    std::string bytes = file_text(entry.path());
    const std::map<std::string, StoredTensor> tensors = SafetensorsFile(entry.path()).tensors();
    for (const auto& [name, stored] : tensors) {
      if (!name.ends_with(".weight_scale")) continue;
      uint64_t header = 0;
      std::memcpy(&header, bytes.data(), sizeof header);
      bytes[sizeof header + header + stored.begin] = '\xff';
      std::ofstream(entry.path(), std::ios::binary) << bytes;
      return;
    }
  }
  FAIL() << "no expert in " << directory;
}

TEST(Loading, ADamagedTokenizerEndsItWithTheErrorThatACheckGives) {
  const Scratch directory;
  copy_model("qwen-a/target", directory);
  directory.write("tokenizer.json", R"({"model": {)");
  const std::string cause = cause_of([&] { load_model(directory.path(), options()); });
  EXPECT_THAT(cause, HasSubstr("tokenizer.json"));
  EXPECT_EQ(cause, cause_of([&] { prepare_model(directory.path(), options()); }));
}

TEST(Loading, OfADamagedTokenizerAndDamagedWeightsTheTokenizerIsTold) {
  const Scratch directory;
  copy_model("kimi-a/target", directory);
  damage_a_scale(directory.path());
  const std::string weights = cause_of([&] { load_model(directory.path(), options()); });
  EXPECT_THAT(weights, HasSubstr("weight_scale"));
  // Found at once, and found only after some time.
  for (const std::string& damaged : {std::string("["), "{\"added_tokens\": [" + std::string(1 << 20, ' ')}) {
    directory.write("tokenizer.json", damaged);
    EXPECT_THAT(cause_of([&] { load_model(directory.path(), options()); }), HasSubstr("tokenizer.json"));
  }
}

TEST(Loading, HeadersAreToldBeforeTheTokenizer) {
  const Scratch directory;
  copy_model("qwen-a/target", directory);
  directory.write("tokenizer.json", "[");
  fs::remove(directory / "model-00002-of-00002.safetensors");
  EXPECT_THAT(cause_of([&] { load_model(directory.path(), options()); }), HasSubstr("model-00002-of-00002"));
}

TEST(Loading, PhasesEndWithTheWaitForTheTokenizer) {
  Phases phases;
  load_model(test_data("qwen-a/target"), options(), &phases);
  const std::string table = phases.table();
  size_t at = 0;
  for (const char* name :
       {"configuration and tensor headers", "program and schedule", "weights", "tokenizer", "until ready"}) {
    const size_t found = table.find(name, at);
    ASSERT_NE(found, table.npos) << name << " in\n" << table;
    at = found;
  }
}

constexpr int64_t kWidth = 2048;
constexpr int64_t kTokens = 4096 * 4;  // of the embedding: several pieces for each worker

Program one_matrix(int ranks) {
  Builder b({.ranks = ranks}, 2);
  b.output("x", b.embed(b.matrix("embed", kTokens, kWidth, Builder::split_outputs({{kTokens, kTokens}}))));
  return std::move(b).build();
}

// Notes what is read, and lets a test look at each read.
class NotedTape : public TapeSource {
 public:
  explicit NotedTape(std::function<void()> on_read) : on_read_(std::move(on_read)) {}

  void read_panels(const Weight&, int rank, int, int64_t first, int64_t count, std::byte*) const override {
    on_read_();
    const std::lock_guard lock(mutex_);
    for (int64_t panel = first; panel < first + count; ++panel) ++reads_[{rank, panel}];
  }
  void read_plain(const Weight&, int, int, float*) const override {}

  // (rank, panel) → how often.
  const std::map<std::pair<int, int64_t>, int>& reads() const { return reads_; }

 private:
  const std::function<void()> on_read_;
  mutable std::mutex mutex_;
  mutable std::map<std::pair<int, int64_t>, int> reads_;
};

TEST(Loading, EveryPanelIsReadOnceWhereAWorkerIsSlow) {
  for (const int ranks : {1, 2}) {
    for (const int threads : {2, 3}) {
      if (threads < ranks) continue;
      const auto machine = make_cpu_machine(one_matrix(ranks), {.threads = threads, .max_rows = 16, .context = 64});
      std::atomic<bool> first = true;
      const NotedTape tape([&] {
        if (first.exchange(false)) std::this_thread::sleep_for(std::chrono::milliseconds(100));
      });
      machine->load(tape, nullptr);
      EXPECT_EQ(static_cast<int64_t>(tape.reads().size()), kTokens / kPanelOutputs);
      for (const auto& [panel, times] : tape.reads()) EXPECT_EQ(times, 1) << panel.first << ", " << panel.second;
    }
  }
}

TEST(Loading, TheFirstFailureEndsItForAllWorkers) {
  const auto machine = make_cpu_machine(one_matrix(1), {.threads = 2, .max_rows = 16, .context = 64});
  std::atomic<int> begun = 0;
  const NotedTape tape([&] {
    if (++begun == 1) throw std::runtime_error("damaged");
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
  });
  try {
    machine->load(tape, nullptr);
    ADD_FAILURE() << "no error";
  } catch (const std::runtime_error& error) {
    EXPECT_STREQ(error.what(), "damaged");
  }
  EXPECT_LE(begun, 2) << "a worker went on";
}

}  // namespace
}  // namespace megalith
