"""guidellm measures the server: no request of its benchmarks fails, and its counts are the server's."""

import json
import os
import pathlib
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from server import MODELS

HERE = pathlib.Path(__file__).parent
REQUESTS = 8
GUIDELLM = HERE / "guidellm_without_torch.py"
PROFILES = {"synchronous": {"kind": "synchronous"}, "concurrent": {"kind": "concurrent", "streams": [4]}}
DATA = {"local": {"kind": "json_file", "path": str(HERE / "tasks/sums.jsonl")},
        "synthetic": {"kind": "synthetic_text", "prompt_tokens": 60, "output_tokens": 24}}
CASES = [("chat/completions", "synchronous", "local"), ("completions", "synchronous", "synthetic"),
         ("chat/completions", "concurrent", "synthetic"), ("completions", "concurrent", "local")]


def scenario(folder, url, number):
    """A file that describes one benchmark."""
    route, profile, data = CASES[number]
    # Raw text goes on after end tokens.
    backend = {"kind": "openai_http", "target": url, "request_format": f"/v1/{route}", "max_tokens": 60,
               "extras": {"body": {"ignore_eos": route == "completions"}}}
    spec = {"backend": backend, "data": [DATA[data]],
            "profile": PROFILES[profile], "constraints": [{"kind": "max_requests", "count": REQUESTS}],
            "tokenizer": {"kind": "huggingface_auto", "model": str(MODELS / "tiny-qwen")},
            "outputs": [{"kind": "json", "path": str(folder / f"report{number}.json")}]}
    path = folder / f"scenario{number}.json"
    path.write_text(json.dumps({"spec": spec}))
    return str(path)


def benchmark(server, work, folder, number):
    """Runs one benchmark; returns its report."""
    environment = {**os.environ, "HF_HOME": str(work / "hf"), "GUIDELLM__MAX_WORKER_PROCESSES": "1"}
    command = [sys.executable, GUIDELLM, "run", "-c", scenario(folder, server.url, number), "--disable-console-interactive"]
    done = subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return json.loads((folder / f"report{number}.json").read_text())


@pytest.fixture(scope="module")
def reports(qwen, work, tmp_path_factory):
    """Two benchmarks at a time: loading guidellm takes longer than they do."""
    folder = tmp_path_factory.mktemp("guidellm")
    served = qwen.served()
    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(lambda number: benchmark(qwen, work, folder, number), range(len(CASES))))
    assert qwen.served() >= served + REQUESTS * len(CASES)
    return found


@pytest.mark.timeout(220)
@pytest.mark.parametrize("number", range(len(CASES)), ids=["-".join(case).replace("/", "-") for case in CASES])
def test_no_request_fails(reports, number):
    [measured] = reports[number]["benchmarks"]
    requests = {kind: found or [] for kind, found in measured["requests"].items()}
    assert not requests["errored"] and not requests["incomplete"], requests["errored"][:1]
    assert len(requests["successful"]) == REQUESTS
    for request in requests["successful"]:
        assert request["output_tokens"] > 0 and request["prompt_tokens"] > 0
        assert request["time_to_first_token_ms"] > 0
        if CASES[number][2] == "synthetic":
            assert request["output_tokens"] == 24


def test_nothing_is_left_running(qwen, reports):
    qwen.wait_idle()


if __name__ == "__main__":
    sys.exit(pytest.main([__file__, "-q", *sys.argv[1:]]))
