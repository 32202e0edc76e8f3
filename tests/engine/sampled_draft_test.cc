// Drawn tokens where drafts guess: their probabilities are those of the target's logits, whatever the guesses are.

#include <algorithm>
#include <cmath>
#include <map>
#include <span>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "engine/engine.h"
#include "reference/sample.h"
#include "tests/support/golden.h"
#include "tests/support/loaded.h"
#include "tests/support/random_weights.h"
#include "tests/support/sanitized.h"

namespace megalith {
namespace {

using Tokens = std::vector<int32_t>;
using Probabilities = std::map<int32_t, double>;  // of the tokens that may be drawn

// What sampling makes of a row of logits.
Probabilities probabilities(std::span<const float> logits, const Sampling& how) {
  std::vector<reference::Choice> choices;
  for (const float logit : logits) choices.push_back({static_cast<int32_t>(choices.size()), logit});
  const auto kept = reference::kept_choices(std::move(choices), how);
  Probabilities of;
  double total = 0;
  for (const auto& [token, logit] : kept) {
    total += of[token] = std::exp((double{logit} - kept.front().logit) / how.temperature);
  }
  for (auto& [token, p] : of) p /= total;
  return of;
}

double of(const Probabilities& all, int32_t token) {
  const auto found = all.find(token);
  return found == all.end() ? 0 : found->second;
}

// Probabilities of what follows each of the last rows of a text.
std::vector<Probabilities> last_rows(Machine& target, const Tokens& text, size_t count, const Sampling& how) {
  StepArgs step;
  step.add_run(0, 0, text);
  for (size_t row = text.size() - count; row < text.size(); ++row) step.choose(static_cast<int32_t>(row), {});
  target.run(step);
  const auto logits = target.read(target.program().output("logits"));
  const size_t vocabulary = logits.size() / count;
  std::vector<Probabilities> rows;
  for (size_t row = 0; row < count; ++row) rows.push_back(probabilities(logits.subspan(row * vocabulary, vocabulary), how));
  return rows;
}

Tokens joined(Tokens text, const Tokens& more) {
  text.insert(text.end(), more.begin(), more.end());
  return text;
}

// The reference accepts a guess with its probability; here the target's own draw decides. Both are drawn from the same
// probabilities: the reference has those of each guess, given the guesses before it.
TEST(SampledDraft, EveryGuessHasTheProbabilityOfTheReferencesVerification) {
  const auto json = read_json(test_data("kimi-a/golden.json"));
  const Sampling how = {.temperature = json["params"]["temperature"], .top_p = json["params"]["top_p"]};
  const Loaded target = load_model(test_data("kimi-a/target"), 1, {.threads = 2, .max_rows = 96, .context = 96});
  Tokens text = joined(json["prompt_ids"], {json["spec_sampled_f32_ring"]["tokens"][0]});
  int outside = 0;
  for (const auto& step : json["spec_sampled_f32_ring"]["steps"]) {
    const int position = step["position"];
    const Tokens drafts = step["drafts"], emitted = step["emitted"];
    ASSERT_EQ(std::ssize(text), position + 1);
    ASSERT_EQ(text.back(), step["anchor"].get<int32_t>());
    const auto rows = last_rows(*target.machine, joined(text, drafts), drafts.size() + 1, how);
    for (size_t k = 0; k < drafts.size(); ++k) {
      const double want = step["draft_prob"][k], got = of(rows[k], drafts[k]);
      EXPECT_NEAR(got, want, 1e-3) << "position " << position << ", guess " << k;
      EXPECT_EQ(got == 0, want == 0) << "position " << position << ", guess " << k;
      outside += want == 0;
    }
    for (size_t k = 0; k < emitted.size(); ++k) EXPECT_GT(of(rows[k], emitted[k]), 0) << "position " << position;
    text = joined(text, emitted);
  }
  EXPECT_GT(outside, 20);
  EXPECT_EQ(text, joined(json["prompt_ids"], json["spec_sampled_f32_ring"]["tokens"]));
}

// What may be drawn after each beginning of a continuation, and how probable each continuation of `length` tokens is.
struct Law {
  std::map<Tokens, Probabilities> next;
  std::map<Tokens, double> whole;
};

Law law_of(Machine& target, const Tokens& prompt, const Sampling& how, size_t length) {
  Law law = {{}, {{{}, 1}}};
  for (size_t i = 0; i < length; ++i) {
    std::map<Tokens, double> longer;
    for (const auto& [tokens, p] : law.whole) {
      law.next[tokens] = last_rows(target, joined(prompt, tokens), 1, how).front();
      for (const auto& [token, q] : law.next[tokens]) longer[joined(tokens, {token})] = p * q;
    }
    law.whole = std::move(longer);
  }
  return law;
}

// Guesses the most probable continuation.
Drafter most_probable(const Law& law) {
  return [&law](const Generation& g, int64_t most) {
    Tokens guesses;
    for (auto at = law.next.find(g.tokens); at != law.next.end() && std::ssize(guesses) < most;
         at = law.next.find(joined(g.tokens, guesses))) {
      guesses.push_back(std::max_element(at->second.begin(), at->second.end(), [](const auto& a, const auto& b) {
                          return a.second < b.second;
                        })->first);
    }
    return guesses;
  };
}

struct Drawn {
  std::map<Tokens, int64_t> count;  // of each continuation
  int64_t draws = 0, guesses = 0, accepted = 0;
};

// Continuations of a prompt by `length` tokens, with the seeds from 0 on. They are made one longer: the last token of a
// budget is never guessed.
Drawn draw(Machine& machine, int64_t vocabulary, const Tokens& prompt, Sampling how, size_t length, int64_t draws,
           const Speculation& speculation) {
  Engine engine(machine, vocabulary, machine.options().max_rows, speculation);
  std::vector<Engine::Id> ids;
  for (int64_t seed = 0; seed < draws; ++seed) {
    how.seed = static_cast<uint64_t>(seed);
    ids.push_back(engine.add({.prompt = prompt, .max_tokens = static_cast<int64_t>(length) + 1, .sampling = how, .end_tokens = {}}));
  }
  engine.run();
  Drawn drawn = {.draws = draws};
  for (const auto id : ids) {
    const Generation& g = engine.generation(id);
    ++drawn.count[{g.tokens.begin(), g.tokens.begin() + static_cast<int64_t>(length)}];
    for (const int32_t n : g.steps.guesses) drawn.guesses += n;
    for (const int32_t n : g.steps.accepted) drawn.accepted += n;
  }
  return drawn;
}

// How probable a sum of that many squared normal numbers is to be as large, by the cube root's normal approximation
// (Wilson, Hilferty: The distribution of chi-square, 1931).
double chi_squared_tail(double chi_squared, double freedom) {
  const double spread = 2 / (9 * freedom);
  return std::erfc((std::cbrt(chi_squared / freedom) - 1 + spread) / std::sqrt(2 * spread)) / 2;
}

// How probable draws are to be as far from the law as these: 0 where one was impossible. Cells that expect fewer than 5
// are one cell.
double p_value(const Law& law, const Drawn& drawn) {
  double chi_squared = 0, few_wanted = 0, few_got = 0;
  int cells = 0;
  int64_t seen = 0;
  const auto add_cell = [&](double want, double got) {
    chi_squared += (got - want) * (got - want) / want;
    ++cells;
  };
  for (const auto& [tokens, p] : law.whole) {
    const auto found = drawn.count.find(tokens);
    const int64_t got = found == drawn.count.end() ? 0 : found->second;
    const double want = p * static_cast<double>(drawn.draws);
    seen += got;
    if (want >= 5) {
      add_cell(want, static_cast<double>(got));
    } else {
      few_wanted += want;
      few_got += static_cast<double>(got);
    }
  }
  if (few_wanted >= 5) add_cell(few_wanted, few_got);
  if (seen < drawn.draws) return 0;
  return cells < 2 ? 1 : chi_squared_tail(chi_squared, cells - 1);
}

constexpr double kRejected = 1e-4;

TEST(ChiSquared, TailsAreThoseOfTheTables) {
  EXPECT_NEAR(chi_squared_tail(18.307, 10), 0.05, 5e-4);
  EXPECT_NEAR(chi_squared_tail(124.342, 100), 0.05, 5e-4);
  EXPECT_NEAR(chi_squared_tail(35.564, 10), 1e-4, 2e-5);
}

nlohmann::json small_qwen() {
  auto config = read_json(test_data("qwen-a/target/config.json"));
  auto& c = config["text_config"];
  c.erase("layer_types");
  c.update({{"full_attention_interval", 2}, {"num_hidden_layers", 2}, {"hidden_size", 32}, {"intermediate_size", 32},
            {"vocab_size", 24}, {"num_attention_heads", 2}, {"num_key_value_heads", 1}, {"linear_num_key_heads", 1},
            {"linear_num_value_heads", 2}});
  return config;
}

nlohmann::json small_qwen_draft() {
  auto config = read_json(test_data("qwen-a/draft/config.json"));
  config["dflash_config"].update({{"block_size", 3}, {"mask_token_id", 23}, {"selector_rank", 16}, {"target_layer_ids", {0, 1}}});
  config.update({{"hidden_size", 32}, {"intermediate_size", 32}, {"vocab_size", 24}, {"num_attention_heads", 2},
                 {"num_key_value_heads", 1}, {"head_dim", 16}, {"num_hidden_layers", 1},
                 {"layer_types", {"sliding_attention"}}, {"num_target_layers", 2}});
  return config;
}

nlohmann::json small_kimi() {
  auto config = read_json(test_data("kimi-a/target/config.json"));
  auto& c = config["text_config"];
  c.update({{"num_hidden_layers", 2}, {"hidden_size", 32}, {"intermediate_size", 32}, {"vocab_size", 24},
            {"num_attention_heads", 2}, {"num_key_value_heads", 2}, {"q_lora_rank", 32}, {"kv_lora_rank", 32},
            {"moe_intermediate_size", 32}, {"num_experts", 4}, {"num_experts_per_token", 2}, {"routed_expert_hidden_size", 32},
            {"attn_res_block_size", 2}});
  c["linear_attn_config"].update({{"full_attn_layers", {2}}, {"kda_layers", {1}}, {"num_heads", 2}, {"head_dim", 16}});
  return config;
}

nlohmann::json small_kimi_draft() {
  auto config = read_json(test_data("kimi-a/draft/config.json"));
  config.update({{"aux_hidden_state_layer_ids", {1, 2}}, {"block_size", 2}, {"draft_vocab_size", 24}, {"markov_rank", 16},
                 {"mask_token_id", 23}});
  config["transformer_layer_config"].update({{"hidden_size", 32}, {"intermediate_size", 32}, {"vocab_size", 24},
                                             {"num_attention_heads", 2}, {"num_key_value_heads", 1}, {"head_dim", 16},
                                             {"num_hidden_layers", 1}, {"layer_types", {"sliding_attention"}}});
  return config;
}

// A model of 24 tokens with random weights, on machines for many sequences: alone, with room for blocks, and with a draft of
// random weights. Its head is large, so that some tokens are likelier than others.
class SmallModel {
 public:
  SmallModel(const nlohmann::json& config, const nlohmann::json& draft_config)
      : model_(make_model(config, "config.json")), draft_(make_draft(draft_config, "draft")) {
    draft_->require_target(*model_);
    target_ = load({1, false, {}});
    blocks_ = load({1, false, {}, kBlock});
    drafted_ = load({1, false, {}, kBlock, draft_->builder()});
  }

  int64_t vocabulary() const { return model_->vocabulary(); }
  Machine& target() const { return *target_; }
  Machine& blocks() const { return *blocks_; }
  Machine& drafted() const { return *drafted_; }

  static constexpr int kBlock = 3;

 private:
  std::unique_ptr<Machine> load(const BuildOptions& options) const {
    auto machine = make_cpu_machine(
        model_->build(options), {.threads = 1, .max_rows = 128 * kBlock, .max_sequences = 128, .context = 16});
    RandomWeights weights;
    for (const Weight& w : machine->program().weights) {
      if (!w.name.ends_with("lm_head.weight") || w.name.starts_with(kDraftPrefix)) continue;
      std::vector<float> head;
      for (int64_t i = 0; i < w.shape[0] * w.shape[1]; ++i) head.push_back(3 * weights.at(w, i));
      weights.set(w.name, std::move(head));
    }
    machine->load(weights, nullptr);
    return machine;
  }

  std::unique_ptr<Model> model_;
  std::unique_ptr<Draft> draft_;
  std::unique_ptr<Machine> target_, blocks_, drafted_;
};

constexpr int64_t kDraws = kSanitized ? 300 : 20'000;
const Tokens kPrompt = {11};

const std::vector<Sampling> kWays = {{.temperature = 0.7f, .top_p = 0.9f},
                                     {.temperature = 1.0f, .top_k = 20},
                                     {.temperature = 1.0f, .top_p = 0.9f, .min_p = 0.1f}};

struct Family {
  const char* name;
  nlohmann::json (*config)();
  nlohmann::json (*draft_config)();
};

void PrintTo(const Family& family, std::ostream* out) { *out << family.name; }

class DrawnTokens : public testing::TestWithParam<Family> {
 protected:
  const SmallModel model_{GetParam().config(), GetParam().draft_config()};

  Law law(const Sampling& how) const { return law_of(model_.target(), kPrompt, how, 3); }
  Drawn draw_three(Machine& machine, const Sampling& how, const Speculation& speculation) const {
    return draw(machine, model_.vocabulary(), kPrompt, how, 3, kDraws, speculation);
  }
};

TEST_P(DrawnTokens, HaveTheProbabilitiesOfTheTargetsLogitsWithoutGuesses) {
  for (const Sampling& how : kWays) {
    EXPECT_GT(p_value(law(how), draw_three(model_.target(), how, {})), kRejected) << how.temperature;
  }
}

TEST_P(DrawnTokens, HaveThemWhereTheMostProbableTokensAreGuessed) {
  const Law law = this->law(kWays[0]);
  const Drawn drawn = draw_three(model_.blocks(), kWays[0], {.width = SmallModel::kBlock, .drafter = most_probable(law)});
  EXPECT_GT(p_value(law, drawn), kRejected);
  EXPECT_GT(drawn.accepted, drawn.guesses / 5);
}

TEST_P(DrawnTokens, HaveThemWhereADraftOfRandomWeightsGuesses) {
  for (const Sampling& how : {kWays[0], kWays[2]}) {
    const Drawn drawn = draw_three(model_.drafted(), how, {.width = SmallModel::kBlock});
    EXPECT_GT(p_value(law(how), drawn), kRejected) << how.temperature;
    EXPECT_GT(drawn.guesses, drawn.draws) << how.temperature;
    EXPECT_LT(drawn.accepted, drawn.guesses / 2) << how.temperature;
  }
}

// So that the tests above could fail.
TEST_P(DrawnTokens, OfAnotherTemperatureOrNucleusAreToldApart) {
  if (kSanitized) GTEST_SKIP() << "needs many draws";
  const Drawn drawn = draw_three(model_.target(), kWays[0], {});
  EXPECT_LT(p_value(law({.temperature = 0.75f, .top_p = 0.9f}), drawn), kRejected);
  EXPECT_LT(p_value(law({.temperature = 0.7f, .top_p = 0.8f}), drawn), kRejected);
}

INSTANTIATE_TEST_SUITE_P(Families, DrawnTokens,
                         testing::Values(Family{"Qwen", small_qwen, small_qwen_draft}, Family{"Kimi", small_kimi, small_kimi_draft}),
                         [](const auto& info) { return info.param.name; });

// The drafts that were made for their targets, and guess well.
void expect_law_of_pair(const char* directory, const Tokens& prompt, const Sampling& how) {
  constexpr int64_t kFewDraws = kSanitized ? 50 : 1000;
  const MachineOptions options = {.threads = 2, .max_rows = 128, .max_sequences = 32, .context = 16};
  const auto path = test_data(directory);
  const Loaded target = load_model(path / "target", 1, options);
  const Loaded pair = load_pair(path / "target", path / "draft", 1, options);
  const Law law = law_of(*target.machine, prompt, how, 2);
  const Drawn drawn = draw(*pair.machine, pair.model->vocabulary(), prompt, how, 2, kFewDraws, {.width = 3});
  EXPECT_GT(p_value(law, drawn), kRejected);
  EXPECT_GT(drawn.accepted, drawn.guesses / 10);
}

TEST(DrawnPairs, QwensTokensHaveTheProbabilitiesOfTheTargetsLogits) {
  expect_law_of_pair("qwen-a", {100}, {.temperature = 1.0f, .top_k = 20});
}

TEST(DrawnPairs, KimisTokensHaveTheProbabilitiesOfTheTargetsLogits) {
  expect_law_of_pair("kimi-a", {100}, {.temperature = 0.7f, .top_p = 0.9f});
}

}  // namespace
}  // namespace megalith
