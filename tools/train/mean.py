"""Writes the mean of the weights of several training runs that began from each other.

    python mean.py OUTPUT_FOLDER FOLDER FOLDER...

Each folder holds a weights.pt; the other files of the first are copied beside.
"""

import shutil
import sys
from pathlib import Path

import torch

from train import save_weights


def mean(states: list[dict]) -> dict:
    """Mean of each tensor; of those that are no numbers, the first."""
    return {name: sum(s[name] for s in states) / len(states) if first.is_floating_point() else first
            for name, first in states[0].items()}


if __name__ == "__main__":
    output, *folders = map(Path, sys.argv[1:])
    shutil.copytree(folders[0], output, dirs_exist_ok=True)
    save_weights(mean([torch.load(folder / "weights.pt", weights_only=True) for folder in folders]), output)
