#include "server/metrics.h"

#include <algorithm>
#include <string_view>
#include <utility>
#include <vector>

#include <prometheus/counter.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>

#include "base/check.h"
#include "server/process_metrics.h"

namespace megalith {
namespace {

using Buckets = prometheus::Histogram::BucketBoundaries;

const Buckets kFirstTokenSeconds = {.001, .005, .01, .02, .04, .06, .08, .1, .25, .5,  .75,
                                    1,    2.5,  5,   7.5, 10,  20,  40,  80, 160, 640, 2560};
const Buckets kTokenSeconds = {.0005, .001, .002, .005, .01, .025, .05, .075, .1, .15, .2, .3,
                               .4,    .5,   .75,  1,    2.5, 5,    7.5, 10,   20, 40,  80};
const Buckets kRequestSeconds = {.3, .5, .8, 1,  1.5, 2,  2.5, 5,   10,  15,  20,
                                 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680};
const Buckets kStepSeconds = {.0002, .0005, .001, .002, .003, .005, .0075, .01, .015, .02, .03, .05, .1, .25, .5, 1, 2.5};
const char* const kFinishes[] = {"stop", "length", "abort", "error"};

// 1, 2, 5, 10, 20, 50, … as far as `most`.
Buckets decades(int64_t most) {
  Buckets buckets;
  for (int64_t decade = 1; decade <= most; decade *= 10) {
    for (int64_t digit : {1, 2, 5}) {
      if (digit * decade <= most) buckets.push_back(static_cast<double>(digit * decade));
    }
  }
  return buckets;
}

}  // namespace

struct Metrics::Series {
  Series(std::string model_name, int64_t context, int draft_guesses)
      : labels{{"model_name", std::move(model_name)}}, guesses(draft_guesses), sizes(decades(context)) {
    for (const char* finish : kFinishes) {
      finishes.push_back(
          &counter("vllm:request_success_total", "Texts that ended, by reason.", {{"finished_reason", finish}}));
    }
    if (guesses == 0) return;
    drafts = &counter("vllm:spec_decode_num_drafts_total", "Blocks of guesses that were verified.");
    drafted = &counter("vllm:spec_decode_num_draft_tokens_total", "Guessed tokens that were verified.");
    accepted = &counter("vllm:spec_decode_num_accepted_tokens_total", "Guessed tokens that were kept.");
    for (int i = 0; i < guesses; ++i) {
      accepted_at.push_back(&counter("vllm:spec_decode_num_accepted_tokens_per_pos_total",
                                     "Guessed tokens that were kept, by their place in the block.",
                                     {{"position", std::to_string(i)}}));
    }
  }

  prometheus::Gauge& gauge(const char* name, const char* help) {
    return prometheus::BuildGauge().Name(name).Help(help).Labels(labels).Register(registry).Add({});
  }
  prometheus::Counter& counter(const char* name, const char* help, const prometheus::Labels& own = {}) {
    return prometheus::BuildCounter().Name(name).Help(help).Labels(labels).Register(registry).Add(own);
  }
  prometheus::Histogram& histogram(const char* name, const char* help, const Buckets& buckets) {
    return prometheus::BuildHistogram().Name(name).Help(help).Labels(labels).Register(registry).Add({}, buckets);
  }

  void count(const SpeculationReport& steps) {
    std::vector<int64_t> kept_at(accepted_at.size());
    double tries = 0;
    for (size_t i = 0; i < steps.guesses.size(); ++i) {
      tries += steps.guesses[i] > 0 ? 1 : 0;
      const size_t places = std::min(kept_at.size(), static_cast<size_t>(std::max(steps.accepted[i], 0)));
      for (size_t place = 0; place < places; ++place) ++kept_at[place];
    }
    drafts->Increment(tries);
    drafted->Increment(static_cast<double>(steps.tried()));
    accepted->Increment(static_cast<double>(steps.kept()));
    for (size_t i = 0; i < kept_at.size(); ++i) accepted_at[i]->Increment(static_cast<double>(kept_at[i]));
  }

  prometheus::Registry registry;
  const prometheus::Labels labels;
  const int guesses;
  const Buckets sizes;

  prometheus::Gauge& running = gauge("vllm:num_requests_running", "Texts in the steps of the engine.");
  prometheus::Gauge& waiting = gauge("vllm:num_requests_waiting", "Texts that wait for a slot.");
  prometheus::Gauge& cache_usage = gauge("vllm:kv_cache_usage_perc", "Share of the cache in use; 1 is all of it.");
  prometheus::Counter& prompt_tokens = counter("vllm:prompt_tokens_total", "Tokens of prompts.");
  prometheus::Counter& generation_tokens = counter("vllm:generation_tokens_total", "Generated tokens.");
  prometheus::Counter& cache_queries =
      counter("vllm:prefix_cache_queries_total", "Tokens of prompts for which earlier states were looked for.");
  prometheus::Counter& cache_hits =
      counter("vllm:prefix_cache_hits_total", "Tokens of prompts whose states an earlier text had left.");
  std::vector<prometheus::Counter*> finishes;  // as kFinishes
  prometheus::Histogram& first_token =
      histogram("vllm:time_to_first_token_seconds", "From a text's arrival to its first token.", kFirstTokenSeconds);
  prometheus::Histogram& inter_token = histogram(
      "vllm:inter_token_latency_seconds",
      "Between tokens of a text; those that come together have equal shares of the time.", kTokenSeconds);
  prometheus::Histogram& per_output_token = histogram("vllm:request_time_per_output_token_seconds",
                                                      "Of each text, the mean time of a token after the first.",
                                                      kTokenSeconds);
  prometheus::Histogram& e2e =
      histogram("vllm:e2e_request_latency_seconds", "From a text's arrival to its end.", kRequestSeconds);
  prometheus::Histogram& queue = histogram("vllm:request_queue_time_seconds", "Waiting for a slot.", kRequestSeconds);
  prometheus::Histogram& prefill =
      histogram("vllm:request_prefill_time_seconds", "From a text's first step to its first token.", kRequestSeconds);
  prometheus::Histogram& decode =
      histogram("vllm:request_decode_time_seconds", "From a text's first token to its last.", kRequestSeconds);
  prometheus::Histogram& inference =
      histogram("vllm:request_inference_time_seconds", "From a text's first step to its last token.", kRequestSeconds);
  prometheus::Histogram& prompt_size = histogram("vllm:request_prompt_tokens", "Tokens of each prompt.", sizes);
  prometheus::Histogram& generation_size =
      histogram("vllm:request_generation_tokens", "Generated tokens of each text.", sizes);
  prometheus::Histogram& max_tokens =
      histogram("vllm:request_params_max_tokens", "Tokens that each text was allowed.", sizes);
  prometheus::Counter *drafts = nullptr, *drafted = nullptr, *accepted = nullptr;  // null without a draft
  std::vector<prometheus::Counter*> accepted_at;

  prometheus::Gauge& start = gauge("megalith:start_seconds", "From the program's start until it could answer.");
  prometheus::Gauge& weights = gauge("megalith:weight_load_seconds", "Of the start, the reading of weights.");
  prometheus::Gauge& queue_limit = gauge("megalith:queue_limit", "Texts that may wait.");
  prometheus::Gauge& bandwidth = gauge("megalith:memory_bandwidth_share",
                                       "Bytes that decode steps read in a second, over the memory's measured bandwidth.");
  prometheus::Counter& cancelled = counter("megalith:cancelled_requests_total", "Texts that were ended before their end.");
  prometheus::Histogram& step = histogram("megalith:step_seconds", "Steps of the engine.", kStepSeconds);
};

Metrics::Metrics(const std::string& model_name, int64_t context, int draft_guesses)
    : series_(std::make_unique<Series>(model_name, context, draft_guesses)) {}

Metrics::~Metrics() = default;

void Metrics::set_queue(int64_t running, int64_t waiting) {
  series_->running.Set(static_cast<double>(running));
  series_->waiting.Set(static_cast<double>(waiting));
}

void Metrics::set_queue_limit(int64_t limit) { series_->queue_limit.Set(static_cast<double>(limit)); }
void Metrics::set_cache_usage(double share) { series_->cache_usage.Set(share); }
void Metrics::set_memory_bandwidth_share(double share) { series_->bandwidth.Set(share); }

void Metrics::set_start(double start_s, double weights_s) {
  series_->start.Set(start_s);
  series_->weights.Set(weights_s);
}

void Metrics::step(double seconds) { series_->step.Observe(seconds); }

void Metrics::first_token(double seconds_since_arrival) {
  series_->first_token.Observe(seconds_since_arrival);
  series_->generation_tokens.Increment();
}

void Metrics::tokens(int64_t count, double seconds_since_the_last_ones) {
  CHECK(count > 0, "{} tokens", count);
  const double each = seconds_since_the_last_ones / static_cast<double>(count);
  for (int64_t i = 0; i < count; ++i) series_->inter_token.Observe(each);
  series_->generation_tokens.Increment(static_cast<double>(count));
}

void Metrics::finished(const FinishedText& text) {
  Series& s = *series_;
  const auto* finish = std::find(std::begin(kFinishes), std::end(kFinishes), std::string_view(text.finish));
  CHECK(finish != std::end(kFinishes), "{}", text.finish);
  s.finishes[static_cast<size_t>(finish - kFinishes)]->Increment();
  if (*finish == std::string_view("abort")) s.cancelled.Increment();
  s.prompt_tokens.Increment(static_cast<double>(text.prompt_tokens));
  s.cache_queries.Increment(static_cast<double>(text.prompt_tokens));
  s.cache_hits.Increment(static_cast<double>(text.cached_tokens));
  s.prompt_size.Observe(static_cast<double>(text.prompt_tokens));
  s.generation_size.Observe(static_cast<double>(text.generation_tokens));
  s.max_tokens.Observe(static_cast<double>(text.max_tokens));
  s.e2e.Observe(text.e2e_s);
  s.queue.Observe(text.queue_s);
  s.prefill.Observe(text.prefill_s);
  s.decode.Observe(text.decode_s);
  s.inference.Observe(text.prefill_s + text.decode_s);
  if (text.generation_tokens > 1) {
    s.per_output_token.Observe(text.decode_s / static_cast<double>(text.generation_tokens - 1));
  }
  if (text.steps != nullptr && s.drafts != nullptr) s.count(*text.steps);
}

std::string Metrics::text() const {
  std::vector<prometheus::MetricFamily> families = series_->registry.Collect();
  for (prometheus::MetricFamily& family : process_metrics()) families.push_back(std::move(family));
  return prometheus::TextSerializer().Serialize(families);
}

}  // namespace megalith
