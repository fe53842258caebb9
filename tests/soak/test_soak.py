"""A minute of the soak. An hour of it is ``python -m tests.soak``."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.timeout(400)
@pytest.mark.rule(
    "B-1",
    "B-2",
    "B-14",
    "B-15",
    "B-16",
    "C-5",
    "C-7",
    "D-4",
    "D-5",
    "D-6",
    "E-2",
    "E-3",
    "EC-4",
    "EC-5",
    "EC-6",
    "F-8",
    "K-3",
    "K-5",
    "L-3",
    "P-4",
    "P-5",
    "P-8",
    "S-5",
    "S-7",
    "X-2",
    "X-3",
    "X-6",
    "X-7",
)
@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="counts what is left behind in /proc")
def test_a_minute_in_which_everything_fails_loses_nothing_and_does_nothing_twice(root: Path) -> None:
    """In a process of its own, whose threads, descriptors and memory nothing else moves."""
    command = [sys.executable, "-W", "error", "-X", "faulthandler", "-m", "tests.soak", "--duration", "60", "--seed", "1"]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=390, check=False)
    print(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr
