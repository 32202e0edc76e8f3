"""Makes the small tiktoken vocabulary that the tests of src/text use, and the ids that they expect of it.

  make_tiktoken.py DIR    DIR/kimi/tiktoken.model, DIR/kimi/tokenizer_config.json, DIR/kimi-cases.json

The ranks are learnt from the texts of the tests. A few more follow that no merge reaches, which only whole pieces give.
`dense` are texts for a vocabulary of its own, in which nearly every token can be made in several ways. The expected ids
come from the package tiktoken, with the family's pattern.
"""

import argparse
import base64
import collections
import itertools
import json
import pathlib
import random
import re

import regex
import tiktoken

import texts
import tiktoken_texts

LETTERS = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]"
PATTERN = "|".join(
    [
        r"[\p{Han}]+",
        r"[^\r\n\p{L}\p{N}]?%s*%s+(?i:'s|'t|'re|'ve|'m|'ll|'d)?" % LETTERS,
        r"[^\r\n\p{L}\p{N}]?%s+%s*(?i:'s|'t|'re|'ve|'m|'ll|'d)?" % LETTERS,
        r"\p{N}{1,3}",
        r" ?[^\s\p{L}\p{N}]+[\r\n]*",
        r"\s*[\r\n]+",
        r"\s+(?!\S)",
        r"\s+",
    ]
)
LEARNT = 1000
UNREACHED = ["xylophone", "国国国", " quixotic", "808"]
SLOTS = 256
# The control tokens that have names: distance from the first, text, special.
NAMED = [
    (0, "[BOS]", True),
    (1, "[EOS]", True),
    (2, "<|end_of_msg|>", True),
    (3, "<|open|>", False),
    (4, "<|close|>", False),
    (5, "<|sep|>", False),
    (6, "[start_header_id]", True),
    (7, "[end_header_id]", True),
    (9, "[EOT]", True),
    (18, "<|media_begin|>", True),
    (19, "<|media_content|>", True),
    (20, "<|media_end|>", True),
    (21, "<|media_pad|>", True),
    (65, "<osagent_mode>", True),
    (254, "[UNK]", True),
    (255, "[PAD]", True),
]
LONGEST_TEXT = 400_000
LONGEST_RUN = 25_000


def learn(corpus, count):
    """Byte-pair ranks: the 256 bytes, then the most frequent pair again and again."""
    pieces = collections.Counter()
    for text in corpus:
        pieces.update(regex.findall(PATTERN, text, regex.V1))
    words = [([bytes([b]) for b in piece.encode()], count) for piece, count in pieces.items()]
    tokens = [bytes([b]) for b in range(256)]
    while len(tokens) < count:
        pairs = collections.Counter()
        for parts, often in words:
            for pair in zip(parts, parts[1:]):
                pairs[pair] += often
        left, right = min(pairs, key=lambda pair: (-pairs[pair], pair))
        if left + right not in tokens:
            tokens.append(left + right)
        for parts, _ in words:
            i = 0
            while i + 1 < len(parts):
                if parts[i] == left and parts[i + 1] == right:
                    parts[i : i + 2] = [left + right]
                i += 1
    return tokens




def parts_of(text):
    for at in range(0, len(text), LONGEST_TEXT):
        part = ""
        for _, group in itertools.groupby(text[at : at + LONGEST_TEXT], str.isspace):
            run = "".join(group)
            while len(run) > LONGEST_RUN:
                yield part + run[:LONGEST_RUN]
                part, run = "", run[LONGEST_RUN:]
            part += run
        yield part


class Vocabulary:
    def __init__(self, tokens):
        names = {distance: text for distance, text, _ in NAMED}
        special = {names.get(i, f"<|reserved_token_{len(tokens) + i}|>"): len(tokens) + i for i in range(SLOTS)}
        ranks = {token: rank for rank, token in enumerate(tokens)}
        self.encoding = tiktoken.Encoding("small", pat_str=PATTERN, mergeable_ranks=ranks, special_tokens=special)

    def ids(self, text, control):
        how = dict(allowed_special="all") if control else dict(disallowed_special=())
        return [i for part in parts_of(text) for i in self.encoding.encode(part, **how)]

    def chat_ids(self, text):
        """Marks are tokens; of a tag, its name and each attribute's four parts are encoded by themselves."""
        ids = []
        in_tag = False
        for part in re.split(r"(<\|(?:open|close|sep|end_of_msg)\|>)", text):
            if part.startswith("<|"):
                in_tag = part in ("<|open|>", "<|close|>")
                ids += self.ids(part, control=True)
                continue
            pieces = re.findall(r'^[^ ]+| [^ =]+|="|"|[^"]+(?=")', part) if in_tag else [part]
            assert "".join(pieces) == part, part
            ids += [i for piece in pieces for i in self.ids(piece, control=False)]
        return ids


def digest(ids):
    value = 0
    for i in ids:
        value = (value * 31 + i) % 2**32
    return value


def dense_cases():
    generator = random.Random(3)
    extra = ["".join(letters) for n in range(2, 6) for letters in itertools.product("ab", repeat=n)]
    extra = generator.sample(extra, 40)
    vocabulary = Vocabulary([bytes([b]) for b in range(256)] + [text.encode() for text in extra])
    made = ["".join(generator.choices("ab", k=generator.choice([6, 9, 20, 47, 48, 49, 130]))) for _ in range(200)]
    return dict(tokens=extra, cases=[dict(text=text, ids=vocabulary.ids(text, False)) for text in made])


def config(first):
    flags = dict(lstrip=False, normalized=False, rstrip=False, single_word=False)
    named = {str(first + d): dict(content=text, **flags, special=special) for d, text, special in NAMED}
    return dict(added_tokens_decoder=named, bos_token="[BOS]", eos_token="[EOS]", tokenizer_class="TikTokenTokenizer")


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    print(f"{path}: {path.stat().st_size:,} bytes")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dir", type=pathlib.Path)
    arguments = parser.parse_args()
    root = pathlib.Path(__file__).parents[2]
    chats = json.loads((root / "tests/data/text/kimi-chat.json").read_text(encoding="utf-8"))
    written = texts.few() + tiktoken_texts.WRITTEN
    corpus = [chat["text"] for chat in chats.values()]
    corpus += [text for text in written if not any(token in text for token in UNREACHED)]
    tokens = learn(corpus, LEARNT) + [text.encode() for text in UNREACHED]
    vocabulary = Vocabulary(tokens)
    lines = [f"{base64.b64encode(token).decode()} {rank}\n" for rank, token in enumerate(tokens)]
    write(arguments.dir / "kimi/tiktoken.model", "".join(lines))
    write(arguments.dir / "kimi/tokenizer_config.json", json.dumps(config(len(tokens)), indent=1) + "\n")
    cases = []
    for text in written:
        case = dict(text=text, ids=vocabulary.ids(text, True), plain=vocabulary.ids(text, False))
        if case["plain"] == case["ids"]:
            del case["plain"]
        cases.append(case)
    long = []
    for unit, count, tail in tiktoken_texts.LONG:
        ids = vocabulary.ids(unit * count + tail, True)
        long.append(dict(unit=unit, count=count, tail=tail, ids=len(ids), digest=digest(ids)))
    chat_ids = {name: vocabulary.chat_ids(chat["text"]) for name, chat in chats.items()}
    result = dict(cases=cases, long=long, dense=dense_cases(), chats=chat_ids)
    write(arguments.dir / "kimi-cases.json", json.dumps(result, ensure_ascii=False, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
