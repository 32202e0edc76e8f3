"""A trainable torch version of the Kimi K3 text model, small and fast on a CPU.

Parameters carry the names of the checkpoint without its prefix; only the
experts of a layer are stacked (kimi_export.py takes them apart). Each row of a
batch is one document from an empty state. Given caches, `TinyKimi` takes one
token a row instead and continues from them.
"""

import json
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

import mxfp4
from kda import chunked, recurrent
from model import attend, unit

LORA_EPS = 1e-6
ROWS = 64
INTO_STREAM = ("o_proj", "mlp.down_proj", "shared_experts.down_proj", "routed_expert_up_proj")


def load_config(path: Path) -> dict:
    """The text part of a config.json."""
    return json.loads(path.read_text())["text_config"]


class Norm(nn.Module):
    """RMS norm in float32."""

    def __init__(self, size: int, eps: float):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x):
        return F.rms_norm(x.float(), (x.shape[-1],), self.weight, self.eps)


class Situ(torch.autograd.Function):
    """beta tanh(g / beta) sigmoid(g) * limit tanh(u / limit), without keeping what lies between."""

    @staticmethod
    def forward(ctx, g, u, beta, limit):
        ctx.save_for_backward(g, u)
        ctx.beta, ctx.limit = beta, limit
        return (g / beta).tanh_().mul_(beta * limit).mul_(g.sigmoid()).mul_((u / limit).tanh_())

    @staticmethod
    def backward(ctx, grad):
        g, u = ctx.saved_tensors
        beta, limit = ctx.beta, ctx.limit
        t, s, r = (g / beta).tanh_(), g.sigmoid(), (u / limit).tanh_()
        slope = (1 - t * t).mul_(s) + (beta * t).mul_(s - s * s)
        return grad * slope.mul_(r).mul_(limit), grad * (beta * t).mul_(s).mul_(1 - r * r), None, None


class Mlp(nn.Module):
    """Feed-forward block with the situ activation."""

    def __init__(self, c: dict, inner: int):
        super().__init__()
        hidden = c["hidden_size"]
        self.limits = c["activation_situ_beta"], c["activation_situ_linear_beta"]
        self.gate_proj = nn.Linear(hidden, inner, bias=False)
        self.up_proj = nn.Linear(hidden, inner, bias=False)
        self.down_proj = nn.Linear(inner, hidden, bias=False)

    def forward(self, x):
        return self.down_proj(Situ.apply(self.gate_proj(x), self.up_proj(x), *self.limits))


class Kda(nn.Module):
    """Kimi delta attention: short convolutions, delta rule with a decay per channel, gated norm."""

    def __init__(self, c: dict):
        super().__init__()
        linear = c["linear_attn_config"]
        self.heads, self.dim, self.taps = linear["num_heads"], linear["head_dim"], linear["short_conv_kernel_size"]
        self.floor = linear["gate_lower_bound"]
        hidden, size = c["hidden_size"], self.heads * self.dim
        for name in "qkvg":
            setattr(self, f"{name}_proj", nn.Linear(hidden, size, bias=False))
        for name in "qkv":
            setattr(self, f"{name}_conv1d", nn.Conv1d(size, size, self.taps, groups=size, bias=False))
        self.A_log = nn.Parameter(F.pad(torch.empty(self.heads).uniform_(0.5, 2.0).log(), (0, self.dim - self.heads)))
        self.dt_bias = nn.Parameter(torch.empty(size).uniform_(-7.0, -1.0))
        self.f_a_proj = nn.Linear(hidden, self.dim, bias=False)
        self.f_b_proj = nn.Linear(self.dim, size, bias=False)
        self.b_proj = nn.Linear(hidden, self.heads, bias=False)
        self.o_norm = Norm(self.dim, c["rms_norm_eps"])
        self.o_proj = nn.Linear(size, hidden, bias=False)

    def empty(self, rows: int) -> dict:
        """Cache before the first token: the last projections and the state."""
        return {"conv": torch.zeros(rows, self.taps - 1, 3 * self.heads * self.dim),
                "state": torch.zeros(rows, self.heads, self.dim, self.dim)}

    def convolve(self, x, cache):
        """q, k and v after their causal convolutions: [B, T, 3 * heads * dim]."""
        new = torch.cat([self.q_proj(x), self.k_proj(x), self.v_proj(x)], -1)
        if cache is None:
            padded = F.pad(new, (0, 0, self.taps - 1, 0))
        else:
            padded = torch.cat([cache["conv"], new], 1)
            cache["conv"] = padded[:, 1:]
        w = torch.cat([self.q_conv1d.weight, self.k_conv1d.weight, self.v_conv1d.weight])
        return F.silu(F.conv1d(padded.transpose(1, 2), w, groups=len(w)).transpose(1, 2))

    def forward(self, x, cache=None):
        b, t, _ = x.shape
        q, k, v = self.convolve(x, cache).float().view(b, t, 3, self.heads, self.dim).permute(2, 0, 3, 1, 4)
        q, k = unit(q) * self.dim ** -0.5, unit(k)
        f = (self.f_b_proj(self.f_a_proj(x)).float() + self.dt_bias).view(b, t, self.heads, self.dim)
        decay = self.floor * torch.sigmoid(self.A_log[:self.heads, None].exp() * f).transpose(1, 2)
        beta = torch.sigmoid(self.b_proj(x).float()).transpose(1, 2).unsqueeze(-1)
        if cache is None:
            out = chunked(q, k, v, beta, decay)
        else:
            token = (y.squeeze(2) for y in (q, k, v, beta, decay))
            out, cache["state"] = recurrent(*token, cache["state"])
            out = out.unsqueeze(2)
        gate = torch.sigmoid(self.g_proj(x))
        return self.o_proj(self.o_norm(out.transpose(1, 2)).reshape(b, t, -1).to(x.dtype) * gate)


class Mla(nn.Module):
    """Latent attention without positions and with an output gate."""

    def __init__(self, c: dict):
        super().__init__()
        self.heads, self.nope, self.rope, self.values = (
            c["num_attention_heads"], c["qk_nope_head_dim"], c["qk_rope_head_dim"], c["v_head_dim"])
        self.rank, hidden, size = c["kv_lora_rank"], c["hidden_size"], self.heads * self.values
        self.q_a_proj = nn.Linear(hidden, c["q_lora_rank"], bias=False)
        self.q_a_layernorm = Norm(c["q_lora_rank"], LORA_EPS)
        self.q_b_proj = nn.Linear(c["q_lora_rank"], self.heads * (self.nope + self.rope), bias=False)
        self.kv_a_proj_with_mqa = nn.Linear(hidden, self.rank + self.rope, bias=False)
        self.kv_a_layernorm = Norm(self.rank, LORA_EPS)
        self.kv_b_proj = nn.Linear(self.rank, self.heads * (self.nope + self.values), bias=False)
        self.g_proj = nn.Linear(hidden, size, bias=False)
        self.o_proj = nn.Linear(size, hidden, bias=False)

    def empty(self, rows: int) -> dict:
        """Cache before the first token: no latent rows."""
        return {"latent": torch.zeros(rows, 0, self.rank + self.rope)}

    def forward(self, x, cache=None):
        b, t, _ = x.shape
        q = self.q_b_proj(self.q_a_layernorm(self.q_a_proj(x)).to(x.dtype))
        q = q.view(b, t, self.heads, -1).transpose(1, 2)
        latent, shared = self.kv_a_proj_with_mqa(x).split([self.rank, self.rope], -1)
        latent = self.kv_a_layernorm(latent).to(x.dtype)
        if cache is None:
            out = self.expanded(q, latent, shared)
        else:
            cache["latent"] = torch.cat([cache["latent"], torch.cat([latent, shared], -1)], 1)
            out = self.absorbed(q, cache["latent"])
        return self.o_proj(out.transpose(1, 2).reshape(b, t, -1) * torch.sigmoid(self.g_proj(x)))

    def expanded(self, q, latent, shared):
        """Attention with keys and values of every head: [B, heads, T, values]."""
        b, t, _ = latent.shape
        k, v = self.kv_b_proj(latent).view(b, t, self.heads, -1).transpose(1, 2).split([self.nope, self.values], -1)
        shared = shared.unsqueeze(1).expand(-1, self.heads, -1, -1)
        return attend(q, torch.cat([k, shared], -1), v)

    def absorbed(self, q, rows):
        """The same for the newest token alone, straight from the cached rows."""
        keys, values = self.kv_b_proj.weight.view(self.heads, -1, self.rank).split([self.nope, self.values], 1)
        low = torch.cat([torch.einsum("bhtn,hnr->bhtr", q[..., :self.nope], keys), q[..., self.nope:]], -1)
        shares = (low @ rows.unsqueeze(1).transpose(-1, -2) * (self.nope + self.rope) ** -0.5).softmax(-1)
        return torch.einsum("bhtr,hvr->bhtv", shares @ rows[..., :self.rank].unsqueeze(1), values)


class Router(nn.Module):
    """Chooses experts by sigmoid scores plus a bias; the bias has no part in their weights."""

    def __init__(self, c: dict):
        super().__init__()
        self.top = c["num_experts_per_token"]
        self.weight = nn.Parameter(torch.zeros(c["num_experts"], c["hidden_size"]))
        self.register_buffer("e_score_correction_bias", torch.zeros(c["num_experts"]))
        self.load = torch.zeros(c["num_experts"])

    @torch.autocast("cpu", enabled=False)
    def forward(self, x):
        """Ids and weights of the chosen experts of each row of x: [N, top]."""
        scores = torch.sigmoid(F.linear(x.float(), self.weight))
        chosen = (scores.detach() + self.e_score_correction_bias).topk(self.top, -1).indices
        self.load = torch.bincount(chosen.flatten(), minlength=len(self.load)).float()
        weights = scores.gather(-1, chosen)
        return chosen, weights / (weights.sum(-1, keepdim=True) + 1e-20)


class Experts(nn.Module):
    """All routed experts of a layer; w1 is the gate, w3 the up and w2 the down projection, stacked by rows."""

    def __init__(self, c: dict):
        super().__init__()
        self.count, width, inner = c["num_experts"], c["routed_expert_hidden_size"], c["moe_intermediate_size"]
        self.limits = c["activation_situ_beta"], c["activation_situ_linear_beta"]
        self.w1 = nn.Parameter(torch.empty(self.count * inner, width))
        self.w3 = nn.Parameter(torch.empty(self.count * inner, width))
        self.w2 = nn.Parameter(torch.empty(self.count * width, inner))
        self.quantised = False

    def matrices(self, stack, dtype):
        """The experts' own matrices, transposed: [count, inputs, outputs]."""
        stack = mxfp4.pretend(stack) if self.quantised else stack
        return stack.to(dtype).view(self.count, -1, stack.shape[-1]).transpose(1, 2)

    def forward(self, x, chosen, weights):
        """Weighted sum of the chosen experts for each row of x [N, width]."""
        order = chosen.flatten().argsort()
        expert, source = chosen.flatten()[order], order // chosen.shape[-1]
        counts = torch.bincount(expert, minlength=self.count)
        # Whole steps of rows: a library that compiles a product for each new shape then meets few of them.
        room = -(-int(counts.max()) // ROWS) * ROWS
        place = expert * room + torch.arange(len(expert)) - (counts.cumsum(0) - counts)[expert]
        rows = x.new_zeros(self.count * room, x.shape[-1]).index_copy(0, place, x[source]).view(self.count, room, -1)
        w1, w3, w2 = (self.matrices(w, x.dtype) for w in (self.w1, self.w3, self.w2))
        out = torch.bmm(Situ.apply(torch.bmm(rows, w1), torch.bmm(rows, w3), *self.limits), w2)
        out = out.flatten(0, 1)[place].float() * weights.flatten()[order].unsqueeze(-1)
        return torch.zeros(x.shape, dtype=torch.float32).index_add(0, source, out)


class Moe(nn.Module):
    """Routed experts in a narrow latent space, and shared experts beside them."""

    def __init__(self, c: dict):
        super().__init__()
        hidden, latent = c["hidden_size"], c["routed_expert_hidden_size"]
        self.gate = Router(c)
        self.routed_expert_down_proj = nn.Linear(hidden, latent, bias=False)
        self.experts = Experts(c)
        self.routed_expert_norm = Norm(latent, c["rms_norm_eps"])
        self.routed_expert_up_proj = nn.Linear(latent, hidden, bias=False)
        self.shared_experts = Mlp(c, c["num_shared_experts"] * c["moe_intermediate_size"])

    def forward(self, x):
        flat = x.flatten(0, 1)
        routed = self.experts(self.routed_expert_down_proj(flat), *self.gate(flat))
        routed = self.routed_expert_up_proj(self.routed_expert_norm(routed).to(x.dtype))
        return routed.view(x.shape) + self.shared_experts(x)


def mix(rows: list, norm: Norm, proj: nn.Linear):
    """Attention residual: the rows, each weighted by how well it fits one learnt direction."""
    direction = norm.weight * proj.weight[0]
    scores = [(row @ direction) * torch.rsqrt(row.square().mean(-1) + norm.eps) for row in rows]
    shares = torch.stack(scores, -1).softmax(-1).unsqueeze(-1)
    return sum(share * row for share, row in zip(shares.unbind(-2), rows))


class Layer(nn.Module):
    """Attention, then feed-forward; each reads a mix of the closed blocks and the open one."""

    def __init__(self, c: dict, at: int):
        super().__init__()
        hidden, eps = c["hidden_size"], c["rms_norm_eps"]
        self.opens_block = at % c["attn_res_block_size"] == 0
        self.input_layernorm = Norm(hidden, eps)
        self.post_attention_layernorm = Norm(hidden, eps)
        for name in ("self_attention_res", "mlp_res"):
            setattr(self, f"{name}_norm", Norm(hidden, eps))
            setattr(self, f"{name}_proj", nn.Linear(hidden, 1, bias=False))
        self.self_attn = Mla(c) if at + 1 in c["linear_attn_config"]["full_attn_layers"] else Kda(c)
        if at < c["first_k_dense_replace"]:
            self.mlp = Mlp(c, c["intermediate_size"])
        else:
            self.block_sparse_moe = Moe(c)

    @torch.autocast("cpu", enabled=False)
    def mixed(self, blocks: list, prefix, name: str):
        """Mix of the closed blocks and the open one."""
        return mix([*blocks, prefix], getattr(self, f"{name}_norm"), getattr(self, f"{name}_proj"))

    def forward(self, prefix, blocks: list, dtype, cache=None):
        """The new running sum of the open block; a layer that opens a block closes the last one."""
        h = self.input_layernorm(self.mixed(blocks, prefix, "self_attention_res")).to(dtype)
        attended = self.self_attn(h, cache).float()
        if self.opens_block:
            blocks.append(prefix)
            prefix = attended
        else:
            prefix = prefix + attended
        h = self.post_attention_layernorm(self.mixed(blocks, prefix, "mlp_res")).to(dtype)
        feed_forward = self.mlp if hasattr(self, "mlp") else self.block_sparse_moe
        return prefix + feed_forward(h).float()


class Body(nn.Module):
    """Embedding, layers and the last norms."""

    def __init__(self, c: dict):
        super().__init__()
        hidden, eps = c["hidden_size"], c["rms_norm_eps"]
        self.embed_tokens = nn.Embedding(c["vocab_size"], hidden)
        self.layers = nn.ModuleList(Layer(c, at) for at in range(c["num_hidden_layers"]))
        self.output_attn_res_norm = Norm(hidden, eps)
        self.output_attn_res_proj = nn.Linear(hidden, 1, bias=False)
        self.norm = Norm(hidden, eps)

    def forward(self, ids, dtype, caches):
        """Normed output of the last layer: [B, T, hidden]."""
        prefix, blocks = self.embed_tokens(ids), []
        for layer, cache in zip(self.layers, caches or [None] * len(self.layers)):
            prefix = layer(prefix, blocks, dtype, cache)
        with torch.autocast("cpu", enabled=False):
            return self.norm(mix([*blocks, prefix], self.output_attn_res_norm, self.output_attn_res_proj))


class TinyKimi(nn.Module):
    """The text model."""

    def __init__(self, c: dict):
        super().__init__()
        self.c = c
        self.model = Body(c)
        self.lm_head = nn.Linear(c["hidden_size"], c["vocab_size"], bias=False)
        self.reset()

    def reset(self):
        """Initial weights: normal, the projections back into the stream smaller, all mixes even."""
        for name, p in self.named_parameters():
            if "res_proj" in name:
                nn.init.zeros_(p)
            elif p.ndim == 2:
                scale = {"model.embed_tokens.weight": 0.3, "lm_head.weight": 0.02}.get(name, p.shape[1] ** -0.5)
                nn.init.normal_(p, std=scale * (0.3 if any(s in name for s in INTO_STREAM) else 1.0))

    def forward(self, ids, dtype=torch.float32, caches=None):
        """Logits [B, T, V]; T is a multiple of the chunk, or one token with caches."""
        return F.linear(self.model(ids, dtype, caches).to(dtype), self.lm_head.weight.to(dtype))

    def empty(self, rows: int) -> list[dict]:
        """Caches before the first token."""
        return [layer.self_attn.empty(rows) for layer in self.model.layers]

    def quantise(self, on: bool):
        """Whether the experts compute with what their packed form stands for."""
        for experts in self.parts(Experts):
            experts.quantised = on

    def loads(self) -> list[float]:
        """How many rows each expert got in the last forward pass, layer after layer."""
        return torch.cat([router.load for router in self.parts(Router)]).tolist()

    def balance(self, loads: list[float], rate: float):
        """Moves the selection bias of each expert towards its fair share of the rows."""
        routers = self.parts(Router)
        for router, load in zip(routers, torch.tensor(loads).chunk(len(routers))):
            router.e_score_correction_bias += rate * torch.sign(load.mean() - load)

    def parts(self, kind) -> list:
        """All modules of one class."""
        return [m for m in self.modules() if isinstance(m, kind)]
