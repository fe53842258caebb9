"""The paced simulation: its reports, its files and its exit statuses, against a node that tests disturb."""

from __future__ import annotations

import importlib.util
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nervix_ffi.testing import LoopbackNode

FOLDER = Path(__file__).resolve().parent.parent / "examples" / "paced_simulation"
DRIVER = FOLDER / "paced_simulation.py"
GRAPH = FOLDER / "paced_simulation.nspl"
DOMAIN = "paced_simulation"


class Driver:
    """A run of the driver as a program. Lines that begin with a key of `steps` make its next step happen, once each."""

    def __init__(self, folder: Path, *options: str, node: LoopbackNode | None = None) -> None:
        server = ["--node"] if node is None else ["--server", node.uri]
        self.process = subprocess.Popen(
            [sys.executable, "-W", "error", str(DRIVER), *server, *options],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            encoding="utf-8",
            cwd=folder,
        )
        self.lines: list[str] = []

    def read(self) -> Iterator[str]:
        """The lines as they come."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line.rstrip("\n"))
            yield self.lines[-1]

    def finish(self, steps: dict[str, Callable[[], object]] | None = None) -> tuple[int, str]:
        """Reads to the end: exit status, and standard error."""
        waiting = dict(steps or {})
        try:
            for line in self.read():
                for key in [key for key in waiting if line.startswith(key)]:
                    waiting.pop(key)()
            assert self.process.stderr is not None
            errors = self.process.stderr.read()
            assert not waiting, f"never seen: {list(waiting)}\n{errors}" + "\n".join(self.lines[-30:])
            return self.process.wait(100), errors
        finally:
            self.process.kill()
            self.process.communicate()

    def kinds(self) -> Counter[str]:
        """How often each first word came."""
        return Counter(line.split()[0] for line in self.lines)

    def starting(self, words: str) -> list[str]:
        """The lines that begin with some words."""
        return [line for line in self.lines if line.startswith(words)]

    def summary(self) -> dict[str, int]:
        """The counts of the last line."""
        assert self.lines[-1].startswith("SUMMARY "), self.lines[-10:]
        return {name: int(value) for name, _, value in (pair.partition("=") for pair in self.lines[-1].split()[1:])}


def records(folder: Path, name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / f"paced-simulation-{name}.jsonl").read_text(encoding="utf-8").splitlines()]


def applied(folder: Path) -> Counter[str]:
    """How often each reading was applied."""
    return Counter(record["reading_id"] for record in records(folder, "effects") if record["kind"] == "reading")


def submitted(folder: Path) -> list[str]:
    return [record["reading_id"] for record in records(folder, "ledger") if record["record"] == "reading"]


def graph(rate: float = 4.0) -> str:
    return GRAPH.read_text(encoding="utf-8").replace("TIME RATE 4.0", f"TIME RATE {rate}")


@pytest.fixture
def node() -> Iterator[LoopbackNode]:
    with LoopbackNode(load=GRAPH) as made:
        yield made


def execute(node: LoopbackNode, statement: str) -> None:
    node.control("execute", domain=DOMAIN, statement=statement)


@pytest.mark.rule("B-11", "B-14", "B-15")
@pytest.mark.parametrize("timestamps", ["at", "now"])
def test_a_run_completes_every_reading_and_writes_what_it_did(tmp_path: Path, timestamps: str) -> None:
    driver = Driver(
        tmp_path, "--timestamps", timestamps, "--ticks", "12", "--sensors", "2", "--burst", "2", "--inspect-every", "4"
    )
    status, errors = driver.finish()
    assert (status, errors) == (0, ""), errors
    summary = driver.summary()
    expected = {"readings": 48, "completed": 48, "effects": 48, "duplicates": 0, "generations": 1, "inspections": 3}
    assert expected.items() <= summary.items()
    assert summary["ticks_observed"] > 1
    assert (summary["consumers_joined"], summary["consumers_left"]) == (1, 0)
    words = [line.split()[0] for line in driver.lines]
    assert words[:2] == ["CONNECTED", "CLOCK"]
    assert words.index("CONSUMER") < words.index("PRODUCER") < words.index("READY") < words.index("SUBMIT")
    ingestor = {"at": "simulated_readings", "now": "live_readings"}[timestamps]
    assert driver.starting(f"PRODUCER opened ingestor={ingestor} generation=1 ")
    assert driver.starting(f"INSPECT {ingestor} source=CLIENT schema=reading owner=")[0].count(
        "status=running admission=open producers=1"
    )
    assert len(driver.starting("INSPECT emitter=observed_readings consumers=1 retained_batches=")) == 3
    assert len(driver.starting("OUTCOME tick=")) == len(driver.starting("SUBMITTED tick=")) == 12

    ledger, effects = records(tmp_path, "ledger"), records(tmp_path, "effects")
    reading = next(record for record in ledger if record["record"] == "reading")
    assert list(reading) == [
        "record", "reading_id", "generation", "tick", "sensor", "occurred_at", "value", "ingestor", "timestamps", "stamp"
    ]  # fmt: skip
    assert (reading["ingestor"], reading["timestamps"], reading["stamp"], reading["sensor"]) == (
        ingestor,
        timestamps,
        "center",
        "sensor-0",
    )
    assert reading["reading_id"] == f"g1-t{reading['tick']}-s0-0"
    outcome = next(record for record in ledger if record["record"] == "outcome")
    assert (list(outcome), outcome["outcome"], outcome["cause"]) == (
        ["record", "reading_ids", "outcome", "cause"],
        "completed",
        None,
    )
    assert set(applied(tmp_path).values()) == {1}
    assert set(applied(tmp_path)) == set(submitted(tmp_path))
    assert list(effects[0]) == [
        "kind", "reading_id", "sensor", "tick", "occurred_at", "admitted_at", "timestamp_source", "value", "generation"
    ]  # fmt: skip
    assert {effect["timestamp_source"] for effect in effects} == {timestamps}


@pytest.mark.rule("B-11")
def test_readings_out_of_the_window_come_back_as_notices(tmp_path: Path) -> None:
    driver = Driver(tmp_path, "--ticks", "9", "--invalid-every", "3")
    status, errors = driver.finish()
    assert (status, errors) == (0, ""), errors
    assert {"readings": 27, "completed": 27, "effects": 24, "rejection_notices": 3}.items() <= driver.summary().items()
    assert len(driver.starting("REJECTED reading_id=g1-t")) == 3
    notices = [record for record in records(tmp_path, "effects") if record["kind"] == "rejection"]
    stamped = {
        record["reading_id"]: record["occurred_at"] for record in records(tmp_path, "ledger") if record["record"] == "reading"
    }
    assert [list(notice) for notice in notices] == [["kind", "reading_id", "occurred_at", "error_code", "error_message"]] * 3
    assert all(
        notice["error_code"] == "validation" and stamped[notice["reading_id"]] == notice["occurred_at"] for notice in notices
    )


@pytest.mark.rule("B-15", "EC-6", "N-6")
def test_consumers_compete_and_one_that_leaves_loses_nothing(tmp_path: Path) -> None:
    driver = Driver(
        tmp_path,
        "--ticks",
        "30",
        "--consumers",
        "3",
        "--consumer-leave-after",
        "2",
        "--processing-time",
        "5ms",
        "--credit-batches",
        "4",
    )
    status, errors = driver.finish()
    assert (status, errors) == (0, ""), errors
    assert {"completed": 90, "consumers_joined": 3, "consumers_left": 1}.items() <= driver.summary().items()
    assert driver.starting("CONSUMER left consumer=3") == ["CONSUMER left consumer=3"]
    assert {line.split()[1] for line in driver.starting("DELIVERY")} >= {"consumer=1", "consumer=2"}
    assert set(applied(tmp_path).values()) == {1}
    assert len(applied(tmp_path)) == 90


@pytest.mark.rule("P-4", "B-14")
def test_consumers_that_come_late_make_the_producer_wait_for_credit(tmp_path: Path) -> None:
    driver = Driver(tmp_path, "--ticks", "10", "--consumer-delay", "700ms", "--credit-batches", "2")
    status, errors = driver.finish()
    assert (status, errors) == (0, ""), errors
    assert driver.starting("CONSUMER delayed consumer=1 ")
    assert driver.starting("WAITING credit outstanding_batches=2 outstanding_bytes=")
    assert driver.summary()["credit_waits"] > 0


@pytest.mark.rule("K-5", "P-8", "B-9", "B-14", "B-15", "B-16", "N-8")
def test_a_session_that_is_cut_loses_outcomes_and_no_effect(tmp_path: Path, node: LoopbackNode) -> None:
    driver = Driver(tmp_path, "--ticks", "30", "--processing-time", "20ms", node=node)
    status, errors = driver.finish({"DELIVERY consumer=1": lambda: node.control("cut")})
    assert (status, errors) == (3, ""), errors
    summary = driver.summary()
    assert summary["outcome_unknown"] > 0
    assert summary["readings"] == summary["completed"] + summary["outcome_unknown"] == 90
    assert driver.starting("INTERRUPTED clock domain=paced_simulation")
    assert driver.starting("INTERRUPTED consumer=1")
    assert any(line.endswith("outcome_unknown session_lost") for line in driver.starting("OUTCOME"))
    assert set(applied(tmp_path).values()) == {1}
    assert len(driver.starting("SUBMITTED")) == 30, "nothing is sent again by itself"


@pytest.mark.rule("B-14", "B-15", "N-8")
def test_what_was_lost_is_replayed_once_under_its_identity(tmp_path: Path) -> None:
    with LoopbackNode(load=graph(1.0)) as node:
        driver = Driver(tmp_path, "--ticks", "6", "--processing-time", "20ms", node=node)
        assert driver.finish({"DELIVERY consumer=1": lambda: node.control("cut")})[0] == 3
        again = Driver(tmp_path, "--ticks", "0", "--replay", node=node)
        assert again.finish() == (0, "")
        assert again.starting("REPLAY tick=")
        assert again.summary()["readings"] > 0
        assert set(applied(tmp_path)) == set(submitted(tmp_path))
        assert set(applied(tmp_path).values()) == {1}
        third = Driver(tmp_path, "--ticks", "0", "--replay", node=node)
        assert third.finish() == (0, "")
        assert third.summary()["readings"] == 0
        execute(node, "STOP;")
        execute(node, "START AT NOW TIME RATE 1.0;")
        with (tmp_path / "paced-simulation-ledger.jsonl").open("a", encoding="utf-8") as ledger:
            ledger.write(json.dumps({**records(tmp_path, "ledger")[0], "reading_id": "g1-t1-s9-0"}) + '\n{"record": "torn')
        last = Driver(tmp_path, "--ticks", "0", "--replay", node=node)
        assert last.finish() == (0, "")
        assert last.starting("REPLAY") == ["REPLAY skipped generation=1 readings=1"]


@pytest.mark.rule("P-8", "B-11", "B-16")
def test_a_run_follows_the_domain_into_its_next_generation(tmp_path: Path, node: LoopbackNode) -> None:
    def restart() -> None:
        execute(node, "STOP;")
        execute(node, "START AT NOW TIME RATE 4.0;")

    driver = Driver(tmp_path, "--ticks", "20", "--follow-generations", node=node)
    status, errors = driver.finish({"OUTCOME": restart})
    assert status in (0, 3), errors
    assert driver.summary()["generations"] == 2
    assert driver.starting("REOPENED generation=2 ingestor=simulated_readings after=")
    assert driver.starting("READY generation=2")
    assert [line.split()[1] for line in driver.starting("CONSUMER reopened")]
    assert any(name.startswith("g2-") for name in applied(tmp_path))
    assert set(applied(tmp_path).values()) == {1}


@pytest.mark.rule("B-11", "B-16")
def test_without_following_a_stop_ends_the_run(tmp_path: Path, node: LoopbackNode) -> None:
    driver = Driver(tmp_path, "--ticks", "500", node=node)
    status, _ = driver.finish({"OUTCOME": lambda: execute(node, "STOP;")})
    assert status in (0, 3)
    assert driver.starting("STOPPING reason=domain_stopped")
    assert driver.starting("CLOCK state=stopped")


@pytest.mark.rule("B-14")
def test_ctrl_c_stops_the_planning_and_the_run_ends_in_order(tmp_path: Path, node: LoopbackNode) -> None:
    driver = Driver(tmp_path, "--ticks", "5000", node=node)
    status, errors = driver.finish({"OUTCOME": lambda: driver.process.send_signal(signal.SIGINT)})
    assert driver.starting("STOPPING") == ["STOPPING reason=interrupted"]
    summary = driver.summary()
    # The one batch that may have been waiting for credit is not sent.
    assert summary["readings"] - summary["completed"] == summary["not_admitted"] in (0, 3)
    assert (status, errors) == (3 if summary["not_admitted"] else 0, ""), errors


@pytest.mark.rule("B-14")
def test_ctrl_c_leaves_a_batch_that_waits_for_credit_unsent(tmp_path: Path, node: LoopbackNode) -> None:
    driver = Driver(tmp_path, "--ticks", "50", "--credit-batches", "1", "--consumer-delay", "1s", node=node)
    status, errors = driver.finish({"WAITING credit": lambda: driver.process.send_signal(signal.SIGINT)})
    assert (status, errors) == (3, ""), errors
    assert any(line.endswith("readings=3 not_admitted not_sent") for line in driver.starting("OUTCOME"))
    assert driver.summary()["not_admitted"] == 3


@pytest.mark.rule("B-12")
@pytest.mark.parametrize(
    ("statement", "options", "words"),
    [
        ("STOP;", [], "stopped"),
        (None, ["--domain", "nowhere"], "nowhere"),
        (None, ["--emitter", "nothing"], "nothing"),
        (None, ["--ingestor", "observed_readings"], ""),
        (None, ["--credit-bytes", "1KiB"], ""),
        (None, ["--ticks", "-1"], "whole number"),
        (None, ["--timestamps", "then"], "invalid choice"),
    ],
)
def test_what_cannot_be_used_is_status_2(
    tmp_path: Path, node: LoopbackNode, statement: str | None, options: list[str], words: str
) -> None:
    if statement is not None:
        execute(node, statement)
    status, errors = Driver(tmp_path, *options, node=node).finish()
    assert (status, "error: " in errors, words in errors) == (2, True, True), errors


@pytest.mark.rule("P-5")
def test_outcomes_that_are_outstanding_at_the_deadline_are_status_1(tmp_path: Path, node: LoopbackNode) -> None:
    driver = Driver(tmp_path, "--ticks", "2", "--consumer-delay", "1m", "--deadline", "200ms", node=node)
    status, errors = driver.finish()
    assert (status, errors) == (1, "error: 2 outcomes were outstanding at the deadline\n")
    assert driver.summary()["completed"] == 0


def test_a_server_that_is_not_there_is_status_1(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(DRIVER), "--server", "http://127.0.0.1:1"], capture_output=True, text=True, cwd=tmp_path, check=False
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("error: ")


@pytest.mark.rule("B-15", "N-6", "N-8")
def test_a_kill_at_any_moment_loses_no_reading_and_applies_none_twice(tmp_path: Path) -> None:
    """Twenty drivers, each killed at a random moment, on one node that lives on."""
    chance = random.Random(20)
    with LoopbackNode(load=graph(1.0)) as node:
        started = time.monotonic()
        assert Driver(tmp_path, "--ticks", "1", "--replay", "--consumers", "2", node=node).finish() == (0, "")
        whole = time.monotonic() - started  # Long on a busy machine: most are to die after their start.
        for _ in range(20):
            driver = Driver(tmp_path, "--ticks", "200", "--replay", "--consumers", "2", node=node)
            threading.Timer(chance.uniform(0.3 * whole, whole + 1.0), driver.process.send_signal, [signal.SIGKILL]).start()
            driver.finish()
            assert driver.process.returncode == -signal.SIGKILL
        last = Driver(tmp_path, "--ticks", "0", "--replay", node=node)
        status, errors = last.finish()
        assert (status, errors) == (0, ""), errors
    expired = [line for line in last.lines if line.startswith("REPLAY expired")]
    assert not expired, "the window is long enough"
    assert len(submitted(tmp_path)) > 30
    assert set(applied(tmp_path)) == set(submitted(tmp_path))
    assert set(applied(tmp_path).values()) == {1}


@pytest.fixture(scope="module")
def files() -> ModuleType:
    spec = importlib.util.spec_from_file_location("paced_simulation_records", FOLDER / "records.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("nanoseconds", "text"),
    [
        (0, "1970-01-01T00:00:00Z"),
        (1_893_456_000_000_000_001, "2030-01-01T00:00:00.000000001Z"),
        (1_893_456_000_120_000_000, "2030-01-01T00:00:00.120Z"),
        (1_893_456_000_000_120_000, "2030-01-01T00:00:00.000120Z"),
        (-1, "1969-12-31T23:59:59.999999999Z"),
    ],
)
def test_times_have_the_digits_that_they_need(files: ModuleType, nanoseconds: int, text: str) -> None:
    assert files.time_text(nanoseconds) == text
    assert files.time_of(text) == nanoseconds


@given(st.integers(-(2**63), 2**63 - 1))
def test_a_time_comes_back_to_the_nanosecond(nanoseconds: int) -> None:
    module = sys.modules.get("paced_simulation_records")
    if module is None:
        pytest.skip("needs the module of the fixture")
    assert module.time_of(module.time_text(nanoseconds)) == nanoseconds


def test_a_line_that_was_cut_short_is_dropped(files: ModuleType, tmp_path: Path) -> None:
    path = tmp_path / "effects"
    path.write_bytes(b'{"kind": "reading", "reading_id": "a"}\n{"kind": "reading", "reading_id": "b"')
    store = files.Effects(path)
    assert [one["reading_id"] for one in store.apply([{"kind": "reading", "reading_id": name} for name in "ab"])] == ["b"]
    store.close()
    assert [json.loads(line)["reading_id"] for line in path.read_text().splitlines()] == ["a", "b"]
    assert os.path.getsize(path) == len(path.read_bytes())
