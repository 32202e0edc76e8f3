"""The two evaluation sets: known templates with fresh content, and held-out everything."""

import random

from problems import Problem, problem

SIZE = 450


def evaluation_set(held: bool, size: int = SIZE) -> list[Problem]:
    """A fixed list of distinct problems; with held=True nothing of them is in the training."""
    rng = random.Random(2027 if held else 2026)
    found: dict[str, Problem] = {}
    while len(found) < size:
        made = problem(rng, held, later=False)
        found.setdefault(made.question, made)
    return list(found.values())


def known_questions() -> frozenset[str]:
    """Questions of the first set, which the training skips."""
    return frozenset(p.question for p in evaluation_set(False))
