#include "server/metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <ctime>
#include <limits>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/sanitized.h"

namespace megalith {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

// The exposition format, as a scraper reads it.
struct Exposition {
  std::map<std::string, std::string> types;  // of families
  std::map<std::string, double> values;      // of samples, with their labels
  std::vector<std::string> order;            // of samples

  explicit Exposition(const std::string& text) {
    EXPECT_TRUE(text.ends_with('\n'));
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line);) {
      if (line.starts_with("# HELP ")) continue;
      if (line.starts_with("# TYPE ")) {
        std::istringstream words(line.substr(7));
        std::string name, type;
        words >> name >> type;
        EXPECT_TRUE(types.emplace(name, type).second) << "two families " << name;
        continue;
      }
      const size_t blank = line.rfind(' ');
      if (blank == std::string::npos) {
        ADD_FAILURE() << line;
        continue;
      }
      const std::string key = line.substr(0, blank);
      const std::string value = line.substr(blank + 1);
      EXPECT_TRUE(values.emplace(key, std::stod(value)).second) << "two samples " << key;
      order.push_back(key);
    }
  }

  // "name" or "name{label="value"}", with the model's label put in.
  double operator()(const std::string& name, const std::string& label = "") const {
    const std::string key = name + "{model_name=\"m\"" + (label.empty() ? "" : "," + label) + "}";
    const auto found = values.find(key);
    if (found == values.end()) ADD_FAILURE() << "no sample " << key;
    return found == values.end() ? std::nan("") : found->second;
  }

  // The upper bounds of a histogram, in order, without the infinite one.
  std::vector<double> buckets(const std::string& name) const {
    std::vector<double> bounds;
    const std::string start = name + "_bucket{model_name=\"m\",le=\"";
    for (const std::string& key : order) {
      if (!key.starts_with(start)) continue;
      const double bound = std::stod(key.substr(start.size()));
      if (std::isfinite(bound)) bounds.push_back(bound);
    }
    return bounds;
  }
};

FinishedText finished_text(const SpeculationReport* steps = nullptr) {
  return {.finish = "stop",
          .prompt_tokens = 100,
          .cached_tokens = 64,
          .generation_tokens = 41,
          .max_tokens = 512,
          .queue_s = 0.25,
          .prefill_s = 0.5,
          .decode_s = 0.8,
          .e2e_s = 1.75,
          .steps = steps};
}

TEST(Metrics, NamesAndTypesAreThoseThatDashboardsKnow) {
  const Exposition seen(Metrics("m", 4096, 7).text());
  const std::map<std::string, std::string> expected = {
      {"vllm:num_requests_running", "gauge"},
      {"vllm:num_requests_waiting", "gauge"},
      {"vllm:kv_cache_usage_perc", "gauge"},
      {"vllm:prompt_tokens_total", "counter"},
      {"vllm:generation_tokens_total", "counter"},
      {"vllm:prefix_cache_queries_total", "counter"},
      {"vllm:prefix_cache_hits_total", "counter"},
      {"vllm:request_success_total", "counter"},
      {"vllm:time_to_first_token_seconds", "histogram"},
      {"vllm:inter_token_latency_seconds", "histogram"},
      {"vllm:request_time_per_output_token_seconds", "histogram"},
      {"vllm:e2e_request_latency_seconds", "histogram"},
      {"vllm:request_queue_time_seconds", "histogram"},
      {"vllm:request_prefill_time_seconds", "histogram"},
      {"vllm:request_decode_time_seconds", "histogram"},
      {"vllm:request_inference_time_seconds", "histogram"},
      {"vllm:request_prompt_tokens", "histogram"},
      {"vllm:request_generation_tokens", "histogram"},
      {"vllm:request_params_max_tokens", "histogram"},
      {"vllm:spec_decode_num_drafts_total", "counter"},
      {"vllm:spec_decode_num_draft_tokens_total", "counter"},
      {"vllm:spec_decode_num_accepted_tokens_total", "counter"},
      {"vllm:spec_decode_num_accepted_tokens_per_pos_total", "counter"},
      {"megalith:start_seconds", "gauge"},
      {"megalith:weight_load_seconds", "gauge"},
      {"megalith:queue_limit", "gauge"},
      {"megalith:memory_bandwidth_share", "gauge"},
      {"megalith:cancelled_requests_total", "counter"},
      {"megalith:step_seconds", "histogram"},
      {"process_resident_memory_bytes", "gauge"},
      {"process_open_fds", "gauge"},
      {"process_cpu_seconds_total", "counter"},
      {"process_start_time_seconds", "gauge"},
  };
  EXPECT_EQ(seen.types, expected);
}

TEST(Metrics, BucketsAreThoseThatDashboardsKnow) {
  const Exposition seen(Metrics("m", 4096, 0).text());
  EXPECT_EQ(seen.buckets("vllm:time_to_first_token_seconds"),
            (std::vector<double>{.001, .005, .01, .02, .04, .06, .08, .1, .25, .5,  .75,
                                 1,    2.5,  5,   7.5, 10,  20,  40,  80, 160, 640, 2560}));
  const std::vector<double> token = {.0005, .001, .002, .005, .01, .025, .05, .075, .1, .15, .2, .3,
                                     .4,    .5,   .75,  1,    2.5, 5,    7.5, 10,   20, 40,  80};
  EXPECT_EQ(seen.buckets("vllm:inter_token_latency_seconds"), token);
  EXPECT_EQ(seen.buckets("vllm:request_time_per_output_token_seconds"), token);
  const std::vector<double> request = {.3, .5, .8, 1,  1.5, 2,   2.5, 5,   10,  15,   20,
                                       30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680};
  for (const char* name : {"e2e_request_latency", "request_queue_time", "request_prefill_time", "request_decode_time",
                           "request_inference_time"}) {
    EXPECT_EQ(seen.buckets(std::string("vllm:") + name + "_seconds"), request) << name;
  }
  for (const char* name : {"prompt_tokens", "generation_tokens", "params_max_tokens"}) {
    EXPECT_EQ(seen.buckets(std::string("vllm:request_") + name),
              (std::vector<double>{1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000}))
        << name;
  }
  EXPECT_EQ(Exposition(Metrics("m", 262144, 0).text()).buckets("vllm:request_prompt_tokens").back(), 200000);
}

TEST(Metrics, NoSeriesThatBenchmarksWouldAddUpTwice) {
  const std::string text = Metrics("m", 4096, 7).text();
  EXPECT_THAT(text, Not(HasSubstr("_created")));
  std::set<std::string> names;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("#") || line.find("vllm:spec_decode") == std::string::npos) continue;
    EXPECT_TRUE(line.starts_with("vllm:spec_decode")) << line;
    names.insert(line.substr(0, line.find('{')));
  }
  for (const std::string& name : names) EXPECT_TRUE(name.ends_with("_total")) << name;
  EXPECT_EQ(names.size(), 4U);
}

TEST(Metrics, WithoutADraftNothingIsSaidOfGuesses) {
  Metrics metrics("m", 4096, 0);
  const SpeculationReport report{.guesses = {0, 0}, .accepted = {0, 0}};
  metrics.finished(finished_text(&report));
  EXPECT_THAT(metrics.text(), Not(HasSubstr("spec_decode")));
}

TEST(Metrics, AcceptanceLengthOfTheCountersIsThatOfTheSteps) {
  Metrics metrics("m", 4096, 7);
  const SpeculationReport first{.guesses = {7, 7, 7, 7}, .accepted = {7, 0, 3, 2}};
  // A step without guesses is no draft, and does not lessen the length.
  const SpeculationReport second{.guesses = {3, 0, 7}, .accepted = {1, 0, 7}};
  metrics.finished(finished_text(&first));
  metrics.finished(finished_text(&second));
  metrics.finished(finished_text());
  const Exposition seen(metrics.text());
  const double drafts = seen("vllm:spec_decode_num_drafts_total");
  const double accepted = seen("vllm:spec_decode_num_accepted_tokens_total");
  EXPECT_EQ(drafts, 6);
  EXPECT_EQ(seen("vllm:spec_decode_num_draft_tokens_total"), 38);
  EXPECT_EQ(accepted, 20);
  EXPECT_DOUBLE_EQ(1 + accepted / drafts, 1 + 20 / 6.0);
  const double at[] = {5, 4, 3, 2, 2, 2, 2};
  double sum = 0;
  for (int i = 0; i < 7; ++i) {
    const double here =
        seen("vllm:spec_decode_num_accepted_tokens_per_pos_total", "position=\"" + std::to_string(i) + "\"");
    EXPECT_EQ(here, at[i]) << i;
    sum += here;
  }
  EXPECT_EQ(sum, accepted);
}

TEST(Metrics, MoreKeptGuessesThanPlacesAreCountedWithoutAPlace) {
  Metrics metrics("m", 4096, 2);
  const SpeculationReport report{.guesses = {5}, .accepted = {4}};
  metrics.finished(finished_text(&report));
  const Exposition seen(metrics.text());
  EXPECT_EQ(seen("vllm:spec_decode_num_accepted_tokens_total"), 4);
  EXPECT_EQ(seen("vllm:spec_decode_num_accepted_tokens_per_pos_total", "position=\"1\""), 1);
}

TEST(Metrics, AFinishedTextIsInEachSeriesOfTexts) {
  Metrics metrics("m", 4096, 0);
  metrics.finished(finished_text());
  const Exposition seen(metrics.text());
  EXPECT_EQ(seen("vllm:prompt_tokens_total"), 100);
  EXPECT_EQ(seen("vllm:prefix_cache_queries_total"), 100);
  EXPECT_EQ(seen("vllm:prefix_cache_hits_total"), 64);
  const std::pair<const char*, double> sums[] = {{"e2e_request_latency_seconds", 1.75},
                                                 {"request_queue_time_seconds", 0.25},
                                                 {"request_prefill_time_seconds", 0.5},
                                                 {"request_decode_time_seconds", 0.8},
                                                 {"request_inference_time_seconds", 1.3},
                                                 {"request_time_per_output_token_seconds", 0.02},
                                                 {"request_prompt_tokens", 100},
                                                 {"request_generation_tokens", 41},
                                                 {"request_params_max_tokens", 512}};
  for (const auto& [name, sum] : sums) {
    EXPECT_DOUBLE_EQ(seen(std::string("vllm:") + name + "_sum"), sum) << name;
    EXPECT_EQ(seen(std::string("vllm:") + name + "_count"), 1) << name;
  }
  EXPECT_EQ(seen("vllm:request_prompt_tokens_bucket", "le=\"50\""), 0);
  EXPECT_EQ(seen("vllm:request_prompt_tokens_bucket", "le=\"100\""), 1);
}

TEST(Metrics, ATextOfOneTokenHasNoTimePerToken) {
  Metrics metrics("m", 4096, 0);
  FinishedText text = finished_text();
  text.generation_tokens = 1;
  text.decode_s = 0;
  metrics.finished(text);
  EXPECT_EQ(Exposition(metrics.text())("vllm:request_time_per_output_token_seconds_count"), 0);
}

TEST(Metrics, EndsAreCountedByReason) {
  Metrics metrics("m", 4096, 0);
  FinishedText text = finished_text();
  for (const char* finish : {"length", "abort", "abort", "error", "stop", "stop", "stop"}) {
    text.finish = finish;
    metrics.finished(text);
  }
  const Exposition seen(metrics.text());
  const std::pair<const char*, int> counts[] = {{"stop", 3}, {"length", 1}, {"abort", 2}, {"error", 1}};
  for (const auto& [finish, count] : counts) {
    EXPECT_EQ(seen("vllm:request_success_total", std::string("finished_reason=\"") + finish + "\""), count) << finish;
  }
  EXPECT_EQ(seen("megalith:cancelled_requests_total"), 2);
}

TEST(Metrics, TokensThatComeTogetherShareTheirTime) {
  Metrics metrics("m", 4096, 7);
  metrics.first_token(0.03);
  metrics.tokens(8, 0.012);
  metrics.tokens(1, 0.03);
  const Exposition seen(metrics.text());
  EXPECT_EQ(seen("vllm:generation_tokens_total"), 10);
  EXPECT_EQ(seen("vllm:time_to_first_token_seconds_bucket", "le=\"0.02\""), 0);
  EXPECT_EQ(seen("vllm:time_to_first_token_seconds_bucket", "le=\"0.04\""), 1);
  EXPECT_EQ(seen("vllm:inter_token_latency_seconds_count"), 9);
  EXPECT_NEAR(seen("vllm:inter_token_latency_seconds_sum"), 0.042, 1e-12);
  EXPECT_EQ(seen("vllm:inter_token_latency_seconds_bucket", "le=\"0.001\""), 0);
  EXPECT_EQ(seen("vllm:inter_token_latency_seconds_bucket", "le=\"0.002\""), 8);
  EXPECT_EQ(seen("vllm:inter_token_latency_seconds_bucket", "le=\"+Inf\""), 9);
}

TEST(Metrics, GaugesAreWhatWasSetLast) {
  Metrics metrics("m", 4096, 0);
  metrics.set_queue(3, 200);
  metrics.set_queue(2, 0);
  metrics.set_queue_limit(256);
  metrics.set_cache_usage(0.375);
  metrics.set_memory_bandwidth_share(0.91);
  metrics.set_start(12.5, 9);
  const Exposition seen(metrics.text());
  EXPECT_EQ(seen("vllm:num_requests_running"), 2);
  EXPECT_EQ(seen("vllm:num_requests_waiting"), 0);
  EXPECT_EQ(seen("megalith:queue_limit"), 256);
  EXPECT_EQ(seen("vllm:kv_cache_usage_perc"), 0.375);
  EXPECT_EQ(seen("megalith:memory_bandwidth_share"), 0.91);
  EXPECT_EQ(seen("megalith:start_seconds"), 12.5);
  EXPECT_EQ(seen("megalith:weight_load_seconds"), 9);
}

TEST(Metrics, TheProcessIsDescribedAsTheSystemSeesIt) {
  const Exposition seen(Metrics("m", 4096, 0).text());
  EXPECT_GT(seen.values.at("process_resident_memory_bytes"), 1e6);
  EXPECT_GE(seen.values.at("process_open_fds"), 3);
  EXPECT_GT(seen.values.at("process_cpu_seconds_total"), 0);
  const double age = static_cast<double>(std::time(nullptr)) - seen.values.at("process_start_time_seconds");
  EXPECT_GT(age, -2);
  EXPECT_LT(age, 3600);
}

TEST(Metrics, AModelNameMayHoldAnything) {
  const std::string text = Metrics("a\"b\\c\nd", 4096, 0).text();
  EXPECT_THAT(text, HasSubstr("vllm:num_requests_running{model_name=\"a\\\"b\\\\c\\nd\"} 0\n"));
}

// What a scraper sees while the engine counts never goes back, and a histogram's parts fit each other.
TEST(Metrics, ScrapesDuringStepsAreMonotonic) {
  Metrics metrics("m", 4096, 7);
  std::atomic<bool> over = false;
  const SpeculationReport report{.guesses = {7, 7}, .accepted = {3, 4}};
  std::thread engine([&] {
    for (int i = 0; i < 3000; ++i) {
      metrics.step(0.002);
      metrics.first_token(0.1);
      metrics.tokens(4, 0.01);
      metrics.finished(finished_text(&report));
    }
    over = true;
  });
  std::map<std::string, double> last;
  for (bool ended = false; !ended;) {
    ended = over;
    const Exposition seen(metrics.text());
    double below = 0;
    std::string histogram;
    for (const std::string& key : seen.order) {
      const double value = seen.values.at(key);
      if (key.starts_with("process_") || key.find("_sum") != std::string::npos) continue;
      EXPECT_GE(value, last[key]) << key;
      last[key] = value;
      const size_t bucket = key.find("_bucket{");
      if (bucket == std::string::npos) continue;
      below = key.substr(0, bucket) == histogram ? below : 0;
      histogram = key.substr(0, bucket);
      EXPECT_GE(value, below) << key;
      below = value;
      if (key.find("+Inf") != std::string::npos) {
        EXPECT_EQ(value, seen(histogram + "_count"));
      }
    }
  }
  engine.join();
  EXPECT_EQ(last.at("vllm:generation_tokens_total{model_name=\"m\"}"), 15000);
  EXPECT_EQ(last.at("megalith:step_seconds_count{model_name=\"m\"}"), 3000);
}

TEST(Metrics, CountingAStepTakesMicroseconds) {
  Metrics metrics("m", 262144, 7);
  double best = std::numeric_limits<double>::infinity();
  for (int round = 0; round < 20; ++round) {
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < 1000; ++i) {
      metrics.set_queue(4, i);
      metrics.set_cache_usage(0.5);
      metrics.step(0.002);
      metrics.tokens(8, 0.01);
    }
    best = std::min(best, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() / 1000);
  }
  EXPECT_LT(best, kSanitized ? 100e-6 : 5e-6);
}

}  // namespace
}  // namespace megalith
