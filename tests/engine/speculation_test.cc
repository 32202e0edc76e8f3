// The law of speculation: whatever is guessed, the text and, after it, all states are those of plain decoding, bit for bit.

#include <algorithm>
#include <map>
#include <numeric>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "engine/engine.h"
#include "tests/support/golden.h"
#include "tests/support/loaded.h"
#include "tests/support/random_weights.h"
#include "tests/support/same_bits.h"
#include "tests/support/sanitized.h"

namespace megalith {
namespace {

constexpr int kContext = 96;
constexpr int kBlock = 8;
constexpr uint64_t kScripts = kSanitized ? 15 : 200;

// Numbers that depend on a seed and on how many were drawn.
class Dice {
 public:
  explicit Dice(uint64_t seed) : seed_(seed) {}
  int64_t below(int64_t n) {
    const auto x = static_cast<int64_t>((random_number(seed_, drawn_++) + 1) / 2 * static_cast<float>(n));
    return std::clamp<int64_t>(x, 0, n - 1);
  }

 private:
  const uint64_t seed_;
  uint64_t drawn_ = 0;
};

struct Family {
  const char* directory;
  const char* draft;
  int32_t vocabulary;
  int ranks;
};

void PrintTo(const Family& family, std::ostream* out) { *out << family.directory; }

MachineOptions options_of(int threads) {
  return {.threads = threads, .max_rows = 64, .max_chosen = 48, .max_sequences = 4, .context = kContext};
}

// A request that ends early or late, by a token, by its budget, or where the context does.
Request random_request(Dice& dice, int32_t vocabulary) {
  Request request;
  const int64_t size = 1 + dice.below(dice.below(4) == 0 ? kContext - 8 : 12);
  for (int64_t i = 0; i < size; ++i) request.prompt.push_back(static_cast<int32_t>(dice.below(vocabulary)));
  request.max_tokens = 1 + dice.below(30);
  if (dice.below(2) == 0) {
    request.sampling = {.temperature = 0.5f + static_cast<float>(dice.below(3)), .top_k = static_cast<int32_t>(dice.below(3) * 20),
                        .top_p = 0.9f, .seed = static_cast<uint64_t>(dice.below(1000))};
  }
  for (int64_t i = dice.below(3) * vocabulary / 12; i > 0; --i) {
    request.end_tokens.push_back(static_cast<int32_t>(dice.below(vocabulary)));
  }
  return request;
}

struct Outcome {
  std::vector<int32_t> tokens;
  Finish finish = Finish::running;
  std::vector<std::vector<float>> states;  // of every state and rank
};

// All states of a sequence that has had `positions` rows, without the rows that are kept aside and a draft's own.
std::vector<std::vector<float>> states_of(const Machine& machine, int slot, int positions) {
  std::vector<std::vector<float>> all;
  const Program& program = machine.program();
  for (int state = 0; state < static_cast<int>(program.states.size()); ++state) {
    const std::string& name = program.states[static_cast<size_t>(state)].name;
    if (name.starts_with("draft.") || name.ends_with(".kept")) continue;
    for (int rank = 0; rank < program.ranks; ++rank) all.push_back(machine.read_state(state, rank, slot, positions));
  }
  return all;
}

Outcome outcome(const Machine& machine, const Generation& g) {
  const auto positions = static_cast<int>(g.prompt.size() + g.tokens.size()) - 1;
  return {g.tokens, g.finish, states_of(machine, 0, positions)};
}

Outcome plain(Machine& machine, int32_t vocabulary, const Request& request) {
  Engine engine(machine, vocabulary, 64);
  const auto id = engine.add(request);
  engine.run();
  return outcome(machine, engine.generation(id));
}

// Guesses by a script: right for some tokens, then wrong or random, of a random number.
Drafter scripted(Dice& dice, const std::vector<int32_t>& truth, int32_t vocabulary) {
  return [&dice, truth, vocabulary](const Generation& g, int64_t most) {
    std::vector<int32_t> guesses;
    const int64_t wanted = dice.below(most + 1), right = dice.below(wanted + 1);
    for (int64_t i = 0; i < wanted; ++i) {
      const size_t at = g.tokens.size() + static_cast<size_t>(i);
      const bool knows = i < right && at < truth.size();
      guesses.push_back(knows ? truth[at] : static_cast<int32_t>(dice.below(vocabulary)));
    }
    return guesses;
  };
}

void expect_same(const Outcome& got, const Outcome& want, const std::string& what) {
  ASSERT_EQ(got.tokens, want.tokens) << what;
  EXPECT_EQ(got.finish, want.finish) << what;
  ASSERT_EQ(got.states.size(), want.states.size());
  for (size_t i = 0; i < want.states.size(); ++i) {
    ASSERT_TRUE(same_bits(got.states[i], want.states[i])) << what << ", state " << i;
  }
}

class Law : public testing::TestWithParam<Family> {};

TEST_P(Law, AnyGuessesGiveTheTextAndTheStatesOfPlainDecoding) {
  const Family family = GetParam();
  const auto directory = test_data(family.directory);
  const Loaded target = load_model(directory, 1, options_of(1));
  const Loaded drafted = load_model(directory, family.ranks, options_of(2), false, kBlock);
  const Loaded target_of_ranks = load_model(directory, family.ranks, options_of(2));
  for (uint64_t script = 0; script < kScripts; ++script) {
    Dice dice(1000 + script);
    const Request request = random_request(dice, family.vocabulary);
    const Outcome whole = plain(*target.machine, family.vocabulary, request);
    const Outcome want = plain(*target_of_ranks.machine, family.vocabulary, request);
    EXPECT_EQ(want.tokens, whole.tokens);
    Engine engine(*drafted.machine, family.vocabulary, 64,
                  {.width = static_cast<int>(2 + dice.below(kBlock - 1)), .drafter = scripted(dice, want.tokens, family.vocabulary), .settle = true});
    const auto id = engine.add(request);
    engine.run();
    expect_same(outcome(*drafted.machine, engine.generation(id)), want, "script " + std::to_string(script));
    if (HasFatalFailure()) return;
  }
}

// Sequences side by side, each with its own blocks, some joining while others are in theirs.
TEST_P(Law, AmongOtherSequencesEachTextIsTheOneAlone) {
  const Family family = GetParam();
  const Loaded target = load_model(test_data(family.directory), 1, options_of(2));
  const Loaded drafted = load_model(test_data(family.directory), family.ranks, options_of(3), false, kBlock);
  for (uint64_t script = 0; script < kScripts / 10; ++script) {
    Dice dice(5000 + script);
    std::vector<Request> requests;
    std::map<std::vector<int32_t>, std::vector<int32_t>> truth;  // by prompt
    for (int i = 0; i < 7; ++i) {
      requests.push_back(random_request(dice, family.vocabulary));
      truth[requests.back().prompt] = plain(*target.machine, family.vocabulary, requests.back()).tokens;
    }
    const Drafter drafter = [&](const Generation& g, int64_t most) {
      return scripted(dice, truth.at(g.prompt), family.vocabulary)(g, most);
    };
    Engine engine(*drafted.machine, family.vocabulary, 40, {.width = 6, .drafter = drafter});
    std::vector<Engine::Id> ids;
    for (const Request& request : requests) ids.push_back(engine.add(request));
    engine.run();
    for (size_t i = 0; i < ids.size(); ++i) {
      EXPECT_EQ(engine.generation(ids[i]).tokens, truth.at(requests[i].prompt)) << "script " << script << ", request " << i;
    }
  }
}

// A target alone, and in one program with a draft: with the draft's own weights, and with random ones.
struct Machines {
  Loaded target, trained, random;
  Machine& drafted(bool own_weights) const { return *(own_weights ? trained : random).machine; }
  int guesses() const { return trained.draft->guesses(); }
};

Machines load_machines(const Family& family, int ranks) {
  const auto target = test_data(family.directory), draft = test_data(family.draft);
  const RandomWeights noise;
  return {load_model(target, ranks, options_of(2)), load_pair(target, draft, ranks, options_of(2)),
          load_pair(target, draft, ranks, options_of(2), false, &noise)};
}

// Blocks of a random width, or of the one that the engine finds best; guessed in any way.
Speculation random_speculation(Dice& dice, int guesses) {
  Speculation how = {.width = static_cast<int>(2 + dice.below(guesses)), .settle = true};
  how.guessing = static_cast<Guessing>(dice.below(3));
  how.automatic = dice.below(4) == 0;
  if (how.automatic) how.width = guesses + 1;
  return how;
}

TEST_P(Law, TheProgramsOwnDraftGivesTheTextAndTheStatesOfPlainDecoding) {
  const Family family = GetParam();
  for (const int ranks : {1, family.ranks}) {
    const Machines machines = load_machines(family, ranks);
    int64_t accepted = 0;
    for (uint64_t script = 0; script < kScripts / 2; ++script) {
      Dice dice(9000 + script);
      const Request request = random_request(dice, family.vocabulary);
      const Outcome want = plain(*machines.target.machine, family.vocabulary, request);
      Machine& drafted = machines.drafted(script % 2 == 0);
      Engine engine(drafted, family.vocabulary, 64, random_speculation(dice, machines.guesses()));
      const auto id = engine.add(request);
      engine.run();
      const Generation& g = engine.generation(id);
      expect_same(outcome(drafted, g), want, fmt::format("script {}, {} ranks", script, ranks));
      if (HasFatalFailure()) return;
      accepted += std::accumulate(g.steps.accepted.begin(), g.steps.accepted.end(), int64_t{0});
    }
    EXPECT_GT(accepted, 0) << ranks << " ranks";
  }
}

// The states of an ended sequence are in some slot until the next step.
bool some_slot_has(const Machine& machine, const Outcome& want, const Generation& g) {
  const auto positions = static_cast<int>(g.prompt.size() + g.tokens.size()) - 1;
  for (int slot = 0; slot < machine.options().max_sequences; ++slot) {
    if (std::equal(want.states.begin(), want.states.end(), states_of(machine, slot, positions).begin(),
                   [](const auto& a, const auto& b) { return same_bits(a, b); })) {
      return true;
    }
  }
  return false;
}

// Steps an engine that requests join at random until all have ended, each as it would have alone.
void expect_each_as_alone(Engine& engine, const Machine& machine, Dice& dice, const std::vector<Request>& requests,
                          const std::vector<Outcome>& want, const std::string& what) {
  std::map<Engine::Id, size_t> running;  // which request it is
  size_t joined = 0;
  while (joined < requests.size() || !running.empty()) {
    while (joined < requests.size() && (running.empty() || dice.below(3) == 0)) {
      running[engine.add(requests[joined])] = joined;
      ++joined;
    }
    engine.step();
    std::erase_if(running, [&](const auto& one) {
      const auto& [id, request] = one;
      const Generation& g = engine.generation(id);
      if (g.finish == Finish::running) return false;
      EXPECT_EQ(g.tokens, want[request].tokens) << what << ", request " << request;
      EXPECT_EQ(g.finish, want[request].finish) << what << ", request " << request;
      EXPECT_TRUE(some_slot_has(machine, want[request], g)) << what << ", request " << request;
      return true;
    });
  }
}

TEST_P(Law, AmongOtherSequencesTheProgramsOwnDraftChangesNone) {
  const Family family = GetParam();
  for (const int ranks : {1, family.ranks}) {
    const Machines machines = load_machines(family, ranks);
    for (uint64_t script = 0; script < (kScripts + 19) / 20; ++script) {
      Dice dice(7000 + script);
      std::vector<Request> requests;
      std::vector<Outcome> want;
      for (int i = 0; i < 7; ++i) {
        requests.push_back(random_request(dice, family.vocabulary));
        want.push_back(plain(*machines.target.machine, family.vocabulary, requests.back()));
      }
      Machine& drafted = machines.drafted(script % 2 == 0);
      const auto rows = static_cast<int>(16 + dice.below(49));  // of a step: blocks are cut where they are few
      Engine engine(drafted, family.vocabulary, rows, random_speculation(dice, machines.guesses()));
      expect_each_as_alone(engine, drafted, dice, requests, want, fmt::format("script {}, {} ranks", script, ranks));
      if (HasFailure()) return;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Families, Law,
                         testing::Values(Family{"qwen-a/target", "qwen-a/draft", 1024, 4},
                                         Family{"kimi-a/target", "kimi-a/draft", 512, 2}),
                         [](const auto& info) { return std::string(info.index == 0 ? "Qwen" : "Kimi"); });

TEST(Speculation, RightGuessesTakeOneStepForABlock) {
  const Loaded target = load_model(test_data("qwen-a/target"), 1, options_of(2));
  const Loaded drafted = load_model(test_data("qwen-a/target"), 1, options_of(2), false, kBlock);
  const Request request = {.prompt = {5, 6, 7}, .max_tokens = 33, .sampling = {}, .end_tokens = {}};
  const Outcome want = plain(*target.machine, 1024, request);
  const Drafter oracle = [&](const Generation& g, int64_t most) {
    const auto at = want.tokens.begin() + static_cast<int64_t>(g.tokens.size());
    return std::vector<int32_t>(at, at + std::min<int64_t>(most, want.tokens.end() - at));
  };
  Engine engine(*drafted.machine, 1024, 64, {.width = kBlock, .drafter = oracle});
  const auto id = engine.add(request);
  engine.run();
  EXPECT_EQ(engine.generation(id).tokens, want.tokens);
  EXPECT_EQ(engine.generation(id).steps.accepted, (std::vector<int32_t>{7, 7, 7, 7}));  // 1 + 4 * 8 tokens
}

}  // namespace
}  // namespace megalith
