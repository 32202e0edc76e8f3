"""What both kinds of draft are made of: layers over blocks that read a context.

A block is `rows` neighbouring positions, an anchor first. All blocks of a
sequence are computed together: [B, A, rows, hidden] for A anchors of each of B
sequences. Keys and values of the context come from the target's taps, once for
each position, and a block sees those before its anchor.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import nn

from kimi_model import Norm
from model import Mlp

MASKED = -1e9


class Blocks(NamedTuple):
    """Blocks of a batch of sequences.

    taps: [B, T, taps * hidden] of the target; anchors: [B, A] positions;
    tokens: [B, A, rows + 1], the anchor's and those that follow it;
    known: [B, A, rows + 1], false beyond the end of the answer.
    """
    taps: torch.Tensor
    anchors: torch.Tensor
    tokens: torch.Tensor
    known: torch.Tensor


class View(NamedTuple):
    """What the layers of one pass share: rotary tables of context and blocks, and what each row sees."""
    context_rope: tuple
    block_rope: tuple
    bias: torch.Tensor


def rope_tables(positions: torch.Tensor, theta: float, dim: int) -> tuple[torch.Tensor, torch.Tensor]:
    """cos and sin for positions of any shape: [..., 1, dim / 2], the same for all heads."""
    inverse = theta ** (-torch.arange(0, dim, 2).float() / dim)
    angle = positions.float()[..., None, None] * inverse
    return angle.cos(), angle.sin()


def rotate(x, rope):
    """Rotary embedding of x [..., heads, dim], split in halves."""
    cos, sin = rope
    a, b = x.chunk(2, -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


def bias_of(context: torch.Tensor, block: torch.Tensor, dtype) -> torch.Tensor:
    """Zero where a row sees: context [B, A, rows, T] and block [rows, rows] as one, [B, A, rows, T + rows]."""
    seen = torch.cat([context, block.expand(*context.shape[:3], -1)], -1)
    return torch.zeros(seen.shape, dtype=dtype).masked_fill_(~seen, MASKED)


class BlockAttention(nn.Module):
    """Grouped-query attention of block rows to the context and to their own block, as in Qwen3."""

    def __init__(self, c: dict):
        super().__init__()
        self.heads, self.kv_heads, self.dim = c["num_attention_heads"], c["num_key_value_heads"], c["head_dim"]
        hidden = c["hidden_size"]
        self.q_proj = nn.Linear(hidden, self.heads * self.dim, bias=False)
        self.k_proj = nn.Linear(hidden, self.kv_heads * self.dim, bias=False)
        self.v_proj = nn.Linear(hidden, self.kv_heads * self.dim, bias=False)
        self.o_proj = nn.Linear(self.heads * self.dim, hidden, bias=False)
        self.q_norm = Norm(self.dim, c["rms_norm_eps"])
        self.k_norm = Norm(self.dim, c["rms_norm_eps"])

    def keys(self, x, rope):
        """Keys and values of rows x [..., hidden]: [..., kv_heads, dim] each."""
        k, v = (proj(x).unflatten(-1, (self.kv_heads, self.dim)) for proj in (self.k_proj, self.v_proj))
        return rotate(self.k_norm(k), rope).to(x.dtype), v

    def forward(self, x, context, view: View):
        b, anchors, rows, _ = x.shape
        q = rotate(self.q_norm(self.q_proj(x).unflatten(-1, (self.heads, self.dim))), view.block_rope)
        q = (q * self.dim ** -0.5).to(x.dtype).view(b, anchors, rows, self.kv_heads, -1, self.dim).permute(0, 3, 4, 1, 2, 5)
        past_k, past_v = (y.transpose(1, 2) for y in self.keys(context, view.context_rope))
        own_k, own_v = (y.permute(0, 3, 1, 2, 4).unsqueeze(2) for y in self.keys(x, view.block_rope))
        past = (q.flatten(2, 4) @ past_k.transpose(-1, -2)).view(*q.shape[:5], -1)
        scores = torch.cat([past, q @ own_k.transpose(-1, -2)], -1) + view.bias[:, None, None]
        shares = scores.softmax(-1).to(x.dtype)
        past, own = shares.split([past_k.shape[-2], rows], -1)
        out = (past.flatten(2, 4) @ past_v).view(q.shape) + own @ own_v
        return self.o_proj(out.permute(0, 3, 4, 1, 2, 5).reshape(b, anchors, rows, -1))


class BlockLayer(nn.Module):
    """Pre-norm layer of a draft: attention, then feed-forward."""

    def __init__(self, c: dict):
        super().__init__()
        hidden, eps = c["hidden_size"], c["rms_norm_eps"]
        self.input_layernorm = Norm(hidden, eps)
        self.post_attention_layernorm = Norm(hidden, eps)
        self.self_attn = BlockAttention(c)
        self.mlp = Mlp(hidden, c["intermediate_size"])

    def forward(self, x, context, view: View, dtype):
        x = x + self.self_attn(self.input_layernorm(x).to(dtype), context, view)
        return x + self.mlp(self.post_attention_layernorm(x).to(dtype))


class Draft(nn.Module):
    """Backbone of a draft. A subclass says what a row sees, and proposes tokens from the rows."""

    layer: type[BlockLayer] = BlockLayer

    def __init__(self, c: dict, taps: int, rows: int, mask: int):
        super().__init__()
        self.c, self.rows, self.mask = c, rows, mask
        hidden, eps = c["hidden_size"], c["rms_norm_eps"]
        self.fc = nn.Linear(taps * hidden, hidden, bias=False)
        self.hidden_norm = Norm(hidden, eps)
        self.layers = nn.ModuleList(self.layer(c) for _ in range(c["num_hidden_layers"]))
        self.norm = Norm(hidden, eps)

    def reset(self):
        """Initial weights of the matrices: normal, the projections back into the stream smaller."""
        for name, p in self.named_parameters():
            if name.startswith(("layers.", "fc.")) and p.ndim == 2:
                into_stream = "o_proj" in name or "down_proj" in name
                nn.init.normal_(p, std=p.shape[1] ** -0.5 * (0.3 if into_stream else 1.0))

    def sees(self, positions, anchors, past) -> torch.Tensor:
        """Whether block rows at positions [B, A, rows] see those of the context [T]: [B, A, rows, T]."""
        raise NotImplementedError

    def sees_own(self) -> torch.Tensor:
        """Whether rows of a block see each other: [rows, rows]."""
        raise NotImplementedError

    def view(self, length: int, anchors, dtype) -> View:
        """Rotary tables and visibility for blocks at some anchors of sequences of a length."""
        past, positions = torch.arange(length), anchors.unsqueeze(-1) + torch.arange(self.rows)
        theta, dim = self.c["rope_parameters"]["rope_theta"], self.c["head_dim"]
        bias = bias_of(self.sees(positions, anchors[..., None, None], past), self.sees_own(), dtype)
        return View(rope_tables(past, theta, dim), rope_tables(positions, theta, dim), bias)

    def hidden(self, embedding, taps, anchors, first, dtype=torch.float32):
        """Normed rows [B, A, rows, hidden] of blocks that start with the tokens `first` [B, A]."""
        tokens = F.pad(first.unsqueeze(-1), (0, self.rows - 1), value=self.mask)
        x, view = F.embedding(tokens, embedding), self.view(taps.shape[1], anchors, dtype)
        context = self.hidden_norm(self.fc(taps.to(dtype))).to(dtype)
        for layer in self.layers:
            x = layer(x, context, view, dtype)
        return self.norm(x)

    def loss(self, blocks: Blocks, dtype) -> torch.Tensor:
        """Loss over all rows that the target's text answers."""
        raise NotImplementedError

    def propose(self, taps, anchors, first, dtype=torch.float32) -> torch.Tensor:
        """Tokens proposed after each anchor, left to right: [B, A, proposals]."""
        raise NotImplementedError


def weighted_loss(logits, wanted, known, decay: float) -> torch.Tensor:
    """Mean cross-entropy of rows [B, A, rows, V] where known; a later row weighs less, by powers of `decay`."""
    each = F.cross_entropy(logits.float().flatten(0, 2), wanted.flatten(), reduction="none").view(wanted.shape)
    weights = known * decay ** torch.arange(wanted.shape[-1])
    return (each * weights).sum() / weights.sum()
