#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "machines/cpu/kernels/matmul.cc"
#include <algorithm>
#include <bit>

#include <hwy/cache_control.h>
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "base/check.h"
#include "machines/cpu/kernels/kernel.h"
#include "machines/cpu/kernels/tree-inl.h"

// y[row, output] = Σ_k W[output, k] x[row, k]. A lane is an output, and an output is one chain of fused multiply-adds
// over k in order, from zero: the same chain for one row and for five hundred, for eight lanes and for sixteen. Where
// the inputs are cut into segments (Matmul::segments), each has its own chain, and a binary tree joins them.
//
// Few rows stream panels straight from memory, several at once where that takes to keep enough chains in flight. Many
// rows are laid out by input first, a group of them side by side; a block of inputs of a panel, which stays in L1, then
// passes through all groups, whose sums stay in registers.

#ifndef MEGALITH_MATMUL_SIZES
#define MEGALITH_MATMUL_SIZES
namespace megalith {
inline constexpr int64_t kRowChunk = 96;      // rows that pass over all of a worker's panels before the next rows do
inline constexpr int64_t kInputBlock = 128;   // inputs of a panel that stay in L1, beside the next: 16 kB in bf16
inline constexpr int64_t kFetchBytes = 3072;  // how far ahead of its use a panel is fetched
inline constexpr int64_t kFarBytes =
    8192;  // the same where one panel alone is read: beyond its page, where hardware stops
inline constexpr int64_t kMaxLevels = 6;  // of the tree: up to 32 segments on a rank, and the one being formed
}  // namespace megalith
#endif

HWY_BEFORE_NAMESPACE();
namespace megalith::HWY_NAMESPACE {

// A panel's line holds 32 outputs (weight.h). Piece p, of 16 / kN, is two vectors: outputs p·kN… and 16 + p·kN….
inline constexpr int64_t kPieces = 16 / kN;
inline constexpr int64_t kMaxGroup = kN == 16 ? 12 : 6;  // rows that are formed together: two vectors of sums each
inline constexpr int64_t kFew = kN == 16 ? 12 : 3;       // rows whose sums of a whole line of outputs stay in registers

// Panels that `rows` rows read at once: at least eight chains, as many as fused multiply-adds take to keep busy.
constexpr int64_t PanelsAtOnce(int64_t rows) {
  if (kN == 16) return rows <= 2 ? 4 : rows <= 4 ? 3 : rows <= 6 ? 2 : 1;
  return rows == 1 ? 2 : 1;
}

struct Pair {
  V low, high;
};

// Expands a piece of a line exactly to f32.
template <class T>
HWY_INLINE Pair Expand(const T* line, int64_t piece) {
  const D d;
  if constexpr (sizeof(T) == 2) {
    const auto words = hn::LoadU(DU(), reinterpret_cast<const uint32_t*>(line) + piece * kN);
    return {hn::BitCast(d, hn::ShiftLeft<16>(words)), hn::BitCast(d, hn::And(words, hn::Set(DU(), 0xffff0000u)))};
  } else {
    return {hn::LoadU(d, line + piece * kN), hn::LoadU(d, line + 16 + piece * kN)};
  }
}

// What is fetched while a block of inputs passes: step bytes for each input, from `from` on.
struct Fetch {
  const char* from;
  int64_t step;
};

// Continues the chains of kRows rows over `inputs` inputs of a panel. sums is [kRows, 32], x is [inputs, kRows].
template <class T, int64_t kRows>
HWY_INLINE void ContinueRows(const T* panel, int64_t piece, const float* x, int64_t inputs, Fetch fetch, float* sums) {
  const D d;
  V low[kRows], high[kRows];
  float* s = sums + piece * kN;
  HWY_UNROLL(12)
  for (int64_t r = 0; r < kRows; ++r) {
    low[r] = hn::LoadU(d, s + r * 32);
    high[r] = hn::LoadU(d, s + r * 32 + 16);
  }
  for (int64_t k = 0; k < inputs; ++k) {
    hwy::Prefetch(fetch.from + k * fetch.step);
    const Pair w = Expand(panel + k * 32, piece);
    HWY_UNROLL(12)
    for (int64_t r = 0; r < kRows; ++r) {
      const V value = hn::Set(d, x[k * kRows + r]);
      low[r] = hn::MulAdd(w.low, value, low[r]);
      high[r] = hn::MulAdd(w.high, value, high[r]);
    }
  }
  HWY_UNROLL(12)
  for (int64_t r = 0; r < kRows; ++r) {
    hn::StoreU(low[r], d, s + r * 32);
    hn::StoreU(high[r], d, s + r * 32 + 16);
  }
}

// The same for `rows` rows, at most kRows.
template <class T, int64_t kRows>
HWY_INLINE void ContinueGroup(const T* panel, int64_t piece, const float* x, int64_t rows, int64_t inputs, Fetch fetch,
                              float* sums) {
  if constexpr (kRows > 0) {
    if (rows == kRows) return ContinueRows<T, kRows>(panel, piece, x, inputs, fetch, sums);
    ContinueGroup<T, kRows - 1>(panel, piece, x, rows, inputs, fetch, sums);
  }
}

// Rows dealt to groups as equal as can be.
struct Groups {
  int64_t rows;
  int64_t count;

  explicit Groups(int64_t n) : rows(n), count((n + kMaxGroup - 1) / kMaxGroup) {}
  Range operator[](int64_t group) const { return {rows * group / count, rows * (group + 1) / count}; }
};

// The inputs of a product: what its head has of each row.
struct Input {
  const float* x;
  int64_t stride;  // floats from a row to the next
  int64_t size;
};

// Lays rows out as [group][input, row of the group]; a group begins at its first row · inputs.
void PackRows(const Input& in, int64_t first_row, const Groups& groups, float* packed) {
  const int64_t inputs = in.size;
  for (int64_t g = 0; g < groups.count; ++g) {
    const Range rows = groups[g];
    float* out = packed + rows.begin * inputs;
    for (int64_t r = 0; r < rows.size(); ++r) {
      const float* row = in.x + (first_row + rows.begin + r) * in.stride;
      for (int64_t k = 0; k < inputs; ++k) out[k * rows.size() + r] = row[k];
    }
  }
}

// A block of a panel's inputs, from input `first` of the row, through all groups. Every pass over the block fetches its
// share of the next one, which lies behind it, so that memory and arithmetic work at the same time.
template <class T>
HWY_INLINE void ContinueBlock(const T* block, const float* packed, const Groups& groups, int64_t row_inputs,
                              int64_t first, int64_t inputs, float* sums) {
  constexpr int64_t kLine = 32 * sizeof(T);
  const int64_t passes = std::min(groups.count * kPieces, kLine);
  const auto* next = reinterpret_cast<const char*>(block + inputs * 32);
  for (int64_t g = 0; g < groups.count; ++g) {
    const Range rows = groups[g];
    const float* x = packed + rows.begin * row_inputs + first * rows.size();
    for (int64_t piece = 0; piece < kPieces; ++piece) {
      const int64_t pass = std::min(g * kPieces + piece, passes - 1);
      const Fetch fetch = {next + pass * inputs * kLine / passes, kLine / passes};
      ContinueGroup<T, kMaxGroup>(block, piece, x, rows.size(), inputs, fetch, sums + rows.begin * 32);
    }
  }
}

// Forms sums of kRows rows for kPanels panels at once over `inputs` inputs: a segment, from zero. x is [inputs, kRows],
// sums is [panels, kRows, 32].
template <class T, int64_t kRows, int64_t kPanels>
HWY_INLINE void StreamRows(const T* panels, int64_t panel_stride, const float* x, int64_t inputs, float* sums) {
  const D d;
  constexpr int64_t kAhead = kFetchBytes / (kPanels > 2 ? 2 : 1) / static_cast<int64_t>(sizeof(T));
  constexpr int64_t kLines = kPanels * kPieces;
  V low[kLines][kRows], high[kLines][kRows], value[kRows];
  HWY_UNROLL(16)
  for (int64_t i = 0; i < kLines * kRows; ++i) low[i / kRows][i % kRows] = high[i / kRows][i % kRows] = hn::Zero(d);
  for (int64_t k = 0; k < inputs; ++k) {
    HWY_UNROLL(12)
    for (int64_t r = 0; r < kRows; ++r) value[r] = hn::Set(d, x[k * kRows + r]);
    HWY_UNROLL(8)
    for (int64_t l = 0; l < kLines; ++l) {
      const T* line = panels + (l / kPieces) * panel_stride + k * 32;
      if (l % kPieces == 0) {
        hwy::Prefetch(line + kAhead);
        if (kPanels == 1) __builtin_prefetch(line + kFarBytes / sizeof(T), 0, 2);  // into L2
      }
      const Pair w = Expand(line, l % kPieces);
      HWY_UNROLL(12)
      for (int64_t r = 0; r < kRows; ++r) {
        low[l][r] = hn::MulAdd(w.low, value[r], low[l][r]);
        high[l][r] = hn::MulAdd(w.high, value[r], high[l][r]);
      }
    }
  }
  HWY_UNROLL(16)
  for (int64_t i = 0; i < kLines * kRows; ++i) {
    const int64_t l = i / kRows, r = i % kRows;
    float* s = sums + (l / kPieces * kRows + r) * 32 + l % kPieces * kN;
    hn::StoreU(low[l][r], d, s);
    hn::StoreU(high[l][r], d, s + 16);
  }
}

HWY_INLINE void CopyOutputs(const float* sums, float* out, int64_t outputs) {
  for (int64_t i = 0; i < outputs; ++i) out[i] = sums[i];
}

// Number of outputs that panel `panel` has without its padding.
HWY_INLINE int64_t OutputsOf(const OpContext& c, int64_t panel) {
  return std::min<int64_t>(32, c.out_width - panel * 32);
}

// Panels [panel, panel + kPanels) of kRows rows, from their first row on; x is [inputs, kRows].
template <class T, int64_t kRows, int64_t kPanels>
HWY_INLINE void FormPanels(const OpContext& c, int64_t inputs, int64_t panel, int64_t segments, const float* x,
                           float* levels) {
  const int64_t segment_inputs = inputs / segments;
  const T* weights = reinterpret_cast<const T*>(c.weight[0]) + panel * inputs * 32;
  constexpr int64_t kSize = kPanels * kRows * 32;
  int64_t level = 0;
  for (int64_t segment = 0; segment < segments; ++segment) {
    const int64_t first = segment * segment_inputs;
    StreamRows<T, kRows, kPanels>(weights + first * 32, inputs * 32, x + first * kRows, segment_inputs,
                                  levels + level * kSize);
    level = JoinSegment(levels, level, segment, kSize);
  }
  for (int64_t i = 0; i < kPanels * kRows; ++i) {
    const int64_t p = panel + i / kRows;
    CopyOutputs(levels + i * 32, c.out + i % kRows * c.out_width + p * 32, OutputsOf(c, p));
  }
}

// All rows of a step of at most kRows rows.
template <class T, int64_t kRows>
void FewRows(const OpContext& c, const Input& in, int64_t rows, Range panels, int64_t segments, float* levels,
             float* packed) {
  if constexpr (kRows > 0) {
    if (rows < kRows) return FewRows<T, kRows - 1>(c, in, rows, panels, segments, levels, packed);
    constexpr int64_t kPanels = PanelsAtOnce(kRows);
    const float* x = in.x;
    if (kRows > 1) {
      PackRows(in, 0, Groups(kRows), packed);
      x = packed;
    }
    int64_t panel = panels.begin;
    for (; panel + kPanels <= panels.end; panel += kPanels)
      FormPanels<T, kRows, kPanels>(c, in.size, panel, segments, x, levels);
    for (; panel < panels.end; ++panel) FormPanels<T, kRows, 1>(c, in.size, panel, segments, x, levels);
  }
}

template <class T>
void ManyRows(const OpContext& c, const Input& in, Range rows, Range panels, int64_t segments, float* levels,
              float* packed) {
  const int64_t inputs = in.size;
  const int64_t segment_inputs = inputs / segments;
  const int64_t size = rows.size() * 32;
  const T* weights = reinterpret_cast<const T*>(c.weight[0]);
  const Groups groups(rows.size());
  PackRows(in, rows.begin, groups, packed);
  for (int64_t panel = panels.begin; panel < panels.end; ++panel) {
    int64_t level = 0;
    for (int64_t segment = 0; segment < segments; ++segment) {
      float* sums = levels + level * size;
      std::fill(sums, sums + size, 0.0f);
      for (int64_t k = 0; k < segment_inputs; k += kInputBlock) {
        const int64_t first = segment * segment_inputs + k;
        ContinueBlock(weights + (panel * inputs + first) * 32, packed, groups, inputs, first,
                      std::min(kInputBlock, segment_inputs - k), sums);
      }
      level = JoinSegment(levels, level, segment, size);
    }
    for (int64_t r = 0; r < rows.size(); ++r) {
      CopyOutputs(levels + r * 32, c.out + (rows.begin + r) * c.out_width + panel * 32, OutputsOf(c, panel));
    }
  }
}

template <class T>
void MatmulOf(const OpContext& c, const Input& in, int64_t rows, Range panels, float* levels) {
  const int64_t segments = c.op->get<Matmul>().segments;
  float* packed = levels + kMaxLevels * kRowChunk * 32;
  if (rows <= kFew) return FewRows<T, kFew>(c, in, rows, panels, segments, levels, packed);
  for (int64_t row = 0; row < rows; row += kRowChunk) {
    ManyRows<T>(c, in, {row, std::min(rows, row + kRowChunk)}, panels, segments, levels, packed);
  }
}

// Head by head; mostly there is one.
template <class T>
void MatmulOfHeads(const OpContext& c, int64_t rows, Range panels, float* levels) {
  const Heads& heads = c.op->get<Matmul>().heads;
  const int64_t panels_each = c.weight_info[0]->panels(c.ranks) / heads.count;
  for (int64_t panel = panels.begin; panel < panels.end;) {
    const int64_t head = panel / panels_each, end = std::min((head + 1) * panels_each, panels.end);
    const Input in = {c.in[0] + heads.offset + head * heads.stride, c.in_width[0], heads.dim};
    MatmulOf<T>(c, in, rows, {panel, end}, levels);
    panel = end;
  }
}

void RunMatmul(const OpContext& c, const StepArgs& step, Part part, Scratch scratch) {
  const Range panels = part.of(c.weight_info[0]->panels(c.ranks));
  if (c.weight_info[0]->dtype == DType::bf16) {
    MatmulOfHeads<uint16_t>(c, c.rows(step), panels, scratch.floats);
  } else {
    MatmulOfHeads<float>(c, c.rows(step), panels, scratch.floats);
  }
}

}  // namespace megalith::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace megalith {

HWY_EXPORT(RunMatmul);

void run_matmul(const OpContext& c, const StepArgs& step, Part part, Scratch scratch) {
  HWY_DYNAMIC_DISPATCH(RunMatmul)(c, step, part, scratch);
}

// Sums of a chunk of rows, for every level of the tree, and the chunk itself.
int64_t matmul_scratch_floats(const Matmul& how) {
  CHECK(std::has_single_bit(static_cast<uint64_t>(how.segments)) && how.segments <= 32, "{} segments", how.segments);
  return kMaxLevels * kRowChunk * 32 + kRowChunk * how.heads.dim;
}

}  // namespace megalith
#endif
