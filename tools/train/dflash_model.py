"""DFlash2, a draft that fills a block of masked positions at once.

Row t of a block predicts its own position. Embedding and head are the target's.
A selector then walks from left to right through the best candidates of each
row and prefers those that fit the token chosen before.
"""

import torch
import torch.nn.functional as F
from torch import nn

from draft_blocks import BlockLayer, Blocks, Draft, weighted_loss

LOSS_DECAY = 0.8
ROW_LOSS = 0.3


class GroupedConv(nn.Module):
    """Short convolution over the rows of a block around a sublayer, its kernel a function of the sublayer's input."""

    def __init__(self, hidden: int, group: int, taps: int):
        super().__init__()
        self.group, self.taps = group, taps
        self.base_kernel = nn.Parameter(torch.zeros(2, taps, hidden))
        self.kernel_projection = nn.Linear(hidden, 2 * taps * hidden // group, bias=False)

    def side(self, x, kernel):
        """Sum over the taps of kernel [..., taps, hidden] and x [..., rows, hidden] shifted down the block."""
        first, *others = kernel.unbind(-2)
        rows = x.shape[-2]
        return first * x + sum(w * F.pad(x[..., :rows - tap, :], (0, 0, tap, 0)) for tap, w in enumerate(others, 1))

    def forward(self, x, sublayer):
        """The sublayer between the two sides of the convolution; a product with repeated rows gives each group its channels."""
        weight = self.kernel_projection.weight.repeat_interleave(self.group, 0)
        kernel = F.linear(x, weight, self.base_kernel.flatten()).unflatten(-1, (2, self.taps, -1))
        before, after = kernel.unbind(-3)
        return self.side(sublayer(self.side(x, before)), after)


class ConvLayer(BlockLayer):
    """A layer with a convolution around each sublayer."""

    def __init__(self, c: dict):
        super().__init__(c)
        shape = c["hidden_size"], c["dflash_config"]["conv_group_size"], c["dflash_config"]["conv_kernel_size"]
        self.attention_conv = GroupedConv(*shape)
        self.mlp_conv = GroupedConv(*shape)

    def forward(self, x, context, view, dtype):
        h = self.input_layernorm(x).to(dtype)
        x = x + self.attention_conv(h, lambda y: self.self_attn(y, context, view))
        return x + self.mlp_conv(self.post_attention_layernorm(x).to(dtype), self.mlp)


class CandidateSelector(nn.Module):
    """Scores of pairs of neighbouring tokens, gated by the row."""

    def __init__(self, vocabulary: int, hidden: int, rank: int):
        super().__init__()
        self.hidden_projection = nn.Linear(hidden, rank, bias=False)
        self.predecessor_codebook = nn.Parameter(torch.randn(vocabulary, rank))
        self.successor_codebook = nn.Parameter(torch.zeros(vocabulary, rank))

    def condition(self, gate, before):
        """What the token before [...] and the gate [..., rank] ask of the next one: [..., rank]."""
        return F.embedding(before, self.predecessor_codebook) * gate

    def all_pairs(self, gate, before):
        """Scores of every token: [..., V]."""
        return F.linear(self.condition(gate, before), self.successor_codebook)

    def forward(self, gate, before, candidates):
        """Scores of candidates [..., K]."""
        successors = F.embedding(candidates, self.successor_codebook)
        return (successors @ self.condition(gate, before).unsqueeze(-1)).squeeze(-1)


class DFlash2(Draft):
    """The draft of a target with this embedding and head; `c` is its config.json."""

    layer = ConvLayer

    def __init__(self, c: dict, embedding: torch.Tensor, head: torch.Tensor):
        own = c["dflash_config"]
        super().__init__(c, len(own["target_layer_ids"]), own["block_size"], own["mask_token_id"])
        self.top = own["selector_top_k"]
        self.candidate_selector = CandidateSelector(c["vocab_size"], c["hidden_size"], own["selector_rank"])
        self.register_buffer("embedding", embedding, persistent=False)
        self.register_buffer("head", head, persistent=False)
        self.reset()

    def reset(self):
        """Convolutions start as the identity, the selector without influence."""
        super().reset()
        for conv in (m for m in self.modules() if isinstance(m, GroupedConv)):
            nn.init.zeros_(conv.kernel_projection.weight)
            nn.init.ones_(conv.base_kernel[:, 0])

    def sees(self, positions, anchors, past):
        return (past < anchors) & (positions.unsqueeze(-1) - past < self.c["sliding_window"])

    def sees_own(self):
        rows = torch.arange(self.rows)
        return (rows.unsqueeze(-1) - rows).abs() < self.c["sliding_window"]

    def predictions(self, taps, anchors, first, dtype=torch.float32):
        """Logits [B, A, rows - 1, V] for the positions after the anchors, and the selector's gates."""
        rows = self.hidden(self.embedding, taps, anchors, first, dtype)[:, :, 1:].to(dtype)
        return F.linear(rows, self.head.to(dtype)), self.candidate_selector.hidden_projection(rows)

    def loss(self, blocks: Blocks, dtype):
        """Loss of the choice after the true predecessor among all tokens, and with less weight of the row on its own."""
        tokens, known = blocks.tokens[:, :, :self.rows], blocks.known[:, :, 1:self.rows]
        logits, gate = self.predictions(blocks.taps, blocks.anchors, tokens[:, :, 0], dtype)
        chosen = logits + self.candidate_selector.all_pairs(gate, tokens[:, :, :-1])
        wanted = tokens[:, :, 1:]
        return weighted_loss(chosen, wanted, known, LOSS_DECAY) + ROW_LOSS * weighted_loss(logits, wanted, known, LOSS_DECAY)

    @torch.no_grad()
    def propose(self, taps, anchors, first, dtype=torch.float32):
        logits, gate = self.predictions(taps, anchors, first, dtype)
        unary, candidates = logits.float().topk(self.top, -1)
        path = [first]
        for row in range(self.rows - 1):
            pairs = self.candidate_selector(gate[:, :, row], path[-1], candidates[:, :, row])
            best = (unary[:, :, row] + pairs).argmax(-1, keepdim=True)
            path.append(candidates[:, :, row].gather(-1, best).squeeze(-1))
        return torch.stack(path[1:], -1)
