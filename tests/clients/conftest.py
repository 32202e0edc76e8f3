"""Servers that tests share."""

import os
import pathlib
import sys

os.environ.update(HF_HUB_OFFLINE="1", HF_DATASETS_OFFLINE="1", TRANSFORMERS_OFFLINE="1", TOKENIZERS_PARALLELISM="false")
sys.path.insert(0, str(pathlib.Path(__file__).parent))

import pytest  # noqa: E402

from server import WORK, Server  # noqa: E402


@pytest.fixture(scope="session")
def work():
    WORK.mkdir(parents=True, exist_ok=True)
    return WORK


@pytest.fixture(scope="session")
def qwen():
    with Server("--context", 4096) as server:
        yield server


@pytest.fixture(scope="session")
def kimi():
    with Server("--context", 4096, model="tiny-kimi") as server:
        yield server


@pytest.fixture(params=["qwen", "kimi"])
def either(request):
    """The test runs with both models."""
    return request.getfixturevalue(request.param)
