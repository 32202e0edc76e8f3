"""The examples of docs/serving.md: each command runs, and its JSON has the shape that the page shows."""

import json
import re
import subprocess

import pytest

from server import ROOT, Server

PAGE = ROOT / "docs/serving.md"
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.M | re.S)


def examples():
    """(command, what is shown of its output) of each example of the page."""
    blocks = BLOCK.findall(PAGE.read_text())
    return [pytest.param(command, shown_as, shown, id=re.sub(r"\W+", "-", command.split("-d")[0])[:40])
            for (language, command), (shown_as, shown) in zip(blocks, blocks[1:]) if language == "sh"]


@pytest.fixture(scope="module")
def server():
    with Server() as server:
        yield server


def same_shape(shown, got, path="$"):
    """Whether all that is shown is there, with values of the same kinds."""
    if shown is None:
        return
    if isinstance(shown, dict):
        assert isinstance(got, dict), path
        for name, value in shown.items():
            assert name in got, f"{path}.{name} of {list(got)}"
            same_shape(value, got[name], f"{path}.{name}")
    elif isinstance(shown, list):
        assert isinstance(got, list) and (not shown or got), path
        if shown:
            same_shape(shown[0], got[0], f"{path}[0]")
    elif isinstance(shown, (int, float)) and not isinstance(shown, bool):
        assert isinstance(got, (int, float)), f"{path}: {got!r}"
    else:
        assert isinstance(got, type(shown)), f"{path}: {got!r}"


@pytest.mark.parametrize("command,shown_as,shown", examples())
def test_an_example_of_the_page_gives_what_the_page_shows(server, command, shown_as, shown):
    done = subprocess.run(["bash", "-ec", command], env={"BASE": server.url, "PATH": "/usr/bin:/bin"}, capture_output=True,
                          text=True, timeout=60, check=True)
    if shown_as == "json":
        same_shape(json.loads(shown), json.loads(done.stdout))
    else:
        wanted = [part for part in re.split(r"…", shown) if part.strip()]
        place = 0
        for part in wanted:
            place = done.stdout.find(part.strip(), place)
            assert place >= 0, f"{part!r} is not in {done.stdout!r}"


def test_all_series_of_the_page_are_there_and_no_others(server):
    server.chat("What is 2 + 3?", max_tokens=20)
    listed = set(re.findall(r"^\| `((?:vllm|megalith):\w+|process_\w+)", PAGE.read_text(), re.M))
    found = {re.sub(r"_(bucket|sum|count)$", "", name) for name, _ in server.metrics()}
    assert listed == found


def test_all_flags_of_serve_are_on_the_page(server):
    text = PAGE.read_text()
    usage = subprocess.run([server.process.args[0], "serve", "--help"], capture_output=True, text=True, check=True).stdout
    own = {"--help", "--model", "--revision", "--chat-format", "--ranks", "--threads", "--rows-per-step", "--quiet"}
    missing = [flag for flag in re.findall(r"^\s+(?:-\w,)?(--[\w-]+)", usage, re.M) if flag not in own and flag not in text]
    assert missing == []


def test_all_fields_of_the_page_are_read(server):
    """A wrong value of each is refused by its name."""
    for name in re.findall(r"^\| `(\w+)`", PAGE.read_text().split("## Fields")[1].split("\n## ")[0], re.M):
        body = {"messages": [{"role": "user", "content": "Hi"}], "prompt": "Hi", "max_tokens": 1}
        refused = [server.post(route, {**body, name: wrong}).status
                   for route in ("/v1/completions", "/v1/chat/completions") for wrong in ({"no": [1]}, "no")]
        assert 400 in refused, f"{name}: {refused}"
