"""Accuracy of an exported tiny-kimi on problems that it has not seen.

    python kimi_evaluate.py MODEL_FOLDER [OUTPUT_JSON] [--size N]

Sets and scores are those of evaluate.py. Decoding is greedy, in float32, with
thinking at the default effort.
"""

from pathlib import Path

import kimi_export
import kimi_tokenizer
from evaluate import LIMIT, main
from kimi_documents import closed, opened, text_of, thinking_prompt
from kimi_oracle import greedy


def solve(folder: Path, questions: list[str]) -> list[tuple[str, str]]:
    """Thinking and answer for each question."""
    tokenizer, model = kimi_tokenizer.load(folder), kimi_export.load(folder)
    prompts = [kimi_tokenizer.encode(tokenizer, thinking_prompt(q))[0] for q in questions]
    between = text_of([*closed("think"), *opened("response")])
    after = text_of(closed("response"))
    texts = [tokenizer.decode(new) for new in greedy(model, prompts, tokenizer.encode_single_token("<|end_of_msg|>"), LIMIT)]
    return [(thinking, answer.partition(after)[0]) for thinking, _, answer in (t.partition(between) for t in texts)]


if __name__ == "__main__":
    main(solve, __doc__)
