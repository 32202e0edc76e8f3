#pragma once

#include <cstdint>

#include "program/schedule.h"

namespace megalith {

// Attention is summed in chunks of this many positions, each by itself. The chunks that a row sees are dealt to spans,
// a span's chunks are joined in order, and so are the spans: one order of sums, and work for several workers in a
// single row. Part of the contract on bits.
inline constexpr int64_t kAttentionChunk = 256;
inline constexpr int64_t kAttentionSpans = 8;

// The positions of span `span` of a row that sees `positions`; may be none.
constexpr Range attention_span(int64_t positions, int64_t span) {
  const int64_t chunks = (positions + kAttentionChunk - 1) / kAttentionChunk;
  const auto border = [&](int64_t s) {
    const int64_t position = chunks * s / kAttentionSpans * kAttentionChunk;
    return position < positions ? position : positions;
  };
  return {border(span), border(span + 1)};
}

// What a span gives for a head: Σ e^(score - max) · value, dim floats, then the max, then Σ e^(score - max). A row of
// partial sums is [span, head, dim + 2].
constexpr int64_t partial_width(int64_t heads, int64_t dim) {
  return kAttentionSpans * heads * (dim + 2);
}

}  // namespace megalith
