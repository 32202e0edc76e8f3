"""Accuracy of an exported model on problems that it has not seen.

    python evaluate.py MODEL_FOLDER [OUTPUT_JSON] [--size N]

An answer counts only if the whole sentence is right: name, number, object and
wording. Two sets: known templates with fresh content, and problems whose
wording, names, objects and numbers were all kept out of the training.
Decoding is greedy, in float32, with thinking.
"""

import argparse
import json
from collections import Counter, defaultdict
from pathlib import Path

import torch
from tokenizers import Tokenizer

from documents import thinking_prompt
from heldout import SIZE, evaluation_set
from oracle import load

BATCH = 32
LIMIT = 260


@torch.no_grad()
def answers(model, tokenizer: Tokenizer, prompts: list[str], stop: int) -> list[str]:
    """Greedy continuations; prompts of equal length share a batch, so nothing is padded."""
    groups = defaultdict(list)
    for i, prompt in enumerate(prompts):
        groups[len(tokenizer.encode(prompt).ids)].append(i)
    out = [""] * len(prompts)
    for length, members in groups.items():
        for at in range(0, len(members), BATCH):
            chosen = members[at:at + BATCH]
            ids = torch.tensor([tokenizer.encode(prompts[i]).ids for i in chosen])
            new = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=LIMIT, do_sample=False,
                                 eos_token_id=stop, pad_token_id=stop)
            for i, row in zip(chosen, new[:, length:].tolist()):
                row = row[:row.index(stop)] if stop in row else row
                out[i] = tokenizer.decode(row, skip_special_tokens=False)
    return out


def solve(folder: Path, questions: list[str]) -> list[tuple[str, str]]:
    """Thinking and answer of the model in a folder for each question."""
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    texts = answers(load(folder), tokenizer, [thinking_prompt(q) for q in questions], tokenizer.token_to_id("<|im_end|>"))
    return [(thinking.strip(), answer.strip()) for thinking, _, answer in (t.partition("</think>") for t in texts)]


def evaluate(solver, folder: Path, held: bool, size: int) -> dict:
    """Right sentences by number of steps, numbers alone, and the failures."""
    problems = evaluation_set(held, size)
    right, number_right, total, failures = Counter(), 0, Counter(), []
    for p, (thinking, answer) in zip(problems, solver(folder, [p.question for p in problems])):
        total[p.steps] += 1
        right[p.steps] += answer == p.answer
        number_right += digits(answer) == digits(p.answer)
        if answer != p.answer:
            failures.append({"question": p.question, "wanted": [p.thinking, p.answer], "got": [thinking, answer]})
    return {"right": sum(right.values()), "total": len(problems), "numbers_right": number_right,
            "by_steps": {s: [right[s], total[s]] for s in sorted(total)}, "failures": failures}


def digits(text: str) -> str:
    """Only the digits of a text."""
    return "".join(c for c in text if c.isdigit())


def main(solver, description: str):
    """Prints a table; writes the failures too if asked."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("output", type=Path, nargs="?")
    parser.add_argument("--size", type=int, default=SIZE)
    arguments = parser.parse_args()
    results = {}
    for name, held in (("known templates, fresh content", False), ("held-out templates and content", True)):
        results[name] = r = evaluate(solver, arguments.folder, held, arguments.size)
        steps = ", ".join(f"{s} steps {a}/{b}" for s, (a, b) in r["by_steps"].items())
        print(f"{name}: {r['right']}/{r['total']} sentences right ({steps}); numbers {r['numbers_right']}/{r['total']}", flush=True)
    if arguments.output:
        arguments.output.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main(solve, __doc__)
