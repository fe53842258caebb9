"""The probe's clock and io runs print their reports byte for byte, while the scenario happens around them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nervix_ffi.testing import LoopbackNode

from . import golden
from .test_probe import PATIENCE, PROBE, SHARED

Step = Callable[[LoopbackNode], object]


def run(node: LoopbackNode, uri: str, name: str, steps: dict[str, list[Step]], **environment: str) -> tuple[int, str, str]:
    """Runs the probe as a program; at each line that is a key, the next of its steps happens to the node."""
    process = subprocess.Popen(
        [sys.executable, "-W", "error", str(PROBE), name],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        encoding="utf-8",
        env={
            **os.environ,
            "NERVIX_PROBE_GRPC_URI": uri,
            "NERVIX_PROBE_USERNAME": "prober",
            "NERVIX_PROBE_PASSWORD": "sesame",
            "NERVIX_PROBE_DOMAIN": "conformance",
            "NERVIX_PROBE_INGESTOR": "typed_in",
            "NERVIX_PROBE_EMITTER": "typed_out",
            **environment,
        },
    )
    waiting = {line: list(todo) for line, todo in steps.items()}
    try:
        assert process.stdout is not None
        lines = []
        for line in process.stdout:
            lines.append(line)
            todo = waiting.get(line.rstrip("\n"))
            if todo:
                todo.pop(0)(node)
        assert process.stderr is not None
        errors = process.stderr.read()
        return process.wait(PATIENCE), "".join(lines), errors
    finally:
        process.kill()
        process.communicate()


def statement(text: str) -> Step:
    return lambda node: node.control("execute", domain="conformance", statement=text)


def refuse_and_cut(node: LoopbackNode) -> None:
    node.control("accept", mode="refuse")
    node.control("cut")


def accept(node: LoopbackNode) -> None:
    node.control("accept", mode="accept")


def both(*steps: Step) -> Step:
    def together(node: LoopbackNode) -> None:
        for step in steps:
            step(node)

    return together


def tick(generation: int) -> str:
    return f"TICK domain=conformance generation={generation} boundary=origin+(id-1)*period"


CLOCK_STEPS: dict[str, list[Step]] = {
    tick(1): [both(statement("STOP;"), statement("START AT '2031-01-01T00:00:00Z' TIME RATE 4.0;"))],
    tick(2): [refuse_and_cut],
    "INTERRUPTED domain=conformance": [accept],
}
IO_STEPS: dict[str, list[Step]] = {"HOLDING": [refuse_and_cut], "WAITING restore": [accept]}


def entry(node: LoopbackNode, nodes: int) -> str:
    """One node, or a follower of three."""
    return node.uri if nodes == 1 else node.followers[-1]


def node_of(nodes: int, name: str) -> LoopbackNode:
    return LoopbackNode(nodes, user="prober", password="sesame", load=golden.SCENARIOS / f"{name}.nspl")


def report(name: str) -> str:
    return (golden.SCENARIOS / f"{name}.report").read_text(encoding="utf-8")


@pytest.mark.rule("K-2", "K-4", "K-5", "B-9", "B-11")
@pytest.mark.parametrize("nodes", [1, 3])
def test_the_clock_report_is_the_expected_one(nodes: int) -> None:
    with node_of(nodes, "clock") as node:
        status, output, errors = run(node, entry(node, nodes), "clock", CLOCK_STEPS)
    assert (status, errors) == (0, "")
    assert output == report("clock")


@pytest.mark.rule("P-5", "P-8", "EC-3", "EC-4", "EC-5", "B-12", "B-13", "B-14", "B-15", "B-16")
@pytest.mark.parametrize("nodes", [1, 3])
def test_the_io_report_is_the_expected_one_and_nothing_is_left(nodes: int) -> None:
    with node_of(nodes, "io") as node:
        status, output, errors = run(node, entry(node, nodes), "io", IO_STEPS)
        assert (status, errors) == (0, "")
        assert output == report("io")
        assert {"producers": "0", "outstanding batches": "0"}.items() <= describe(node, "INGESTOR typed_in").items()
        assert {"consumers": "0", "retained batches": "0"}.items() <= describe(node, "EMITTER typed_out").items()


def describe(node: LoopbackNode, what: str) -> dict[str, Any]:
    """What DESCRIBE says, by its keys."""
    message: str = node.control("execute", domain="conformance", statement=f"DESCRIBE {what};")["message"]
    pairs = (line.partition(": ") for line in message.splitlines())
    return {key.strip(): value.strip() for key, _, value in pairs}


@pytest.mark.parametrize("name", ["clock", "io"])
def test_both_runs_need_nothing_beyond_the_shared_interface(name: str, plain_library: Path) -> None:
    steps = CLOCK_STEPS if name == "clock" else IO_STEPS
    with node_of(1, name) as node:
        status, output, errors = run(node, node.uri, name, steps, NERVIX_CLIENT_LIBRARY=str(plain_library))
    assert (status, errors) == (0, "")
    assert output == report(name)


def test_a_run_that_does_not_exist_is_one_line_and_status_1() -> None:
    done = subprocess.run([sys.executable, str(PROBE), "tides"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (1, "", "probe failed: there is no run called tides\n")


@pytest.mark.skipif(not SHARED.exists(), reason="the scenarios' originals are not beside this repository")
@pytest.mark.parametrize("name", ["clock.nspl", "clock.report", "io.nspl", "io.report"])
def test_the_copies_are_copies(name: str) -> None:
    assert (golden.SCENARIOS / name).read_bytes() == (SHARED / name).read_bytes()
