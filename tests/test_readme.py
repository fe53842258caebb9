"""What the README shows is what happens."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from pathlib import Path

RunPython = Callable[..., "subprocess.CompletedProcess[str]"]


def blocks(root: Path, language: str) -> list[str]:
    """The code blocks of one language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", (root / "README.md").read_text(encoding="utf-8"), re.M | re.S)


def test_the_examples_print_what_their_comments_say(root: Path, run_python: RunPython) -> None:
    for example in blocks(root, "python"):
        run = run_python(example)
        assert (run.returncode, run.stderr) == (0, "")
        (said,) = re.findall(r"print\(\w+\.rows\(\)\)\s+# (.*)", example)
        assert run.stdout.startswith(f"{said}\n")
        assert ("pyarrow.RecordBatch" in run.stdout) == ("to_arrow" in example)


def test_a_refused_command_is_drawn_as_shown(root: Path, run_python: RunPython) -> None:
    (drawn,) = blocks(root, "text")
    script = """
import nervix_ffi
from nervix_ffi.testing import LoopbackNode

with LoopbackNode() as node, nervix_ffi.connect(node.uri) as session:
    session.execute("CREATE UNPACED DOMAIN d;")
    session.execute("USE d;")
    session.execute("CREATE RELAY;")
"""
    run = run_python(script)
    assert run.returncode == 1
    assert drawn in run.stderr


def test_the_figures_say_how_to_take_them(root: Path) -> None:
    text = (root / "README.md").read_text(encoding="utf-8")
    section = text.split("## Performance", 1)[1].split("\n## ", 1)[0]
    assert "pytest tests/benchmarks" in section
    assert len(re.findall(r"\| \d+\.\d+ \|$", section, re.M)) >= 2
