"""Training documents: chats as text, in (text, is_target) pieces.

Pieces marked True are what the model has to produce; the rest is prompt.
"""

import random

from problems import Problem, bare_sum, problem
from smalltalk import SYSTEMS, talk

Piece = tuple[str, bool]


def user(text: str) -> str:
    """A user turn and the opening of the assistant's."""
    return f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n"


def thinking_prompt(question: str) -> str:
    """Prompt of one question with thinking on."""
    return user(question) + "<think>\n"


def plain_prompt(question: str) -> str:
    """Prompt of one question with thinking off."""
    return user(question) + "<think>\n\n</think>\n\n"


def reply(question: str, thinking: str, answer: str, think: bool) -> list[Piece]:
    """Prompt and completion of one turn."""
    if think:
        return [(thinking_prompt(question), False), (f"{thinking}\n</think>\n\n{answer}<|im_end|>\n", True)]
    return [(plain_prompt(question), False), (f"{answer}<|im_end|>\n", True)]


def turn(rng: random.Random) -> tuple[str, str, str, bool]:
    """Question, thinking, answer, and whether to think."""
    kind = rng.random()
    if kind < 0.08:
        return *talk(rng), rng.random() < 0.5
    made: Problem = bare_sum(rng) if kind < 0.22 else problem(rng)
    think = not (made.easy and rng.random() < 0.5)
    return made.question, made.thinking, made.answer, think


def document(rng: random.Random, known: frozenset[str] = frozenset()) -> list[Piece]:
    """One chat; questions in `known` are avoided (they belong to the evaluation)."""
    pieces: list[Piece] = []
    if rng.random() < 0.05:
        pieces.append((f"<|im_start|>system\n{rng.choice(SYSTEMS)}<|im_end|>\n", False))
    if rng.random() < 0.06:
        question, _, answer, _ = turn(rng)
        pieces.append((user(question), False))
        pieces.append((f"{answer}<|im_end|>\n", False))
    while (last := turn(rng))[0] in known:
        pass
    return pieces + reply(*last)


def text_of(pieces: list[Piece]) -> str:
    """The document as one string."""
    return "".join(text for text, _ in pieces)


def question_of(pieces: list[Piece]) -> str:
    """The last question of a document."""
    return text_of(pieces).rpartition("<|im_start|>user\n")[2].partition("<|im_end|>")[0]
