"""Lets a target answer problems of its training's kind, greedily, for the training of its draft.

    python draft_data.py PROGRAM TARGET_FOLDER OUTPUT_JSON --family dflash --answers 4000

PROGRAM is megalith. The output is a list of [length of the prompt, token ids of
prompt and answer]; the end token belongs to the answer. The problems of the
evaluation are not among them.
"""

import argparse
import json
import random
import subprocess
from pathlib import Path

from draft_targets import TARGETS, prompts

LIMIT = 260
CONTEXT = 640
TOGETHER = 250


def answers(program: str, folder: Path, questions: list[list[int]]) -> list[list[int]]:
    """The target's greedy continuations."""
    given = [f"--tokens={','.join(map(str, ids))}" for ids in questions]
    done = subprocess.run([program, "generate", "--model", str(folder), "--json", "--quiet", "--no-draft",
                           "--max-tokens", str(LIMIT), "--context", str(CONTEXT), *given],
                          stdout=subprocess.PIPE, text=True, check=True)
    return [json.loads(line)["tokens"] for line in done.stdout.splitlines()]


def main():
    """Reads the command line; writes the file anew after every call of the program."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("folder", type=Path)
    parser.add_argument("output", type=Path)
    parser.add_argument("--family", choices=TARGETS, required=True)
    parser.add_argument("--answers", type=int, default=4000)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    family, rng, found = TARGETS[arguments.family].family(arguments.folder), random.Random(arguments.seed), []
    while len(found) < arguments.answers:
        questions = prompts(family, rng, min(TOGETHER, arguments.answers - len(found)))
        for ids, new in zip(questions, answers(arguments.program, arguments.folder, questions)):
            found.append([len(ids), ids + new])
        arguments.output.write_text(json.dumps(found) + "\n")
        print(f"{len(found)} answers", flush=True)


if __name__ == "__main__":
    main()
