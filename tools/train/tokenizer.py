"""Trains the byte-level BPE tokenizer of tiny-qwen on generated text.

    python tokenizer.py OUTPUT_FOLDER
"""

import functools
import json
import random
import re
import sys
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

import smalltalk
import stories
from documents import document, text_of

SPLIT = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*"
         r"|\s*[\r\n]+|\s+(?!\S)|\s+")
ADDED = [("<|endoftext|>", True), ("<|im_start|>", True), ("<|im_end|>", True), ("<tool_call>", False),
         ("</tool_call>", False), ("<tool_response>", False), ("</tool_response>", False), ("<think>", False),
         ("</think>", False)]
BASE_SIZE = 1143


def train(documents: int = 30000, seed: int = 11) -> Tokenizer:
    """BPE of BASE_SIZE entries and the added tokens after them."""
    rng = random.Random(seed)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(SPLIT), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=BASE_SIZE, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
                                  show_progress=False)
    tokenizer.train_from_iterator(corpus(rng, documents), trainer)
    tokenizer.add_tokens([AddedToken(text, special=special, normalized=False) for text, special in ADDED])
    return tokenizer


def cut_names(text: str) -> str:
    """Text with names cut after their first letter.

    A name then has the same tokens after its first letter at the start of a line
    and inside a sentence, which makes it easy to copy.
    """
    def cut(match: re.Match) -> str:
        word = match.group(0)
        return word if word in common_words() else f"{word[0]}\n{word[1:]}"

    return re.sub(r"\b[A-Z][a-z]+", cut, text)


@functools.cache
def common_words() -> frozenset[str]:
    """Capitalised words that are no names."""
    sources = Path(stories.__file__).read_text() + Path(smalltalk.__file__).read_text()
    return frozenset(re.findall(r"[A-Z][a-z]+", sources)) | {"She", "He", "Sum"}


def corpus(rng: random.Random, documents: int):
    """Generated text without the markers, and with names cut."""
    for _ in range(documents):
        text = text_of(document(rng))
        for marker, _ in ADDED:
            text = text.replace(marker, "\n")
        yield cut_names(text)


def save(folder: Path):
    """Writes tokenizer.json and tokenizer_config.json."""
    train().save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": "Qwen2Tokenizer", "add_prefix_space": False, "add_bos_token": False, "bos_token": None,
                "eos_token": "<|im_end|>", "pad_token": "<|endoftext|>", "unk_token": None, "errors": "replace",
                "clean_up_tokenization_spaces": False, "split_special_tokens": False, "model_max_length": 4096}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=2) + "\n")


if __name__ == "__main__":
    save(Path(sys.argv[1]))
