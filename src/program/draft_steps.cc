#include "program/draft_steps.h"

#include <algorithm>

#include "base/check.h"

namespace megalith {

void DraftSteps::prepare(const StepArgs& step, int block) {
  rows.clear();
  blocks.clear();
  sources_.clear();
  size_t next = 0;  // of step.chosen
  for (size_t r = 0; r < step.runs.size(); ++r) {
    const Run& run = step.runs[r];
    const size_t first = next;
    while (next < step.chosen.size() && step.chosen[next] < run.first_row + run.rows) ++next;
    if (!run.draft) continue;
    const size_t chosen = next - first;
    CHECK(chosen > 0 && step.chosen[next - 1] == run.first_row + run.rows - 1 &&
              (!run.speculative || static_cast<int32_t>(chosen) == run.rows),
          "a draft after {} chosen rows of {}", chosen, run.rows);
    const auto row = static_cast<int32_t>(rows.rows.size());
    rows.runs.push_back({.sequence = run.sequence, .first_row = row, .rows = block});
    rows.rows.resize(rows.rows.size() + static_cast<size_t>(block), {.sequence = run.sequence});
    const auto index = static_cast<int32_t>(blocks.rows.size());
    blocks.runs.push_back({.sequence = run.sequence, .first_row = index, .rows = 1});
    blocks.rows.push_back({.sequence = run.sequence});
    blocks.choose(index, run.draft_argmax ? Sampling{} : step.sampling[next - 1]);
    sources_.push_back({r, first, chosen});
  }
}

void DraftSteps::begin(const StepArgs& step, const float* tokens, int32_t mask, float* accepted) {
  for (size_t j = 0; j < sources_.size(); ++j) {
    const Source& source = sources_[j];
    const Run& run = step.runs[source.run];
    const float* choices = tokens + source.first_chosen;
    int32_t right = 0;
    if (run.speculative) {
      const Row* row = step.rows.data() + run.first_row;
      while (right + 1 < run.rows && static_cast<float>(row[right + 1].token) == choices[right]) ++right;
      if (run.forced >= 0) right = std::min(run.forced, run.rows - 1);
    }
    const float choice = run.speculative ? choices[right] : choices[source.chosen - 1];
    // A choice of -1 (logits that are not finite) ends the request; its guesses are never used.
    const auto anchor = std::max(static_cast<int32_t>(choice), 0);
    const int32_t position = run.first_position + (run.speculative ? right + 1 : run.rows);
    accepted[j] = static_cast<float>(right);
    blocks.rows[j].token = anchor;
    blocks.rows[j].position = blocks.runs[j].first_position = rows.runs[j].first_position = position;
    for (int32_t i = 0; i < rows.runs[j].rows; ++i) {
      Row& row = rows.rows[static_cast<size_t>(rows.runs[j].first_row + i)];
      row.token = i == 0 ? anchor : mask;
      row.position = position + i;
    }
  }
}

const StepArgs& DraftSteps::of(Rows which, const StepArgs& step) const {
  switch (which) {
    case Rows::draft: return rows;
    case Rows::blocks: return blocks;
    case Rows::all:
    case Rows::chosen: break;
  }
  return step;
}

void DraftSteps::advance(const float* tokens) {
  for (size_t j = 0; j < blocks.rows.size(); ++j) {
    blocks.rows[j].token = std::max(static_cast<int32_t>(tokens[j]), 0);
    ++blocks.rows[j].position;
  }
}

}  // namespace megalith
