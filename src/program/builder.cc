#include "program/builder.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "base/check.h"
#include "program/attention.h"

namespace megalith {

namespace {

// "model.layers.3.mlp.gate_proj.weight" → "mlp.gate_proj": the part that tells ops of a layer apart.
std::string_view short_name(std::string_view name) {
  if (name.ends_with(".weight")) name.remove_suffix(7);
  if (name.starts_with(kDraftPrefix)) name.remove_prefix(kDraftPrefix.size());
  const size_t layers = name.find("layers.");
  if (layers != std::string_view::npos) name.remove_prefix(name.find('.', layers + 7) + 1);
  const size_t model = name.rfind("model.");
  if (model != std::string_view::npos) name.remove_prefix(model + 6);
  return name;
}

}  // namespace

Builder::Builder(const BuildOptions& options, int segments) : hidden_(options.hidden), catalog_(options.catalog) {
  CHECK(options.ranks >= 1 && segments % options.ranks == 0, "{} ranks, {} segments", options.ranks, segments);
  CHECK(options.block >= 0 && options.block <= kMaxBlock, "a block of {}", options.block);
  program_.ranks = options.ranks;
  program_.block = options.block;
  program_.segments = segments;
}

WeightRef Builder::declare(Weight weight) {
  const std::string key = fmt::format("{}[{}, {}]", weight.name, weight.head_rows.first, weight.head_rows.count);
  const auto [found, fresh] = weight_ids_.try_emplace(key, static_cast<int>(program_.weights.size()));
  if (fresh) {
    const int ranks = weight.part_ranks(program_.ranks);
    for (const Block& block : weight.split.blocks) {
      CHECK(block.divides(ranks), "{}: {} groups over {} ranks", weight.name, block.groups, ranks);
    }
    program_.weights.push_back(std::move(weight));
  } else {
    CHECK(this->weight({found->second}).shape == weight.shape, "{}: declared twice, with two shapes", weight.name);
  }
  return {found->second};
}

WeightRef Builder::matrix(const std::string& name, int64_t outputs, int64_t inputs, Split split) {
  const DType stored = stored_dtype(name);
  const DType dtype = stored == DType::bf16 ? DType::bf16 : DType::f32;
  return declare({name, {outputs, inputs}, dtype, WeightLayout::panels, std::move(split), stored});
}

WeightRef Builder::vector(const std::string& name, std::vector<int64_t> shape, Split split) {
  return declare({name, std::move(shape), DType::f32, WeightLayout::plain, std::move(split), stored_dtype(name)});
}

WeightRef Builder::integers(const std::string& name, int64_t size) {
  return declare({name, {size}, DType::f32, WeightLayout::plain, {}, DType::i64});
}

WeightRef Builder::vector_with_tail(const std::string& name, int64_t size, Split split) {
  const auto info = catalog_ ? catalog_(name) : std::nullopt;
  const int64_t stored = info && info->shape.size() == 1 ? std::max(info->shape[0], size) : size;
  Weight w = {name, {stored}, DType::f32, WeightLayout::plain, std::move(split), stored_dtype(name)};
  w.zero_tail = stored - size;
  return declare(std::move(w));
}

WeightRef Builder::head_matrix(const std::string& name, int64_t outputs, int64_t inputs, HeadRows rows) {
  const DType stored = stored_dtype(name);
  const DType dtype = stored == DType::bf16 ? DType::bf16 : DType::f32;
  CHECK(outputs % rows.heads == 0 && rows.first + rows.count <= outputs / rows.heads, "{}: rows {}+{}", name, rows.first,
        rows.count);
  Weight w = {name, {outputs, inputs}, dtype, WeightLayout::panels, split_outputs({{outputs, rows.heads}}), stored};
  w.head_rows = rows;
  return declare(std::move(w));
}

WeightRef Builder::experts(const std::string& name, int64_t outputs, int64_t inputs, ExpertSet set, Split split) {
  CHECK(set.count % set.groups == 0 && inputs % kMxGroup == 0, "{}: {} experts in {} groups, {} inputs", name, set.count,
        set.groups, inputs);
  Weight w = {name, {outputs, inputs}, DType::mxfp4, WeightLayout::panels, std::move(split), DType::mxfp4};
  w.experts = set;
  return declare(std::move(w));
}

DType Builder::stored_dtype(const std::string& name) const {
  const auto info = catalog_ ? catalog_(name) : std::nullopt;
  return info ? info->dtype : DType::bf16;
}

int Builder::per_sequence(std::string name, std::vector<int64_t> shape) {
  program_.states.push_back({std::move(name), StateInfo::Kind::per_sequence, std::move(shape)});
  return static_cast<int>(program_.states.size()) - 1;
}

int Builder::per_position(std::string name, int64_t heads, int64_t dim, int64_t window) {
  program_.states.push_back({std::move(name), StateInfo::Kind::per_position, {heads, dim}, window});
  return static_cast<int>(program_.states.size()) - 1;
}

std::vector<int> Builder::with_kept_rows(int state, int64_t heads, int64_t kept) {
  if (program_.block == 0) return {state};
  const std::string name = program_.states[static_cast<size_t>(state)].name + ".kept";
  return {state, per_sequence(name, {heads, program_.block, kept})};
}

Value Builder::append(OpKind kind, std::string_view what, std::vector<Value> inputs, int64_t width, Rows rows,
                      Attributes attributes, std::vector<int> weights, std::vector<int> states) {
  std::string label = place_ + (place_.empty() || what.empty() ? "" : " ") + std::string(what);
  Value output;
  if (width > 0) {
    output.id = static_cast<int>(program_.values.size());
    program_.values.push_back({label, rows, width});
  }
  program_.ops.push_back({kind, std::move(label), std::move(inputs), output, std::move(weights), std::move(states),
                          std::move(attributes)});
  return output;
}

Value Builder::all_reduce(Value x, std::string_view what) {
  if (program_.ranks == 1) return x;
  return append(OpKind::all_reduce, what, {x}, width(x), rows(x));
}

Value Builder::embed(WeightRef table) {
  const Weight& w = weight(table);
  const std::string_view what = short_name(w.name);
  const bool by_token = w.split.axis == Split::Axis::outputs;
  const Value x = append(OpKind::embed, what, {}, w.shape[1], Rows::all, {}, {table.id});
  return by_token ? all_reduce(x, what) : x;
}

Value Builder::rms_norm(Value x, WeightRef w, Heads heads, float eps, bool zero_centred) {
  CHECK(weight(w).shape[0] == heads.dim && heads.offset + (heads.count - 1) * heads.stride + heads.dim <= width(x),
        "{}: heads of {} in a row of {}", weight(w).name, heads.dim, width(x));
  return append(OpKind::rms_norm, short_name(weight(w).name), {x}, heads.count * heads.dim, rows(x),
                RmsNorm{heads, eps, zero_centred}, {w.id});
}

Value Builder::matmul(Value x, WeightRef ref) {
  const Weight& w = weight(ref);
  CHECK(w.inputs(program_.ranks) == width(x), "{}: inputs {}, row {}", w.name, w.inputs(program_.ranks), width(x));
  const bool by_inputs = w.split.axis == Split::Axis::inputs;
  const int64_t segments = by_inputs ? program_.segments / program_.ranks : 1;
  CHECK(width(x) % segments == 0, "{}: {} inputs in {} segments", w.name, width(x), segments);
  const std::string_view what = short_name(w.name);
  const Value y = append(OpKind::matmul, what, {x}, w.outputs(program_.ranks), rows(x),
                         Matmul{segments, Heads::compact(1, width(x))}, {ref.id});
  return by_inputs ? all_reduce(y, what) : y;
}

Value Builder::matmul_heads(Value x, WeightRef ref, Heads heads) {
  const Weight& w = weight(ref);
  const int64_t outputs = w.outputs(program_.ranks);
  CHECK(w.inputs(program_.ranks) == heads.dim && outputs % (heads.count * kPanelOutputs) == 0 &&
            heads.offset + (heads.count - 1) * heads.stride + heads.dim <= width(x),
        "{}: {} outputs of {} heads", w.name, outputs, heads.count);
  return append(OpKind::matmul, short_name(w.name), {x}, outputs, rows(x), Matmul{1, heads}, {ref.id});
}

Value Builder::rope(Value x, Rope how) {
  CHECK(width(x) == how.heads * how.dim && how.rotary % 2 == 0 && how.rotary <= how.dim, "rope of {} over {}", how.rotary,
        how.dim);
  return append(OpKind::rope, "rope", {x}, width(x), rows(x), how);
}

void Builder::append_kv(Value k, Value v, int k_state, int v_state) {
  append(OpKind::append_kv, "append_kv", {k, v}, 0, Rows::all, {}, {}, {k_state, v_state});
}

void Builder::append_latent(Value latent, Value kv, int state) {
  CHECK(width(latent) <= width(kv) && program_.states[static_cast<size_t>(state)].elements() == width(kv),
        "a latent of {} in a row of {}", width(latent), width(kv));
  append(OpKind::append_latent, "append_latent", {latent, kv}, 0, Rows::all, {}, {}, {state});
}

Value Builder::attend(Value q, int k_state, int v_state, Attend how) {
  CHECK(width(q) == how.heads * how.key_dim && how.heads % how.kv_heads == 0, "attend of {} heads", how.heads);
  const int64_t partial = partial_width(how.heads, how.value_dim);
  const Value spans = append(OpKind::attend, "attend", {q}, partial, rows(q), how, {}, {k_state, v_state});
  return append(OpKind::join_spans, "join_spans", {spans}, how.heads * how.value_dim, rows(q), how);
}

Value Builder::attend_latent(Value q, Value q_tail, int state, Attend how) {
  CHECK(how.latent && how.kv_heads == 1 && width(q) == how.heads * (how.key_dim - how.tail.dim) &&
            how.value_dim <= how.key_dim && how.tail.count == how.heads,
        "attend of {} heads", how.heads);
  const int64_t partial = partial_width(how.heads, how.value_dim);
  const Value spans = append(OpKind::attend, "attend", {q, q_tail}, partial, rows(q), how, {}, {state});
  return append(OpKind::join_spans, "join_spans", {spans}, how.heads * how.value_dim, rows(q), how);
}

Value Builder::sigmoid_gate(Value x, Value gate, Heads gate_heads) {
  CHECK(width(x) == gate_heads.count * gate_heads.dim, "gate of {} by {}", width(x), gate_heads.dim);
  return append(OpKind::sigmoid_gate, "sigmoid_gate", {x, gate}, width(x), rows(x), SigmoidGate{gate_heads});
}

Value Builder::short_conv(Value u, WeightRef taps, int state) {
  const Weight& w = weight(taps);
  CHECK(w.outputs(program_.ranks) == width(u) && w.shape.back() <= kMaxTaps, "{}: {} channels", w.name, width(u));
  return append(OpKind::short_conv, short_name(w.name), {u}, width(u), rows(u), ShortConv{width(u), w.shape.back()},
                {taps.id}, with_kept_rows(state, 1, width(u)));
}

Value Builder::gated_delta(Value qkv, Value b, Value a, WeightRef a_log, WeightRef dt_bias, int state, GatedDelta how) {
  CHECK(width(qkv) == 2 * how.key_heads * how.key_dim + how.value_heads * how.value_dim && width(b) == how.value_heads &&
            width(a) == how.value_heads,
        "gated_delta of {}", width(qkv));
  return append(OpKind::gated_delta, "gated_delta", {qkv, b, a}, how.value_heads * how.value_dim, rows(qkv), how,
                {a_log.id, dt_bias.id}, with_kept_rows(state, how.value_heads, how.kept_floats()));
}

Value Builder::kda(Value q, Value k, Value v, Value f, Value b, WeightRef a_log, WeightRef dt_bias, int state, Kda how) {
  const int64_t size = how.heads * how.dim;
  CHECK(width(q) == size && width(k) == size && width(v) == size && width(f) == size && width(b) == how.heads,
        "kda of {} heads of {}", how.heads, how.dim);
  return append(OpKind::kda, "kda", {q, k, v, f, b}, size, rows(q), how, {a_log.id, dt_bias.id},
                with_kept_rows(state, how.heads, how.kept_floats()));
}

Value Builder::gated_norm(Value x, Value z, WeightRef w, GatedNorm how) {
  CHECK(width(x) == how.heads * how.dim && width(z) == width(x), "gated_norm of {}", width(x));
  return append(OpKind::gated_norm, short_name(weight(w).name), {x, z}, width(x), rows(x), how, {w.id});
}

Value Builder::silu_gate(Value gate, Value up) {
  CHECK(width(gate) == width(up), "silu_gate of {} and {}", width(gate), width(up));
  return append(OpKind::silu_gate, "silu_gate", {gate, up}, width(gate), rows(gate));
}

Value Builder::situ_gate(Value gate, Value up, Situ how) {
  CHECK(width(gate) == width(up), "situ_gate of {} and {}", width(gate), width(up));
  return append(OpKind::situ_gate, "situ_gate", {gate, up}, width(gate), rows(gate), how);
}

Value Builder::residual_mix(std::vector<Value> mixed, WeightRef norm, WeightRef proj, float eps) {
  const Value first = mixed.front();
  for (const Value v : mixed) CHECK(width(v) == width(first), "a mix of {} and {}", width(first), width(v));
  CHECK(weight(norm).shape[0] == width(first) && weight(proj).shape.back() == width(first), "{}: a row of {}",
        weight(proj).name, width(first));
  return append(OpKind::residual_mix, short_name(weight(proj).name), std::move(mixed), width(first), rows(first),
                ResidualMix{eps}, {norm.id, proj.id});
}

Value Builder::route(Value logits, WeightRef bias, Route how) {
  CHECK(width(logits) == how.experts && how.top_k <= how.experts && how.experts < (1 << 24), "{} of {} experts",
        how.top_k, how.experts);
  return append(OpKind::route, "route", {logits}, 2 * how.top_k, rows(logits), how, {bias.id});
}

Value Builder::expert_gate(Value x, Value routing, WeightRef w1, WeightRef w3, ExpertGate how) {
  const Weight& w = weight(w1);
  CHECK(w.inputs(program_.ranks) == width(x) && width(routing) == 2 * how.top_k, "{}: a row of {}", w.name, width(x));
  return append(OpKind::expert_gate, "experts.w1 w3", {x, routing}, how.top_k * w.outputs(program_.ranks), rows(x), how,
                {w1.id, w3.id});
}

Value Builder::expert_down(Value x, Value routing, WeightRef w2) {
  const Weight& w = weight(w2);
  const int64_t top_k = width(routing) / 2;
  // The tree over all segments of the program: a rank holds whole groups, or a part of one.
  const int64_t leaves = program_.segments / program_.ranks;
  const int64_t per_group = program_.segments / w.experts.groups;
  const int64_t groups = std::max<int64_t>(leaves / per_group, 1);
  CHECK(width(x) == top_k * w.inputs(program_.ranks), "{}: a row of {}", w.name, width(x));
  CHECK(program_.segments % w.experts.groups == 0 && w.inputs(program_.ranks) % (leaves / groups * kMxGroup) == 0,
        "{}: {} segments, {} groups, {} inputs", w.name, program_.segments, w.experts.groups, w.inputs(program_.ranks));
  const Value y = append(OpKind::expert_down, "experts.w2", {x, routing}, w.outputs(program_.ranks), rows(x),
                         ExpertDown{top_k, groups, leaves / groups}, {w2.id});
  return all_reduce(y, "experts.w2");
}

Value Builder::add(Value a, Value b) {
  CHECK(width(a) == width(b) && rows(a) == rows(b), "add of {} and {}", width(a), width(b));
  return append(OpKind::add, "add", {a, b}, width(a), rows(a));
}

Value Builder::choose_rows(Value x) { return append(OpKind::choose_rows, "choose_rows", {x}, width(x), Rows::chosen); }

Value Builder::all_gather(Value x) { return gather(x, false); }

Value Builder::all_gather_everywhere(Value x) { return gather(x, true); }

Value Builder::gather(Value x, bool everywhere) {
  if (program_.ranks == 1) return x;
  std::string what = program_.info(x).name;
  if (!place_.empty() && what.starts_with(place_ + " ")) what.erase(0, place_.size() + 1);
  return append(OpKind::all_gather, what, {x}, width(x) * program_.ranks, rows(x), AllGather{everywhere});
}

Value Builder::sample(Value logits) { return append(OpKind::sample, "sample", {logits}, 1, rows(logits)); }

Value Builder::accept(Value tokens, Accept how) {
  CHECK(how.block >= 1 && how.block <= kMaxBlock && rows(tokens) == Rows::chosen, "a draft block of {}", how.block);
  program_.draft_block = static_cast<int>(how.block);
  return append(OpKind::accept, "accept", {tokens}, 1, Rows::blocks, how);
}

Value Builder::embed(WeightRef table, Rows of, Value after) {
  const Weight& w = weight(table);
  const std::string_view what = short_name(w.name);
  const Value x = append(OpKind::embed, what, {after}, w.shape[1], of, {}, {table.id});
  return w.split.axis == Split::Axis::outputs ? all_reduce(x, what) : x;
}

Value Builder::concat(std::vector<Value> parts) {
  int64_t total = 0;
  for (const Value part : parts) {
    CHECK(rows(part) == rows(parts[0]), "{} beside {}", program_.info(part).name, program_.info(parts[0]).name);
    total += width(part);
  }
  const Rows of = rows(parts[0]);
  return append(OpKind::concat, "concat", std::move(parts), total, of);
}

void Builder::append_window(Value k, Value v, int k_state, int v_state) {
  append(OpKind::append_window, "append_window", {k, v}, 0, Rows::all, {}, {}, {k_state, v_state});
}

Value Builder::attend_block(Value q, Value k, Value v, int k_state, int v_state, AttendBlock how) {
  CHECK(width(q) == how.heads * how.dim && width(k) == how.kv_heads * how.dim && width(v) == width(k) &&
            how.heads % how.kv_heads == 0 && how.dim % 16 == 0 && rows(q) == Rows::draft,
        "attend_block of {} heads of {}", how.heads, how.dim);
  return append(OpKind::attend_block, "attend_block", {q, k, v}, width(q), Rows::draft, how, {}, {k_state, v_state});
}

Value Builder::block_conv(Value x, Value dynamic, WeightRef base, BlockConv how) {
  CHECK(width(x) == how.channels && how.channels % how.group == 0 && rows(x) == Rows::draft && how.taps <= kMaxTaps &&
            width(dynamic) == 2 * how.taps * how.channels / how.group && (how.side == 0 || how.side == 1),
        "{}: {} channels", weight(base).name, how.channels);
  return append(OpKind::block_conv, short_name(weight(base).name), {x, dynamic}, how.channels, Rows::draft, how, {base.id});
}

Value Builder::candidates(Value logits, Candidates how) {
  CHECK(rows(logits) == Rows::draft && how.top_k >= 1 && how.top_k <= width(logits) && width(logits) < (1 << 24),
        "{} of {} candidates", how.top_k, width(logits));
  return append(OpKind::candidates, "candidates", {logits}, 2 * how.top_k, Rows::draft, how);
}

Value Builder::lookup(Value ids, WeightRef table, int64_t count) {
  const Weight& w = weight(table);
  CHECK(count <= width(ids), "{}: {} ids of {}", w.name, count, width(ids));
  const Value y = append(OpKind::lookup, short_name(w.name), {ids}, count * w.shape[1], rows(ids), Lookup{count}, {table.id});
  return w.split.axis == Split::Axis::outputs ? all_reduce(y, short_name(w.name)) : y;
}

Value Builder::select_path(Value candidates, std::vector<Value> codebooks, SelectPath how) {
  CHECK(width(candidates) == 2 * how.top_k && (codebooks.empty() ? how.rank == 0 : codebooks.size() == 3) &&
            program_.draft_block >= 2,
        "a path through {} candidates", how.top_k);
  for (size_t i = 0; i < codebooks.size(); ++i) {
    CHECK(width(codebooks[i]) == (i < 2 ? how.top_k : 1) * how.rank, "codebook rows of {}", how.rank);
  }
  std::vector<Value> inputs = {candidates};
  inputs.insert(inputs.end(), codebooks.begin(), codebooks.end());
  return append(OpKind::select_path, "select_path", std::move(inputs), program_.draft_block - 1, Rows::blocks, how);
}

Value Builder::pick_row(Value x, int64_t row) {
  CHECK(rows(x) == Rows::draft && row >= 0 && row < program_.draft_block, "row {} of a block", row);
  return append(OpKind::pick_row, "pick_row", {x}, width(x), Rows::blocks, PickRow{row});
}

Value Builder::advance(Value tokens, Value used, std::optional<WeightRef> map) {
  CHECK(rows(tokens) == Rows::blocks && width(tokens) == 1 && rows(used) == Rows::blocks, "{} tokens of a block", width(tokens));
  std::vector<int> weights;
  if (map) weights.push_back(map->id);
  return append(OpKind::advance, "advance", {tokens, used}, 1, Rows::blocks, {}, std::move(weights));
}

void Builder::output(std::string name, Value v) { program_.outputs.emplace_back(std::move(name), v); }

Program Builder::build() && { return std::move(program_); }

}  // namespace megalith
