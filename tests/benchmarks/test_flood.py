"""What a reply waits behind a node that sends rows as fast as it can, replies first, to a host that reads none. Run with

python -m pytest tests/benchmarks/test_flood.py --benchmark-only
"""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Any

import pytest

import nervix_ffi
from nervix_ffi.testing import LoopbackNode

from ..support import DOMAIN, GRAPH, PATIENCE, connect, counts, reading
from .conftest import DELAYS

ROUNDS = 1000

#: Bytes of a frame, by what it is called.
SIZES = {"64 KiB": 64 << 10, "4 MiB": (4 << 20) - 4096, "tiny": 256}


@pytest.fixture(scope="module", params=SIZES)
def flooded(request: pytest.FixtureRequest) -> Iterator[tuple[str, LoopbackNode, nervix_ffi.Session, bytes]]:
    """The name of a size, a node, its session, and a frame of that size about the session's subscription."""
    with LoopbackNode(load=GRAPH) as node, connect(node) as session, session.subscribe("readings") as subscription:
        rows = [reading(1, "x" * (SIZES[request.param] - 248))]
        node.control("publish", domain=DOMAIN, relay="readings", rows=rows)
        event = subscription.next(timeout=PATIENCE)
        assert isinstance(event, nervix_ffi.Rows)
        yield request.param, node, session, bytes(event.frame)


def measure(benchmark: Any, session: nervix_ffi.Session) -> tuple[float, float]:
    """The median and the 99th percentile of a command's round trip, in seconds."""
    call = lambda: session.execute("SHOW CLUSTER STATUS;", timeout=PATIENCE)  # noqa: E731
    benchmark.pedantic(call, rounds=ROUNDS, iterations=1, warmup_rounds=50)
    times = sorted(benchmark.stats.stats.data)
    return times[len(times) // 2], times[len(times) * 99 // 100]


@pytest.mark.benchmark(group="a reply behind a flood")
def test_a_quiet_session(benchmark: Any, flooded: tuple[str, LoopbackNode, nervix_ffi.Session, bytes]) -> None:
    name, _, session, _ = flooded
    DELAYS[name, "quiet"] = measure(benchmark, session)


@pytest.mark.benchmark(group="a reply behind a flood")
def test_a_flooded_session(benchmark: Any, flooded: tuple[str, LoopbackNode, nervix_ffi.Session, bytes]) -> None:
    name, node, session, frame = flooded
    number = counts(node)["sessions"]["list"][0]["id"]
    node.control("flood_frames", session=number, frames=[base64.b64encode(frame).decode("ascii")])
    DELAYS[name, "flooded"] = measure(benchmark, session)
    assert node.control("flood_end", session=number)["sent"][0] > ROUNDS / 10
