"""Writes a trained draft as the checkpoint that engines read: model.safetensors and config.json.

    python draft_export.py WORK_FOLDER DRAFT_FOLDER

DRAFT_FOLDER may hold a README.md already; the new files are written beside it
first and then moved in.
"""

import json
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file

from dflash_model import DFlash2
from draft_blocks import Draft
from dspark_model import DSpark
from export import publish

NOT_READ = "confidence_head."


def export(work: Path, target: Path):
    """All files but the README."""
    weights = torch.load(work / "weights.pt", weights_only=True)
    tensors = {name: w.to(torch.bfloat16).contiguous() for name, w in weights.items()}
    publish(work, target, tensors, ["config.json"], {})
    (target / "generation_config.json").unlink()


def load(folder: Path, embedding: torch.Tensor, head: torch.Tensor) -> Draft:
    """The draft of a checkpoint; a DFlash2 draft takes embedding and head of its target."""
    config = json.loads((folder / "config.json").read_text())
    tensors = load_file(str(folder / "model.safetensors"))
    draft = (DFlash2 if "dflash_config" in config else DSpark)(config, embedding.float(), head.float())
    draft.load_state_dict({name: t.float() for name, t in tensors.items() if not name.startswith(NOT_READ)})
    return draft.eval()


if __name__ == "__main__":
    export(Path(sys.argv[1]), Path(sys.argv[2]))
