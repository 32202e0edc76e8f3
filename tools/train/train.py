"""Trains tiny-qwen for a number of minutes, with one process for each core.

    torchrun --nproc-per-node 2 train.py WORK_FOLDER --minutes 50

WORK_FOLDER must hold tokenizer.json (see tokenizer.py). It receives config.json,
weights.pt (refreshed every 200 steps) and log-SEED.csv.
"""

import argparse
import json
import os
import random
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from tokenizers import Tokenizer

from config import make_config
from documents import document
from heldout import known_questions
from model import CHUNK, TinyQwen
from optimizer import make_optimizers
from problems import use_vocabulary

POOL = 384
PROMPT_WEIGHT = 0.15
WARM_UP = 50


class Family:
    """What the loop has to know of one family of models; `config` and `model` are set by each."""

    config: dict
    model: torch.nn.Module

    def document(self, rng: random.Random) -> tuple[list[int], list[float]]:
        """Token ids of a new document and the loss weight of each."""
        raise NotImplementedError

    def optimizers(self) -> list[torch.optim.Optimizer]:
        """Optimizers over all parameters, with their peak learning rates."""
        raise NotImplementedError

    def before_step(self, spent: float):
        """Called before a step with the share of the time that has passed."""

    def counts(self) -> list[float]:
        """Numbers of this process to be averaged with those of the others."""
        return []

    def after_step(self, counts: list[float]):
        """Called after a step with the averaged numbers."""


class Qwen(Family):
    """tiny-qwen."""

    def __init__(self, folder: Path):
        self.tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        rows = -(-self.tokenizer.get_vocab_size() // 64) * 64
        self.config = make_config(rows, self.tokenizer.token_to_id("<|endoftext|>"))
        self.model = TinyQwen(self.config["text_config"])
        self.known = known_questions()
        use_vocabulary([self.tokenizer.decode([i]) for i in range(self.tokenizer.get_vocab_size())])

    def document(self, rng):
        ids, weights = [], []
        for text, target in document(rng, self.known):
            new = self.tokenizer.encode(text).ids
            ids += new
            weights += [1.0 if target else PROMPT_WEIGHT] * len(new)
        return ids, weights

    def optimizers(self):
        return make_optimizers(self.model)


def batches(family: Family, seed: int, tokens: int):
    """Endless batches (ids, weights) of documents of similar length, at most `tokens` with the padding on the right."""
    rng = random.Random(seed)
    while True:
        pool = sorted((family.document(rng) for _ in range(POOL)), key=lambda d: len(d[0]))
        group, out = [], []
        for doc in pool:
            if group and rounded(len(doc[0])) * (len(group) + 1) > tokens:
                out.append(pad(group))
                group = []
            group.append(doc)
        out.append(pad(group))
        rng.shuffle(out)
        yield from out


def rounded(length: int) -> int:
    """Length of a row: whole chunks."""
    return -(-length // CHUNK) * CHUNK


def pad(group) -> tuple[torch.Tensor, torch.Tensor]:
    """Documents as one rectangle; padding has weight zero."""
    length = rounded(max(len(ids) for ids, _ in group))
    ids = torch.zeros(len(group), length, dtype=torch.long)
    weights = torch.zeros(len(group), length)
    for row, (doc, weight) in enumerate(group):
        ids[row, :len(doc)] = torch.tensor(doc)
        weights[row, :len(doc)] = torch.tensor(weight)
    return ids, weights


def losses(model: torch.nn.Module, ids, weights) -> tuple[torch.Tensor, torch.Tensor]:
    """Weighted loss for the gradient, and the mean loss of the assistant's tokens."""
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits = model(ids, torch.bfloat16)[:, :-1]
    each = F.cross_entropy(logits.float().flatten(0, 1), ids[:, 1:].flatten(), reduction="none")
    w = weights[:, 1:].flatten()
    target = w == 1.0
    return (each * w).sum() / w.sum(), each.detach()[target].mean()


def rate(step: int, spent: float, decay: float) -> float:
    """Share of the peak learning rate: warm-up by steps, decay by the clock (`spent` in 0..1) in the last share `decay`."""
    return min(1.0, (step + 1) / WARM_UP, max(0.0, (1.0 - spent) / decay))


@torch.no_grad()
def validation(model: torch.nn.Module, fixed) -> float:
    """Mean loss on a fixed set of documents."""
    model.eval()
    values = [losses(model, *batch)[1].item() for batch in fixed]
    model.train()
    return sum(values) / len(values)


def average(model: torch.nn.Module, extra: list[float]) -> list[float]:
    """Averages the gradients, and some numbers with them, over all processes."""
    grads = [p.grad for p in model.parameters()]
    flat = torch.cat([g.flatten() for g in grads] + [torch.tensor(extra)])
    if dist.is_initialized():
        dist.all_reduce(flat)
        flat /= dist.get_world_size()
    for g, piece in zip(grads, flat[:-len(extra)].split([g.numel() for g in grads])):
        g.copy_(piece.view_as(g))
    return flat[-len(extra):].tolist()


def save(model: torch.nn.Module, folder: Path):
    """Keeps the weights of a model for --resume and for the export."""
    save_weights(model.state_dict(), folder)


def save_weights(state: dict, folder: Path):
    """Writes the weights beside and renames, so that readers see whole files."""
    torch.save(state, folder / "weights.part")
    (folder / "weights.part").rename(folder / "weights.pt")


def train(folder: Path, options: argparse.Namespace, kind: type[Family]):
    """The whole run; with --resume from the weights in the folder instead of random ones."""
    seconds, seed = options.minutes * 60, options.seed
    rank, world = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    if world > 1:
        dist.init_process_group("gloo")
    torch.manual_seed(seed)
    torch.set_num_threads(1)
    family = kind(folder)
    model = family.model
    if options.resume:
        model.load_state_dict(torch.load(folder / "weights.pt", weights_only=True))
    optimizers = family.optimizers()
    peaks = [o.param_groups[0]["lr"] for o in optimizers]
    source, fixed_source = (batches(family, s, options.batch) for s in (10 * seed + rank, 1001))
    fixed = [next(fixed_source) for _ in range(16)]
    if rank == 0:
        (folder / "config.json").write_text(json.dumps(family.config, indent=2) + "\n")
        log = (folder / f"log-{seed}.csv").open("w", buffering=1)
        log.write("step,seconds,documents,tokens,rate,train_loss,validation_loss\n")
        print(f"{sum(p.numel() for p in model.parameters())} parameters", flush=True)
    start, documents, tokens, step, recent, spent = time.process_time(), 0, 0, 0, 0.0, 0.0
    while spent < 1.0:
        share = options.rate * rate(step, spent, options.decay)
        for optimizer, peak in zip(optimizers, peaks):
            for group in optimizer.param_groups:
                group["lr"] = peak * share
        family.before_step(spent)
        ids, weights = next(source)
        loss, shown = losses(model, ids, weights)
        loss.backward()
        mean, spent, rows, used, *counts = average(model, [
            shown.item(), (time.process_time() - start) / seconds, float(len(ids)), float((weights > 0).sum()), *family.counts()])
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        family.after_step(counts)
        step, documents, tokens, recent = step + 1, documents + round(rows * world), tokens + round(used * world), recent + mean
        if rank == 0 and (step % 50 == 0 or spent >= 1.0):
            checked = f"{validation(model, fixed):.4f}" if step % 200 == 0 or spent >= 1.0 else ""
            line = (f"{step},{time.process_time() - start:.0f},{documents},{tokens},{share:.3f},"
                    f"{recent / ((step - 1) % 50 + 1):.4f},{checked}")
            log.write(line + "\n")
            print(line, flush=True)
        if step % 50 == 0:
            recent = 0.0
        if rank == 0 and (step % 200 == 0 or spent >= 1.0):
            save(model, folder)
    if world > 1:
        dist.destroy_process_group()


def main(kind: type[Family], description: str):
    """Reads the command line and trains."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--minutes", type=float, default=50.0, help="of processor time, of each process")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--batch", type=int, default=1024, help="tokens of a step in each process")
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--rate", type=float, default=1.0, help="share of the full learning rates")
    parser.add_argument("--decay", type=float, default=0.4, help="share of the time in which the rate falls to zero")
    arguments = parser.parse_args()
    train(arguments.folder, arguments, kind)


if __name__ == "__main__":
    main(Qwen, __doc__)
