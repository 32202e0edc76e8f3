#include "weights/tape.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <functional>
#include <numeric>

#include <fmt/ranges.h>

#include "base/check.h"
#include "base/error.h"
#include "weights/mxfp4_panels.h"

namespace megalith {

namespace {

// Inputs that are packed at a time. Each row is read in pieces of several cache lines, so that the 32 streams of a
// panel keep the prefetchers going, while the words of a chunk stay in L1 and L2 until they are written as lines.
constexpr int64_t kChunkInputs = 256;
// Without the extra words all rows of a chunk would fall into the same few cache sets.
constexpr int64_t kChunkStride = kChunkInputs + 16;

using Words4 = uint32_t __attribute__((vector_size(16)));

Words4 load4(const uint32_t* p) {
  Words4 v;
  std::memcpy(&v, p, sizeof v);
  return v;
}

void store4(Words4 v, uint32_t* p) {
  std::memcpy(p, &v, sizeof v);
}

// Indices of a dimension that belong to a rank, as runs in the whole dimension, in the rank's order.
struct Run {
  int64_t begin = 0;
  int64_t size = 0;
};

std::vector<Run> runs_of(const Weight& weight, Split::Axis axis, int64_t whole, int rank, int ranks) {
  if (weight.split.axis != axis) return {{0, whole}};
  std::vector<Run> runs;
  int64_t before = 0;
  const int part = weight.part_rank(rank, ranks), parts = weight.part_ranks(ranks);
  for (const Block& block : weight.split.blocks) {
    runs.push_back({before + block.begin(part, parts), block.rank_size(parts)});
    before += block.size;
  }
  CHECK(before == whole, "{}: blocks cover {} of {} indices", weight.name, before, whole);
  return runs;
}

// The place in the whole dimension of a rank's index.
int64_t whole_index(const std::vector<Run>& runs, int64_t index) {
  for (const Run& run : runs) {
    if (index < run.size) return run.begin + index;
    index -= run.size;
  }
  CHECK(false, "index {} beyond the rank's part", index);
}

// A tensor of the checkpoint as rows, and the part of it that a rank has.
struct Source {
  const std::byte* data = nullptr;
  DType dtype = DType::bf16;
  int64_t row_elements = 0;
  std::vector<Run> outputs, inputs;
  int64_t head_size = 0;  // rows of a head, where only some of them are wanted
  HeadRows head_rows;

  const std::byte* row(int64_t output) const {
    if (head_size > 0) output = output / head_rows.count * head_size + head_rows.first + output % head_rows.count;
    return data + whole_index(outputs, output) * row_elements * dtype_bytes(dtype);
  }
};

Source open_source(const Checkpoint& checkpoint, const Weight& weight, int rank, int ranks) {
  const TensorInfo info = checkpoint.info(weight.name);
  CHECK(info.shape == weight.shape, "{}: [{}] in the checkpoint, [{}] in the program", weight.name,
        fmt::join(info.shape, ", "), fmt::join(weight.shape, ", "));
  const auto& shape = weight.shape;
  const int64_t rows = shape.empty() ? 1 : shape[0];
  const int64_t row_elements =
      shape.empty() ? 1 : std::accumulate(shape.begin() + 1, shape.end(), int64_t{1}, std::multiplies<>());
  return {checkpoint.data(weight.name).data(),
          info.dtype,
          row_elements,
          runs_of(weight, Split::Axis::outputs, rows - weight.zero_tail, rank, ranks),
          runs_of(weight, Split::Axis::inputs, row_elements, rank, ranks),
          weight.head_rows.heads > 0 ? rows / weight.head_rows.heads : 0,
          weight.head_rows};
}

// Tensors of a file may begin at any byte, so elements are loaded by memcpy.
template <class T>
T load(const std::byte* data, int64_t i) {
  T value;
  std::memcpy(&value, data + i * static_cast<int64_t>(sizeof value), sizeof value);
  return value;
}

// The bits of `n` elements as f32.
void expand(const std::byte* data, DType dtype, int64_t n, uint32_t* out) {
  switch (dtype) {
    case DType::bf16:
      for (int64_t i = 0; i < n; ++i) out[i] = uint32_t{load<uint16_t>(data, i)} << 16;
      return;
    case DType::f16:
      for (int64_t i = 0; i < n; ++i) out[i] = std::bit_cast<uint32_t>(f16_to_f32(load<uint16_t>(data, i)));
      return;
    case DType::f32:
      std::memcpy(out, data, static_cast<size_t>(n) * 4);
      return;
    case DType::i64:
      for (int64_t i = 0; i < n; ++i) out[i] = std::bit_cast<uint32_t>(static_cast<float>(load<int64_t>(data, i)));
      return;
    case DType::i32:
    case DType::u8:
    case DType::mxfp4:
      break;
  }
  CHECK(false, "{} is no number format of weights", dtype_name(dtype));
}

// The u32 words of a bf16 line: output j below, output 16 + j above. Null is a row of zeros.
void join_halves(const std::byte* low, const std::byte* high, int64_t n, uint32_t* out) {
  static constexpr std::array<std::byte, kChunkInputs* 2> kZeros = {};
  const std::byte* a = low ? low : kZeros.data();
  const std::byte* b = high ? high : kZeros.data();
  for (int64_t i = 0; i < n; ++i) out[i] = load<uint16_t>(a, i) | uint32_t{load<uint16_t>(b, i)} << 16;
}

// Writes `n` lines of kWords words: word j of line i is rows[j][i].
template <int kWords>
void write_lines(const uint32_t (*rows)[kChunkStride], int64_t n, uint32_t* out) {
  int64_t i = 0;
  for (; i + 4 <= n; i += 4) {
    for (int j = 0; j < kWords; j += 4) {
      const Words4 a = load4(rows[j] + i), b = load4(rows[j + 1] + i);
      const Words4 c = load4(rows[j + 2] + i), d = load4(rows[j + 3] + i);
      const Words4 ab_low = __builtin_shufflevector(a, b, 0, 4, 1, 5),
                   ab_high = __builtin_shufflevector(a, b, 2, 6, 3, 7);
      const Words4 cd_low = __builtin_shufflevector(c, d, 0, 4, 1, 5),
                   cd_high = __builtin_shufflevector(c, d, 2, 6, 3, 7);
      uint32_t* line = out + i * kWords + j;
      store4(__builtin_shufflevector(ab_low, cd_low, 0, 1, 4, 5), line);
      store4(__builtin_shufflevector(ab_low, cd_low, 2, 3, 6, 7), line + kWords);
      store4(__builtin_shufflevector(ab_high, cd_high, 0, 1, 4, 5), line + 2 * kWords);
      store4(__builtin_shufflevector(ab_high, cd_high, 2, 3, 6, 7), line + 3 * kWords);
    }
  }
  for (; i < n; ++i) {
    for (int j = 0; j < kWords; ++j) out[i * kWords + j] = rows[j][i];
  }
}

using PanelRows = std::array<const std::byte*, kPanelOutputs>;  // null: beyond the last output

// Packs inputs [first, first + n) of a panel, n at most kChunkInputs.
void pack_bf16(const PanelRows& rows, int64_t first, int64_t n, uint32_t* out) {
  alignas(64) uint32_t words[16][kChunkStride];
  const auto at = [&](int j) { return rows[j] ? rows[j] + first * 2 : nullptr; };
  for (int j = 0; j < 16; ++j) join_halves(at(j), at(16 + j), n, words[j]);
  write_lines<16>(words, n, out);
}

void pack_f32(const PanelRows& rows, DType dtype, int64_t first, int64_t n, uint32_t* out) {
  alignas(64) uint32_t words[32][kChunkStride];
  for (int j = 0; j < 32; ++j) {
    if (rows[j]) {
      expand(rows[j] + first * dtype_bytes(dtype), dtype, n, words[j]);
    } else {
      std::fill_n(words[j], n, 0);
    }
  }
  write_lines<32>(words, n, out);
}

// Asks for bytes of all rows, to be read soon. The processor's own prefetchers stop at a piece's and a page's end.
void fetch(const PanelRows& rows, int64_t byte, int64_t bytes) {
  constexpr int64_t kLine = 64;
  for (const std::byte* row : rows) {
    for (int64_t at = byte; row && at < byte + bytes; at += kLine) __builtin_prefetch(row + at);
  }
}

// What lies behind a vector's numbers must be zeros, or the vector is not what the model takes it for.
void check_tail(const Source& source, const Weight& weight) {
  const int64_t size = weight.shape[0];
  for (int64_t i = size - weight.zero_tail; i < size; ++i) {
    uint32_t bits = 0;
    expand(source.data + i * dtype_bytes(source.dtype), source.dtype, 1, &bits);
    if ((bits << 1) == 0) continue;
    throw Error({.where = weight.name,
                 .expected = fmt::format("{} numbers, and zeros after them", size - weight.zero_tail),
                 .found = fmt::format("{} at index {}", std::bit_cast<float>(bits), i),
                 .next = "The checkpoint may be of another model than its config.json describes."});
  }
}

// A panel of a part of each head turned round: its outputs are neighbours in a row of the tensor, its inputs are rows.
void pack_transposed(const Source& source, const Weight& weight, int64_t panel, std::byte* out) {
  const int64_t outputs = source.row_elements;  // of a head
  const int64_t head = panel * kPanelOutputs / outputs, column = panel * kPanelOutputs % outputs;
  for (int64_t k = 0; k < source.head_rows.count; ++k) {
    const std::byte* row = source.row(head * source.head_rows.count + k) + column * dtype_bytes(source.dtype);
    uint32_t words[kPanelOutputs];
    expand(row, source.dtype, kPanelOutputs, words);
    for (int64_t j = 0; j < kPanelOutputs; ++j) {
      const int64_t at = k * kPanelOutputs + panel_slot(weight.dtype, j);
      if (weight.dtype == DType::bf16) {
        const auto half = static_cast<uint16_t>(words[j] >> 16);
        std::memcpy(out + at * 2, &half, 2);
      } else {
        std::memcpy(out + at * 4, &words[j], 4);
      }
    }
  }
}

// What a checkpoint has of an expert's matrix, and a rank's part of it.
struct ExpertSource {
  std::string codes_name, scale_name;
  const std::byte *codes = nullptr, *scales = nullptr;
  int64_t inputs = 0;  // of the whole matrix
  std::vector<Run> output_runs, input_runs;
};

ExpertSource open_expert(const Checkpoint& checkpoint, const Weight& weight, int64_t expert, int rank, int ranks) {
  ExpertSource source = {.codes_name = expert_tensor(weight.name, expert, ".weight_packed"),
                         .scale_name = expert_tensor(weight.name, expert, ".weight_scale"),
                         .inputs = weight.shape[1]};
  source.codes = checkpoint.data(source.codes_name).data();
  source.scales = checkpoint.data(source.scale_name).data();
  source.output_runs = runs_of(weight, Split::Axis::outputs, weight.shape[0], rank, ranks);
  source.input_runs = runs_of(weight, Split::Axis::inputs, weight.shape[1], rank, ranks);
  return source;
}

void pack_expert(const ExpertSource& source, int64_t outputs, int64_t panel, std::byte* out) {
  MxRows rows;
  for (int64_t j = 0; j < kPanelOutputs && panel * kPanelOutputs + j < outputs; ++j) {
    const int64_t row = whole_index(source.output_runs, panel * kPanelOutputs + j);
    rows.codes[static_cast<size_t>(j)] = source.codes + row * source.inputs / 2;
    rows.scales[static_cast<size_t>(j)] = source.scales + row * source.inputs / kMxGroup;
  }
  for (const Run& run : source.input_runs) {
    const BadScale bad = pack_mxfp4(rows, run.begin, run.size, out);
    if (bad.output >= 0) {
      const std::byte* at = rows.scales[static_cast<size_t>(bad.output)] + bad.group;
      throw Error({.where = source.scale_name,
                   .expected = "scale bytes from 1 to 254: powers of two from 2^-126 to 2^127",
                   .found = fmt::format("{} at offset {}", static_cast<int>(*at), at - source.scales),
                   .next = "Download the checkpoint again; the file is damaged, or of another format."});
    }
    out += dtype_bytes(DType::mxfp4, run.size * kPanelOutputs);
  }
}

}  // namespace

void CheckpointTape::read_panels(const Weight& weight, int rank, int ranks, int64_t first, int64_t count,
                                 std::byte* out) const {
  if (weight.dtype == DType::mxfp4) return read_experts(weight, rank, ranks, first, count, out);
  const Source source = open_source(checkpoint_, weight, rank, ranks);
  CHECK(weight.dtype == DType::f32 || (weight.dtype == DType::bf16 && source.dtype == DType::bf16),
        "{}: {} does not fit into {} panels", weight.name, dtype_name(source.dtype), dtype_name(weight.dtype));
  if (weight.head_rows.transposed) {
    const int64_t bytes = weight.panel_bytes(ranks);
    for (int64_t i = 0; i < count; ++i) pack_transposed(source, weight, first + i, out + i * bytes);
    return;
  }
  const int64_t outputs = weight.outputs(ranks);
  const int64_t line_words = kPanelOutputs * dtype_bytes(weight.dtype) / 4;
  const int64_t element_bytes = dtype_bytes(source.dtype);
  const int64_t next_panel = kPanelOutputs * source.row_elements;  // the elements to it, where rows follow each other
  auto* line = reinterpret_cast<uint32_t*>(out);
  const std::byte *lowest = nullptr, *highest = nullptr;
  for (int64_t panel = first; panel < first + count; ++panel) {
    PanelRows rows;
    for (int64_t j = 0; j < kPanelOutputs; ++j) {
      const int64_t output = panel * kPanelOutputs + j;
      const std::byte* row = output < outputs ? source.row(output) : nullptr;
      rows[static_cast<size_t>(j)] = row;
      if (!row) continue;
      lowest = lowest ? std::min(lowest, row) : row;
      highest = std::max(highest, row);
    }
    for (const Run& run : source.inputs) {
      for (int64_t k = 0; k < run.size; k += kChunkInputs) {
        const int64_t n = std::min(kChunkInputs, run.size - k);
        const int64_t next = run.begin + (k + n < run.size ? k + n : next_panel);
        fetch(rows, next * element_bytes, kChunkInputs * element_bytes);
        if (weight.dtype == DType::bf16) {
          pack_bf16(rows, run.begin + k, n, line);
        } else {
          pack_f32(rows, source.dtype, run.begin + k, n, line);
        }
        line += n * line_words;
      }
    }
  }
  // Packed rows are not needed again, so the file does not stand in memory beside the tape.
  if (lowest) checkpoint_.release(weight.name, {lowest, highest + source.row_elements * dtype_bytes(source.dtype)});
}

void CheckpointTape::read_experts(const Weight& weight, int rank, int ranks, int64_t first, int64_t count,
                                  std::byte* out) const {
  const int64_t per_matrix = weight.matrix_panels(ranks), bytes = weight.panel_bytes(ranks);
  for (int64_t panel = first; panel < first + count;) {
    const int64_t matrix = panel / per_matrix, end = std::min((matrix + 1) * per_matrix, first + count);
    const int64_t expert = weight.first_matrix(rank, ranks) + matrix;
    const ExpertSource source = open_expert(checkpoint_, weight, expert, rank, ranks);
    const int64_t first_row = panel % per_matrix * kPanelOutputs;
    for (; panel < end; ++panel, out += bytes) pack_expert(source, weight.outputs(ranks), panel % per_matrix, out);
    const int64_t last_row = std::min((panel - matrix * per_matrix) * kPanelOutputs, weight.outputs(ranks)) - 1;
    const int64_t row_bytes = weight.shape[1] / 2;
    checkpoint_.release(source.codes_name, {source.codes + whole_index(source.output_runs, first_row) * row_bytes,
                                            source.codes + (whole_index(source.output_runs, last_row) + 1) * row_bytes});
  }
}

void CheckpointTape::read_plain(const Weight& weight, int rank, int ranks, float* out) const {
  const Source source = open_source(checkpoint_, weight, rank, ranks);
  auto* words = reinterpret_cast<uint32_t*>(out);
  for (int64_t output = 0; output < weight.outputs(ranks); ++output) {
    const std::byte* row = source.row(output);
    for (const Run& run : source.inputs) {
      expand(row + run.begin * dtype_bytes(source.dtype), source.dtype, run.size, words);
      words += run.size;
    }
  }
  check_tail(source, weight);
}

namespace {

bool of_draft(const std::string& name) { return name.starts_with(kDraftPrefix); }

Weight without_prefix(Weight weight) {
  if (of_draft(weight.name)) weight.name.erase(0, kDraftPrefix.size());
  return weight;
}

}  // namespace

void PairTape::read_panels(const Weight& weight, int rank, int ranks, int64_t first, int64_t count, std::byte* out) const {
  if (!of_draft(weight.name)) return target_.read_panels(weight, rank, ranks, first, count, out);
  draft_.read_panels(without_prefix(weight), rank, ranks, first, count, out);
}

void PairTape::read_plain(const Weight& weight, int rank, int ranks, float* out) const {
  if (!of_draft(weight.name)) return target_.read_plain(weight, rank, ranks, out);
  draft_.read_plain(without_prefix(weight), rank, ranks, out);
}

std::vector<Weight> weights_of(const std::vector<Weight>& weights, bool draft) {
  std::vector<Weight> own;
  for (const Weight& weight : weights) {
    if (of_draft(weight.name) == draft) own.push_back(without_prefix(weight));
  }
  return own;
}

TensorCatalog pair_catalog(const Checkpoint& target, const Checkpoint& draft) {
  return [&](const std::string& name) {
    return of_draft(name) ? draft.find(name.substr(kDraftPrefix.size())) : target.find(name);
  };
}

}  // namespace megalith
