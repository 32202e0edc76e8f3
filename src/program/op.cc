#include "program/op.h"

#include <array>

#include "base/check.h"

namespace megalith {

namespace {

constexpr std::array<OpInfo, 34> kOps = {{
    {OpKind::embed, "embed", Cut::columns, "y = E[token] of the rank that holds the token, else 0", "a row of the table"},
    {OpKind::rms_norm, "rms_norm", Cut::rows, "y = x / sqrt(mean(x²) + eps) · w, or · (1 + w) where zero-centred; per head",
     "weight"},
    {OpKind::matmul, "matmul", Cut::panels, "y = W x; one chain of fused multiply-adds for each output and input segment",
     "weight"},
    {OpKind::rope, "rope", Cut::rows, "rotates (x_j, x_{j + d/2}) of the first d of each head by position · theta^(-2j/d)",
     "activations"},
    {OpKind::append_kv, "append_kv", Cut::heads, "writes k and v of each row at its position of its sequence's cache",
     "state: k and v of the rows"},
    {OpKind::append_latent, "append_latent", Cut::rows, "writes [c | k_r] of each row at its position of its sequence's cache",
     "state: the latent row of each row"},
    {OpKind::attend, "attend", Cut::heads,
     "of each span of the positions up to the row's: Σ e^(s - max) V, max, Σ e^(s - max); s = q·K^T · scale",
     "state: K and V up to the position"},
    {OpKind::join_spans, "join_spans", Cut::heads, "y = softmax(s) V: a row's spans brought to one max and joined in order",
     "activations"},
    {OpKind::sigmoid_gate, "sigmoid_gate", Cut::columns, "y = x · sigmoid(gate)", "activations"},
    {OpKind::short_conv, "short_conv", Cut::columns, "y_t = silu(Σ_τ w_τ u_{t-T+1+τ}), causal, one filter a channel",
     "state: T - 1 inputs, read and written"},
    {OpKind::gated_delta, "gated_delta", Cut::heads,
     "S ← e^g S; S ← S + k (β (v - S^T k))^T; y = S^T q; q, k l2-normalised; row after row",
     "state: S, read and written"},
    {OpKind::kda, "kda", Cut::heads,
     "S ← diag(e^γ) S, γ = bound · sigmoid(e^A (f + dt)); S ← S + k (β (v - S^T k))^T; y = S^T q; q, k l2-normalised",
     "state: S, read and written"},
    {OpKind::gated_norm, "gated_norm", Cut::rows, "y = rms_norm(x, w) · silu(z) or · sigmoid(z), per head", "weight"},
    {OpKind::silu_gate, "silu_gate", Cut::columns, "y = silu(gate) · up", "activations"},
    {OpKind::situ_gate, "situ_gate", Cut::columns, "y = β tanh(gate / β) sigmoid(gate) · λ tanh(up / λ)", "activations"},
    {OpKind::residual_mix, "residual_mix", Cut::rows, "y = Σ_i p_i v_i, p = softmax_i(rms_norm(v_i, norm) · proj)", "weights"},
    {OpKind::route, "route", Cut::rows,
     "the k experts of greatest s + bias, s = sigmoid(logits), ids ascending; and their s / Σ s", "weight"},
    {OpKind::expert_gate, "expert_gate", Cut::experts, "of each chosen expert: y = situ(w1 x, w3 x)",
     "weights of the chosen experts"},
    {OpKind::expert_down, "expert_down", Cut::panels,
     "y = Σ_chosen weight · (w2 x): by group of experts and segment of inputs, joined by a binary tree",
     "weights of the chosen experts"},
    {OpKind::add, "add", Cut::columns, "y = a + b", "activations"},
    {OpKind::all_reduce, "all_reduce", Cut::columns, "y = the sum of all ranks' x, by a fixed binary tree", "wire: a row"},
    {OpKind::choose_rows, "choose_rows", Cut::columns, "y = the rows whose logits the step was asked for", "activations"},
    {OpKind::all_gather, "all_gather", Cut::columns, "y = all ranks' x, joined in the order of ranks", "wire: a row"},
    {OpKind::sample, "sample", Cut::rows, "argmax over the kept set of log p + Gumbel noise(seed, position, token)",
     "activations"},
    {OpKind::accept, "accept", Cut::rows,
     "a block's guesses that equal the choices before the first that does not; begins the draft's blocks after them",
     "activations"},
    {OpKind::concat, "concat", Cut::columns, "y = the inputs side by side", "activations"},
    {OpKind::append_window, "append_window", Cut::heads, "writes k and v of each row at its position's slot of a window",
     "state: k and v of the rows"},
    {OpKind::attend_block, "attend_block", Cut::heads,
     "y = softmax(q·K^T · scale) V over the context before the anchor, within the window, and the rows of the block",
     "state: K and V of the window"},
    {OpKind::block_conv, "block_conv", Cut::columns,
     "y_t = Σ_τ (base_τ + dynamic_τ of row t and the channel's group) x_{t-τ}, within a block", "weight"},
    {OpKind::candidates, "candidates", Cut::rows, "the k largest logits of each row, ids and values", "activations"},
    {OpKind::lookup, "lookup", Cut::rows, "y = rows T[id] of the rank that holds the id, else 0, side by side",
     "rows of the table"},
    {OpKind::select_path, "select_path", Cut::rows,
     "of each row in turn the candidate c of the greatest value_c + Σ_ρ succ_cρ pred_ρ g_ρ, pred of the one before; with the "
     "request's noise where it samples",
     "activations"},
    {OpKind::pick_row, "pick_row", Cut::columns, "y = row i of each block", "activations"},
    {OpKind::advance, "advance", Cut::rows,
     "y = x, or x + map[x] in a vocabulary of its own: the token that the next slot of each block follows",
     "activations"},
}};

}  // namespace

const OpInfo& op_info(OpKind kind) {
  const OpInfo& info = kOps[static_cast<size_t>(kind)];
  CHECK(info.kind == kind, "the op table's rows are in the order of OpKind");
  return info;
}

std::span<const OpInfo> op_table() { return kOps; }

}  // namespace megalith
