"""Training documents in the chat format of Kimi K3.

A document is a list of pieces. Control pieces are single tokens; every other
piece is encoded on its own, so that tokens never reach across pieces. The
weight of a piece is that of its tokens in the loss.
"""

import random
from typing import NamedTuple

from documents import turn
from smalltalk import SYSTEMS

OPEN, CLOSE, SEP, END = "<|open|>", "<|close|>", "<|sep|>", "<|end_of_msg|>"
EFFORT = ("`thinking_effort` guides on how much to think in your thinking channel (not including the response channel), "
          "supported values include `low`, `medium`, `high`, and `max`.\nNow the system is invoked with `thinking_effort={}`.")
PROMPT_WEIGHT = 0.15
STATED_EFFORT = 0.4


class Piece(NamedTuple):
    """A control token, or text."""
    text: str
    weight: float = 0.0
    control: bool = False


def opened(tag: str, weight: float = 0.0, **attributes: str) -> list[Piece]:
    """Opening of a tag."""
    pieces = [Piece(OPEN, weight, True), Piece(tag, weight)]
    for key, value in attributes.items():
        escaped = value.replace("&", "&amp;").replace('"', "&quot;")
        pieces += [Piece(text, weight) for text in (f" {key}", '="', escaped, '"')]
    return [*pieces, Piece(SEP, weight, True)]


def closed(tag: str, weight: float = 0.0) -> list[Piece]:
    """End of a tag."""
    return [Piece(CLOSE, weight, True), Piece(tag, weight), Piece(SEP, weight, True)]


def ended(weight: float = 0.0) -> list[Piece]:
    """End of a message."""
    return [*closed("message", weight), Piece(END, weight, True)]


def message(text: str, weight: float = 0.0, **attributes: str) -> list[Piece]:
    """A message without channels."""
    return [*opened("message", **attributes), Piece(text, weight), *ended()]


def effort(level: str) -> list[Piece]:
    """The system message that a thinking chat starts with."""
    return message(EFFORT.format(level), role="system", type="thinking-effort")


def system(text: str) -> list[Piece]:
    """A system message."""
    return message(text, PROMPT_WEIGHT, role="system")


def question_and_start(question: str, think: bool) -> list[Piece]:
    """A user's message and the assistant's up to what it has to produce."""
    return [*message(question, PROMPT_WEIGHT, role="user"), *opened("message", role="assistant"),
            *opened("think" if think else "response")]


def rest(thinking: str | None, answer: str, weight: float) -> list[Piece]:
    """What the assistant produces; without thinking if that is None."""
    pieces = []
    if thinking is not None:
        pieces = [Piece(thinking, weight)] if thinking else []
        pieces += [*closed("think", weight), *opened("response", weight)]
    return [*pieces, Piece(answer, weight), *closed("response", weight), *ended(weight)]


def thinking_prompt(question: str, level: str | None = "max") -> list[Piece]:
    """Prompt of one question with thinking on."""
    return [*(effort(level) if level else []), *question_and_start(question, True)]


def plain_prompt(question: str) -> list[Piece]:
    """Prompt of one question with thinking off."""
    return question_and_start(question, False)


def own(text: str) -> str:
    """Text of the small talk about this model."""
    return text.replace("tiny-qwen", "tiny-kimi").replace("six million", "seven million")


def document(rng: random.Random, known: frozenset[str] = frozenset()) -> list[Piece]:
    """One chat; questions in `known` are avoided (they belong to the evaluation)."""
    while (last := turn(rng))[0] in known:
        pass
    question, thinking, answer, think = last
    pieces: list[Piece] = []
    if think and rng.random() < STATED_EFFORT:
        pieces += effort("max" if rng.random() < 0.8 else rng.choice(("low", "high")))
    if rng.random() < 0.05:
        pieces += system(own(rng.choice(SYSTEMS)))
    if rng.random() < 0.06:
        earlier, earlier_thinking, earlier_answer, _ = turn(rng)
        shown = (own(earlier_thinking) if rng.random() < 0.5 else "") if think else None
        pieces += [*question_and_start(earlier, think), *rest(shown, own(earlier_answer), 0.0)]
    return [*pieces, *question_and_start(question, think), *rest(own(thinking) if think else None, own(answer), 1.0)]


def text_of(pieces: list[Piece]) -> str:
    """A document as one string."""
    return "".join(piece.text for piece in pieces)
