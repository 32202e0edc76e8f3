"""lm-evaluation-harness through the server gives the numbers of the model itself."""

import json
import logging
import pathlib
import re
import subprocess
import sys

import lm_eval
import numpy as np
import pytest
import yaml
from lm_eval.tasks import TaskManager
from safetensors.numpy import load_file

from server import MEGALITH, MODELS, Server, message_of

TASKS = pathlib.Path(__file__).parent / "tasks"


@pytest.fixture(autouse=True)
def local(monkeypatch, work):
    """No data set or tokenizer comes from elsewhere."""
    monkeypatch.setenv("HF_DATASETS_CACHE", str(work / "datasets"))
    monkeypatch.setenv("HF_HOME", str(work / "hf"))
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    logging.getLogger("lm_eval").setLevel(logging.WARNING)


def task(name, **fields):
    """A task of tasks/, with its data's path filled in."""
    text = (TASKS / f"{name}.yaml").read_text().replace("DATA", str(TASKS))
    return {**yaml.safe_load(text), **fields}


def items(name):
    return [json.loads(line) for line in (TASKS / f"{name}.jsonl").read_text().splitlines()]


def evaluate(kind, server, task, chat=False, **arguments):
    path = "chat/completions" if kind == "local-chat-completions" else "completions"
    result = lm_eval.simple_evaluate(
        model=kind, tasks=[task], task_manager=TaskManager(include_defaults=False), apply_chat_template=chat,
        bootstrap_iters=0, log_samples=True,
        model_args={"model": server.model, "base_url": f"{server.url}/v1/{path}", "max_retries": 1, **arguments})
    name = task["task"]
    samples = sorted(result["samples"][name], key=lambda sample: sample["doc_id"])
    return result["results"][name], samples


class InProcess:
    """Log-likelihoods from the logits that the program writes itself."""

    def __init__(self, model, folder):
        self.model = model
        self.file = folder / "logits.safetensors"

    def encode(self, text):
        done = subprocess.run([MEGALITH, "tokenize", "--model", self.model, "-"], input=text, capture_output=True, text=True,
                              check=True)
        return [int(token) for token in re.findall(r"\d+", done.stdout)]

    def score(self, tokens, start):
        """The sum of log p of the tokens from `start` on, and whether each is the likeliest."""
        subprocess.run([MEGALITH, "logits", "--model", self.model, "--quiet", "--tokens", ",".join(map(str, tokens)),
                        "--out", self.file], check=True, capture_output=True)
        logits = load_file(self.file)["logits"].astype(np.float64)
        top = logits.max(axis=1)
        logprobs = logits - (top + np.log(np.exp(logits - top[:, None]).sum(axis=1)))[:, None]
        places = np.arange(start - 1, len(tokens) - 1)
        wanted = np.array(tokens[start:])
        greedy = bool((logits[places].argmax(axis=1) == wanted).all())
        return float(logprobs[places, wanted].sum()), greedy


# Text becomes no control tokens of tiny-kimi, so that its numbers are of plain text.
PROMPT = {"tiny-qwen": "<|im_start|>user\nQUESTION<|im_end|>\n<|im_start|>assistant\n<think>\nTHOUGHTS\n</think>\n\n",
          "tiny-kimi": "Question: QUESTION\n\nTHOUGHTS\n\n"}


@pytest.fixture(scope="module")
def in_process(tmp_path_factory):
    """Of a model: log-likelihood and greedy of each choice of each item, and the accuracy."""
    found = {}

    def of(model):
        if model not in found:
            program = InProcess(model, tmp_path_factory.mktemp("logits"))
            scores = []
            for item in items("choices"):
                context = PROMPT[model].replace("QUESTION", item["question"]).replace("THOUGHTS", item["thoughts"])
                # As lm-eval does: blanks at the end of the context belong to the continuation.
                start = len(program.encode(context.rstrip()))
                scores.append([program.score(program.encode(context + choice), start) for choice in item["choices"]])
            right = [int(np.argmax([value for value, _ in each])) == item["answer"]
                     for each, item in zip(scores, items("choices"))]
            found[model] = scores, sum(right) / len(right)
        return found[model]
    return of


def check_choices(server, in_process, **arguments):
    text = PROMPT[server.model].replace("QUESTION", "{{question}}").replace("THOUGHTS", "{{thoughts}}")
    results, samples = evaluate("local-completions", server, task("choices", doc_to_text=text), **arguments)
    scores, accuracy = in_process(server.model)
    assert len(samples) == 20
    for sample, expected in zip(samples, scores):
        for (value, greedy), (right, right_greedy) in zip((response[0] for response in sample["resps"]), expected):
            assert abs(float(value) - right) < 1e-5 * max(1, abs(right)), (sample["doc"], value, right)
            assert (str(greedy) == "True") == right_greedy, sample["doc"]
    assert results["acc,none"] == accuracy


class TestChoices:
    @pytest.mark.parametrize("batch", [1, 4])
    def test_ids_with_the_servers_tokenizer(self, either, in_process, batch):
        check_choices(either, in_process, tokenizer_backend="remote", batch_size=batch)

    def test_the_tokenizer_is_found_by_itself(self, qwen, in_process):
        check_choices(qwen, in_process, batch_size=8)

    def test_text_with_the_servers_tokenizer(self, qwen, in_process):
        check_choices(qwen, in_process, tokenizer_backend="remote", tokenized_requests=False, batch_size=2)

    def test_many_at_once(self, either, in_process):
        check_choices(either, in_process, tokenizer_backend="remote", num_concurrent=8, batch_size=2)

    def test_a_local_tokenizer(self, qwen, in_process):
        check_choices(qwen, in_process, tokenizer_backend="huggingface", tokenizer=str(MODELS / "tiny-qwen"), batch_size=4)

    def test_without_a_draft(self, in_process):
        with Server("--no-draft") as server:
            check_choices(server, in_process, tokenizer_backend="remote", batch_size=16)

    def test_the_model_knows_more_than_chance(self, in_process):
        assert in_process("tiny-qwen")[1] >= 0.8


class TestGeneration:
    def answers(self, server):
        """What the model answers to each item, and how many are right."""
        texts = [message_of(server.stream_chat(item["question"], max_tokens=300))[0]["content"] for item in items("sums")]
        right = [(re.findall(r"\d+", text) or [""])[-1] == item["answer"] for text, item in zip(texts, items("sums"))]
        return texts, sum(right) / len(right)

    @pytest.mark.parametrize("concurrent", [1, 6])
    def test_chat(self, either, concurrent):
        texts, accuracy = self.answers(either)
        results, samples = evaluate("local-chat-completions", either, task("sums"), chat=True, num_concurrent=concurrent)
        assert [sample["resps"][0][0] for sample in samples] == texts
        assert results["exact_match,last-number"] == accuracy >= 0.5

    def test_completions(self, qwen):
        text = "<|im_start|>user\n{{question}}<|im_end|>\n<|im_start|>assistant\n<think>\n"
        results, samples = evaluate("local-completions", qwen, task("sums", doc_to_text=text), batch_size=4,
                                    tokenizer_backend="remote")
        texts, accuracy = self.answers(qwen)
        assert [sample["resps"][0][0].rpartition("</think>")[2].strip() for sample in samples] == texts
        assert results["exact_match,last-number"] == accuracy


def test_the_data_is_right():
    for item in items("choices"):
        a, b = map(int, re.findall(r"\d+", item["question"])[:2])
        right = a + b if "+" in item["question"] else a - b
        assert len(set(item["choices"])) == 4
        assert str(right) in re.split(r"[ .]", item["choices"][item["answer"]])
    assert [len(items(name)) for name in ("choices", "sums")] == [20, 20]


if __name__ == "__main__":
    sys.exit(pytest.main([__file__, "-q", *sys.argv[1:]]))
