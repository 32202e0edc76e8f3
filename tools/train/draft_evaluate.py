"""Tokens that a step gives with a draft, on problems that neither target nor draft has seen.

    python draft_evaluate.py PROGRAM TARGET_FOLDER DRAFT_FOLDER --family dflash [--size N]

PROGRAM is megalith. The sets are those of evaluate.py. A step gives the accepted
proposals and one token of the target; every step checks all of them.
"""

import argparse
import json
import subprocess
from collections import Counter
from pathlib import Path

import documents
import kimi_documents
from draft_config import BLOCK
from draft_targets import TARGETS
from heldout import SIZE, evaluation_set
from kimi_tokenizer import encode

LIMIT = 260
CONTEXT = 640
WIDTH = {"dflash": BLOCK, "dspark": BLOCK + 1}


def prompt(family, question: str) -> list[int]:
    """Token ids of a question with thinking on."""
    if isinstance(family, TARGETS["dflash"].family):
        return family.tokenizer.encode(documents.thinking_prompt(question)).ids
    return encode(family.tokenizer, kimi_documents.thinking_prompt(question))[0]


def steps(program: str, target: Path, draft: Path, width: int, prompts: list[list[int]]) -> list[int]:
    """Accepted proposals of every step over all prompts."""
    given = [f"--tokens={','.join(map(str, ids))}" for ids in prompts]
    done = subprocess.run([program, "generate", "--model", str(target), "--draft", str(draft), "--json", "--quiet",
                           "--draft-width", str(width), "--max-tokens", str(LIMIT), "--context", str(CONTEXT), *given],
                          stdout=subprocess.PIPE, text=True, check=True)
    return [count for line in done.stdout.splitlines() for count in json.loads(line)["accepted"]]


def main():
    """Prints, for each set, tokens per step and how often how many proposals were accepted."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("target", type=Path)
    parser.add_argument("draft", type=Path)
    parser.add_argument("--family", choices=TARGETS, required=True)
    parser.add_argument("--size", type=int, default=SIZE)
    arguments = parser.parse_args()
    family = TARGETS[arguments.family].family(arguments.target)
    for name, held in (("known templates, fresh content", False), ("held-out templates and content", True)):
        questions = [p.question for p in evaluation_set(held, arguments.size)]
        counts = steps(arguments.program, arguments.target, arguments.draft, WIDTH[arguments.family],
                       [prompt(family, q) for q in questions])
        shares = ", ".join(f"{n}: {times / len(counts):.0%}" for n, times in sorted(Counter(counts).items()))
        print(f"{name}: {sum(counts) / len(counts) + 1:.2f} tokens per step (accepted {shares})", flush=True)


if __name__ == "__main__":
    main()
