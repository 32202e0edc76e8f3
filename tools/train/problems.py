"""Generator of arithmetic word problems with worked thinking and an answer sentence.

`problem(rng, held=False)` makes a training problem; with held=True wording,
names, objects and numbers all come from the parts kept out of the training.
"""

import random
from dataclasses import dataclass

import arithmetic
import stories
import words


@dataclass
class Problem:
    """One question with its thinking, its answer and the number of operations."""
    question: str
    thinking: str
    answer: str
    steps: int
    easy: bool = False


def is_held_number(n: int) -> bool:
    """Ranges of given numbers that never occur in a training question."""
    return 60 <= n < 70 or 300 <= n < 350


def part(wordings: list[str], held: bool, later: bool = True) -> list[str]:
    """The training or the held-out wordings of a template list; the former without or with those that came later."""
    at = wordings.index(stories.HELD)
    end = wordings.index(stories.LATER) if stories.LATER in wordings else len(wordings)
    return wordings[at + 1:end] if held else wordings[:at] + (wordings[end + 1:] if later else [])


PIECES: list[str] = []


def use_vocabulary(tokens: list[str]):
    """Invented words also join entries of the vocabulary, so that every entry of letters is seen in names and objects."""
    PIECES[:] = sorted({token.strip().lower() for token in tokens if token.strip().isascii() and token.strip().isalpha()})


def made_up(rng: random.Random) -> str:
    """An invented word: syllables, consonants and vowels that occur nowhere else, or pieces of the vocabulary."""
    if PIECES and rng.random() < 0.5:
        return "".join(rng.choice(PIECES) for _ in range(rng.choice((1, 2, 2, 3))))
    if rng.random() < 0.4:
        return "".join(rng.choice(words.SYLLABLES) for _ in range(rng.choice((2, 2, 3))))
    parts = [rng.choice(words.ONSETS) + rng.choice(words.VOWELS) for _ in range(rng.choice((1, 2, 2, 3)))]
    return "".join(parts) + rng.choice(words.ENDINGS)


def person(rng: random.Random, held: bool) -> str:
    """A name: known or invented for training, unknown for held-out problems."""
    if held:
        return rng.choice(words.HELD_NAMES)
    if rng.random() < 0.5:
        return rng.choice(words.NAMES)
    while (name := made_up(rng).capitalize()) in words.HELD_NAMES:
        pass
    return name


def thing(rng: random.Random, held: bool) -> str:
    """A plural object; half of the training objects are invented."""
    if held:
        return rng.choice(words.HELD_OBJECTS)
    if rng.random() < 0.5:
        return rng.choice(words.OBJECTS)
    while (word := unknown_object(rng)) in words.HELD_OBJECTS:
        pass
    return word


def unknown_object(rng: random.Random) -> str:
    """An invented plural: of invented syllables, of two known words, or the end of a known word after new letters."""
    kind = rng.random()
    if kind < 0.5:
        return made_up(rng) + rng.choice(("s", "s", "es", "ies"))
    first, second = rng.sample(words.OBJECTS, 2)
    if kind < 0.7:
        return first.removesuffix("s") + second
    cut = rng.randint(2, max(2, len(second) - 2))
    if kind < 0.85:
        return rng.choice(words.VOWELS)[0] + rng.choice(words.ONSETS) + second[cut - 1:]
    return made_up(rng) + second[cut:]


def given(rng: random.Random, low: int, high: int, held: bool) -> int:
    """A number for the question, mostly small, outside (or inside) the held ranges."""
    while True:
        if held and rng.random() < 0.5:
            n = rng.choice([*range(60, 70), *range(300, 350)])
        else:
            top = rng.choice((20, 100, 100, 1000))
            n = rng.randint(low, max(low, min(high, top)))
        if low <= n <= high and (held or not is_held_number(n)):
            return n


def content(rng: random.Random, held: bool) -> dict:
    """Names, objects, numbers and small words for one problem."""
    first, second = person(rng, held), person(rng, held)
    while second == first:
        second = person(rng, held)
    pronoun = rng.choice(("she", "he"))
    group, bins = rng.choice(words.GROUPS), rng.choice(words.BINS)
    return {
        "A": first, "B": second, "o": thing(rng, held), "p": pronoun, "P": pronoun.capitalize(),
        "groups": group, "group": words.SINGULAR[group], "bins": bins, "bin": words.SINGULAR[bins],
        "place": rng.choice(words.PLACES), "day": rng.choice(words.DAYS),
        "x": given(rng, 2, 999, held), "y": given(rng, 2, 999, held), "z": given(rng, 2, 999, held),
        "k": rng.randint(2, 9), "j": rng.randint(2, 9),
        "m": given(rng, 2, rng.choice((12, 99, 99, 400)), held), "n": given(rng, 2, 99, held),
    }


def compute(operations: list[str], values: dict) -> tuple[list[str], int] | None:
    """Lines of thinking and the result; None where a step has no good whole result."""
    lines, results = [], []
    for operation in operations:
        sign = next(c for c in operation if c in "+-*/")
        a, b = (operand(term, values, results) for term in operation.split(sign))
        if sign == "-" and a - b < 2 or sign == "/" and (a % b or a // b < 2) or sign == "*" and min(a, b) > 99:
            return None
        line, result = arithmetic.OPERATIONS[sign](a, b)
        if result > 9999:
            return None
        lines.append(line)
        results.append(result)
    return lines, results[-1]


def operand(term: str, values: dict, results: list[int]) -> int:
    """Value of a term: r is the last result, s the one before, others are given."""
    if term == "r":
        return results[-1]
    if term == "s":
        return results[-2]
    return values[term]


def finish(question: str, operations: list[str], tag: str, answer: str, values: dict) -> Problem | None:
    """Fills in a template; None if the numbers do not fit."""
    done = compute(operations, values)
    if done is None:
        return None
    lines, result = done
    values = values | {"r": result}
    unit = next((u for u in ("dollars", "pages", "kilometers") if u in answer), values["o"])
    if "{bins}" in answer:
        unit = values["bins"]
    head = f"{{A}}, {{o}}: {tag}?" if unit == values["o"] else f"{{A}}, {unit}: {tag}?"
    if "{o}" in answer and unit != values["o"]:
        head = f"{{A}}, {{o}}, {unit}: {tag}?"
    who = next(w for w in ("{A} and {B}", "{A}", "{B}") if w in answer)
    if " than {B}" in answer:
        who = "{A} than {B}"
    elif "{B}" in answer and "{A} and" not in answer:
        who = "{B}"
    tail = f"{who}, {{r}} {unit}." if "{o}" not in answer or unit == values["o"] else f"{who}, {{r}} {unit}, {{o}}."
    thinking = "\n".join([head.format(**values), *lines, tail.format(**values)])
    text = question.format(**values)
    small = len(operations) == 1 and max(result, *(n for n in numbers(text))) <= 20
    return Problem(text, thinking, answer.format(**values), len(operations), small)


def numbers(text: str) -> list[int]:
    """All whole numbers written in a text."""
    return [int(w) for w in "".join(c if c.isdigit() else " " for c in text).split()]


def weight(operations: list[str]) -> float:
    """How often a story is drawn: more often with more operations or a division."""
    return (1, 1.4, 2.2)[len(operations) - 1] * (2 if any("/" in op for op in operations) else 1)


def story(rng: random.Random, held: bool, later: bool) -> Problem:
    """A problem from one fixed template."""
    while True:
        wordings, operations, tag, answer = rng.choices(
            stories.STORIES, [weight(s[1]) for s in stories.STORIES])[0]
        values = content(rng, held)
        if any("/" in op for op in operations):
            fit_division(rng, operations, values, held)
        done = finish(rng.choice(part(wordings, held, later)), operations, tag, answer, values)
        if done:
            return done


def fit_division(rng: random.Random, operations: list[str], values: dict, held: bool):
    """Chooses x so that the division of the template has a whole result."""
    quotient = rng.randint(2, rng.choice((12, 40, 110)))
    wanted = quotient * values["k"] - (values["y"] if operations[0] == "x+y" else 0)
    if 2 <= wanted < 1000 and (held or not is_held_number(wanted)):
        values["x"] = wanted


def chain(rng: random.Random, held: bool, later: bool) -> Problem:
    """A story of an opening, one to three events and a question."""
    while True:
        values = content(rng, held)
        count = rng.choice((1, 2, 2, 3, 3))
        texts = [rng.choice(part(stories.OPENINGS, held, later))]
        operations, sign = [], ""
        shares = count > 1 and rng.random() < 0.15
        for i in range(count - shares):
            text, sign = event(rng, held, later, "xyzv"[i + 1], values)
            texts.append(text)
            operations.append(f"{'r' if i else 'x'}{sign}{'k' if sign == '*' else 'xyzv'[i + 1]}")
        if shares:
            question, tag, answer = rng.choice(stories.SHARE_QUESTIONS)
            operations.append("r/k")
        elif sign == "-" and rng.random() < 0.6:
            question, tag, answer = rng.choice(stories.LEFT_QUESTIONS)
        else:
            question, tag, answer = rng.choice(
                stories.HELD_CHAIN_QUESTIONS if held else stories.CHAIN_QUESTIONS)
        if shares and any("*" in op for op in operations):
            continue
        done = finish(" ".join([*texts, question]), operations, tag, answer, values)
        if done:
            return done


def event(rng: random.Random, held: bool, later: bool, name: str, values: dict) -> tuple[str, str]:
    """One event of a chain: its text and the sign of its operation."""
    values["v"] = given(rng, 2, 999, held)
    if rng.random() < 0.12:
        text, factor = rng.choice(stories.SCALINGS)
        values["k"] = factor or values["k"]
        return text.replace("{day}", rng.choice(words.DAYS)), "*"
    gain = rng.random() < 0.45
    text = rng.choice(part(stories.GAINS if gain else stories.LOSSES, held, later))
    text = text.replace("{y}", "{" + name + "}").replace("{day}", rng.choice(words.DAYS))
    return text, "+" if gain else "-"


def problem(rng: random.Random, held: bool = False, later: bool = True) -> Problem:
    """A word problem of one to three operations."""
    return chain(rng, held, later) if rng.random() < 0.4 else story(rng, held, later)


SUM_QUESTIONS = ["What is {a} {s} {b}?", "{a} {s} {b} = ?", "Calculate {a} {s} {b}.", "{a}{s}{b}", "How much is {a} {s} {b}?",
                 "Compute {a} {s} {b}.", "{a} {s} {b}", "Please work out {a} {s} {b}.", "{a}{s}{b}=?"]


def bare_sum(rng: random.Random) -> Problem:
    """A calculation without a story."""
    sign = rng.choice("+-*/+-*/-//")
    top = rng.choice((20, 100, 1000, 9999) if sign in "+-" else (20, 100, 1000))
    a, b = rng.randint(2, top), rng.randint(2, rng.choice((top, min(top, 999))))
    if sign == "-":
        a, b = max(a, b), min(a, b)
    elif sign == "*":
        b = rng.randint(2, 9) if rng.random() < 0.7 else rng.randint(10, 40)
        a = a if b < 10 else rng.randint(10, 99)
    elif sign == "/":
        b = rng.randint(2, 9)
        a = b * rng.randint(2, max(2, top // b))
    line, result = arithmetic.OPERATIONS[sign](a, b)
    question = rng.choice(SUM_QUESTIONS).format(a=a, b=b, s=sign)
    head = f"Sum: {a} {sign} {b}"
    easy = max(a, b, result) <= 20
    return Problem(question, f"{head}\n{line}", f"{a} {sign} {b} = {result}.", 1, easy)
