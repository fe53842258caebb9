"""What the README shows is what happens."""

from __future__ import annotations

import ast
import itertools
import re
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

import nervix_ffi
from nervix_ffi.testing import LoopbackNode

from . import endpoints
from .support import PATIENCE, connect

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


def recovery(root: Path, name: str) -> Callable[..., object]:
    """A function of the README's example of recovery."""
    (example,) = (block for block in blocks(root, "python") if "def run(" in block)
    (function,) = (node for node in ast.parse(example).body if isinstance(node, ast.FunctionDef) and node.name == name)
    names: dict[str, Any] = {"nervix_ffi": nervix_ffi, "time": time}
    exec(ast.unparse(function), names)
    made: Callable[..., object] = names[name]
    return made


#: What happens between a delivery and its acknowledgement.
FAULTS: list[Callable[[LoopbackNode, nervix_ffi.Delivery], object]] = [
    lambda node, _: node.control("cut", how="abort"),
    lambda node, _: node.control("end_consumer"),
    lambda _, delivery: delivery.retry(timeout=PATIENCE),
    lambda node, _: node.control("cut", direction="in", kind="SettleEmitterBatchRequest", when="before", how="abort"),
]


class Unanswered:
    """A session, and an execution of it, whose every run ends in the next of these errors."""

    reference = "reference-1"

    def __init__(self, errors: Iterable[nervix_ffi.Error]) -> None:
        self._errors = iter(errors)
        self.prepared = self.runs = 0

    def prepare(self, _query: str) -> Unanswered:
        self.prepared += 1
        return self

    def run(self, *, timeout: float) -> str:
        assert timeout > 0
        self.runs += 1
        for error in self._errors:
            raise error
        return "an outcome"


@pytest.mark.rule("B-1", "E-3")
def test_the_loop_of_recovery_waits_longer_each_time_and_ends(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    monkeypatch.setattr(time, "sleep", pauses.append)
    run = recovery(root, "run")
    for kind in (nervix_ffi.UncertainError, nervix_ffi.DeadlineError, nervix_ffi.TransportError, nervix_ffi.ConnectError):
        pauses.clear()
        session = Unanswered(kind(str(number)) for number in range(1000))
        with pytest.raises(kind):
            run(session, "CREATE RELAY;")
        assert session.prepared == 1, "each run is of the one execution"
        assert session.runs == len(pauses) + 1 < 20
        assert pauses[0] < 1
        assert all(later > earlier for earlier, later in itertools.pairwise(pauses))
    session = Unanswered([nervix_ffi.UncertainError("not yet"), nervix_ffi.DeadlineError("not yet")])
    assert run(session, "CREATE RELAY;") == "an outcome"
    session = Unanswered([nervix_ffi.ReferenceExpired("never")])
    with pytest.raises(nervix_ffi.ReferenceExpired):
        run(session, "CREATE RELAY;")
    assert session.runs == 1


@pytest.mark.rule("B-15", "B-16")
def test_the_loop_of_deliveries_goes_on_however_an_acknowledgement_ends(root: Path) -> None:
    acknowledged = recovery(root, "acknowledged")
    with LoopbackNode(load=endpoints.GRAPH) as node, connect(node) as session, endpoints.consumer(session) as taking:
        feed = endpoints.producer(session, "held")
        seen = []
        for number, fault in enumerate(FAULTS):
            feed.submit(endpoints.rows(number), timeout=PATIENCE)
            deliveries = recovery(root, "deliveries")(taking)
            assert isinstance(deliveries, Iterator)
            for delivery in deliveries:
                seen.append(endpoints.ids(delivery))
                if seen.count([number]) == 1:
                    fault(node, delivery)
                if acknowledged(delivery):
                    break
            assert seen[-1] == [number]
        assert len(seen) == 2 * len(FAULTS), "each came again"


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


#: What users must not be told, by its point in the manual, and where the README tells them so.
DENIALS = {
    "N-1": "does not deliver every row, nor each row once, and it cannot be resumed from a position",
    "N-2": "Neither that nor a failed transaction nor a lost session takes anything back",
    "N-3": "A cancelled or timed-out command may have happened, or may still happen",
    "N-4": "reported as uncertain**, never as failed and never as done",
    "N-5": "Rows arrive typed, row by row, and Arrow is made here",
    "N-6": "never acknowledges it, and an acknowledgement whose answer was lost may have been applied",
    "N-7": "a clock, a producer and a consumer it does not survive the loss of its connection",
    "N-8": "No batch is delivered exactly once for certain, and one that failed or is unknown may have had effects",
}

#: What would be such a promise if no word of its sentence took it back.
PROMISE = re.compile(
    r"exactly[- ]once|deliver\w* (every|all) row|roll(s|ed)? back|undo(es|ne)?\b|surviv\w+|guarante\w+|resum\w+ from"
)
DENIAL = re.compile(r"\b(no|not|never|neither|none|nor|nothing|cannot|without)\b", re.I)


def texts(root: Path) -> Iterator[tuple[str, str]]:
    """Everything that tells users what to expect: the README, the docstrings of the package, and the comments of the headers."""
    yield "README.md", (root / "README.md").read_text(encoding="utf-8")
    for path in sorted((root / "nervix_ffi").glob("[a-z]*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)) and (said := ast.get_docstring(node)):
                yield path.name, said
    for path in sorted((root / "include").glob("*.h")):
        for comment in re.findall(r"/\*(.*?)\*/", path.read_text(encoding="utf-8"), re.S):
            yield path.name, comment


@pytest.mark.rule("N-1", "N-2", "N-3", "N-4", "N-5", "N-6", "N-7", "N-8")
def test_what_a_client_must_not_promise_is_denied_and_promised_nowhere(root: Path) -> None:
    readme = " ".join((root / "README.md").read_text(encoding="utf-8").split())
    section = readme.split("## What it promises, and what it does not", 1)[1].split(" ## ", 1)[0]
    for rule, denial in DENIALS.items():
        assert denial in section, rule
    seen = 0
    for name, text in texts(root):
        for sentence in re.split(r"(?<=[.;:!?])\s+", re.sub(r"\s+[*#]?\s*", " ", text)):
            if PROMISE.search(sentence):
                seen += 1
                assert DENIAL.search(sentence), f"{name}: {sentence}"
    assert seen > len(DENIALS) / 2, "nothing was found: the words are not those that are used"
