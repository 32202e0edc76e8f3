"""Trains the byte-level BPE tokenizer of tiny-kimi on generated text, and reads it.

    python kimi_tokenizer.py OUTPUT_FOLDER

tiktoken.model holds a rank for every entry; a text is encoded by merging the
neighbours of the lowest rank first. 256 control tokens follow the entries.
"""

import base64
import json
import random
import sys
from pathlib import Path

import tiktoken
from tokenizers import Regex, Tokenizer, models, pre_tokenizers, trainers

from kimi_documents import Piece, document
from tokenizer import cut_names

UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]"
LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]"
SUFFIX = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
DIGITS = r"\p{N}{1,3}"
SPLIT = "|".join([r"[\p{Han}]+", rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}*{LOWER}+{SUFFIX}",
                  rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}+{LOWER}*{SUFFIX}", DIGITS, r" ?[^\s\p{L}\p{N}]+[\r\n]*", r"\s*[\r\n]+",
                  r"\s+(?!\S)", r"\s+"])
BASE_SIZE = 1024
CONTROL_SIZE = 256
CONTROL = {0: "[BOS]", 1: "[EOS]", 2: "<|end_of_msg|>", 3: "<|open|>", 4: "<|close|>", 5: "<|sep|>", 6: "[start_header_id]",
           7: "[end_header_id]", 9: "[EOT]", 18: "<|media_begin|>", 19: "<|media_content|>", 20: "<|media_end|>",
           21: "<|media_pad|>", 65: "<osagent_mode>", 254: "[UNK]", 255: "[PAD]"}
ORDINARY = ("<|open|>", "<|close|>", "<|sep|>")


def train(documents: int, seed: int = 11) -> dict[bytes, int]:
    """Ranks of BASE_SIZE entries. Digits are split one by one here, so no entry has two of them."""
    splitter = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(SPLIT.replace(DIGITS, r"\p{N}")), "isolated"),
                                        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = splitter
    trainer = trainers.BpeTrainer(vocab_size=BASE_SIZE, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
                                  show_progress=False)
    tokenizer.train_from_iterator(corpus(random.Random(seed), documents), trainer)
    letters = byte_letters()
    return {bytes(letters[c] for c in text): rank for text, rank in tokenizer.get_vocab().items()}


def corpus(rng: random.Random, documents: int):
    """Texts of generated documents, piece by piece, with names cut after their first letter."""
    for _ in range(documents):
        yield from (cut_names(piece.text) for piece in document(rng) if not piece.control)


def byte_letters() -> dict[str, int]:
    """The byte that each letter of byte-level BPE stands for."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [b for b in range(256) if b not in printable]
    return {chr(b): b for b in printable} | {chr(256 + i): b for i, b in enumerate(others)}


def control_tokens(base: int) -> dict[str, int]:
    """Ids of all control tokens."""
    return {CONTROL.get(at, f"<|reserved_token_{base + at}|>"): base + at for at in range(CONTROL_SIZE)}


def settings(base: int) -> dict:
    """tokenizer_config.json."""
    added = {str(base + at): {"content": name, "lstrip": False, "normalized": False, "rstrip": False, "single_word": False,
                              "special": name not in ORDINARY} for at, name in CONTROL.items()}
    return {"added_tokens_decoder": added, "bos_token": "[BOS]", "clean_up_tokenization_spaces": False, "eos_token": "[EOS]",
            "model_max_length": 4096, "pad_token": "[PAD]", "tokenizer_class": "TikTokenTokenizer", "unk_token": "[UNK]"}


def save(folder: Path, documents: int = 30000):
    """Writes tiktoken.model and tokenizer_config.json."""
    ranks = train(documents)
    lines = [f"{base64.b64encode(entry).decode()} {rank}\n" for entry, rank in sorted(ranks.items(), key=lambda e: e[1])]
    (folder / "tiktoken.model").write_text("".join(lines))
    (folder / "tokenizer_config.json").write_text(json.dumps(settings(len(ranks)), indent=2) + "\n")


def load(folder: Path) -> tiktoken.Encoding:
    """The tokenizer of a folder."""
    lines = (line.split() for line in (folder / "tiktoken.model").read_text().splitlines())
    ranks = {base64.b64decode(entry): int(rank) for entry, rank in lines}
    return tiktoken.Encoding("tiny-kimi", pat_str=SPLIT, mergeable_ranks=ranks, special_tokens=control_tokens(len(ranks)))


def encode(tokenizer: tiktoken.Encoding, pieces: list[Piece]) -> tuple[list[int], list[float]]:
    """Token ids of a document and the loss weight of each."""
    ids, weights = [], []
    for piece in pieces:
        new = [tokenizer.encode_single_token(piece.text)] if piece.control else tokenizer.encode_ordinary(piece.text)
        ids += new
        weights += [piece.weight] * len(new)
    return ids, weights


if __name__ == "__main__":
    save(Path(sys.argv[1]))
