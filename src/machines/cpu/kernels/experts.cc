#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "machines/cpu/kernels/experts.cc"
#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include <hwy/cache_control.h>
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "base/check.h"
#include "machines/cpu/kernels/kernel.h"
#include "machines/cpu/kernels/math-inl.h"
#include "machines/cpu/kernels/tree-inl.h"

// Products with the experts that rows chose. Weights are MXFP4 panels (weight.h). A sum is one chain of fused
// multiply-adds over the inputs, as with any other matrix: within a group of 32 inputs it is kept in units of the
// group's scale, a power of two, which changes no bit of it and spares multiplying each weight.
//
// Rows are grouped by expert, so that an expert's panel comes from memory once for all of its rows.

#ifndef MEGALITH_EXPERTS_SIZES
#define MEGALITH_EXPERTS_SIZES
namespace megalith {

inline constexpr int64_t kLineBytes = 16;        // the codes of an input: 32 outputs
inline constexpr int64_t kLinesAtOnce = 4;       // a cache line
inline constexpr int64_t kExpertFetch = 2560;    // how far ahead of its use a panel is fetched
inline constexpr int64_t kExpertFar = 6144;      // the same, beyond its page, where hardware stops
inline constexpr int64_t kSumsTogether = 1024;   // (panel, row) pairs of w2 whose sums are held at once
inline constexpr int64_t kExpertRowChunk = 256;  // rows whose sums are held at once
inline constexpr int64_t kTreeLevels = 6;        // up to 32 leaves on a rank, and the one being formed

// A row that chose an expert, and as which of its choices.
struct Choice {
  int32_t row;
  int32_t slot;
};

// Panels of w2 that are formed for packed rows one after the other: the fewer rows, the more.
constexpr int64_t panels_together(int64_t rows) { return std::max<int64_t>(4, kSumsTogether / rows); }

// The choices of some rows, by expert; experts of this rank only. Lives in a worker's scratch.
struct Choices {
  int32_t* begin;  // of each expert, [experts + 1]
  Choice* list;

  bool empty(int64_t expert) const { return begin[expert + 1] == begin[expert]; }
  // The first expert from `expert` on that was chosen, or `end`.
  int64_t next(int64_t expert, int64_t end) const {
    while (expert < end && empty(expert)) ++expert;
    return expert;
  }

  // Floats of scratch for `rows` rows.
  static int64_t floats(int64_t experts, int64_t rows, int64_t top_k) { return experts + 2 + 2 * rows * top_k; }
};

}  // namespace megalith
#endif

HWY_BEFORE_NAMESPACE();
namespace megalith::HWY_NAMESPACE {

inline constexpr int64_t kMaxRows = kN == 16 ? 12 : 4;  // rows that are formed together: two vectors of sums each

// Sorts the choices of rows [first, first + rows) by expert (a counting sort); of an expert's, by row.
Choices GroupChoices(const OpContext& c, int64_t first, int64_t rows, int64_t top_k, float* memory) {
  const Weight& w = *c.weight_info[0];
  const int64_t experts = w.matrices(c.ranks), first_expert = w.first_matrix(c.rank, c.ranks);
  const Choices choices = {reinterpret_cast<int32_t*>(memory), reinterpret_cast<Choice*>(memory + (experts + 2) / 2 * 2)};
  const auto expert_of = [&](int64_t row, int64_t slot) {
    const int64_t expert = static_cast<int64_t>(c.in[1][row * c.in_width[1] + slot]) - first_expert;
    return expert >= 0 && expert < experts ? expert : experts;  // those of other ranks go last
  };
  std::fill_n(choices.begin, experts + 1, 0);
  for (int64_t row = first; row < first + rows; ++row) {
    for (int64_t slot = 0; slot < top_k; ++slot) ++choices.begin[expert_of(row, slot)];
  }
  int32_t total = 0;
  for (int64_t e = 0; e <= experts; ++e) total = choices.begin[e] += total;
  // From the back, so that begin[e] ends where the expert's choices begin.
  for (int64_t row = first + rows - 1; row >= first; --row) {
    for (int64_t slot = 0; slot < top_k; ++slot) {
      choices.list[--choices.begin[expert_of(row, slot)]] = {static_cast<int32_t>(row), static_cast<int32_t>(slot)};
    }
  }
  return choices;
}

// table[index mod kN] in each lane. The instructions look at no more of an index than that; Highway's own look-up asks
// for indices in range, which would cost a mask for each vector of weights.
HWY_INLINE V LookUp(V table, hn::Vec<DU> indices) {
#if HWY_TARGET == HWY_AVX3
  return V{_mm512_permutexvar_ps(indices.raw, table.raw)};
#elif HWY_TARGET == HWY_AVX2
  return V{_mm256_permutevar8x32_ps(table.raw, indices.raw)};
#else
  const auto last = hn::Set(DU(), static_cast<uint32_t>(kN - 1));
  return hn::TableLookupLanes(table, hn::IndicesFromVec(D(), hn::And(indices, last)));
#endif
}

// The values of kN codes, one a lane: low half of each byte, or high half.
struct Codes {
  hn::Vec<DU> words;

  explicit HWY_INLINE Codes(const uint8_t* bytes) : words(hn::PromoteTo(DU(), hn::LoadU(hn::Rebind<uint8_t, D>(), bytes))) {}

  HWY_INLINE V Low() const { return Values(words); }
  HWY_INLINE V High() const { return Values(hn::ShiftRight<4>(words)); }

 private:
  static HWY_INLINE V Values(hn::Vec<DU> codes) {
    const D d;
    HWY_ALIGN static constexpr float kValues[16] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6, -0.0f, -0.5f, -1, -1.5f, -2, -3, -4, -6};
    const V table = hn::Load(d, kValues);
    const V values = LookUp(table, codes);
    if constexpr (kN == 16) return values;
    const auto sign = hn::And(hn::ShiftLeft<28>(codes), hn::Set(DU(), 0x80000000u));
    return hn::BitCast(d, hn::Or(hn::BitCast(DU(), values), sign));
  }
};

// A group's scales for one vector of outputs, and their inverses. A byte is 1 … 254; the inverse of 2^127 is subnormal.
struct Scales {
  V scale, inverse;

  explicit HWY_INLINE Scales(const uint8_t* bytes) {
    const auto exponent = hn::PromoteTo(DU(), hn::LoadU(hn::Rebind<uint8_t, D>(), bytes));
    scale = hn::BitCast(D(), hn::ShiftLeft<23>(exponent));
    const auto inverted = hn::ShiftLeft<23>(hn::Sub(hn::Set(DU(), 254), exponent));
    inverse = hn::BitCast(D(), hn::Max(inverted, hn::Set(DU(), 0x00400000u)));
  }
};

// Whether a group's 32 scales are so near 1 that a sum may be taken into their units and back: from 2^-63 to 2^63.
HWY_INLINE bool NearOne(const uint8_t* scales) {
  const hn::CappedTag<uint8_t, static_cast<size_t>(kPanelOutputs)> d;
  bool near = true;
  for (int64_t i = 0; i < kPanelOutputs; i += static_cast<int64_t>(hn::Lanes(d))) {
    const auto distance = hn::Sub(hn::LoadU(d, scales + i), hn::Set(d, 64));  // wraps around below 64
    near = near && hn::AllTrue(d, hn::Eq(distance, hn::Min(distance, hn::Set(d, 126))));
  }
  return near;
}

// Multiplies sums by their outputs' scales, or the inverses.
template <V Scales::*kWhich, int64_t kRows, int64_t kPanels>
HWY_INLINE void ScaleSums(const uint8_t* const (&groups)[kPanels], V (&low)[kPanels][kRows], V (&high)[kPanels][kRows]) {
  HWY_UNROLL(2)
  for (int64_t p = 0; p < kPanels; ++p) {
    const Scales first(groups[p]), second(groups[p] + 16);
    HWY_UNROLL(12)
    for (int64_t r = 0; r < kRows; ++r) {
      low[p][r] = hn::Mul(low[p][r], first.*kWhich);
      high[p][r] = hn::Mul(high[p][r], second.*kWhich);
    }
  }
}

// Continues the sums of kRows rows over a group of inputs of kPanels panels. x is [kMxGroup, kRows]. Sums are kept in
// units of the scales meanwhile, or else each weight is multiplied by its scale, which gives the same bits.
template <int64_t kRows, int64_t kPanels, bool kInUnits>
HWY_INLINE void ContinueGroup(const uint8_t* const (&groups)[kPanels], const float* x, V (&low)[kPanels][kRows],
                              V (&high)[kPanels][kRows]) {
  const D d;
  if constexpr (kInUnits) ScaleSums<&Scales::inverse>(groups, low, high);
  for (int64_t i = 0; i < kMxGroup; i += kLinesAtOnce) {
    HWY_UNROLL(2)
    for (int64_t p = 0; p < kPanels; ++p) {
      hwy::Prefetch(groups[p] + i * kLineBytes + kExpertFetch);
      __builtin_prefetch(groups[p] + i * kLineBytes + kExpertFar, 0, 2);  // into L2
    }
    HWY_UNROLL(4)
    for (int64_t j = i; j < i + kLinesAtOnce; ++j) {
      HWY_UNROLL(2)
      for (int64_t p = 0; p < kPanels; ++p) {
        const Codes codes(groups[p] + kPanelOutputs + j * kLineBytes);
        V w_low = codes.Low(), w_high = codes.High();
        if constexpr (!kInUnits) {
          w_low = hn::Mul(w_low, Scales(groups[p]).scale);
          w_high = hn::Mul(w_high, Scales(groups[p] + 16).scale);
        }
        HWY_UNROLL(12)
        for (int64_t r = 0; r < kRows; ++r) {
          const V value = hn::Set(d, x[j * kRows + r]);
          low[p][r] = hn::MulAdd(w_low, value, low[p][r]);
          high[p][r] = hn::MulAdd(w_high, value, high[p][r]);
        }
      }
    }
  }
  if constexpr (kInUnits) ScaleSums<&Scales::scale>(groups, low, high);
}

// Sums of kRows rows over `inputs` inputs of kPanels panels, from zero. x is [inputs, kRows], sums [kPanels, kRows, 32].
// Piece p of kVectors is outputs p·kN… and 16 + p·kN….
template <int64_t kRows, int64_t kPanels>
HWY_INLINE void FormSums(const std::array<const uint8_t*, kPanels>& panels, const float* x, int64_t inputs, float* sums) {
  const D d;
  for (int64_t piece = 0; piece < kVectors; ++piece) {
    V low[kPanels][kRows], high[kPanels][kRows];
    HWY_UNROLL(12)
    for (int64_t i = 0; i < kPanels * kRows; ++i) low[i / kRows][i % kRows] = high[i / kRows][i % kRows] = hn::Zero(d);
    for (int64_t k = 0; k < inputs; k += kMxGroup) {
      const uint8_t* groups[kPanels];
      bool in_units = true;
      HWY_UNROLL(2)
      for (int64_t p = 0; p < kPanels; ++p) {
        const uint8_t* group = panels[p] + k / kMxGroup * kMxGroupBytes;
        in_units = NearOne(group) && in_units;
        groups[p] = group + piece * kN;
      }
      if (HWY_LIKELY(in_units)) {
        ContinueGroup<kRows, kPanels, true>(groups, x + k * kRows, low, high);
      } else {
        ContinueGroup<kRows, kPanels, false>(groups, x + k * kRows, low, high);
      }
    }
    HWY_UNROLL(12)
    for (int64_t i = 0; i < kPanels * kRows; ++i) {
      hn::StoreU(low[i / kRows][i % kRows], d, sums + i * 32 + piece * kN);
      hn::StoreU(high[i / kRows][i % kRows], d, sums + i * 32 + 16 + piece * kN);
    }
  }
}

// Begins to fetch what comes after the panels that are read now: the next expert lies anywhere.
HWY_INLINE void FetchStart(const uint8_t* panel) {
  for (int64_t i = 0; i < kExpertFar; i += 64) __builtin_prefetch(panel + i, 0, 2);  // into L2
}

// Two panels for `rows` rows, at most kRows; together where that takes to keep enough chains in flight.
template <int64_t kRows>
HWY_INLINE void FormPair(const uint8_t* a, const uint8_t* b, const float* x, int64_t rows, int64_t inputs, float* sums) {
  if constexpr (kRows > 0) {
    if (rows < kRows) return FormPair<kRows - 1>(a, b, x, rows, inputs, sums);
    if constexpr (kRows <= kMaxRows / 4) {
      FormSums<kRows, 2>({a, b}, x, inputs, sums);
    } else {
      FormSums<kRows, 1>({a}, x, inputs, sums);
      FormSums<kRows, 1>({b}, x, inputs, sums + kRows * 32);
    }
  }
}

// Lays what `count` choices have of their rows out as [input, choice]. x_of(choice) gives a choice's first input.
template <class F>
HWY_INLINE const float* PackChoices(const Choice* choices, int64_t count, int64_t inputs, F x_of, float* packed) {
  if (count == 1) return x_of(choices[0]);
  for (int64_t r = 0; r < count; ++r) {
    const float* x = x_of(choices[r]);
    for (int64_t k = 0; k < inputs; ++k) packed[k * count + r] = x[k];
  }
  return packed;
}

// Panels [panels) of an expert's w1 and w3, for all rows that chose it.
void GateExpert(const OpContext& c, const Choices& choices, int64_t expert, Range panels, float* memory) {
  const auto& how = c.op->get<ExpertGate>();
  const Weight& w = *c.weight_info[0];
  const int64_t inputs = c.in_width[0], outputs = c.out_width / how.top_k;
  const int64_t panel_bytes = w.panel_bytes(c.ranks), first_panel = expert * w.matrix_panels(c.ranks);
  const auto* w1 = reinterpret_cast<const uint8_t*>(c.weight[0]);
  const auto* w3 = reinterpret_cast<const uint8_t*>(c.weight[1]);
  float *sums = memory, *packed = memory + 2 * kMaxRows * 32;
  for (int64_t at = choices.begin[expert]; at < choices.begin[expert + 1]; at += kMaxRows) {
    const Choice* group = choices.list + at;
    const int64_t count = std::min<int64_t>(kMaxRows, choices.begin[expert + 1] - at);
    const float* x = PackChoices(
        group, count, inputs, [&](Choice choice) { return c.in[0] + choice.row * inputs; }, packed);
    for (int64_t panel = panels.begin; panel < panels.end; ++panel) {
      const int64_t offset = (first_panel + panel) * panel_bytes;
      FormPair<kMaxRows>(w1 + offset, w3 + offset, x, count, inputs, sums);
      for (int64_t r = 0; r < count; ++r) {
        float *gate = sums + r * 32, *up = sums + (count + r) * 32;
        for (int64_t i = 0; i < 32; i += kN) {
          hn::StoreU(SituOf(hn::LoadU(D(), gate + i), hn::LoadU(D(), up + i), how.situ.beta, how.situ.linear_beta), D(),
                     gate + i);
        }
        float* out = c.out + group[r].row * c.out_width + group[r].slot * outputs + panel * 32;
        std::copy_n(gate, std::min<int64_t>(32, outputs - panel * 32), out);
      }
    }
  }
}

// Choices of other ranks' experts give zeros.
void ClearOthers(const OpContext& c, Range rows, int64_t top_k) {
  const Weight& w = *c.weight_info[0];
  const int64_t outputs = c.out_width / top_k, first = w.first_matrix(c.rank, c.ranks);
  for (int64_t row = rows.begin; row < rows.end; ++row) {
    for (int64_t slot = 0; slot < top_k; ++slot) {
      const int64_t expert = static_cast<int64_t>(c.in[1][row * c.in_width[1] + slot]) - first;
      if (expert < 0 || expert >= w.matrices(c.ranks)) {
        std::fill_n(c.out + row * c.out_width + slot * outputs, outputs, 0.0f);
      }
    }
  }
}

// A worker's part: of the panels of all chosen experts, one after the other, an equal share.
void RunExpertGate(const OpContext& c, const StepArgs& step, Part part, Scratch scratch) {
  const int64_t top_k = c.op->get<ExpertGate>().top_k, rows = c.rows(step);
  const Weight& w = *c.weight_info[0];
  const int64_t experts = w.matrices(c.ranks), panels = w.matrix_panels(c.ranks);
  ClearOthers(c, part.of(rows), top_k);
  const Choices choices = GroupChoices(c, 0, rows, top_k, scratch.floats);
  float* memory = scratch.floats + Choices::floats(experts, rows, top_k);
  int64_t chosen = 0;
  for (int64_t e = 0; e < experts; ++e) chosen += !choices.empty(e);
  const Range mine = part.of(chosen * panels);
  int64_t before = 0;  // panels of the chosen experts before this one
  for (int64_t e = choices.next(0, experts), next; e < experts; e = next, before += panels) {
    next = choices.next(e + 1, experts);
    const Range share = {std::max<int64_t>(mine.begin - before, 0), std::min(mine.end - before, panels)};
    if (share.begin >= share.end) continue;
    if (next < experts && mine.end > before + panels) {
      for (const std::byte* weights : c.weight) {
        FetchStart(reinterpret_cast<const uint8_t*>(weights) + next * panels * w.panel_bytes(c.ranks));
      }
    }
    GateExpert(c, choices, e, share, memory);
  }
}

// What a task of expert_down works in.
struct DownMemory {
  float* levels;  // [level, panel, row, 32]
  float* sums;    // of two panels
  float* packed;
};

// Adds one segment of an expert's product, times the choices' weights, to leaf [panel, row, 32].
void AddExpert(const OpContext& c, const Choices& choices, int64_t expert, Range panels, int64_t segment, Range rows,
               const DownMemory& memory, float* leaf) {
  const auto& how = c.op->get<ExpertDown>();
  const Weight& w = *c.weight_info[0];
  const int64_t inputs = c.in_width[0] / how.top_k, length = inputs / how.segments;
  const int64_t panel_bytes = w.panel_bytes(c.ranks);
  const auto* weights = reinterpret_cast<const uint8_t*>(c.weight[0]) + expert * w.matrix_panels(c.ranks) * panel_bytes +
                        dtype_bytes(DType::mxfp4, segment * length * kPanelOutputs);
  const int64_t experts = w.matrices(c.ranks), next = choices.next(expert + 1, experts);
  if (next < experts) FetchStart(weights + ((next - expert) * w.matrix_panels(c.ranks) + panels.begin) * panel_bytes);
  for (int64_t at = choices.begin[expert]; at < choices.begin[expert + 1]; at += kMaxRows) {
    const Choice* group = choices.list + at;
    const int64_t count = std::min<int64_t>(kMaxRows, choices.begin[expert + 1] - at);
    const float* x = PackChoices(
        group, count, length,
        [&](Choice choice) { return c.in[0] + choice.row * c.in_width[0] + choice.slot * inputs + segment * length; },
        memory.packed);
    for (int64_t panel = panels.begin; panel < panels.end; panel += 2) {
      const int64_t pair = std::min<int64_t>(2, panels.end - panel);
      const uint8_t* first = weights + panel * panel_bytes;
      FormPair<kMaxRows>(first, first + (pair - 1) * panel_bytes, x, count, length, memory.sums);
      for (int64_t i = 0; i < pair * count; ++i) {
        const Choice choice = group[i % count];
        const V share = hn::Set(D(), c.in[1][choice.row * c.in_width[1] + how.top_k + choice.slot]);
        float* to = leaf + ((panel - panels.begin + i / count) * rows.size() + choice.row - rows.begin) * 32;
        for (int64_t j = 0; j < 32; j += kN) {
          hn::StoreU(hn::MulAdd(share, hn::LoadU(D(), memory.sums + i * 32 + j), hn::LoadU(D(), to + j)), D(), to + j);
        }
      }
    }
  }
}

// Panels [panels), at most panels_together(rows), of all rows of a chunk: a leaf of the tree for each group and segment.
void DownPanels(const OpContext& c, const Choices& choices, Range panels, Range rows, const DownMemory& memory) {
  const auto& how = c.op->get<ExpertDown>();
  const int64_t per_group = c.weight_info[0]->matrices(c.ranks) / how.groups;
  const int64_t size = panels.size() * rows.size() * 32;
  int64_t level = 0;
  for (int64_t leaf = 0; leaf < how.groups * how.segments; ++leaf) {
    float* sums = memory.levels + level * size;
    std::fill_n(sums, size, 0.0f);
    const int64_t first = leaf / how.segments * per_group, end = first + per_group;
    for (int64_t expert = choices.next(first, end); expert < end; expert = choices.next(expert + 1, end)) {
      AddExpert(c, choices, expert, panels, leaf % how.segments, rows, memory, sums);
    }
    level = JoinSegment(memory.levels, level, leaf, size);
  }
  for (int64_t i = 0; i < panels.size() * rows.size(); ++i) {
    const int64_t panel = panels.begin + i / rows.size(), row = rows.begin + i % rows.size();
    std::copy_n(memory.levels + i * 32, std::min<int64_t>(32, c.out_width - panel * 32),
                c.out + row * c.out_width + panel * 32);
  }
}

void RunExpertDown(const OpContext& c, const StepArgs& step, Part part, Scratch scratch) {
  const auto& how = c.op->get<ExpertDown>();
  const Range mine = part.of(c.weight_info[0]->matrix_panels(c.ranks));
  for (int64_t row = 0; row < c.rows(step); row += kExpertRowChunk) {
    const Range rows = {row, std::min(c.rows(step), row + kExpertRowChunk)};
    const Choices choices = GroupChoices(c, rows.begin, rows.size(), how.top_k, scratch.floats);
    const int64_t together = panels_together(rows.size());
    DownMemory memory;
    memory.levels = scratch.floats + Choices::floats(c.weight_info[0]->matrices(c.ranks), rows.size(), how.top_k);
    memory.sums = memory.levels + kTreeLevels * together * rows.size() * 32;
    memory.packed = memory.sums + 2 * kMaxRows * 32;
    for (int64_t panel = mine.begin; panel < mine.end; panel += together) {
      DownPanels(c, choices, {panel, std::min(mine.end, panel + together)}, rows, memory);
    }
  }
}

}  // namespace megalith::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace megalith {

HWY_EXPORT(RunExpertGate);
HWY_EXPORT(RunExpertDown);

void run_expert_gate(const OpContext& c, const StepArgs& step, Part part, Scratch scratch) {
  HWY_DYNAMIC_DISPATCH(RunExpertGate)(c, step, part, scratch);
}
void run_expert_down(const OpContext& c, const StepArgs& step, Part part, Scratch scratch) {
  HWY_DYNAMIC_DISPATCH(RunExpertDown)(c, step, part, scratch);
}

namespace {

constexpr int64_t kMostRowsTogether = 12;  // of any instruction set

}  // namespace

// The choices; sums of two panels; a group of rows.
int64_t expert_gate_scratch_floats(const ExpertGate& how, int64_t experts, int64_t inputs, int64_t rows) {
  return Choices::floats(experts, rows, how.top_k) + kMostRowsTogether * (2 * 32 + inputs);
}

// The same, and sums of a chunk of rows for every level of the tree.
int64_t expert_down_scratch_floats(const ExpertDown& how, int64_t experts, int64_t inputs, int64_t rows) {
  const int64_t leaves = how.groups * how.segments, chunk = std::min(rows, kExpertRowChunk);
  CHECK(std::has_single_bit(static_cast<uint64_t>(leaves)) && leaves <= 32, "{} leaves", leaves);
  return Choices::floats(experts, chunk, how.top_k) + kTreeLevels * std::max(kSumsTogether, 4 * chunk) * 32 +
         kMostRowsTogether * (2 * 32 + inputs / how.segments);
}

}  // namespace megalith
#endif
