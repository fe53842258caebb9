"""How fast rows become Arrow, and how long a command takes. Run with

python -m pytest tests/benchmarks --benchmark-only
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import nervix_ffi
from nervix_ffi import Rows
from nervix_ffi.testing import LoopbackNode

from ..probes import golden
from .columns import Columns
from .conftest import MEANS, ROWS
from .echo import echo

EVENTS = 40
BATCH = 256

NARROW = """
CREATE UNPACED DOMAIN conformance; USE conformance;
CREATE SCHEMA narrow (id U32, value F64);
CREATE RELAY narrow_rows SCHEMA narrow UNBRANCHED;
START;
"""


def wide_rows() -> list[dict[str, Any]]:
    """A batch of the conformance scenario's rows, of one branch."""
    rows = golden.read_rows("rows")
    return [{**rows[index % len(rows)], "id": index, "tenant": "acme"} for index in range(BATCH)]


def narrow_rows() -> list[dict[str, Any]]:
    return [{"id": index, "value": index / 7} for index in range(BATCH)]


@pytest.fixture(scope="module", params=["wide", "narrow"])
def events(request: pytest.FixtureRequest) -> Iterator[tuple[str, list[Rows]]]:
    """Events of full frames, kept in memory, and the name of their schema."""
    name: str = request.param
    load = golden.SCENARIOS / "rows.nspl" if name == "wide" else NARROW
    relay, rows = ("typed_rows", wide_rows()) if name == "wide" else ("narrow_rows", narrow_rows())
    with (
        LoopbackNode(load=load) as node,
        nervix_ffi.connect(node.uri, domain="conformance", timeout=30) as session,
        session.subscribe(relay, delivery="BLOCKING") as subscription,
    ):
        found = []
        for _ in range(EVENTS):
            node.control("publish", domain="conformance", relay=relay, rows=rows)
            event = subscription.next(timeout=30)
            assert isinstance(event, Rows)
            assert len(event) == BATCH
            found.append(event)
        ROWS[name] = EVENTS * BATCH
        yield name, found


def measure(benchmark: Any, what: str, call: Any) -> None:
    benchmark.pedantic(call, rounds=30, iterations=1, warmup_rounds=3)
    MEANS[what] = benchmark.stats.stats.median


@pytest.mark.benchmark(group="rows to Arrow")
def test_to_arrow(benchmark: Any, events: tuple[str, list[Rows]]) -> None:
    name, found = events
    measure(benchmark, f"{name}: to_arrow", lambda: [event.to_arrow() for event in found])


@pytest.mark.benchmark(group="rows to Arrow")
def test_columns_with_ctypes(benchmark: Any, events: tuple[str, list[Rows]]) -> None:
    name, found = events
    columns = Columns()
    measure(benchmark, f"{name}: ctypes", lambda: [columns.read(event) for event in found])


@pytest.mark.benchmark(group="rows to Arrow")
def test_columns_with_ctypes_made_arrow(benchmark: Any, events: tuple[str, list[Rows]]) -> None:
    name, found = events
    columns = Columns()
    assert columns.to_arrow(found[0]).equals(found[0].to_arrow())
    measure(benchmark, f"{name}: ctypes to Arrow", lambda: [columns.to_arrow(event) for event in found])


@pytest.mark.benchmark(group="round trip")
def test_a_command(benchmark: Any) -> None:
    with LoopbackNode() as node, nervix_ffi.connect(node.uri, timeout=30) as session:
        benchmark.pedantic(lambda: session.execute("SHOW CLUSTER STATUS;"), rounds=1000, iterations=1, warmup_rounds=100)
    MEANS["command"] = benchmark.stats.stats.median


@pytest.mark.benchmark(group="round trip")
def test_a_grpcio_echo(benchmark: Any) -> None:
    with echo() as say:
        payload = b"x" * 160
        benchmark.pedantic(lambda: say(payload), rounds=1000, iterations=1, warmup_rounds=100)
    MEANS["echo"] = benchmark.stats.stats.median
