"""DSpark, a draft with its own embedding and head and a Markov bias.

Row k of a block predicts the position after its own. The rows are computed at
once; the bias of the token before makes the choices depend on each other.
"""

import torch
import torch.nn.functional as F
from torch import nn

from draft_blocks import Blocks, Draft, weighted_loss

LOSS_DECAY = 0.8


class MarkovHead(nn.Module):
    """Bias of every token after a token, of low rank."""

    def __init__(self, vocabulary: int, rank: int):
        super().__init__()
        self.markov_w1 = nn.Embedding(vocabulary, rank)
        self.markov_w2 = nn.Linear(rank, vocabulary, bias=False)

    def forward(self, before):
        """Bias [..., V] after the tokens `before` [...]."""
        return self.markov_w2(self.markov_w1(before))


class DSpark(Draft):
    """The draft; `config` is its config.json. A new one starts from the target's embedding and head."""

    def __init__(self, config: dict, embedding: torch.Tensor, head: torch.Tensor):
        c = config["transformer_layer_config"]
        super().__init__(c, len(config["aux_hidden_state_layer_ids"]), config["block_size"], config["mask_token_id"])
        self.embed_tokens = nn.Embedding.from_pretrained(embedding.clone(), freeze=False)
        self.lm_head = nn.Linear(c["hidden_size"], c["vocab_size"], bias=False)
        self.lm_head.weight = nn.Parameter(head.clone())
        self.markov_head = MarkovHead(c["vocab_size"], config["markov_rank"])
        self.reset()

    def reset(self):
        """The bias starts at zero."""
        super().reset()
        nn.init.zeros_(self.markov_head.markov_w2.weight)

    def sees(self, positions, anchors, past):
        """The window of all rows is the anchor's."""
        seen = (past < anchors) & (past >= anchors - self.c["sliding_window"])
        return seen.expand(*positions.shape, -1)

    def sees_own(self):
        return torch.ones(self.rows, self.rows, dtype=torch.bool).tril()

    def predictions(self, taps, anchors, first, dtype=torch.float32):
        """Logits [B, A, rows, V] for the positions after those of the rows, without the bias."""
        rows = self.hidden(self.embed_tokens.weight, taps, anchors, first, dtype)
        return self.lm_head(rows.to(dtype))

    def loss(self, blocks: Blocks, dtype):
        before, wanted = blocks.tokens[:, :, :-1], blocks.tokens[:, :, 1:]
        logits = self.predictions(blocks.taps, blocks.anchors, before[:, :, 0], dtype)
        return weighted_loss(logits + self.markov_head(before), wanted, blocks.known[:, :, 1:], LOSS_DECAY)

    @torch.no_grad()
    def propose(self, taps, anchors, first, dtype=torch.float32):
        logits, path = self.predictions(taps, anchors, first, dtype), [first]
        for row in range(self.rows):
            path.append((logits[:, :, row].float() + self.markov_head(path[-1])).argmax(-1))
        return torch.stack(path[1:], -1)
