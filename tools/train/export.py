"""Writes trained weights as a Hugging Face checkpoint of the Qwen3.5 family.

    python export.py WORK_FOLDER MODEL_FOLDER

MODEL_FOLDER must hold chat_template.jinja and README.md already, or not exist;
the new files are written beside it first and then moved in.
"""

import json
import shutil
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer

from model import PREFIX


def publish(work: Path, target: Path, tensors: dict, copied: list[str], generation_config: dict):
    """Writes a checkpoint beside and moves it into place: tensors, files of the working folder, how to generate."""
    fresh = target.with_name(target.name + ".new")
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir(parents=True)
    save_file(tensors, str(fresh / "model.safetensors"), metadata={"format": "pt"})
    for name in copied:
        shutil.copy(work / name, fresh / name)
    (fresh / "generation_config.json").write_text(json.dumps(generation_config, indent=2) + "\n")
    target.mkdir(parents=True, exist_ok=True)
    for path in fresh.iterdir():
        path.rename(target / path.name)
    fresh.rmdir()


def export(work: Path, target: Path):
    """All files but the chat template and the README."""
    weights = torch.load(work / "weights.pt", weights_only=True)
    tensors = {PREFIX + name: w.to(torch.bfloat16).contiguous() for name, w in weights.items()}
    publish(work, target, tensors, ["config.json", "tokenizer.json", "tokenizer_config.json"], generation(work))


def generation(work: Path) -> dict:
    """Greedy decoding, stopped by the end of a turn."""
    tokenizer = Tokenizer.from_file(str(work / "tokenizer.json"))
    end_of_text, end_of_turn = (tokenizer.token_to_id(t) for t in ("<|endoftext|>", "<|im_end|>"))
    return {"bos_token_id": end_of_text, "do_sample": False, "eos_token_id": [end_of_turn, end_of_text],
            "pad_token_id": end_of_text, "transformers_version": "5.23.0"}


if __name__ == "__main__":
    export(Path(sys.argv[1]), Path(sys.argv[2]))
