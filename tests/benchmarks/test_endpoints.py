"""How fast batches go through the graph and back, and how long it takes to read one. Run with

python -m pytest tests/benchmarks/test_endpoints.py --benchmark-only
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pytest

import nervix_ffi
from nervix_ffi.testing import LoopbackNode

from ..support import PATIENCE
from ..test_memory import SLACK
from ..test_memory_endpoints import run_apart
from .conftest import CARRIED, MEANS
from .flight import keeper

#: Batches outstanding at once.
OUTSTANDING = 8
BATCHES = 32

#: The schema of the probe's `io` scenario without its sensitive field, which would need to be leaked.
WIDE = (
    "id U32, tenant STRING, u8v U8, i8v I8, u16v U16, i16v I16, u32v U32, i32v I32, u64v U64, i64v I64, f32v F32, f64v F64,"
    " flag BOOL, text STRING OPTIONAL, raw BYTES OPTIONAL, at DATETIME, maybe I64 OPTIONAL, tags VEC<STRING>,"
    " grid ARRAY<I16, 2, 2>, spans VEC<ARRAY<DATETIME, 2>> OPTIONAL"
)
NARROW = "id U64, value F64, name STRING"


class Case(NamedTuple):
    """A schema and the rows of one batch."""

    fields: str
    rows: int


CASES = {"wide": Case(WIDE, 4096), "narrow": Case(NARROW, 32_768)}


def wide_row(number: int) -> dict[str, Any]:
    return {
        "id": number, "tenant": "acme", "u8v": number % 256, "i8v": -(number % 128), "u16v": number, "i16v": -number,
        "u32v": number, "i32v": -number, "u64v": number << 32, "i64v": -number, "f32v": number / 4, "f64v": number / 7,
        "flag": number % 3 == 0, "text": None if number % 5 == 0 else f"text of {number}", "raw": bytes([number % 256] * 12),
        "at": 1_893_456_000_000_000_000 + number, "maybe": None if number % 2 else number, "tags": ["a", f"b{number}"],
        "grid": [[number % 100, 2], [3, 4]], "spans": None if number % 4 == 0 else [[number, number + 1]],
    }  # fmt: skip


def narrow_row(number: int) -> dict[str, Any]:
    return {"id": number, "value": number / 7, "name": f"row {number}"}


class Way(NamedTuple):
    """Both ends of a way through the graph, and the batches to send."""

    name: str
    producer: nervix_ffi.Producer
    consumer: nervix_ffi.Consumer
    batches: list[pa.RecordBatch]

    def there_and_back(self) -> int:
        """Submit, consume as Arrow, acknowledge, and take every outcome: the rows that came."""
        submissions: list[nervix_ffi.Submission] = []
        ready = threading.Semaphore(0)

        def feed() -> None:
            for batch in self.batches:
                submissions.append(self.producer.submit(batch, timeout=PATIENCE))
                ready.release()

        feeding = threading.Thread(target=feed)
        feeding.start()
        rows = 0
        for _ in self.batches:
            with self.consumer.next(timeout=PATIENCE) as delivery:
                rows += delivery.to_arrow().num_rows
                delivery.ack(timeout=PATIENCE)
            ready.acquire()
            submissions.pop(0).result(timeout=PATIENCE)
        feeding.join()
        return rows


@pytest.fixture(scope="module", params=CASES)
def way(request: pytest.FixtureRequest) -> Iterator[Way]:
    """A way through a loopback node for the batches of one schema."""
    name: str = request.param
    fields, count = CASES[name]
    mode = f"MODE ACK PARALLEL MAX {OUTSTANDING} ACK TIMEOUT 60s RETRY POLICY BACKOFF 10ms MAX 40ms"
    load = f"""
        CREATE UNPACED DOMAIN lab; USE lab;
        CREATE SCHEMA row ({fields});
        CREATE RELAY rows SCHEMA row UNBRANCHED;
        CREATE INGESTOR feed FROM CLIENT SCHEMA row {mode} ON QUIESCE SUSPEND TIMESTAMP NOW TO rows INHERIT ALL
          FLUSH IMMEDIATE ON MESSAGE ERROR LOG ON GENERAL ERROR LOG;
        CREATE EMITTER taken FROM rows TO CLIENT SCHEMA row {mode} INHERIT ALL BATCH MAX MESSAGES {count} MAX SIZE 4MiB
          FLUSH IMMEDIATE ON MESSAGE ERROR LOG ON GENERAL ERROR LOG;
        START;
    """
    with LoopbackNode(load=load) as node, nervix_ffi.connect(node.uri, domain="lab", timeout=PATIENCE) as session:
        credit: dict[str, Any] = {"credit_batches": OUTSTANDING, "credit_bytes": 32 << 20, "timeout": PATIENCE}
        feed = session.open_producer("feed", fields, **credit)
        taken = session.open_consumer("taken", fields, **credit)
        make = wide_row if name == "wide" else narrow_row
        batch = feed.batch([make(number) for number in range(count)]).to_arrow()
        CARRIED[name] = count * BATCHES
        yield Way(name, feed, taken, [batch] * BATCHES)
        feed.close(timeout=PATIENCE)
        taken.close(timeout=PATIENCE)


def measure(benchmark: Any, what: str, call: Any, rounds: int = 10) -> None:
    benchmark.pedantic(call, rounds=rounds, iterations=1, warmup_rounds=2)
    MEANS[what] = benchmark.stats.stats.median


@pytest.mark.benchmark(group="there and back")
def test_submit_consume_acknowledge(benchmark: Any, way: Way) -> None:
    assert way.there_and_back() == CARRIED[way.name]
    measure(benchmark, f"{way.name}: there and back", way.there_and_back)


@pytest.mark.benchmark(group="there and back")
def test_flight_put_and_get(benchmark: Any, way: Way) -> None:
    with keeper() as client:
        assert client.there_and_back(way.batches) == CARRIED[way.name]
        measure(benchmark, f"{way.name}: flight", lambda: client.there_and_back(way.batches))


@pytest.fixture
def deliveries(way: Way) -> Iterator[list[nervix_ffi.Delivery]]:
    """Deliveries that nobody has read yet."""
    submissions = [way.producer.submit(way.batches[0], timeout=PATIENCE) for _ in range(OUTSTANDING)]
    found = [way.consumer.next(timeout=PATIENCE) for _ in submissions]
    yield found
    for delivery in found:
        delivery.ack(timeout=PATIENCE)
        delivery.release()
    for submission in submissions:
        submission.result(timeout=PATIENCE)


@pytest.mark.benchmark(group="delivery to pyarrow")
def test_a_delivery_to_pyarrow(benchmark: Any, way: Way, deliveries: list[nervix_ffi.Delivery]) -> None:
    """A delivery is decoded and checked once, so each is read once."""
    unread = iter(deliveries)
    benchmark.pedantic(lambda delivery: delivery.to_arrow(), setup=lambda: ((next(unread),), {}), rounds=OUTSTANDING)
    MEANS[f"{way.name}: delivery"] = benchmark.stats.stats.median


@pytest.mark.benchmark(group="delivery to pyarrow")
def test_open_stream_and_validate(benchmark: Any, way: Way, deliveries: list[nervix_ffi.Delivery]) -> None:
    streams = iter([pa.py_buffer(delivery.ipc) for delivery in deliveries])

    def read(stream: pa.Buffer) -> pa.RecordBatch:
        batch = pa.ipc.open_stream(stream).read_next_batch()
        batch.validate(full=True)
        return batch

    benchmark.pedantic(read, setup=lambda: ((next(streams),), {}), rounds=OUTSTANDING)
    MEANS[f"{way.name}: open_stream"] = benchmark.stats.stats.median


@pytest.mark.benchmark(group="memory")
@pytest.mark.timeout(1200)
def test_a_consumer_held_for_a_million_rows(benchmark: Any, root: Path) -> None:
    before, after = benchmark.pedantic(lambda: run_apart(root, 1_000_000), rounds=1, iterations=1)
    MEANS["growth"] = after - before
    assert after - before < SLACK
