"""A trainable torch version of the Qwen3.5 text model, small and fast on a CPU.

Parameters carry the names of the Hugging Face checkpoint, so exporting is a
copy. Each row is one document from an empty state. The gated delta rule is
solved in chunks: one triangular system for each instead of a loop over tokens.
"""

import json
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

PREFIX = "model.language_model."
CHUNK = 32

def load_config(path: Path) -> dict:
    """The text part of a config.json."""
    return json.loads(path.read_text())["text_config"]


class ZeroCentredNorm(nn.Module):
    """RMS norm whose stored weight is the distance from one."""

    def __init__(self, size: int, eps: float):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(size))
        self.eps = eps

    def forward(self, x):
        x = x.float()
        return F.rms_norm(x, (x.shape[-1],), 1.0 + self.weight, self.eps)


class GatedNorm(nn.Module):
    """RMS norm per value head with a plain weight, gated by silu(z)."""

    def __init__(self, size: int, eps: float):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x, z):
        return F.rms_norm(x, (x.shape[-1],), self.weight, self.eps) * F.silu(z)


class Mlp(nn.Module):
    """SwiGLU feed-forward block."""

    def __init__(self, hidden: int, inner: int):
        super().__init__()
        self.gate_proj = nn.Linear(hidden, inner, bias=False)
        self.up_proj = nn.Linear(hidden, inner, bias=False)
        self.down_proj = nn.Linear(inner, hidden, bias=False)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Attention(nn.Module):
    """Grouped-query attention with q/k norms, partial rotary and an output gate."""

    def __init__(self, c: dict):
        super().__init__()
        self.heads, self.kv_heads, self.dim = (
            c["num_attention_heads"], c["num_key_value_heads"], c["head_dim"])
        hidden = c["hidden_size"]
        self.q_proj = nn.Linear(hidden, 2 * self.heads * self.dim, bias=False)
        self.k_proj = nn.Linear(hidden, self.kv_heads * self.dim, bias=False)
        self.v_proj = nn.Linear(hidden, self.kv_heads * self.dim, bias=False)
        self.o_proj = nn.Linear(self.heads * self.dim, hidden, bias=False)
        self.q_norm = ZeroCentredNorm(self.dim, c["rms_norm_eps"])
        self.k_norm = ZeroCentredNorm(self.dim, c["rms_norm_eps"])

    def forward(self, x, rope):
        b, t, _ = x.shape
        q, gate = self.q_proj(x).view(b, t, self.heads, 2 * self.dim).chunk(2, -1)
        k = self.k_proj(x).view(b, t, self.kv_heads, self.dim)
        v = self.v_proj(x).view(b, t, self.kv_heads, self.dim).float()
        q = rotate(self.q_norm(q), rope).transpose(1, 2)
        k = rotate(self.k_norm(k), rope).transpose(1, 2)
        groups = self.heads // self.kv_heads
        k = k.repeat_interleave(groups, 1)
        v = v.transpose(1, 2).repeat_interleave(groups, 1)
        out = attend(q.to(x.dtype), k.to(x.dtype), v.to(x.dtype)).transpose(1, 2) * torch.sigmoid(gate)
        return self.o_proj(out.reshape(b, t, -1))


class LinearAttention(nn.Module):
    """Gated delta net: short convolution, decayed delta rule, gated norm."""

    def __init__(self, c: dict):
        super().__init__()
        self.k_heads, self.v_heads = c["linear_num_key_heads"], c["linear_num_value_heads"]
        self.dk, self.dv = c["linear_key_head_dim"], c["linear_value_head_dim"]
        hidden = c["hidden_size"]
        self.keys, self.values = self.k_heads * self.dk, self.v_heads * self.dv
        channels = 2 * self.keys + self.values
        self.taps = c["linear_conv_kernel_dim"]
        self.in_proj_qkv = nn.Linear(hidden, channels, bias=False)
        self.in_proj_z = nn.Linear(hidden, self.values, bias=False)
        self.in_proj_b = nn.Linear(hidden, self.v_heads, bias=False)
        self.in_proj_a = nn.Linear(hidden, self.v_heads, bias=False)
        self.conv1d = nn.Conv1d(channels, channels, self.taps, groups=channels, bias=False)
        self.A_log = nn.Parameter(torch.log(torch.empty(self.v_heads).uniform_(0.5, 8.0)))
        self.dt_bias = nn.Parameter(torch.full((self.v_heads,), -3.0))
        self.norm = GatedNorm(self.dv, c["rms_norm_eps"])
        self.out_proj = nn.Linear(self.values, hidden, bias=False)

    def convolve(self, u):
        """Causal depthwise convolution over time, then silu."""
        padded = F.pad(u, (0, 0, self.taps - 1, 0))
        w = self.conv1d.weight[:, 0, :].to(u.dtype)
        length = u.shape[1]
        return F.silu(sum(padded[:, i:i + length] * w[:, i] for i in range(self.taps)))

    def forward(self, x, rope):
        b, t, _ = x.shape
        y = self.convolve(self.in_proj_qkv(x)).float()
        q, k, v = y.split([self.keys, self.keys, self.values], -1)
        groups = self.v_heads // self.k_heads
        q = unit(q.view(b, t, self.k_heads, self.dk)).transpose(1, 2) * self.dk ** -0.5
        k = unit(k.view(b, t, self.k_heads, self.dk)).transpose(1, 2)
        if groups > 1:
            q, k = q.repeat_interleave(groups, 1), k.repeat_interleave(groups, 1)
        v = v.view(b, t, self.v_heads, self.dv).transpose(1, 2)
        beta = torch.sigmoid(self.in_proj_b(x).float()).transpose(1, 2)
        g = -self.A_log.exp() * F.softplus(self.in_proj_a(x).float() + self.dt_bias)
        out = delta_rule(q, k, v, beta, g.transpose(1, 2)).transpose(1, 2)
        z = self.in_proj_z(x).float().view(b, t, self.v_heads, self.dv)
        return self.out_proj(self.norm(out, z).reshape(b, t, -1).to(x.dtype))


def attend(q, k, v):
    """Causal attention written out, which is faster here than the fused one."""
    scores = (q @ k.transpose(-1, -2)).float() * q.shape[-1] ** -0.5
    future = torch.full(scores.shape[-2:], -1e9).triu(1)
    return (scores + future).softmax(-1).to(v.dtype) @ v


@torch.autocast("cpu", enabled=False)
def delta_rule(q, k, v, beta, g):
    """Gated delta rule from an empty state.

    q, k: [B, H, T, dk]; v: [B, H, T, dv]; beta, g: [B, H, T]; T is a multiple of CHUNK.
    """
    shape, rows = v.shape, g.shape[:2]
    q, k, v = (x.reshape(*rows, -1, CHUNK, x.shape[-1]) for x in (q, k, v))
    beta, total = beta.reshape(*rows, -1, CHUNK, 1), g.reshape(*rows, -1, CHUNK).cumsum(-1)
    future = torch.full((CHUNK, CHUNK), -1e9).triu(1)
    decay = (total.unsqueeze(-1) - total.unsqueeze(-2) + future).exp()
    grown, kt, scaled = total.exp().unsqueeze(-1), k.transpose(-1, -2), k * beta
    solved = torch.linalg.solve_triangular(
        scaled @ kt * decay, torch.cat([v * beta, scaled * grown], -1), upper=False, unitriangular=True)
    fresh, seen = solved.split([v.shape[-1], k.shape[-1]], -1)
    rest = (k * (total[..., -1:] - total).exp().unsqueeze(-1)).transpose(-1, -2)
    state, states, updates = v.new_zeros(*rows, k.shape[-1], v.shape[-1]), [], []
    for f, s, r, last in zip(*(x.unbind(2) for x in (fresh, seen, rest, grown[..., -1:, :]))):
        states.append(state)
        updates.append(f - s @ state)
        state = state * last + r @ updates[-1]
    out = (q * grown) @ torch.stack(states, 2) + (q @ kt * decay) @ torch.stack(updates, 2)
    return out.reshape(shape)


def unit(x):
    """Scales the last dimension to length one."""
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + 1e-6)


def rotate(x, rope):
    """Rotary embedding of the first dimensions of x [B, T, H, D], split in halves."""
    cos, sin = rope
    half = cos.shape[-1]
    a, b, rest = x[..., :half], x[..., half:2 * half], x[..., 2 * half:]
    cos, sin = cos[:, None], sin[:, None]
    return torch.cat([a * cos - b * sin, b * cos + a * sin, rest], -1)


class Layer(nn.Module):
    """Pre-norm layer: mixer, then feed-forward."""

    def __init__(self, c: dict, kind: str):
        super().__init__()
        hidden, eps = c["hidden_size"], c["rms_norm_eps"]
        self.input_layernorm = ZeroCentredNorm(hidden, eps)
        self.post_attention_layernorm = ZeroCentredNorm(hidden, eps)
        self.mlp = Mlp(hidden, c["intermediate_size"])
        if kind == "full_attention":
            self.self_attn = Attention(c)
            self.mixer = "self_attn"
        else:
            self.linear_attn = LinearAttention(c)
            self.mixer = "linear_attn"

    def forward(self, h, rope, dtype):
        mixer = getattr(self, self.mixer)
        h = h + mixer(self.input_layernorm(h).to(dtype), rope)
        return h + self.mlp(self.post_attention_layernorm(h).to(dtype))


class TinyQwen(nn.Module):
    """The text model with a tied head."""

    def __init__(self, c: dict):
        super().__init__()
        self.c = c
        self.embed_tokens = nn.Embedding(c["vocab_size"], c["hidden_size"])
        self.layers = nn.ModuleList(Layer(c, kind) for kind in c["layer_types"])
        self.norm = ZeroCentredNorm(c["hidden_size"], c["rms_norm_eps"])
        self.reset()

    def reset(self):
        """Initial weights: normal, the projections back into the stream smaller."""
        for name, p in self.named_parameters():
            if p.ndim == 2:
                scale = 0.02 if "embed" in name else p.shape[1] ** -0.5
                if "o_proj" in name or "out_proj" in name or "down_proj" in name:
                    scale *= 0.3
                nn.init.normal_(p, std=scale)

    def rope(self, length: int):
        """cos and sin tables [T, rotary/2]."""
        r = self.c["rope_parameters"]
        dims = int(self.c["head_dim"] * r["partial_rotary_factor"])
        inv = r["rope_theta"] ** (-torch.arange(0, dims, 2).float() / dims)
        angle = torch.arange(length).float()[:, None] * inv
        return angle.cos(), angle.sin()

    def forward(self, ids, dtype=torch.float32):
        """Logits [B, T, V]; T is a multiple of CHUNK."""
        h = self.embed_tokens(ids)
        rope = self.rope(ids.shape[1])
        for layer in self.layers:
            h = layer(h, rope, dtype)
        return F.linear(self.norm(h).to(dtype), self.embed_tokens.weight.to(dtype))
