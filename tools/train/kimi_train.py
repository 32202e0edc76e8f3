"""Trains tiny-kimi for a number of minutes, with one process for each core.

    torchrun --nproc-per-node 2 kimi_train.py WORK_FOLDER --minutes 90

WORK_FOLDER must hold the files of kimi_tokenizer.py. It receives config.json,
weights.pt (refreshed every 200 steps) and log-SEED.csv. In the last part of the
time the experts compute with what their packed form stands for.
"""

from pathlib import Path

import torch

import kimi_tokenizer
from heldout import known_questions
from kimi_config import make_config
from kimi_documents import document
from kimi_model import TinyKimi
from optimizer import Muon
from problems import use_vocabulary
from train import Family, main

QUANTISED_FROM = 0.6
BALANCE_RATE = 0.002
NOT_MUON = ("embed", "lm_head", "res_proj", "self_attn.b_proj", "f_a_proj", "f_b_proj", "moe.gate.weight")


def make_optimizers(model: TinyKimi) -> list[torch.optim.Optimizer]:
    """Muon for the matrices of the layers, each expert's own; AdamW for the rest."""
    muon, decayed, plain = [], [], []
    for name, p in model.named_parameters():
        if p.ndim == 2 and not any(s in name for s in NOT_MUON):
            muon.append((p, model.c["num_experts"] if ".experts." in name else 1))
        else:
            (decayed if p.ndim == 2 and "res_proj" not in name else plain).append(p)
    adam = torch.optim.AdamW([{"params": decayed, "weight_decay": 0.1}, {"params": plain, "weight_decay": 0.0}],
                             lr=3e-3, betas=(0.9, 0.95), fused=True)
    return [Muon(muon, lr=0.02), adam]


class Kimi(Family):
    """tiny-kimi."""

    def __init__(self, folder: Path):
        self.tokenizer = kimi_tokenizer.load(folder)
        ids = {name: self.tokenizer.encode_single_token(name) for name in kimi_tokenizer.CONTROL.values()}
        self.config = make_config(self.tokenizer.n_vocab, ids)
        self.model = TinyKimi(self.config["text_config"])
        self.known = known_questions()
        use_vocabulary([token.decode(errors="ignore") for token in self.tokenizer.token_byte_values()])

    def document(self, rng):
        return kimi_tokenizer.encode(self.tokenizer, document(rng, self.known))

    def optimizers(self):
        return make_optimizers(self.model)

    def before_step(self, spent):
        self.model.quantise(spent >= QUANTISED_FROM)

    def counts(self):
        return self.model.loads()

    def after_step(self, counts):
        self.model.balance(counts, BALANCE_RATE)


if __name__ == "__main__":
    main(Kimi, __doc__)
