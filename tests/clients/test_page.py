"""The page at / with a real server behind it, in Chromium."""

import os
import subprocess
import sys

import pytest

from server import ROOT


def test_people_can_chat_on_the_page(qwen):
    done = subprocess.run([sys.executable, str(ROOT / "tests/server/page_test.py"), str(ROOT / "src/server/page.html")],
                          env={**os.environ, "MEGALITH_URL": qwen.url}, capture_output=True, text=True, timeout=100)
    if done.returncode == 77:
        pytest.skip(done.stdout.strip())
    assert done.returncode == 0, done.stdout + done.stderr
