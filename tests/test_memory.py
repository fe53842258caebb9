"""Events that were read and dropped leave nothing behind."""

from __future__ import annotations

import gc
import subprocess
import sys
from pathlib import Path

import pytest

from nervix_ffi import Interrupted, Rows
from nervix_ffi.testing import LoopbackNode

from .support import DOMAIN, GRAPH, PATIENCE, connect, reading

EVENTS = 100_000
WARM = 1_000
#: Events published before they are read: fewer than the session keeps for one subscription (128).
ROUND = 100

#: What may be left over: pages that the allocators of Python, the library and libc keep for themselves. A leak of one small
#: object an event would be more.
SLACK = 2 << 20


def resident() -> int:
    """Bytes of this process that are in memory."""
    fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines())
    return int(fields["VmRSS"].split()[0]) * 1024


def measure() -> tuple[int, int]:
    """What this process has in memory after the first events, and after all of them."""
    rows = [reading(number, "x" * 20) for number in range(4)]
    with (
        LoopbackNode(load=GRAPH) as node,
        connect(node) as session,
        session.subscribe("readings", delivery="BLOCKING") as subscription,
    ):

        def read(count: int) -> None:
            for _ in range(count // ROUND):
                node.control("flood", domain=DOMAIN, relay="readings", rows=rows, times=ROUND)
                for turn in range(ROUND):
                    event = subscription.next(timeout=PATIENCE)
                    assert isinstance(event, Rows), event
                    use(event, turn)

        read(WARM)
        gc.collect()
        before = resident()
        read(EVENTS - WARM)
        gc.collect()
        return before, resident()


@pytest.mark.timeout(600)
@pytest.mark.rule("B-2", "B-3", "S-8")
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads the memory in use from /proc")
def test_a_hundred_thousand_events_leave_no_memory_behind(root: Path) -> None:
    """In a process of its own, whose memory nothing else moves."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-m", "tests.test_memory"], cwd=root, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    before, after = (int(number) for number in done.stdout.split())
    print(f"{before >> 10} KiB after {WARM} events, {after >> 10} KiB after {EVENTS}")
    assert after - before < SLACK


def use(event: Rows, turn: int) -> None:
    """Read an event in one of the ways there are, and let go of it by leaving or by release."""
    if turn % 8 == 0:
        assert event.to_arrow().num_rows == 4
    elif turn % 8 == 1:
        assert len(event.rows()) == 4
    elif turn % 8 == 2:
        assert event.column("note").to_list() == ["x" * 20] * 4
    elif turn % 8 == 3:
        assert bytes(event.frame[4:8]) == b"NXSM"
    if turn % 2:
        event.release()


@pytest.mark.rule("B-2")
@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="counts descriptors in /proc")
def test_sessions_leave_no_descriptors_and_no_threads_behind() -> None:
    """The first session starts what the process keeps; after it, a hundred more leave nothing, however they end."""
    with LoopbackNode(load=GRAPH) as node:

        def open_and_end(turn: int) -> None:
            session = connect(node)
            subscription = session.subscribe("readings")
            if turn % 3 == 0:
                node.control("cut", how="abort")
                assert isinstance(subscription.next(timeout=PATIENCE), Interrupted)
            if turn % 2:
                session.close()
            del session, subscription
            gc.collect()
            node.control("wait", sessions={"exactly": 0}, connections={"exactly": 0}, timeout_ms=30_000)

        for turn in range(3):
            open_and_end(turn)
        before = descriptors(), threads()
        for turn in range(100):
            open_and_end(turn)
        assert descriptors() <= before[0]
        assert threads() <= before[1]


def descriptors() -> int:
    """Open descriptors of this process."""
    return len(list(Path("/proc/self/fd").iterdir()))


def threads() -> int:
    """Threads of this process, those of the library among them."""
    return len(list(Path("/proc/self/task").iterdir()))


def test_objects_are_freed_in_every_order() -> None:
    """Session, execution, subscription, event, views, column and batch, let go front to back and back to front."""
    with LoopbackNode(load=GRAPH) as node:
        for backwards in (False, True):
            session = connect(node)
            execution = session.prepare("SHOW CLUSTER STATUS;")
            subscription = session.subscribe("readings")
            node.control("publish", domain=DOMAIN, relay="readings", rows=[reading(1, "note")])
            event = subscription.next(timeout=PATIENCE)
            assert isinstance(event, Rows)
            view, cell, column, batch = event.frame, event.cell(0, "note"), event.column("id"), event.to_arrow()
            held = [session, execution, subscription, event, view, cell, column, batch]
            del session, execution, subscription, event, view, cell, column, batch
            if backwards:
                held.reverse()
            while held:
                held.pop(0)
                gc.collect()
                check(held)


def check(held: list[object]) -> None:
    """What is still held reads as it did."""
    for one in held:
        if isinstance(one, memoryview):
            assert bytes(one) == b"note" or bytes(one[4:8]) == b"NXSM"
        elif isinstance(one, Rows):
            assert one.rows()[0]["note"] == "note"


if __name__ == "__main__":
    print(*measure())
