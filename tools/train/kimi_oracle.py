"""Reference continuations of an exported tiny-kimi by the training code.

    python kimi_oracle.py MODEL_FOLDER OUTPUT_JSON

Three chats: token ids of the prompt and the greedy continuation in float32,
token by token. Also compares that with one pass over whole chats.
"""

import json
import sys
from pathlib import Path

import torch

import kimi_export
import kimi_tokenizer
from kda import CHUNK
from kimi_documents import plain_prompt, text_of, thinking_prompt
from kimi_model import TinyKimi

PROMPTS = [thinking_prompt("Mara has 45 marbles. She buys 27 more. How many marbles does Mara have now?"),
           thinking_prompt("Tom has 6 boxes with 24 pencils in each and gives 50 pencils to Anna. "
                           "How many pencils does Tom have left?"),
           plain_prompt("Who are you?")]


@torch.no_grad()
def greedy(model: TinyKimi, prompts: list[list[int]], stop: int, limit: int = 300) -> list[list[int]]:
    """Greedy continuations of all prompts at once, the stop token included.

    Every row takes one token a step: of its prompt while that lasts, then its
    own. So all rows start together, whatever the lengths of their prompts.
    """
    texts, caches, done = [list(ids) for ids in prompts], model.empty(len(prompts)), [False] * len(prompts)
    for at in range(max(len(ids) for ids in prompts) + limit - 1):
        column = [ids[at] if at < len(ids) else stop for ids in texts]
        best = model(torch.tensor(column).unsqueeze(1), caches=caches)[:, 0].argmax(-1).tolist()
        for row, (text, prompt, token) in enumerate(zip(texts, prompts, best)):
            if not done[row] and len(text) == at + 1:
                text.append(token)
                done[row] = token == stop or len(text) == len(prompt) + limit
        if all(done):
            break
    return [text[len(prompt):] for text, prompt in zip(texts, prompts)]


@torch.no_grad()
def difference(model: TinyKimi, ids: list[int]) -> float:
    """Largest difference of the logits of one pass and of single steps."""
    caches = model.empty(1)
    steps = torch.cat([model(torch.tensor([[i]]), caches=caches)[0] for i in ids])
    padded = ids + [0] * (-len(ids) % CHUNK)
    return (model(torch.tensor([padded]))[0, :len(ids)] - steps).abs().max().item()


def main(folder: Path, output: Path):
    """Writes the continuations."""
    tokenizer, model = kimi_tokenizer.load(folder), kimi_export.load(folder)
    stop = json.loads((folder / "generation_config.json").read_text())["eos_token_id"]
    prompts = [kimi_tokenizer.encode(tokenizer, pieces)[0] for pieces in PROMPTS]
    cases = []
    for pieces, ids, new in zip(PROMPTS, prompts, greedy(model, prompts, stop)):
        prompt, text = text_of(pieces), tokenizer.decode(new)
        cases.append({"prompt": prompt, "prompt_ids": ids, "greedy_ids": new, "text": text})
        print(f"{prompt}{text}\nlargest logit difference {difference(model, ids + new):.2e}\n")
    output.write_text(json.dumps(cases, indent=1) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
