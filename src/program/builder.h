#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "program/program.h"

namespace megalith {

// A handle of a weight that a model has declared.
struct WeightRef {
  int id = -1;
};

class Builder;

// What a target has that its draft reads.
struct DraftInputs {
  std::vector<Value> streams;  // the residual stream that enters layer 0, 1, …, and the one that leaves the last
  WeightRef embedding, head;
  Value tokens;  // that the step chose
};
// Appends a draft to a target's program.
using DraftBuilder = std::function<void(Builder&, const DraftInputs&)>;

struct BuildOptions {
  int ranks = 1;
  // Output the residual stream after the embedding and every layer as "hidden.0", "hidden.1", …
  bool hidden = false;
  // Gives the dtypes of a real checkpoint; without it matrices are bf16.
  TensorCatalog catalog = {};
  // The most rows of a speculative run: an anchor and its drafts. Recurrences get states that keep them aside.
  int block = 0;
  DraftBuilder draft = {};  // what guesses the next block, in the same step; empty: nothing
};

// Builds a Program from a model's verbs. Each verb appends one op and returns its value; shapes are checked at once.
// Widths are a rank's. Collectives are left out where there is one rank.
class Builder {
 public:
  // `segments`: see Program::segments.
  Builder(const BuildOptions& options, int segments);

  // Where the next ops stand in the model, for labels: "L3", "head".
  void at(std::string place) { place_ = std::move(place); }

  // Declares weights of the checkpoint; the same name gives the same weight. Blocks say how outputs (or inputs) are
  // dealt to ranks; none means that every rank has all of it.
  WeightRef matrix(const std::string& name, int64_t outputs, int64_t inputs, Split split);
  WeightRef vector(const std::string& name, std::vector<int64_t> shape, Split split = {});
  // Whole numbers, each below 2^24.
  WeightRef integers(const std::string& name, int64_t size);
  // A vector of `size` numbers, after which the checkpoint may have zeros: as many as its tensor is longer.
  WeightRef vector_with_tail(const std::string& name, int64_t size, Split split);
  // Some rows of each head of a matrix [heads · rows, inputs], dealt to ranks by heads; for matmul_heads.
  WeightRef head_matrix(const std::string& name, int64_t outputs, int64_t inputs, HeadRows rows);
  // The same matrix of each of many experts, in MXFP4; `name` has * for the expert's number. `split` deals a matrix out
  // within a group.
  WeightRef experts(const std::string& name, int64_t outputs, int64_t inputs, ExpertSet set, Split split);
  static Split split_outputs(std::vector<Block> blocks) { return {Split::Axis::outputs, std::move(blocks)}; }
  static Split split_inputs(Block block) { return {Split::Axis::inputs, {block}}; }

  int per_sequence(std::string name, std::vector<int64_t> shape);
  int per_position(std::string name, int64_t heads, int64_t dim, int64_t window = 0);

  Value embed(WeightRef table);                                      // [all, dim]; split by tokens: summed over ranks
  Value rms_norm(Value x, WeightRef w, Heads heads, float eps, bool zero_centred);
  Value matmul(Value x, WeightRef w);                                // split by inputs: summed over ranks
  Value matmul_heads(Value x, WeightRef w, Heads heads);             // each head by its own part of w
  Value rope(Value x, Rope how);
  void append_kv(Value k, Value v, int k_state, int v_state);
  void append_latent(Value latent, Value kv, int state);             // the row is [latent | what of kv is beyond it]
  Value attend(Value q, int k_state, int v_state, Attend how);
  Value attend_latent(Value q, Value q_tail, int state, Attend how);
  Value sigmoid_gate(Value x, Value gate, Heads gate_heads);
  Value short_conv(Value u, WeightRef taps, int state);
  Value gated_delta(Value qkv, Value b, Value a, WeightRef a_log, WeightRef dt_bias, int state, GatedDelta how);
  Value kda(Value q, Value k, Value v, Value f, Value b, WeightRef a_log, WeightRef dt_bias, int state, Kda how);
  Value gated_norm(Value x, Value z, WeightRef w, GatedNorm how);
  Value silu_gate(Value gate, Value up);
  Value situ_gate(Value gate, Value up, Situ how);
  Value residual_mix(std::vector<Value> rows, WeightRef norm, WeightRef proj, float eps);
  Value route(Value logits, WeightRef bias, Route how);
  Value expert_gate(Value x, Value routing, WeightRef w1, WeightRef w3, ExpertGate how);
  Value expert_down(Value x, Value routing, WeightRef w2);           // summed over ranks
  Value add(Value a, Value b);
  Value choose_rows(Value x);
  Value all_gather(Value x);             // for the host
  Value all_gather_everywhere(Value x);  // on every rank
  Value sample(Value logits);

  // The draft that follows a step (Rows::draft, Rows::blocks).
  void begin_draft() { program_.draft_begin = static_cast<int>(program_.ops.size()); }
  Value accept(Value tokens, Accept how);                            // [blocks, 1]: guesses that were right
  Value embed(WeightRef table, Rows of, Value after);                // tokens of draft rows or blocks, known after a value
  Value concat(std::vector<Value> parts);
  void append_window(Value k, Value v, int k_state, int v_state);
  Value attend_block(Value q, Value k, Value v, int k_state, int v_state, AttendBlock how);
  Value block_conv(Value x, Value dynamic, WeightRef base, BlockConv how);
  Value candidates(Value logits, Candidates how);
  Value lookup(Value ids, WeightRef table, int64_t count);           // split by tokens: summed over ranks
  // `codebooks`: none, or the rows of the successor and the predecessor codebook for the candidates, and g.
  Value select_path(Value candidates, std::vector<Value> codebooks, SelectPath how);
  Value pick_row(Value x, int64_t row);                              // [blocks, width]
  // After all ranks have used the tokens before. `map`, where the draft has a vocabulary of its own, says by how much a
  // token of the target's is greater.
  Value advance(Value tokens, Value used, std::optional<WeightRef> map = std::nullopt);

  void output(std::string name, Value v);
  int ranks() const { return program_.ranks; }
  int segments() const { return program_.segments; }
  bool hidden() const { return hidden_; }
  int64_t width(Value v) const { return program_.info(v).width; }

  Program build() &&;

 private:
  Value append(OpKind kind, std::string_view what, std::vector<Value> inputs, int64_t width, Rows rows,
               Attributes attributes = {}, std::vector<int> weights = {}, std::vector<int> states = {});
  Value all_reduce(Value x, std::string_view what);
  // The states of a recurrence: its own, and where the program is for speculation, `kept` floats for each row of a block
  // and head (or channel, with one head), [heads, block, kept].
  std::vector<int> with_kept_rows(int state, int64_t heads, int64_t kept);
  WeightRef declare(Weight weight);
  DType stored_dtype(const std::string& name) const;
  Value gather(Value x, bool everywhere);
  const Weight& weight(WeightRef w) const { return program_.weights[static_cast<size_t>(w.id)]; }
  Rows rows(Value v) const { return program_.info(v).rows; }

  Program program_;
  const bool hidden_;
  const TensorCatalog catalog_;
  std::string place_;
  std::map<std::string, int> weight_ids_;
};

}  // namespace megalith
