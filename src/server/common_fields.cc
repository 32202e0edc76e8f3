#include "server/common_fields.h"

#include <algorithm>
#include <charconv>
#include <limits>
#include <map>
#include <random>

#include <fmt/format.h>

#include "base/error.h"
#include "server/prompt.h"

namespace megalith {

namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kMostStops = 16;
constexpr size_t kMostStopBytes = 2048;
constexpr size_t kMostStopTokens = 1000;
constexpr size_t kMostBiases = 1000;
constexpr double kHottest = 100;
// Logits are divided by it, and stay finite.
constexpr double kLeastRepetition = 1e-6, kMostRepetition = 100;

[[noreturn]] void refuse(const std::string& where, std::string expected, std::string found, std::string next = "") {
  throw Error({.where = where, .expected = std::move(expected), .found = std::move(found), .next = std::move(next)});
}

// A budget beyond the context is the context.
int64_t read_budget(const RequestFields& fields, const Service& service, const CommonRules& rules) {
  const auto first = fields.integer(rules.budgets[0], 0, INT64_MAX);
  const auto second = fields.integer(rules.budgets[1], 0, INT64_MAX);
  return std::min(first ? *first : second.value_or(service.defaults.max_tokens), service.context);
}

// Taken modulo 2^64, so that negative ones are seeds, too.
std::optional<uint64_t> read_seed(const RequestFields& fields) {
  const Json* seed = fields.find("seed");
  if (seed == nullptr) return std::nullopt;
  if (seed->is_number_integer()) return seed->get<uint64_t>();
  return static_cast<uint64_t>(*fields.integer("seed", INT64_MIN, INT64_MAX));
}

uint64_t random_seed() {
  std::random_device random;
  return uint64_t{random()} << 32 | random();
}

Sampling read_sampling(const RequestFields& fields, const Service& service) {
  constexpr double kLeast = std::numeric_limits<float>::min();
  Sampling sampling = service.defaults.sampling;
  if (const auto t = fields.number("temperature", 0, kHottest)) {
    sampling.temperature = *t < kLeast ? 0 : static_cast<float>(*t);  // too small for an f32 is greedy
  }
  if (const auto p = fields.number("top_p", 0, 1)) {
    if (*p == 0) fields.refuse("top_p", "a number above 0, up to 1");
    sampling.top_p = static_cast<float>(std::max(*p, kLeast));
  }
  if (const auto k = fields.integer("top_k", -1, INT64_MAX)) {
    sampling.top_k = *k <= 0 || *k >= vocabulary_of(service) ? 0 : static_cast<int32_t>(*k);
  }
  if (const auto p = fields.number("min_p", 0, 1)) sampling.min_p = static_cast<float>(*p);
  const auto seed = read_seed(fields);
  sampling.seed = seed ? *seed : random_seed();
  return sampling;
}

Penalties read_penalties(const RequestFields& fields) {
  Penalties penalties;
  penalties.presence = static_cast<float>(fields.number("presence_penalty", -2, 2).value_or(0));
  penalties.frequency = static_cast<float>(fields.number("frequency_penalty", -2, 2).value_or(0));
  penalties.repetition =
      static_cast<float>(fields.number("repetition_penalty", kLeastRepetition, kMostRepetition).value_or(1));
  return penalties;
}

// A name that is a token id.
int32_t named_token(const std::string& name, int64_t vocabulary) {
  int32_t id = -1;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), id);
  if (error == std::errc() && end == name.data() + name.size() && id >= 0 && id < vocabulary) return id;
  refuse("logit_bias", fmt::format("names that are token ids from 0 to {}", vocabulary - 1), shown(Json(name)));
}

// {"ID": BIAS, …} or [[ID, BIAS], …]; of one token, the last counts.
std::vector<std::pair<int32_t, float>> read_logit_bias(const RequestFields& fields, int64_t vocabulary) {
  const Json* given = fields.find("logit_bias");
  if (given == nullptr) return {};
  if (!given->is_structured()) fields.refuse("logit_bias", "an object of token ids and numbers");
  if (given->size() > kMostBiases) {
    refuse("logit_bias", fmt::format("at most {} tokens", kMostBiases), fmt::format("{}", given->size()));
  }
  std::map<int32_t, float> biases;
  const auto add = [&](int32_t id, const Json& bias, const std::string& path) {
    biases[id] = static_cast<float>(read_number(bias, path, -100, 100));
  };
  if (given->is_object()) {
    for (const auto& [name, bias] : given->items()) {
      const int32_t id = named_token(name, vocabulary);
      add(id, bias, fmt::format("logit_bias.{}", id));
    }
  } else {
    for (size_t i = 0; i < given->size(); ++i) {
      const Json& pair = (*given)[i];
      const std::string path = fmt::format("logit_bias[{}]", i);
      if (!pair.is_array() || pair.size() != 2) refuse(path, "a list of a token id and a number", shown(pair));
      add(static_cast<int32_t>(read_integer(pair[0], path + "[0]", 0, vocabulary - 1)), pair[1], path + "[1]");
    }
  }
  return {biases.begin(), biases.end()};
}

// A string, or a list of them. Empty ones are left out.
std::vector<std::string> read_stops(const RequestFields& fields) {
  const Json* given = fields.find("stop");
  if (given == nullptr) return {};
  if (!given->is_string() && !given->is_array()) fields.refuse("stop", "a string, a list of strings or null");
  std::vector<std::string> stops;
  size_t bytes = 0;
  const auto add = [&](const Json& stop, const std::string& path) {
    if (!stop.is_string()) refuse(path, "a string", shown(stop));
    const auto& text = stop.get_ref<const std::string&>();
    if (text.empty()) return;
    if (stops.size() == kMostStops) refuse("stop", fmt::format("at most {} strings", kMostStops), "more");
    bytes += text.size();
    if (bytes > kMostStopBytes) refuse("stop", fmt::format("at most {} bytes together", kMostStopBytes), "more");
    stops.push_back(text);
  };
  if (given->is_string()) add(*given, "stop");
  for (size_t i = 0; given->is_array() && i < given->size(); ++i) add((*given)[i], fmt::format("stop[{}]", i));
  return stops;
}

// Where the text ends: at the model's end tokens, unless they are ignored, and at those of the request.
void read_ending(const RequestFields& fields, const Service& service, const CommonRules& rules, Request& request) {
  const bool ignored = fields.flag("ignore_eos").value_or(false);
  if (ignored && rules.formed) fields.refuse("ignore_eos", "false, since the answer's form has an end");
  request.min_tokens = std::min(fields.integer("min_tokens", 0, INT64_MAX).value_or(0), service.context);
  if (request.min_tokens > 0 && rules.formed) {
    fields.refuse("min_tokens", "0, since the answer's form decides where it ends");
  }
  if (!ignored && (!service.defaults.ignore_eos || rules.formed)) request.end_tokens = service.model.end_tokens;
  const auto more = fields.token_ids("stop_token_ids", vocabulary_of(service));
  if (more.size() > kMostStopTokens) {
    refuse("stop_token_ids", fmt::format("at most {} ids", kMostStopTokens), fmt::format("{}", more.size()));
  }
  for (const int32_t id : more) {
    auto& ends = request.end_tokens;
    if (std::find(ends.begin(), ends.end(), id) == ends.end()) ends.push_back(id);
  }
  if (rules.formed && request.end_tokens.empty()) {
    fields.refuse("stop_token_ids", "an id: the model has no end token, and the answer's form has an end");
  }
}

void read_stream(const RequestFields& fields, CommonFields& common) {
  common.stream = fields.flag("stream").value_or(false);
  const auto options = fields.object("stream_options");
  if (!options) return;
  common.include_usage = options->flag("include_usage").value_or(false);
  common.continuous_usage_stats = options->flag("continuous_usage_stats").value_or(false);
}

}  // namespace

CommonFields read_common_fields(const RequestFields& fields, const Service& service, const CommonRules& rules) {
  check_model_name(fields, service);
  CommonFields common;
  common.request.max_tokens = read_budget(fields, service, rules);
  common.request.sampling = read_sampling(fields, service);
  common.request.penalties = read_penalties(fields);
  common.request.logit_bias = read_logit_bias(fields, vocabulary_of(service));
  read_ending(fields, service, rules, common.request);
  common.n = static_cast<int>(fields.integer("n", 1, kMostChoicesOfPrompt).value_or(1));
  common.stop = read_stops(fields);
  common.include_stop = fields.flag("include_stop_str_in_output").value_or(false);
  common.skip_special_tokens = fields.flag("skip_special_tokens").value_or(false);
  read_stream(fields, common);
  common.return_token_ids = fields.flag("return_token_ids").value_or(false);
  return common;
}

}  // namespace megalith
