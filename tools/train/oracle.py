"""Reference continuations of an exported model by the transformers library.

    python oracle.py MODEL_FOLDER OUTPUT_JSON

Three chats: token ids of the prompt and the greedy continuation in float32.
Also compares the training model with the library's on the same weights.
"""

import json
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer
from transformers import Qwen3_5ForCausalLM

from documents import plain_prompt, thinking_prompt
from model import CHUNK, PREFIX, TinyQwen, load_config

PROMPTS = [thinking_prompt("Mara has 45 marbles. She buys 27 more. How many marbles does Mara have now?"),
           thinking_prompt("Tom has 6 boxes with 24 pencils in each and gives 50 pencils to Anna. "
                           "How many pencils does Tom have left?"),
           plain_prompt("Who are you?")]


def load(folder: Path, dtype=torch.float32) -> Qwen3_5ForCausalLM:
    """The exported model in the library's own class."""
    model = Qwen3_5ForCausalLM.from_pretrained(folder, dtype=dtype)
    return model.eval()


def own_model(folder: Path) -> TinyQwen:
    """The exported weights in the class used for training."""
    model = TinyQwen(load_config(folder / "config.json"))
    tensors = load_file(str(folder / "model.safetensors"))
    model.load_state_dict({name.removeprefix(PREFIX): w.float() for name, w in tensors.items()})
    return model.eval()


@torch.no_grad()
def greedy(model, ids: list[int], stops: list[int], limit: int = 300) -> list[int]:
    """Greedy continuation, the stop token included."""
    out = model.generate(torch.tensor([ids]), max_new_tokens=limit, do_sample=False, eos_token_id=stops)
    return out[0, len(ids):].tolist()


@torch.no_grad()
def difference(folder: Path, library, ids: list[int]) -> float:
    """Largest difference of the two models' logits on one prompt."""
    padded = ids + [0] * (-len(ids) % CHUNK)
    ours = own_model(folder)(torch.tensor([padded]))[0, :len(ids)]
    return (ours - library(torch.tensor([ids])).logits[0]).abs().max().item()


def main(folder: Path, output: Path):
    """Writes the continuations."""
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    stops = json.loads((folder / "generation_config.json").read_text())["eos_token_id"]
    model = load(folder)
    cases = []
    for prompt in PROMPTS:
        ids = tokenizer.encode(prompt).ids
        new = greedy(model, ids, stops)
        text = tokenizer.decode(new, skip_special_tokens=False)
        cases.append({"prompt": prompt, "prompt_ids": ids, "greedy_ids": new, "text": text})
        print(f"{prompt}{text}\nlargest logit difference {difference(folder, model, ids):.2e}\n")
    output.write_text(json.dumps(cases, indent=1) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
