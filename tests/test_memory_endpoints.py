"""A consumer that is held for long does not grow, nor does the producer that feeds it."""

from __future__ import annotations

import gc
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import nervix_ffi
from nervix_ffi.testing import LoopbackNode

from .endpoints import GRAPH, consumer, producer
from .support import PATIENCE, connect
from .test_memory import SLACK, resident

#: Rows a batch: what the emitter hands out at once.
BATCH = 500
#: Rows before memory is measured first, so that pools and caches are filled.
WARM = 50_000
#: Rows in all by default; the benchmarks take a million.
ROWS = 250_000


def measure(rows: int) -> tuple[int, int]:
    """What this process has in memory after the first rows, and after all of them."""
    graph = GRAPH.replace("BATCH MAX MESSAGES 16 MAX SIZE 64KiB", f"BATCH MAX MESSAGES {BATCH} MAX SIZE 64KiB")
    with LoopbackNode(load=graph) as node, connect(node) as session:
        feed, taking = producer(session, "held", credit_batches=8), consumer(session, credit_batches=8)

        def run(first: int, last: int) -> None:
            for start in range(first, last, BATCH):
                data: list[dict[str, Any]] = [
                    {"id": number, "note": "n" * (number % 40)} for number in range(start, start + BATCH)
                ]
                submission = feed.submit(data, timeout=PATIENCE)
                left = BATCH
                while left:
                    with taking.next(timeout=PATIENCE) as delivery:
                        left -= delivery.members
                        use(delivery, start // BATCH)
                        delivery.ack(timeout=PATIENCE)
                assert submission.result(timeout=PATIENCE).completed

        run(0, WARM)
        gc.collect()
        before = resident()
        run(WARM, rows)
        gc.collect()
        after = resident()
        feed.close(timeout=PATIENCE)
        taking.close(timeout=PATIENCE)
        return before, after


def use(delivery: nervix_ffi.Delivery, turn: int) -> None:
    """Read a delivery in one of the ways there are."""
    if turn % 4 == 0:
        assert len(delivery.rows()) == delivery.members
    elif turn % 4 == 1:
        assert delivery.to_arrow().num_rows == delivery.members
    elif turn % 4 == 2:
        assert len(delivery.batch().column("id").to_list()) == delivery.members
    else:
        assert len(delivery.ipc) > 0


@pytest.mark.timeout(280)
@pytest.mark.rule("EC-2", "B-15", "P-4")
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads the memory in use from /proc")
def test_a_consumer_that_is_held_does_not_grow(root: Path) -> None:
    """In a process of its own, whose memory nothing else moves."""
    before, after = run_apart(root, ROWS)
    assert after - before < SLACK


def run_apart(root: Path, rows: int) -> tuple[int, int]:
    """Measure in another process, and say what came out."""
    command = [sys.executable, "-W", "error", "-m", "tests.test_memory_endpoints", str(rows)]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    before, after = (int(number) for number in done.stdout.split())
    print(f"{before >> 10} KiB after {WARM:,} rows, {after >> 10} KiB after {rows:,}")
    return before, after


if __name__ == "__main__":
    print(*measure(int(sys.argv[1])))
