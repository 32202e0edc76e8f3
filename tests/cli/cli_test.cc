// The program as a user meets it: what it prints, and with which status it ends.

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>

#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>

#include "tests/support/golden.h"
#include "tests/support/scratch.h"

namespace megalith {
namespace {

using testing::HasSubstr;
using testing::Not;

struct Result {
  int status = 0;
  std::string out;  // standard output and standard error
};

// `wrapper` runs the program: "taskset -c 0 ".
Result run(const std::string& arguments, const std::string& input = "", bool errors = true, const std::string& wrapper = "") {
  const std::string command = fmt::format("printf %s '{}' | {}{} {} {}", input, wrapper, MEGALITH_PROGRAM, arguments,
                                          errors ? "2>&1" : "2>/dev/null");
  FILE* pipe = popen(command.c_str(), "r");
  Result result;
  char buffer[4096];
  for (size_t n; (n = std::fread(buffer, 1, sizeof(buffer), pipe)) > 0;) result.out.append(buffer, n);
  result.status = WEXITSTATUS(pclose(pipe));
  return result;
}

std::string model() { return "--model " + test_data("qwen-a/target").string(); }

TEST(Generate, JsonHasTheGoldenContinuationForAnyRanksThreadsAndRows) {
  const auto golden = read_json(test_data("qwen-a/golden.json"));
  const auto prompt = golden["prompt"].get<std::vector<int32_t>>();
  const std::string tokens = fmt::format("{}", fmt::join(prompt, ","));
  for (const char* flags : {"", "--ranks 8 --threads 3", "--ranks 2 --rows-per-step 5", "--no-draft --rows-per-step 1"}) {
    const Result r = run(fmt::format("generate {} --context 128 --tokens {} --ignore-eos --max-tokens 32 --json {}", model(), tokens, flags), "", false);
    ASSERT_EQ(r.status, 0) << r.out;
    const auto json = nlohmann::json::parse(r.out);
    EXPECT_EQ(json["prompt_tokens"], golden["prompt"]);
    EXPECT_EQ(json["tokens"], golden["runs"]["f32"]["greedy"]) << flags;
    EXPECT_EQ(json["finish_reason"], "length");
    EXPECT_GE(json["prefill_ms"].get<double>(), 0);
    EXPECT_GE(json["decode_ms"].get<double>(), 0);
  }
}

TEST(Generate, KimiGivesTheGoldenContinuationThroughTheSameCommand) {
  const auto golden = read_json(test_data("kimi-a/golden.json"));
  const std::string tokens = fmt::format("{}", fmt::join(golden["prompt_ids"].get<std::vector<int32_t>>(), ","));
  for (const char* flags : {"", "--ranks 2 --threads 3 --rows-per-step 5"}) {
    const Result r = run(fmt::format("generate --model {} --context 128 --tokens {} --ignore-eos --max-tokens 32 --json {}",
                                     test_data("kimi-a/target").string(), tokens, flags), "", false);
    ASSERT_EQ(r.status, 0) << r.out;
    EXPECT_EQ(nlohmann::json::parse(r.out)["tokens"], golden["greedy_ids"]) << flags;
  }
}

// Flags for a golden pair and its prompt.
std::string with_draft(const std::string& family) {
  const auto golden = read_json(test_data(family + "/golden.json"));
  const auto prompt = golden[family == "qwen-a" ? "prompt" : "prompt_ids"].get<std::vector<int32_t>>();
  return fmt::format("--model {} --draft {} --context 128 --tokens {} --max-tokens 32 --ignore-eos --json",
                     test_data(family + "/target").string(), test_data(family + "/draft").string(), fmt::join(prompt, ","));
}

TEST(Drafts, JsonTellsWhatBecameOfTheGuessesOfEveryStep) {
  const auto golden = read_json(test_data("qwen-a/golden.json"))["runs"]["f32"];
  const Result r = run("generate --draft-width 8 --baseline " + with_draft("qwen-a"), "", false);
  ASSERT_EQ(r.status, 0) << r.out;
  const auto json = nlohmann::json::parse(r.out);
  EXPECT_EQ(json["tokens"], golden["greedy"]);
  const auto accepted = json["accepted"].get<std::vector<int>>(), wanted = golden["spec_accepted"].get<std::vector<int>>();
  EXPECT_EQ(json["steps"], accepted.size());
  EXPECT_TRUE(std::equal(wanted.begin(), wanted.end() - 1, accepted.begin()));
  EXPECT_EQ(json["guesses"].size(), accepted.size());
  EXPECT_NEAR(json["tokens_per_step"].get<double>(), 31.0 / static_cast<double>(accepted.size()), 1e-9);
  EXPECT_EQ(json["acceptance_by_position"].size(), 7u);
  EXPECT_GT(json["ms_per_step"].get<double>(), json["draft_ms_per_step"].get<double>());
  EXPECT_GT(json["draft_ms_per_step"].get<double>(), 0);
  EXPECT_EQ(json["baseline"]["leading_equal"], 32);
}

TEST(Drafts, NoFlagChangesTheTextButAFixedAcceptance) {
  for (const char* family : {"qwen-a", "kimi-a"}) {
    const auto tokens = [&](const std::string& flags) {
      const Result r = run(fmt::format("generate {} {}", with_draft(family), flags), "", false);
      return r.status == 0 ? nlohmann::json::parse(r.out)["tokens"] : nlohmann::json(r.out);
    };
    const auto plain = tokens("--draft-width 1");
    const std::string drawn = "--temperature 1 --seed 3 ";
    const auto plain_drawn = tokens(drawn + "--draft-width 1");
    for (const char* flags : {"", "--draft-width 5", "--draft-width 8 --ranks 2 --threads 3", "--steps-per-call 4"}) {
      EXPECT_EQ(tokens(flags), plain) << family << flags;
      EXPECT_EQ(tokens(drawn + flags), plain_drawn) << family << flags;
    }
    for (const char* guess : {"noise", "argmax"}) {
      EXPECT_EQ(tokens(fmt::format("{}--draft-width 8 --draft-guess {}", drawn, guess)), plain_drawn) << family << guess;
    }
    EXPECT_NE(tokens("--draft-width 8 --fixed-acceptance-length 4"), plain) << family;
  }
}

TEST(Drafts, AFixedAcceptanceLengthIsWhatEveryStepGives) {
  const Result r = run("generate --draft-width 8 --fixed-acceptance-length 3 " + with_draft("kimi-a"), "", false);
  ASSERT_EQ(r.status, 0) << r.out;
  const auto accepted = nlohmann::json::parse(r.out)["accepted"].get<std::vector<int>>();
  ASSERT_GT(accepted.size(), 4u);
  for (size_t i = 0; i + 1 < accepted.size(); ++i) EXPECT_EQ(accepted[i], 2);
}

TEST(Drafts, APairThatDoesNotBelongTogetherIsRefusedByTheFieldThatSaysSo) {
  const Result r = run(fmt::format("check {} --draft {}", model(), test_data("kimi-a/draft").string()));
  EXPECT_EQ(r.status, 1);
  EXPECT_THAT(r.out, HasSubstr("draft/config.json: hidden_size: expected 128, the target's, found 256"));
  const Result wide = run("generate --draft-width 9 " + with_draft("qwen-a"));
  EXPECT_EQ(wide.status, 1);
  EXPECT_THAT(wide.out, HasSubstr("--draft-width: expected at most 8"));
  EXPECT_EQ(run("generate --no-draft " + with_draft("qwen-a")).status, 2);
  const Result forced = run("generate --no-draft --fixed-acceptance-length 3 --tokens 1 " + model());
  EXPECT_EQ(forced.status, 1);
  EXPECT_THAT(forced.out, HasSubstr("--fixed-acceptance-length: expected a draft"));
}

TEST(Drafts, CheckNamesTheDraftThatItFound) {
  const Result r = run(fmt::format("check {} --draft {}", model(), test_data("qwen-a/draft").string()));
  EXPECT_EQ(r.status, 0) << r.out;
  EXPECT_THAT(r.out, HasSubstr("dflash2, 36 tensors"));
  EXPECT_THAT(run("check --no-draft " + model()).out, HasSubstr("none: one token a step"));
}

// Chats are to sound as the vendor means them to; what a flag says counts all the same.
TEST(Chat, SettingsThatAreNotGivenAreThoseOfTheGenerationConfig) {
  const Scratch directory;
  const auto source = std::filesystem::path(MEGALITH_SOURCE_DIR) / "models/tiny-qwen";
  for (const auto& entry : std::filesystem::directory_iterator(source)) {
    if (entry.path().filename() == "generation_config.json") continue;
    std::filesystem::create_symlink(entry.path(), directory / entry.path().filename().string());
  }
  auto generation = read_json(source / "generation_config.json");
  generation["do_sample"] = true;
  generation["temperature"] = 50.0;
  generation["top_k"] = 900;
  directory.write("generation_config.json", generation.dump());
  const std::string command = "chat --prompt hello --max-tokens 12 --model " + directory.path().string();
  const auto answer = [&](const std::string& flags) { return run(command + flags, "", false).out; };
  EXPECT_EQ(answer(" --quiet"), answer(" --quiet --temperature 50 --top-k 900"));
  EXPECT_NE(answer(" --quiet"), answer(" --quiet --temperature 0"));
  EXPECT_THAT(run(command).out, HasSubstr("sampling: temperature 50, top-k 900 (generation_config.json)"));
  EXPECT_THAT(run(command + " --temperature 0").out, Not(HasSubstr("sampling:")));
}

TEST(Generate, SeveralPromptsGiveAnObjectEachAndTheTextThatEachGivesAlone) {
  const std::string flags = fmt::format("generate {} --context 64 --json --ignore-eos --max-tokens 5 ", model());
  const Result both = run(flags + "--tokens 1,2,3 --tokens 9,8,7,6,5", "", false);
  const auto line = both.out.find('\n');
  const auto first = nlohmann::json::parse(both.out.substr(0, line));
  const auto second = nlohmann::json::parse(both.out.substr(line + 1));
  EXPECT_EQ(first["tokens"], nlohmann::json::parse(run(flags + "--tokens 1,2,3", "", false).out)["tokens"]);
  EXPECT_EQ(second["tokens"], nlohmann::json::parse(run(flags + "--tokens 9,8,7,6,5", "", false).out)["tokens"]);
}

TEST(Logits, FileHasARowATokenAndTheResidualStream) {
  const Scratch directory;
  const auto golden = read_json(test_data("qwen-a/golden.json"));
  const auto prompt = golden["prompt"].get<std::vector<int32_t>>();
  const auto out = directory / "out.safetensors";
  const Result r = run(fmt::format("logits {} --context 64 --tokens {} --out {} --hidden", model(), fmt::join(prompt, ","), out.string()));
  ASSERT_EQ(r.status, 0) << r.out;
  const SafetensorsFile file(out);
  const SafetensorsFile expected(test_data("qwen-a/golden.safetensors"));
  const auto logits = golden_tensor(file, "logits");
  const auto reference = golden_tensor(expected, "f32.prompt_logits");
  ASSERT_EQ(logits.size(), reference.size());
  EXPECT_LT(relative_error(logits.data(), reference.data(), logits.size()), 1e-4);
  EXPECT_EQ(file.tensors().at("hidden").shape, (std::vector<int64_t>{9, 24, 128}));
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(directory.path()), {}), 1) << "something was left beside the file";
}

TEST(Program, ShowsTheBytesOfTheLargestMemberOnEightRanks) {
  const Result r = run(fmt::format("program --model {} --ranks 8 --bandwidth 3690", test_data("configs/qwen3.8-27b.json").string()));
  EXPECT_EQ(r.status, 0);
  EXPECT_THAT(r.out, HasSubstr("the step streams 51.25 GB of weights"));
  EXPECT_THAT(r.out, HasSubstr("floor "));
  EXPECT_THAT(r.out, HasSubstr("L63 mlp.down_proj"));
}

TEST(Program, ShowsWhatARankOfTheLargestMixtureOfExpertsMovesWithinTwoSeconds) {
  const auto start = std::chrono::steady_clock::now();
  const Result r = run(fmt::format("program --model {} --ranks 32 --bandwidth 3200", test_data("configs/kimi-k3.json").string()));
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(2));
  EXPECT_EQ(r.status, 0);
  for (const char* text : {"of a layer's experts, 16.0 are read", "the step streams 136.97 GB of weights", "collectives: 279 all_reduce",
                           "112 x 768 x 3584", "floor 1.6", "L92 experts.w2"}) {
    EXPECT_THAT(r.out, HasSubstr(text));
  }
}

TEST(Check, SaysFilesRanksMemoryAndFormatAndReadsNoWeights) {
  const Result r = run("check --ranks 2 --context 512 --max-sequences 4");
  EXPECT_EQ(r.status, 0) << r.out;
  for (const char* text : {"qwen3_5, 8 layers", "1 with 105 tensors", "BF16", "chat format    qwen3.5", "2 asked for; 1, 2, 4, 8 allowed",
                           "for 4 sequences of 512 positions", "free", "ready to run"}) {
    EXPECT_THAT(r.out, HasSubstr(text));
  }
}

TEST(Check, RefusesWhatDoesNotFitIntoMemoryWithTheNumbers) {
  const Result r = run("check --context 4096 --max-sequences 65536 --model tiny-qwen");
  EXPECT_EQ(r.status, 1) << r.out;
  EXPECT_THAT(r.out, HasSubstr("megalith: memory: expected "));
  EXPECT_THAT(r.out, HasSubstr("Choose a smaller --context, or fewer sequences."));
}

TEST(Bench, JsonHasTheMachinesLimitsAndTheShareOfThem) {
  const Result r = run("bench --no-draft --repeat 1 --steps 2 --sequences 1,3 --prompt-rows 32 --json --quiet", "", false);
  ASSERT_EQ(r.status, 0) << r.out;
  const auto json = nlohmann::json::parse(r.out);
  EXPECT_GT(json["bandwidth_gb_s"].get<double>(), 0);
  EXPECT_GT(json["fma_gflops"].get<double>(), 0);
  EXPECT_EQ(json["prefill"]["rows"], 32);
  EXPECT_GT(json["prefill"]["fma_share"].get<double>(), 0);
  ASSERT_EQ(json["decode"].size(), 2u);
  EXPECT_EQ(json["decode"][1]["sequences"], 3);
  for (const auto& line : json["decode"]) {
    const double bytes_per_s = 1e9 * line["gb_s"].get<double>();
    EXPECT_GT(line["bandwidth_share"].get<double>(), 0);
    // A step reads all weights once, and the states of its sequences.
    const double step_s = 1e-3 * line["ms_per_step"].get<double>();
    EXPECT_GE(bytes_per_s * step_s, 0.999 * json["settings"]["streamed_bytes"].get<double>());
  }
  for (const char* field : {"model", "format", "threads", "ranks", "machine", "processor", "commit"}) {
    EXPECT_TRUE(json["settings"].contains(field)) << field;
  }
}

std::string pair_of_models() { return fmt::format("{} --draft {}", model(), test_data("qwen-a/draft").string()); }

TEST(Bench, JsonHasStepsOfEveryAcceptanceLengthBesidePlainOnes) {
  const Result r = run("bench --repeat 1 --steps 2 --sequences 1,3 --prompt-rows 0 --json --quiet " + pair_of_models(), "", false);
  ASSERT_EQ(r.status, 0) << r.out;
  const auto json = nlohmann::json::parse(r.out);
  const auto& speculation = json["speculation"];
  EXPECT_EQ(speculation["draft"], "draft");
  EXPECT_EQ(speculation["family"], "dflash2");
  EXPECT_EQ(speculation["block"], 8);
  EXPECT_EQ(speculation["sequences"], 1);
  EXPECT_EQ(speculation["together"]["sequences"], 3);
  for (const auto& sweep : {speculation, speculation["together"]}) {
    for (const char* field : {"plain_tokens_per_s", "verify_ms", "step_ratio"}) EXPECT_GT(sweep[field].get<double>(), 0) << field;
    ASSERT_EQ(sweep["forced"].size(), 8u);
    for (int i = 0; i < 8; ++i) {
      const auto& line = sweep["forced"][static_cast<size_t>(i)];
      const double ms = line["ms_per_step"];
      EXPECT_EQ(line["acceptance_length"], i + 1);
      EXPECT_GT(line["draft_ms_per_step"].get<double>(), 0);
      EXPECT_LT(line["draft_ms_per_step"].get<double>(), ms);
      EXPECT_NEAR(line["tokens_per_s"].get<double>() * ms, 1e3 * (i + 1) * sweep["sequences"].get<int>(), 1e-6);
      EXPECT_GT(line["speed_up"].get<double>(), 0);
    }
  }
  // Plain steps are counted without the draft's bytes.
  const Result plain = run("bench --repeat 1 --steps 2 --sequences 1 --prompt-rows 0 --json --quiet " + model(), "", false);
  const auto streamed = [](const nlohmann::json& j) { return j["settings"]["streamed_bytes"].get<double>(); };
  const auto without = nlohmann::json::parse(plain.out);
  EXPECT_FALSE(without.contains("speculation"));
  EXPECT_GE(streamed(json), streamed(without));
  EXPECT_LT(streamed(json), 1.2 * streamed(without));
}

TEST(Bench, AcceptanceLengthsAreChosenAndCheckedAndTheProfileHasTheDraft) {
  const std::string bench = "bench --repeat 1 --steps 1 --sequences 1 --prompt-rows 0 --acceptance ";
  const Result r = run(bench + "6,2 --profile --draft-width 6 " + pair_of_models());
  ASSERT_EQ(r.status, 0) << r.out;
  for (const char* text : {"blocks of 6 rows", "of plain", "without a draft in it", "matmul draft mlp.down_proj"}) {
    EXPECT_THAT(r.out, HasSubstr(text));
  }
  EXPECT_THAT(run(bench + "7 --draft-width 6 " + pair_of_models()).out, HasSubstr("at most 6"));
  EXPECT_THAT(run(bench + "1 " + model()).out, HasSubstr("expected a draft"));
}

TEST(Bench, ProfileNamesOpsAndTraceIsWrittenWhole) {
  const Scratch directory;
  const auto trace = directory / "trace.json";
  const Result r = run(fmt::format("bench --no-draft --repeat 1 --steps 2 --sequences 1 --prompt-rows 0 --profile --trace {}", trace.string()));
  ASSERT_EQ(r.status, 0) << r.out;
  EXPECT_THAT(r.out, HasSubstr("matmul mlp.down_proj"));
  EXPECT_FALSE(nlohmann::json::parse(file_text(trace))["traceEvents"].empty());
  EXPECT_EQ(run(fmt::format("bench --repeat 1 --steps 1 --prompt-rows 0 --sequences 1 --trace {}/no/t.json", directory.path().string())).status, 1);
}

TEST(Chat, TellsItsShareOfTheMemorysSpeed) {
  const Result r = run("chat --no-draft --prompt hello --max-tokens 5");
  EXPECT_EQ(r.status, 0);
  EXPECT_THAT(r.out, HasSubstr("that memory gives"));
}

TEST(Start, FirstLineComesBeforeTheModelIsLookedAtAndVerboseEndsWithPhases) {
  const Result bad = run("generate --prompt hello --model " + test_data("text").string());
  EXPECT_EQ(bad.status, 1);
  EXPECT_THAT(bad.out, testing::StartsWith("megalith 0."));
  const Result r = run("-v generate --prompt hello --max-tokens 1");
  EXPECT_EQ(r.status, 0);
  for (const char* text : {"s  configuration and tensor headers", "s  tokenizer", "s  weights", "s  until ready"}) {
    EXPECT_THAT(r.out, HasSubstr(text));
  }
}

// Of those that this process may use.
int first_processor() {
  cpu_set_t set;
  CPU_ZERO(&set);
  sched_getaffinity(0, sizeof(set), &set);
  int cpu = 0;
  while (cpu < CPU_SETSIZE && !CPU_ISSET(cpu, &set)) ++cpu;
  return cpu;
}

// Optimisations that are not to be had cost speed, not results.
TEST(Start, FewProcessorsManyThreadsAndNoLockedMemoryGiveTheSameTokens) {
  const std::string flags = fmt::format("generate {} --context 64 --tokens 1,2,3 --ignore-eos --max-tokens 6 --json ", model());
  const auto tokens = [](const Result& r) { return nlohmann::json::parse(r.out)["tokens"]; };
  const auto expected = tokens(run(flags, "", false));
  const std::string one = fmt::format("taskset -c {} ", first_processor());
  for (const std::string& wrapper : {one, std::string("prlimit --memlock=65536 "), one + "prlimit --memlock=0 "}) {
    for (const char* threads : {"", "--threads 3"}) {
      const Result r = run(flags + threads, "", false, wrapper);
      ASSERT_EQ(r.status, 0) << wrapper << r.out;
      EXPECT_EQ(tokens(r), expected) << wrapper << threads;
    }
  }
  EXPECT_THAT(run(flags + "--threads 64").out, HasSubstr("64 threads wished for"));
}

TEST(Render, NeedsNoModelWhereTheFormatIsNamed) {
  const Result r = run("render --chat-format qwen3.5 --request -", R"({"messages":[{"role":"user","content":"Hello"}]})");
  EXPECT_EQ(r.status, 0);
  EXPECT_EQ(r.out, "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n<think>\n");
}

// A directory as Kimi K3's: tiktoken.model, and no template.
TEST(Render, FindsTheFormatOfAVocabularyWithoutATemplate) {
  const std::string model = "--model " + test_data("text/kimi").string();
  const std::string request = R"({"messages":[{"role":"user","content":"Hi"}],"thinking":false})";
  const Result r = run("render --request - " + model, request);
  EXPECT_EQ(r.status, 0) << r.out;
  EXPECT_THAT(r.out, testing::StartsWith("<|open|>message role=\"user\"<|sep|>Hi<|close|>message<|sep|><|end_of_msg|>"));
  const Result ids = run("render --ids --request - " + model, request);
  EXPECT_EQ(ids.status, 0) << ids.out;
  const Result back = run("detokenize " + model + " " + ids.out.substr(0, ids.out.find('\n')));
  EXPECT_THAT(back.out, HasSubstr("Hi"));
}

TEST(Generate, ATextWithoutAChatBeginsAsTheCheckpointSays) {
  const auto prompt = [](const char* model) {
    const Result r = run(std::string("generate --prompt Hi --chat none --max-tokens 1 --json --model ") + model);
    return nlohmann::json::parse(r.out.substr(r.out.find('{')))["prompt_tokens"];
  };
  EXPECT_EQ(prompt("tiny-kimi")[0], 1024) << "[BOS]";
  EXPECT_NE(prompt("tiny-qwen")[0], 1024);
}

TEST(Errors, CommandLineMistakesEndWithStatusTwoBeforeAnythingLoads) {
  for (const char* arguments : {"", "nonsense", "generate --frobnicate", "generate --prompt", "generate --ranks 0 --prompt x",
                                "generate --chat maybe --prompt x", "generate --temperature nan --prompt x", "logits --tokens 1",
                                "chat --thinking perhaps", "render"}) {
    EXPECT_EQ(run(arguments).status, 2) << arguments;
  }
}

TEST(Errors, MistakesEndWithStatusOneAndSayWhatIsWrong) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"generate", "--prompt TEXT or --tokens IDS"},
      {"generate --tokens 1 --chat think", "--tokens only"},
      {"generate --prompt x --chat none --system y", "--chat none"},
      {"generate --prompt x --revision main", "--revision"},
      {"generate --tokens 1 --model /nonexistent/place", "/nonexistent/place"},
      {"generate --tokens 1 --model some/where", "models--some--where"},
      {"generate --tokens 1,x " + model(), "1,x"},
      {"generate --tokens 1024 " + model(), "0 to 1023"},
      {"generate --tokens 1 --ranks 3 " + model(), "one of 1, 2, 4, 8"},
      {"generate --tokens 1 --context 5000 " + model(), "at most 4096"},
      {"generate --prompt hello " + model(), "tokenizer.json"},
      {"chat " + model(), "tokenizer.json"},
      {"tokenize hello " + model(), "tokenizer.json"},
      {"render --request /nonexistent --chat-format qwen3.5", "/nonexistent"},
      {"logits --tokens 1 --out /nonexistent/x.safetensors " + model(), "/nonexistent/x.safetensors"},
      {"program --model " + test_data("qwen-a").string(), "config.json"}};
  for (const auto& [arguments, text] : cases) {
    const Result r = run(arguments);
    EXPECT_EQ(r.status, 1) << arguments << "\n" << r.out;
    EXPECT_THAT(r.out, HasSubstr("megalith: ")) << arguments;
    EXPECT_THAT(r.out, HasSubstr(text)) << arguments;
  }
}

TEST(Errors, TokenizerOfAnotherModelIsRefused) {
  const Scratch directory;
  for (const auto& entry : std::filesystem::directory_iterator(test_data("qwen-a/target"))) {
    std::filesystem::create_symlink(std::filesystem::absolute(entry.path()), directory / entry.path().filename().string());
  }
  std::filesystem::copy_file(test_data("text/small-tokenizer.json"), directory / "tokenizer.json");
  const Result r = run("generate --tokens 1 --model " + directory.path().string());
  EXPECT_EQ(r.status, 1) << r.out;
  EXPECT_THAT(r.out, HasSubstr("vocab_size"));
}

// A template of another family is a mistake only where a chat is asked for.
TEST(Errors, UnknownChatTemplateStopsChatsAndNotRawPrompts) {
  const Scratch directory;
  for (const char* file : {"config.json", "model.safetensors", "tokenizer.json", "generation_config.json"}) {
    const auto source = std::filesystem::path(MEGALITH_SOURCE_DIR) / "models/tiny-qwen" / file;
    std::filesystem::create_symlink(source, directory / file);
  }
  directory.write("chat_template.jinja", "{{ messages[0].content }}");
  const std::string model = " --max-tokens 2 --model " + directory.path().string();
  EXPECT_EQ(run("generate --prompt hello" + model).status, 0);
  for (const char* arguments : {"generate --prompt hello --chat think", "chat --prompt hello"}) {
    const Result r = run(arguments + model);
    EXPECT_EQ(r.status, 1) << arguments;
    EXPECT_THAT(r.out, HasSubstr("qwen3.5, qwen3.8"));
  }
  EXPECT_EQ(run("chat --prompt hello --chat-format qwen3.5" + model).status, 0);
}

TEST(Output, HasNoEscapeCodesOrCarriageReturnsOffATerminal) {
  const Result r = run(fmt::format("generate {} --context 64 --tokens 1,2 --max-tokens 3", model()));
  EXPECT_EQ(r.status, 0);
  EXPECT_THAT(r.out, Not(HasSubstr("\x1b")));
  EXPECT_THAT(r.out, Not(HasSubstr("\r")));
}

TEST(Help, NamesEveryFlagWithItsDefault) {
  const Result r = run("generate --help");
  EXPECT_EQ(r.status, 0);
  for (const char* text : {"--model", "--ranks", "--threads", "--context", "2048", "--max-tokens", "512", "--rows-per-step", "--seed",
                           "--temperature", "--top-k", "--top-p", "--min-p", "--chat", "--tokens", "--ignore-eos", "--no-draft", "--json"}) {
    EXPECT_THAT(r.out, HasSubstr(text));
  }
}

}  // namespace
}  // namespace megalith
