"""Writes trained weights as a checkpoint of the Kimi K3 family, and reads one.

    python kimi_export.py WORK_FOLDER MODEL_FOLDER

MODEL_FOLDER may hold a README.md already; the new files are written beside it
first and then moved in.
"""

import json
import re
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file

import mxfp4
from export import publish
from kimi_model import TinyKimi, load_config

PREFIX = "language_model."
FLOAT32 = re.compile(r"conv1d\.weight|A_log|dt_bias|o_norm\.weight|e_score_correction_bias")
STACK = re.compile(r"(.*experts\.)(w[123])")
PACKED = re.compile(r"(.*experts\.)(\d+)\.(w[123])\.weight_packed")


def to_tensors(weights: dict, experts: int) -> dict:
    """Tensors of the checkpoint from the model's own weights."""
    tensors = {}
    for name, w in weights.items():
        if stack := STACK.fullmatch(name):
            for at, part in enumerate(w.chunk(experts)):
                packed, scale = mxfp4.pack(part)
                start = f"{PREFIX}{stack[1]}{at}.{stack[2]}"
                tensors |= {f"{start}.weight_packed": packed, f"{start}.weight_scale": scale}
        else:
            tensors[PREFIX + name] = w.to(torch.float32 if FLOAT32.search(name) else torch.bfloat16).contiguous()
    return tensors


def from_tensors(tensors: dict) -> dict:
    """The model's own weights, in float32, from the tensors of the checkpoint."""
    weights, stacks = {}, {}
    for name, t in tensors.items():
        name = name.removeprefix(PREFIX)
        if packed := PACKED.fullmatch(name):
            scale = tensors[PREFIX + name.replace("packed", "scale")]
            stacks.setdefault(packed[1] + packed[3], {})[int(packed[2])] = mxfp4.unpack(t, scale)
        elif not name.endswith("weight_scale"):
            weights[name] = t.float()
    return weights | {name: torch.cat([parts[e] for e in sorted(parts)]) for name, parts in stacks.items()}


def load(folder: Path) -> TinyKimi:
    """The model of a checkpoint, in one or several files."""
    model = TinyKimi(load_config(folder / "config.json"))
    tensors = {}
    for path in sorted(folder.glob("*.safetensors")):
        tensors |= load_file(str(path))
    model.load_state_dict(from_tensors(tensors))
    return model.eval()


def export(work: Path, target: Path):
    """All files but the README."""
    config = json.loads((work / "config.json").read_text())
    weights = torch.load(work / "weights.pt", weights_only=True)
    tensors = to_tensors(weights, config["text_config"]["num_experts"])
    publish(work, target, tensors, ["config.json", "tiktoken.model", "tokenizer_config.json"], generation(config))


def generation(config: dict) -> dict:
    """Greedy decoding, stopped by the end of a message."""
    return {"bos_token_id": config["bos_token_id"], "do_sample": False, "eos_token_id": config["eos_token_id"],
            "pad_token_id": config["pad_token_id"]}


if __name__ == "__main__":
    export(Path(sys.argv[1]), Path(sys.argv[2]))
