#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "program/op.h"
#include "program/weight.h"

namespace megalith {

// A value of a program: f32 [rows, width] on each rank, written by one op.
struct Value {
  int id = -1;
  bool valid() const { return id >= 0; }
  friend bool operator==(Value, Value) = default;
};

// Which rows a value has. Of the step that the host asks for: all of them, or those whose logits are wanted
// (StepArgs::chosen). Of the draft that follows in the same step: the rows of all draft blocks, or one row for each block.
enum class Rows : uint8_t { all, chosen, draft, blocks };

struct ValueInfo {
  std::string name;
  Rows rows = Rows::all;
  int64_t width = 0;  // on one rank
};

// What a sequence keeps between steps, f32, on each rank.
//   per_sequence: [shape], one for each sequence; zero before position 0.
//   per_position: [shape[0], slots, shape[1]]: an entry of [shape[0], shape[1]] for each position.
struct StateInfo {
  enum class Kind : uint8_t { per_sequence, per_position };
  std::string name;
  Kind kind = Kind::per_sequence;
  std::vector<int64_t> shape;
  int64_t window = 0;  // not 0: only as many of the last positions are read

  int64_t elements() const;  // of a sequence, or of a position
  // How many positions are kept: all of `context`, or the window and a speculative run beyond it; position p has slot
  // p mod slots.
  int64_t slots(int64_t context) const;
};

// A row seen as heads: head h is row[offset + h · stride, + dim). A whole row is one head.
struct Heads {
  int64_t count = 1;
  int64_t dim = 0;
  int64_t stride = 0;
  int64_t offset = 0;

  static Heads compact(int64_t count, int64_t dim) { return {count, dim, dim, 0}; }
};

struct RmsNorm {
  Heads heads;  // of the input; the output is compact
  float eps = 0;
  bool zero_centred = false;  // the weight is stored as its distance from 1
};
struct Matmul {
  // Inputs are cut into this many equal segments, each summed in its own chain; the chains are joined by a binary tree.
  int64_t segments = 1;
  // More than one: each head of the row has a matrix of its own, and the outputs of the heads stand side by side.
  Heads heads;
};
struct Rope {
  int64_t heads = 0, dim = 0;
  int64_t rotary = 0;  // how many of dim turn
  double theta = 0;
  // Scaled to positions beyond those that the model was trained for (rope.h); factor 1: not scaled.
  struct Yarn {
    double factor = 1, original = 0, beta_fast = 32, beta_slow = 1;
  } yarn = {};
  float amplitude = 1;  // of cos and sin
};
struct Attend {
  int64_t heads = 0, kv_heads = 0, key_dim = 0, value_dim = 0;
  float scale = 0;
  // Latent attention: values are the first value_dim of keys, in one state, and a query's last tail.dim numbers come from
  // the second input.
  bool latent = false;
  Heads tail = {};
};
struct SigmoidGate {
  Heads gate;  // of the second input; the first is compact
};
// The most taps of a short convolution.
inline constexpr int64_t kMaxTaps = 16;
// The most rows of a speculative run.
inline constexpr int kMaxBlock = 16;
struct ShortConv {
  int64_t channels = 0, taps = 0;
};
struct GatedDelta {
  // Input 0 is [q (key_heads · key_dim) | k (the same) | v (value_heads · value_dim)]; value head j reads key head
  // ⌊j · key_heads / value_heads⌋. Input 1 is b (β = sigmoid(b)), input 2 is a, weights are A_log and dt_bias:
  // g = -exp(A_log) · softplus(a + dt_bias).
  int64_t key_heads = 0, value_heads = 0, key_dim = 0, value_dim = 0;
  // Of a row that is kept aside, a value head has [k | v | b | a].
  int64_t kept_floats() const { return key_dim + value_dim + 2; }
};
struct Kda {
  // Inputs are q, k, v and f [heads · dim] and b [heads]: β = sigmoid(b). Weights are A_log [heads] and dt_bias
  // [heads · dim]: a channel of the keys decays by e^γ, γ = lower_bound · sigmoid(exp(A_log) · (f + dt_bias)).
  int64_t heads = 0, dim = 0;
  float lower_bound = 0;
  // Of a row that is kept aside, a head has [k | f | v | b].
  int64_t kept_floats() const { return 3 * dim + 1; }
};
enum class Gate : uint8_t { silu, sigmoid };
struct GatedNorm {
  int64_t heads = 0, dim = 0;
  float eps = 0;
  Gate gate = Gate::silu;
};
struct Situ {
  float beta = 0, linear_beta = 0;
};
struct ResidualMix {
  float eps = 0;
};
struct Route {
  int64_t experts = 0, top_k = 0;  // the output is [top_k ids, top_k weights]
};
struct ExpertGate {
  int64_t top_k = 0;  // the output is [top_k, outputs of an expert]; zeros for experts of other ranks
  Situ situ;
};
struct ExpertDown {
  // On this rank: its experts are dealt to groups, and inputs are cut into segments. Each (group, segment) is summed over
  // the chosen experts in the order of their ids; a binary tree joins them, segments first.
  int64_t top_k = 0, groups = 1, segments = 1;
};
struct AllGather {
  bool everywhere = false;  // every rank gets the result; else it is for the host
};
// Attention of the rows of draft blocks, [anchor, masks], to the context before the anchor and to their own block. Inputs are
// q [heads · dim], k and v [kv_heads · dim] of the draft rows; states hold k and v of the context, [kv_heads, slots, dim].
struct AttendBlock {
  int64_t heads = 0, kv_heads = 0, dim = 0;
  float scale = 0;
  bool causal = false;  // within the block: row i sees rows up to i; else all
  // 0: the whole context. Else row i, at position p, sees the context from position p - window + 1 on; or, from_anchor, all
  // rows see it from the anchor's position - window on.
  int64_t window = 0;
  bool from_anchor = false;
};
// Grouped dynamic convolution over the rows of a draft block: input 0 is x [channels], input 1 is [2 sides, taps, groups],
// the weight is [2 sides, taps, channels].
struct BlockConv {
  int64_t channels = 0, taps = 0, group = 0;  // channels of a group
  int side = 0;                               // 0 before the sublayer, 1 after it
};
// The top_k largest logits of each draft row, ties to the lower id: the output is [top_k ids, top_k values], largest
// first; values are cap · tanh(multiplier · logit / cap), without the cap where it is 0. The first row of a block has the
// anchor's id and 0.
struct Candidates {
  int64_t top_k = 0;
  float multiplier = 1, cap = 0;
};
struct Lookup {
  int64_t count = 0;  // ids of a row; the output is [count, inputs of the table]
};
// Input 0 is the candidates of the draft rows; with rank > 0, inputs 1 to 3 are rows of the successor and of the predecessor
// codebook for them, [top_k, rank], and g [rank].
struct SelectPath {
  int64_t top_k = 0, rank = 0;
};
struct PickRow {
  int64_t row = 0;  // of each block
};
// Reads the step's choices; the output, a row of each draft block, is the number of guesses that were right.
struct Accept {
  int64_t block = 0;  // rows of a draft block
  int32_t mask = 0;   // token of all rows but the first
};
using Attributes = std::variant<std::monostate, RmsNorm, Matmul, Rope, Attend, SigmoidGate, ShortConv, GatedDelta, Kda,
                                GatedNorm, Situ, ResidualMix, Route, ExpertGate, ExpertDown, AllGather, AttendBlock,
                                BlockConv, Candidates, Lookup, SelectPath, PickRow, Accept>;

struct Op {
  OpKind kind = OpKind::add;
  std::string label;  // where in the model: "L3 mlp.down_proj"
  std::vector<Value> inputs;
  Value output;               // invalid for append_kv and append_latent
  std::vector<int> weights;   // indices into Program::weights
  std::vector<int> states;    // indices into Program::states
  Attributes attributes;

  template <class T>
  const T& get() const {
    return std::get<T>(attributes);
  }
  // Its states are read, not written.
  bool reads_states() const { return kind == OpKind::attend || kind == OpKind::attend_block; }
  // Waits until all ranks have formed its inputs.
  bool meets() const { return collective() || kind == OpKind::advance; }
  bool collective() const { return kind == OpKind::all_reduce || kind == OpKind::all_gather; }
  // Done once in a process rather than on every rank: its result is for the host.
  bool once() const {
    switch (kind) {
      case OpKind::sample:
      case OpKind::accept:
      case OpKind::advance:
      case OpKind::candidates:
      case OpKind::select_path: return true;
      case OpKind::all_gather: return !get<AllGather>().everywhere;
      default: return false;
    }
  }
};

// What one step computes: an immutable list of ops over typed values, the same on every rank. What changes from step to
// step is in StepArgs.
struct Program {
  int ranks = 1;
  // The number of input segments of a whole sum: the largest rank count that the model allows (Matmul).
  int segments = 1;
  // The most rows of a speculative run (StepArgs); 0: the program has no place to keep them aside.
  int block = 0;
  // Rows of a draft block: the anchor and its masks. 0: the program has no draft.
  int draft_block = 0;
  int draft_begin = -1;  // its first op
  std::vector<Op> ops;
  std::vector<ValueInfo> values;
  std::vector<Weight> weights;
  std::vector<StateInfo> states;
  // Values that the host may read after a step, by name: "logits", "tokens", "hidden.0" …
  std::vector<std::pair<std::string, Value>> outputs;

  const ValueInfo& info(Value v) const { return values[static_cast<size_t>(v.id)]; }
  // Invalid where the program has no such output.
  Value output(const std::string& name) const;
  // Whose rows an op works on: those of its output. An op without one, and accept, work on the rows of the step.
  Rows rows_of(const Op& op) const;
  // Which values are written once in a process (Op::once), for all ranks to read.
  std::vector<bool> written_once() const;
};

// The order of weights in a rank's tape: that of the ops that stream them; tables that are only looked up come last.
// offset[i] is weight i's place in bytes; the tape's size is `bytes`.
struct TapeLayout {
  std::vector<int> order;
  std::vector<int64_t> offset;
  int64_t bytes = 0;
};
TapeLayout tape_layout(const Program& program);

}  // namespace megalith
