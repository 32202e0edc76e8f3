"""Unit tests of the generator, the arithmetic and the chat template.

    python -m unittest test_tiny_qwen
"""

import json
import os
import random
import re
import unittest
from pathlib import Path

import arithmetic
import documents
import heldout
import problems
import stories
import words

TEMPLATE = Path(__file__).resolve().parents[2] / "models" / "tiny-qwen" / "chat_template.jinja"


class Arithmetic(unittest.TestCase):
    def test_every_equation_holds(self):
        rng = random.Random(3)
        for _ in range(2000):
            a, b = rng.randint(2, 999), rng.randint(2, 99)
            for line, result in (arithmetic.add(a, b), arithmetic.subtract(max(a, b), min(a, b)),
                                 arithmetic.multiply(a, b), arithmetic.divide(a * (b % 8 + 2), b % 8 + 2)):
                self.assertIn(f"-> {result}", line)
                for left, right in re.findall(r"(?<![\d/])(\d+(?:[+*-]\d+)+)=(\d+)", line):
                    self.assertEqual(eval(left), int(right), line)
                for left, digit, quotient, rest in re.findall(r"(\d+)/(\d+)=(\d+) rest (\d+)", line):
                    self.assertEqual(divmod(int(left), int(digit)), (int(quotient), int(rest)), line)

    def test_examples(self):
        self.assertEqual(arithmetic.add(458, 367)[0], "458+367: 8+7=15,5+6+1=12,4+3+1=8 -> 825")
        self.assertEqual(arithmetic.subtract(825, 367)[0], "825-367: 15-7=8,12-1-6=5,8-1-3=4 -> 458")
        with self.assertRaises(ValueError):
            arithmetic.divide(7, 2)


class Problems(unittest.TestCase):
    def test_training_avoids_what_is_held_out(self):
        rng = random.Random(4)
        held_words = set(words.HELD_NAMES) | set(words.HELD_OBJECTS)
        for _ in range(3000):
            p = problems.problem(rng)
            self.assertFalse(held_words & set(re.findall(r"[A-Za-z]+", p.question)), p.question)
            self.assertFalse(any(problems.is_held_number(n) for n in problems.numbers(p.question)), p.question)

    def test_answer_repeats_the_end_of_the_thinking(self):
        rng = random.Random(5)
        for held in (False, True):
            for _ in range(2000):
                p = problems.problem(rng, held)
                last = p.thinking.splitlines()[-1]
                self.assertEqual(problems.numbers(last), problems.numbers(p.answer), p)
                self.assertNotIn("{", p.question + p.thinking + p.answer)
                self.assertEqual(len(p.thinking.splitlines()), p.steps + 2)

    def test_every_template_has_both_kinds_of_wording(self):
        for wordings in (stories.OPENINGS, stories.GAINS, stories.LOSSES, *(s[0] for s in stories.STORIES)):
            self.assertTrue(problems.part(wordings, True))
            self.assertTrue(problems.part(wordings, False))

    def test_training_skips_the_evaluation(self):
        known = heldout.known_questions()
        self.assertEqual(len(known), heldout.SIZE)
        rng = random.Random(2026)
        for _ in range(heldout.SIZE):
            self.assertNotIn(documents.question_of(documents.document(rng, known)), known)


class ChatTemplate(unittest.TestCase):
    def render(self, messages, **options) -> str:
        import jinja2

        environment = jinja2.Environment(trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"])
        environment.filters["tojson"] = lambda x: json.dumps(x, ensure_ascii=False)
        return environment.from_string(TEMPLATE.read_text()).render(messages=messages, add_generation_prompt=True, **options)

    def test_prompts_equal_the_training_text(self):
        ask = [{"role": "user", "content": "What is 2 + 3?"}]
        self.assertEqual(self.render(ask), documents.thinking_prompt("What is 2 + 3?"))
        self.assertEqual(self.render(ask, enable_thinking=False), documents.plain_prompt("What is 2 + 3?"))

    def test_golden_cases(self):
        path = os.environ.get("QWEN_CHAT_CASES")
        if not path:
            self.skipTest("QWEN_CHAT_CASES names no file")
        for name, case in json.loads(Path(path).read_text()).items():
            if name.startswith("35"):
                options = {k: v for k, v in case["input"].items() if k != "messages"}
                self.assertEqual(self.render(case["input"]["messages"], **options), case["text"], name)


if __name__ == "__main__":
    unittest.main()
