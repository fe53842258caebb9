"""The conformance probe prints each scenario's report, byte for byte."""

from __future__ import annotations

import gzip
import os
import subprocess
import sys
from pathlib import Path

import pytest

from nervix_ffi.testing import LoopbackNode

from . import golden

PROBE = Path(__file__).resolve().parents[2] / "examples" / "conformance_probe.py"
SHARED = Path(__file__).resolve().parents[3] / "shared" / "spec" / "scenarios"
PATIENCE = 100


def expected(name: str) -> str:
    """The report that is checked in."""
    packed = golden.SCENARIOS / f"{name}.report.gz"
    if packed.exists():
        return gzip.decompress(packed.read_bytes()).decode("utf-8")
    return (golden.SCENARIOS / f"{name}.report").read_text(encoding="utf-8")


def run_probe(node: LoopbackNode, uri: str, name: str, password: str, library: Path | None = None) -> tuple[int, str, str]:
    """Run the probe as a program and publish the scenario's rows once it has subscribed: status, output, errors."""
    scenario = golden.read_scenario(name)
    batches = golden.batches(name)
    environment = {
        **os.environ,
        "NERVIX_PROBE_GRPC_URI": uri,
        "NERVIX_PROBE_USERNAME": "prober",
        "NERVIX_PROBE_PASSWORD": password,
        "NERVIX_PROBE_DOMAIN": "conformance",
        "NERVIX_PROBE_RELAY": scenario.relay,
        "NERVIX_PROBE_SUBSCRIPTION": "probe",
        "NERVIX_PROBE_ROWS": str(sum(len(batch) for batch in batches)),
    }
    if library is not None:
        environment["NERVIX_CLIENT_LIBRARY"] = str(library)
    process = subprocess.Popen(
        [sys.executable, "-W", "error", str(PROBE)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        encoding="utf-8",
        env=environment,
    )
    try:
        assert process.stdout is not None
        lines = []
        for line in process.stdout:
            lines.append(line)
            if line == "SUBSCRIBED\n":
                for batch in batches:
                    node.control("publish", domain="conformance", relay=scenario.relay, rows=batch)
        assert process.stderr is not None
        errors = process.stderr.read()
        return process.wait(PATIENCE), "".join(lines), errors
    finally:
        process.kill()
        process.communicate()


@pytest.mark.rule("R-3", "R-4", "R-5", "B-4", "B-6")
@pytest.mark.parametrize("name", ["rows", "keys", "lists", "many"])
@pytest.mark.parametrize("nodes", [1, 3])
def test_the_report_is_the_expected_one(name: str, nodes: int) -> None:
    """On one node, and entering a cluster of three on a follower."""
    with LoopbackNode(nodes, user="prober", password="sesame", load=golden.SCENARIOS / f"{name}.nspl") as node:
        uri = node.uri if nodes == 1 else node.followers[-1]
        status, output, errors = run_probe(node, uri, name, "sesame")
    assert (status, errors) == (0, "")
    assert output == expected(name)


@pytest.mark.rule("B-6", "R-5")
@pytest.mark.parametrize("name", ["rows", "keys", "many"])
def test_a_library_without_extensions_gives_the_same_report(name: str, plain_library: Path) -> None:
    with LoopbackNode(user="prober", password="sesame", load=golden.SCENARIOS / f"{name}.nspl") as node:
        status, output, errors = run_probe(node, node.uri, name, "sesame", plain_library)
    assert (status, errors) == (0, "")
    assert output == expected(name)


def test_lists_need_the_extension_and_say_so(plain_library: Path) -> None:
    with LoopbackNode(user="prober", password="sesame", load=golden.SCENARIOS / "lists.nspl") as node:
        status, output, errors = run_probe(node, node.uri, "lists", "sesame", plain_library)
    assert status == 1
    assert output.endswith("SUBSCRIBED\n")
    assert errors.startswith("probe failed: ")
    assert "nxx_event_arrow" in errors


def test_a_failed_check_is_one_line_and_status_1() -> None:
    with LoopbackNode(user="prober", password="sesame", load=golden.SCENARIOS / "rows.nspl") as node:
        status, output, errors = run_probe(node, node.uri, "rows", "xyzzy")
        assert (status, output) == (1, "")
        assert errors.startswith("probe failed: ")
        assert errors.count("\n") == 1
        assert "xyzzy" not in errors


def test_a_setting_that_is_missing_is_named() -> None:
    done = subprocess.run([sys.executable, str(PROBE)], capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "probe failed: NERVIX_PROBE_RELAY is not set\n"


@pytest.mark.parametrize("name", ["keys", "lists", "many", "rows"])
def test_the_expected_reports_follow_from_the_rows(name: str) -> None:
    """The generator is a second reader of the scenarios; on `rows` it meets a report that is not ours."""
    assert golden.report(name) == expected(name)


@pytest.mark.skipif(not SHARED.exists(), reason="the scenarios' originals are not beside this repository")
@pytest.mark.parametrize("name", ["rows.nspl", "rows.json", "rows.report"])
def test_the_copies_are_copies(name: str) -> None:
    assert (golden.SCENARIOS / name).read_bytes() == (SHARED / name).read_bytes()
