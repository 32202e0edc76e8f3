"""Trains the draft of a target for a number of minutes, with one process for each core.

    torchrun --nproc-per-node 2 draft_train.py WORK_FOLDER TARGET_FOLDER --family dflash --data FILE --minutes 25

FILE is what draft_data.py wrote. WORK_FOLDER receives config.json, weights.pt
(refreshed every 200 steps) and log-SEED.csv. The minutes do not count what the
target computes at the start: its taps of all texts, each process for its share.
"""

import argparse
import json
import os
import random
import time
from pathlib import Path
from typing import NamedTuple

import torch
import torch.distributed as dist
import torch.nn.functional as F

from draft_blocks import Blocks, Draft
from draft_targets import TARGETS, Target
from optimizer import Muon
from train import average, rate, rounded, save

CHECKED = 16
POOL = 16
TAP_TOKENS = 2048
NOT_MUON = ("embed", "lm_head", "markov", "codebook", "kernel_projection")


class Text(NamedTuple):
    """Prompt and answer of the target, and what the draft taps of it."""
    prompt: int
    ids: list[int]
    taps: torch.Tensor

    def anchors(self) -> range:
        """Positions of the answer that something follows."""
        return range(self.prompt, len(self.ids) - 1)


def make_optimizers(draft: Draft) -> list[torch.optim.Optimizer]:
    """Muon for the matrices of the layers, AdamW for the rest, with their peak learning rates."""
    muon, decayed, plain = [], [], []
    for name, p in draft.named_parameters():
        if p.ndim == 2 and not any(s in name for s in NOT_MUON):
            muon.append((p, 1))
        else:
            (decayed if p.ndim == 2 else plain).append(p)
    adam = torch.optim.AdamW([{"params": decayed, "weight_decay": 0.1}, {"params": plain, "weight_decay": 0.0}],
                             lr=3e-3, betas=(0.9, 0.95), fused=True)
    return [Muon(muon, lr=0.02), adam]


@torch.no_grad()
def tapped(target: Target, config: dict, texts: list[tuple[int, list[int]]]) -> list[Text]:
    """Texts with their taps; those of similar length go through the target together."""
    out, texts = [], sorted(texts, key=lambda text: len(text[1]))
    while texts:
        length = rounded(len(texts[-1][1]))
        group = [texts.pop() for _ in range(min(len(texts), max(1, TAP_TOKENS // length)))]
        ids = torch.tensor([text + [0] * (length - len(text)) for _, text in group])
        with torch.autocast("cpu", dtype=torch.bfloat16):
            taps = target.tapped(config, ids, torch.bfloat16).bfloat16()
        out += [Text(prompt, text, row[:len(text)].clone()) for (prompt, text), row in zip(group, taps)]
    return out


def blocks_of(texts: list[Text], anchors: list[list[int]], rows: int) -> Blocks:
    """Blocks at as many anchors of each text; shorter texts are padded on the right."""
    length = rounded(max(len(text.ids) for text in texts))
    at = torch.tensor(anchors)
    places = at.unsqueeze(-1) + torch.arange(rows + 1)
    ids = torch.tensor([text.ids + [0] * (length + rows - len(text.ids)) for text in texts])
    tokens = ids.gather(1, places.flatten(1)).view(places.shape)
    known = places < torch.tensor([len(text.ids) for text in texts])[:, None, None]
    taps = torch.stack([F.pad(text.taps, (0, 0, 0, length - len(text.ids))) for text in texts])
    return Blocks(taps, at, tokens, known)


def batches(texts: list[Text], rng: random.Random, size: int, anchors: int, rows: int):
    """Endless batches: texts by the length of their answers, similar ones together, and random anchors of each."""
    weights = [len(text.anchors()) for text in texts]
    while True:
        pool = sorted(rng.choices(texts, weights, k=size * POOL), key=lambda text: len(text.ids))
        groups = [pool[i:i + size] for i in range(0, len(pool), size)]
        for group in rng.sample(groups, len(groups)):
            yield blocks_of(group, [rng.choices(text.anchors(), k=anchors) for text in group], rows)


@torch.no_grad()
def accepted(draft: Draft, text: Text, dtype) -> list[int]:
    """How many proposals the target would accept at each position of its answer."""
    blocks = blocks_of([text], [list(text.anchors())], draft.rows)
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=dtype == torch.bfloat16):
        proposed = draft.propose(blocks.taps, blocks.anchors, blocks.tokens[:, :, 0], dtype)[0]
    wanted, known = (x[0, :, 1:proposed.shape[-1] + 1] for x in (blocks.tokens, blocks.known))
    return ((proposed == wanted) & known).long().cumprod(-1).sum(-1).tolist()


def steps_needed(counts: list[int]) -> int:
    """Steps that decode an answer after its first token, of which `counts` of the proposals are accepted at each position."""
    at, steps = 0, 0
    while at < len(counts):
        at, steps = at + counts[at] + 1, steps + 1
    return steps


def tokens_per_step(draft: Draft, texts: list[Text], dtype=torch.bfloat16) -> float:
    """Tokens that a step of the target would give, over some texts."""
    counts = [accepted(draft, text, dtype) for text in texts]
    return sum(map(len, counts)) / sum(map(steps_needed, counts))


def prepare(target: Target, options: argparse.Namespace, rank: int,
            world: int) -> tuple[dict, Draft, list[Text], list[Text]]:
    """Config and draft, with --resume those of the folder; this process's texts, and those to check with."""
    saved = options.folder / "config.json"
    config = json.loads(saved.read_text()) if options.resume else target.draft_config()
    draft = target.draft(config)
    if options.resume:
        draft.load_state_dict(torch.load(options.folder / "weights.pt", weights_only=True))
    texts = json.loads(options.data.read_text())
    checked = tapped(target, config, texts[:CHECKED] if rank == 0 else [])
    return config, draft, tapped(target, config, texts[CHECKED + rank::world]), checked


def step(draft: Draft, optimizers: list[torch.optim.Optimizer], blocks: Blocks, rates: list[float], spent: float) -> list[float]:
    """One update of all processes; their mean loss and share of the time."""
    for optimizer, peak in zip(optimizers, rates):
        for group in optimizer.param_groups:
            group["lr"] = peak
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = draft.loss(blocks, torch.bfloat16)
    loss.backward()
    means = average(draft, [loss.item(), spent])
    torch.nn.utils.clip_grad_norm_(draft.parameters(), 1.0)
    for optimizer in optimizers:
        optimizer.step()
        optimizer.zero_grad()
    return means


def train(options: argparse.Namespace):
    """The whole run."""
    rank, world = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    if world > 1:
        dist.init_process_group("gloo")
    torch.manual_seed(options.seed)
    torch.set_num_threads(1)
    start = time.time()
    config, draft, texts, checked = prepare(TARGETS[options.family](options.target), options, rank, world)
    optimizers = make_optimizers(draft)
    peaks = [o.param_groups[0]["lr"] for o in optimizers]
    source = batches(texts, random.Random(10 * options.seed + rank), options.texts, options.anchors, draft.rows)
    if rank == 0:
        (options.folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
        log = (options.folder / f"log-{options.seed}.csv").open("w", buffering=1)
        log.write("step,seconds,anchors,rate,train_loss,tokens_per_step\n")
        print(f"{sum(p.numel() for p in draft.parameters())} parameters; "
              f"taps of {len(texts) * world} texts in {time.time() - start:.0f} s", flush=True)
    start, steps, recent, spent = time.time(), 0, 0.0, 0.0
    while spent < 1.0:
        share = options.rate * rate(steps, spent, options.decay)
        passed = (time.time() - start) / (options.minutes * 60)
        mean, spent = step(draft, optimizers, next(source), [peak * share for peak in peaks], passed)
        steps, recent = steps + 1, recent + mean
        if rank == 0 and (steps % 50 == 0 or spent >= 1.0):
            line = (f"{steps},{time.time() - start:.0f},{steps * world * options.texts * options.anchors},{share:.3f},"
                    f"{recent / ((steps - 1) % 50 + 1):.4f},{tokens_per_step(draft, checked):.3f}")
            log.write(line + "\n")
            print(line, flush=True)
        if steps % 50 == 0:
            recent = 0.0
        if rank == 0 and (steps % 200 == 0 or spent >= 1.0):
            save(draft, options.folder)
    if world > 1:
        dist.destroy_process_group()


def main():
    """Reads the command line and trains."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("target", type=Path)
    parser.add_argument("--family", choices=TARGETS, required=True)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=25.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--texts", type=int, default=8, help="texts of a step in each process")
    parser.add_argument("--anchors", type=int, default=32, help="blocks of each text")
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--rate", type=float, default=1.0, help="share of the full learning rates")
    parser.add_argument("--decay", type=float, default=0.5, help="share of the time in which the rate falls to zero")
    train(parser.parse_args())


if __name__ == "__main__":
    main()
