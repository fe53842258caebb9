"""What the tests of several folders share: a small graph, and short ways to drive a node and read events."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterable
from typing import Any, Generic, TypeVar

import nervix_ffi
from nervix_ffi.testing import LoopbackNode

#: Seconds that a wait may take before the test fails. No test waits this long for what it expects.
PATIENCE = 30.0

DOMAIN = "lab"

#: An unbranched and a branched relay in a running domain.
GRAPH = """
CREATE UNPACED DOMAIN lab;
USE lab;
CREATE SCHEMA reading (id U32, value I64 OPTIONAL, note STRING);
CREATE RELAY readings SCHEMA reading UNBRANCHED;
CREATE SCHEMA sited (id U32, site STRING, secret STRING SENSITIVE);
CREATE SCHEMA site_key (site STRING);
CREATE BRANCH by_site SCHEMA site_key TTL 10m;
CREATE RELAY sites SCHEMA sited BRANCHED BY by_site;
START;
"""

T = TypeVar("T")


def connect(node: LoopbackNode, uri: str | None = None, **options: Any) -> nervix_ffi.Session:
    """A session in the test's domain."""
    options.setdefault("domain", DOMAIN)
    options.setdefault("timeout", PATIENCE)
    return nervix_ffi.connect(uri or node.uri, **options)


def reading(number: int, note: str = "") -> dict[str, Any]:
    """A row of `readings`."""
    return {"id": number, "value": None if number % 2 else number, "note": note}


def publish(node: LoopbackNode, *ids: int, relay: str = "readings") -> None:
    """Publish rows of `readings` as one batch."""
    node.control("publish", domain=DOMAIN, relay=relay, rows=[reading(number) for number in ids])


def wait(node: LoopbackNode, **conditions: Any) -> dict[str, Any]:
    """Wait inside the node until every count holds."""
    return node.control("wait", timeout_ms=int(PATIENCE * 1000), **conditions)


def reopened(node: LoopbackNode, subscriptions: int = 1, answers: int | None = None) -> None:
    """Wait until the subscriptions are open on the session after the lost one. `answers` is how often subscribing was answered."""
    wait(
        node,
        sessions={"exactly": 1},
        sessions_opened=2,
        subscriptions={"exactly": subscriptions},
        frames={"out": {"SubscribeOutcome": answers or 2 * subscriptions}},
    )


def counts(node: LoopbackNode) -> dict[str, Any]:
    """What the node counted."""
    found: dict[str, Any] = node.counts()
    return found


def sent(node: LoopbackNode, kind: str) -> int:
    """How many requests of a kind reached the node."""
    number: int = counts(node)["frames"]["in"].get(kind, 0)
    return number


def executed(node: LoopbackNode, reference: str | None) -> int:
    """How often the node carried out the command of a reference."""
    number: int = counts(node)["executed"].get(reference, 0)
    return number


def next_event(source: nervix_ffi.Subscription) -> nervix_ffi.Event:
    """The next event of a subscription."""
    return source.next(timeout=PATIENCE)


def row_ids(event: nervix_ffi.Event) -> list[Any]:
    """The `id` of every row of a Rows event."""
    assert isinstance(event, nervix_ffi.Rows), event
    return event.column("id").to_list()


def read_ids(source: nervix_ffi.Subscription, wanted: int) -> list[Any]:
    """Read Rows events until `wanted` rows came; any other event fails the test."""
    found: list[Any] = []
    while len(found) < wanted:
        found += row_ids(next_event(source))
    return found


class Running(Generic[T]):
    """A call in a thread. `result` waits for what it returned, or raises what it raised."""

    def __init__(self, call: Callable[[], T]) -> None:
        self._call = call
        self._value: T | None = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._value = self._call()
        except BaseException as error:
            self._error = error

    def result(self) -> T:
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive(), "the call did not come back"
        if self._error is not None:
            raise self._error
        return self._value  # type: ignore[return-value]


def python(code: str, *arguments: str) -> subprocess.Popen[str]:
    """A Python process that runs `code`, with this environment and warnings as errors."""
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    return subprocess.Popen(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(code), *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )


def expect_line(process: subprocess.Popen[str], line: str) -> None:
    """Read one line of a process, which must be this one."""
    assert process.stdout is not None
    found = process.stdout.readline().rstrip("\n")
    if found != line:
        _, errors = process.communicate(timeout=PATIENCE)
        raise AssertionError(f"instead of {line!r} came {found!r}\n{errors}")


def finish(process: subprocess.Popen[str]) -> tuple[str, str]:
    """Wait for a process: the rest of its output, and its errors."""
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdin.close()
    # Not by communicate, which forgets what readline has read ahead.
    pipes = [Running(process.stdout.read), Running(process.stderr.read)]
    output, errors = (pipe.result() for pipe in pipes)
    process.wait(PATIENCE)
    process.stdout.close()
    process.stderr.close()
    return output, errors


def flatten(events: Iterable[nervix_ffi.Event]) -> list[Any]:
    """The ids of the rows of several Rows events."""
    return [number for event in events for number in row_ids(event)]
