"""The two models that drafts are made for: weights, documents, and what a draft taps of them."""

import random
from pathlib import Path

import torch
from tokenizers import Tokenizer

import kimi_export
import kimi_train
import train
from dflash_model import DFlash2
from draft_blocks import Draft
from draft_config import dflash_config, dspark_config
from dspark_model import DSpark
from oracle import own_model

UNUSED_TOKEN = "<tool_response>"
UNUSED_FROM_END = 3


class Target:
    """A trained model, and the kind of draft that is made for it."""

    family: type[train.Family]

    def __init__(self, folder: Path):
        self.folder, self.model = folder, self.load(folder)

    def load(self, folder: Path) -> torch.nn.Module:
        """The model of a checkpoint."""
        raise NotImplementedError

    def draft_config(self) -> dict:
        """config.json of a new draft."""
        raise NotImplementedError

    def draft(self, config: dict) -> Draft:
        """A draft with new weights."""
        raise NotImplementedError

    def tapped(self, config: dict, ids, dtype) -> torch.Tensor:
        """What a draft taps of the model over token ids [B, T]: [B, T, taps * hidden]."""
        raise NotImplementedError


class Qwen(Target):
    """A model of the Qwen3.5 family, with a DFlash2 draft that taps what layers put out."""

    family = train.Qwen

    def load(self, folder):
        return own_model(folder)

    def draft_config(self):
        tokenizer = Tokenizer.from_file(str(self.folder / "tokenizer.json"))
        return dflash_config(self.model.c, tokenizer.token_to_id(UNUSED_TOKEN))

    def draft(self, config):
        words = self.model.embed_tokens.weight.detach()
        return DFlash2(config, words, words)

    def tapped(self, config, ids, dtype):
        h, rope, streams = self.model.embed_tokens(ids), self.model.rope(ids.shape[1]), []
        for layer in self.model.layers:
            h = layer(h, rope, dtype)
            streams.append(h)
        return torch.cat([streams[i] for i in config["dflash_config"]["target_layer_ids"]], -1)


class Kimi(Target):
    """A model of the Kimi K3 family, with a DSpark draft that taps the running sums that enter layers."""

    family = kimi_train.Kimi

    def load(self, folder):
        return kimi_export.load(folder)

    def draft_config(self):
        return dspark_config(self.model.c, self.model.c["vocab_size"] - UNUSED_FROM_END)

    def draft(self, config):
        return DSpark(config, self.model.model.embed_tokens.weight.detach(), self.model.lm_head.weight.detach())

    def tapped(self, config, ids, dtype):
        prefix, blocks, streams = self.model.model.embed_tokens(ids), [], []
        for layer in self.model.model.layers:
            streams.append(prefix)
            prefix = layer(prefix, blocks, dtype)
        return torch.cat([streams[i] for i in config["aux_hidden_state_layer_ids"]], -1)


TARGETS: dict[str, type[Target]] = {"dflash": Qwen, "dspark": Kimi}


def prompts(family: train.Family, rng: random.Random, count: int) -> list[list[int]]:
    """Token ids of new prompts: documents without what the assistant has to produce."""
    documents = (family.document(rng) for _ in range(count))
    return [[i for i, weight in zip(ids, weights) if weight < 1.0] for ids, weights in documents]
