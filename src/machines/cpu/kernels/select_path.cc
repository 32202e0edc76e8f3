#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "machines/cpu/kernels/select_path.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "machines/cpu/kernels/kernel.h"
#include "machines/cpu/kernels/sample-inl.h"

HWY_BEFORE_NAMESPACE();
namespace megalith::HWY_NAMESPACE {

// Puts a logit among the `count` best so far, which are sorted, at most `most`; of equals, the first stays before.
HWY_INLINE void Insert(float logit, int64_t id, int64_t most, float* ids, float* values, int64_t& count) {
  if (count == most && !(logit > values[count - 1])) return;
  int64_t at = count < most ? count++ : count - 1;
  for (; at > 0 && logit > values[at - 1]; --at) {
    values[at] = values[at - 1];
    ids[at] = ids[at - 1];
  }
  values[at] = logit;
  ids[at] = static_cast<float>(id);
}

// The largest logits of a row; those that are not finite are none.
void LargestLogits(const float* logits, int64_t size, int64_t most, float* ids, float* values) {
  int64_t count = 0;
  for (int64_t i = 0; i < size; i += kN) {
    const int64_t left = std::min(kN, size - i);
    const auto there = hn::FirstN(D(), static_cast<size_t>(left));
    const V x = hn::MaskedLoad(there, D(), logits + i);
    const float least = count < most ? -HUGE_VALF : values[count - 1];
    if (hn::AllFalse(D(), hn::And(there, hn::Gt(x, hn::Set(D(), least))))) continue;
    for (int64_t j = i; j < i + left; ++j) {
      if (std::abs(logits[j]) < HUGE_VALF) Insert(logits[j], j, most, ids, values, count);
    }
  }
  for (; count < most; ++count) {
    ids[count] = 0;
    values[count] = std::numeric_limits<float>::lowest();
  }
}

void RunCandidates(const OpContext& c, const StepArgs& step, Part part, Scratch) {
  const auto& how = c.op->get<Candidates>();
  const Range rows = part.of(c.rows(step));
  for (const Run& run : step.runs) {
    for (int64_t row = std::max<int64_t>(rows.begin, run.first_row); row < std::min<int64_t>(rows.end, run.first_row + run.rows);
         ++row) {
      float* ids = c.out + row * c.out_width;
      float* values = ids + how.top_k;
      if (row == run.first_row) {
        std::fill_n(ids, how.top_k, static_cast<float>(step.rows[static_cast<size_t>(row)].token));
        std::fill_n(values, how.top_k, 0.0f);
        continue;
      }
      LargestLogits(c.in[0] + row * c.in_width[0], c.in_width[0], how.top_k, ids, values);
      for (int64_t i = 0; i < how.top_k; ++i) {
        const float value = how.multiplier * values[i];
        values[i] = how.cap > 0 ? how.cap * hn::GetLane(Tanh(hn::Set(D(), value / how.cap))) : value;
      }
    }
  }
}

// Which candidate the request's way of sampling takes; scores are changed.
HWY_INLINE int32_t Choose(Candidate* candidates, int64_t count, const Sampling& how, int32_t position) {
  const Candidate best = *std::min_element(candidates, candidates + count);
  if (how.temperature == 0 || how.top_k == 1) return best.token;
  for (int64_t i = 0; i < count; ++i) candidates[i].score = (candidates[i].score - best.score) / how.temperature;
  std::sort(candidates, candidates + count);
  if (how.top_k > 0) count = std::min<int64_t>(count, how.top_k);
  if (how.top_p < 1) count = KeepTopP(candidates, count, WeightOf(candidates, count), how.top_p);
  count = KeepMinP(candidates, count, how.min_p);
  return ArgmaxWithNoise(candidates, count, how.seed, position);
}

// Block j's path; a score that is not finite counts as the least number. A row's candidates are [ids, values]; scratch has
// the condition of a row, [rank], and its candidates.
void SelectBlock(const OpContext& c, const StepArgs& step, size_t j, Scratch scratch) {
  const auto& how = c.op->get<SelectPath>();
  const Run& run = c.drafts->rows.runs[j];
  float* condition = scratch.floats;
  auto* candidates = reinterpret_cast<Candidate*>(condition + (how.rank + 1) / 2 * 2);
  int64_t before = 0;  // which candidate of the row before was taken
  for (int64_t t = 1; t < run.rows; ++t) {
    const int64_t row = run.first_row + t;
    const float* ids = c.in[0] + row * c.in_width[0];
    if (how.rank > 0) {
      const float* predecessor = c.in[2] + (row - 1) * c.in_width[2] + before * how.rank;
      for (int64_t i = 0; i < how.rank; ++i) condition[i] = predecessor[i] * c.in[3][row * how.rank + i];
    }
    for (int64_t k = 0; k < how.top_k; ++k) {
      float score = ids[how.top_k + k];
      if (how.rank > 0) score += Dot(c.in[1] + row * c.in_width[1] + k * how.rank, condition, how.rank);
      if (!(std::abs(score) < HUGE_VALF)) score = std::numeric_limits<float>::lowest();
      candidates[k] = {score, static_cast<int32_t>(ids[k])};
    }
    const auto position = static_cast<int32_t>(run.first_position + t);
    const auto token = static_cast<float>(Choose(candidates, how.top_k, step.sampling[j], position));
    before = std::find(ids, ids + how.top_k - 1, token) - ids;
    c.out[static_cast<int64_t>(j) * c.out_width + t - 1] = token;
  }
}

void RunSelectPath(const OpContext& c, const StepArgs& step, Part part, Scratch scratch) {
  const Range blocks = part.of(static_cast<int64_t>(step.rows.size()));
  for (int64_t j = blocks.begin; j < blocks.end; ++j) SelectBlock(c, step, static_cast<size_t>(j), scratch);
}

}  // namespace megalith::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace megalith {

HWY_EXPORT(RunCandidates);
HWY_EXPORT(RunSelectPath);

void run_candidates(const OpContext& c, const StepArgs& step, Part part, Scratch scratch) {
  HWY_DYNAMIC_DISPATCH(RunCandidates)(c, step, part, scratch);
}

void run_select_path(const OpContext& c, const StepArgs& step, Part part, Scratch scratch) {
  HWY_DYNAMIC_DISPATCH(RunSelectPath)(c, step, part, scratch);
}

int64_t select_path_scratch_floats(const SelectPath& how) {
  return how.rank + 2 + how.top_k * static_cast<int64_t>(sizeof(Candidate) / sizeof(float));
}

}  // namespace megalith
#endif
