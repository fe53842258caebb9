"""The code that reads and writes frames is what the schema files give."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.rule("F-1", "CF-2")
def test_the_generated_code_is_current(root: Path) -> None:
    command = [sys.executable, str(root / "tools" / "wire_generate.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
