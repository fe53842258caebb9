"""Deliveries and outcomes that a test wrote: what is not as agreed never becomes rows, and what is no message is a violation."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import flatbuffers  # type: ignore[import-untyped]
import pyarrow as pa
import pytest

import nervix_ffi
from nervix_ffi import EndpointState, Settlement
from nervix_ffi.testing import LoopbackNode

from ..endpoints import GRAPH, consumer, producer, rows
from ..support import PATIENCE, Running, connect, counts, wait
from .writer import FIELDS as UNIONS
from .writer import build, encoded


@pytest.fixture
def node() -> Iterator[LoopbackNode]:
    """A node with the graph of endpoints."""
    with LoopbackNode(load=GRAPH) as one:
        yield one


@pytest.fixture
def session(node: LoopbackNode) -> Iterator[nervix_ffi.Session]:
    """A session with the node."""
    with connect(node) as opened:
        yield opened


SCHEMA = pa.schema([pa.field("id", pa.uint64(), nullable=False), pa.field("note", pa.string())])


def stream(batch: pa.RecordBatch, batches: int = 1) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        for _ in range(batches):
            writer.write_batch(batch)
    data: bytes = sink.getvalue().to_pybytes()
    return data


def good(count: int = 1, schema: pa.Schema = SCHEMA) -> pa.RecordBatch:
    return pa.record_batch([pa.array(range(count), pa.uint64()), pa.array(["x"] * count)], schema=schema)


def no_text() -> bytes:
    data = bytearray(stream(pa.record_batch([pa.array([1], pa.uint64()), pa.array(["needle"])], schema=SCHEMA)))
    data[data.index(b"needle")] = 0xFF
    return bytes(data)


#: What a server may not send as a batch, with the members that it claims.
DISAGREED: dict[str, tuple[Callable[[], bytes], int]] = {
    "more members than rows": (lambda: stream(good()), 2),
    "fewer members than rows": (lambda: stream(good(2)), 1),
    "another schema": (lambda: stream(pa.record_batch([pa.array([1])], names=["id"])), 1),
    "a nullable key": (lambda: stream(good(schema=pa.schema([pa.field("id", pa.uint64()), SCHEMA.field("note")]))), 1),
    "two batches": (lambda: stream(good(), 2), 1),
    "no batch": (lambda: stream(good(), 0), 1),
    "no stream": (lambda: b"nothing at all", 1),
    "cut short": (lambda: stream(good())[:-12], 1),
    "no text": (no_text, 1),
}


def reply(request: int, body: tuple[str, dict[str, Any]]) -> str:
    """A Reply to a request, as the control endpoint takes it."""
    builder = flatbuffers.Builder(1024)
    unions = {
        **UNIONS,
        "ReadEmitterBatchOutcome.disposition": "ReadEmitterDisposition",
        "SubmissionOutcome.disposition": "SubmissionDisposition",
    }
    message = ("ServerMessage", {"body": ("Reply", {"request_id": request, "body": body})})
    builder.Finish(build(builder, message, unions), b"NXSM")
    return encoded(bytes(builder.Output()))


def received(data: bytes, members: int, identity: bytes = bytes(16), reference: bytes = bytes(16)) -> tuple[str, dict[str, Any]]:
    batch = {
        "identity": identity,
        "reference": reference,
        "source_relay": "watched",
        "batch": data,
        "members": members,
        "execution_now_unix_nanos": 1,
    }
    return ("ReadEmitterBatchOutcome", {"disposition": ("EmitterBatchReceived", batch), "message": ""})


@pytest.mark.rule("EC-3")
@pytest.mark.parametrize("name", DISAGREED)
def test_a_batch_that_is_not_what_was_agreed_is_not_handed_out_as_rows(
    node: LoopbackNode, session: nervix_ffi.Session, name: str
) -> None:
    """Its bytes are there to look at, and the delivery can still be settled."""
    make, members = DISAGREED[name]
    taking = consumer(session)  # The session's first request; the read is its second.
    reading = Running(lambda: taking.next(timeout=PATIENCE))
    wait(node, parked_reads=1)
    data = make()
    node.control("inject", frame=reply(2, received(data, members)))
    delivery = reading.result()
    assert (bytes(delivery.ipc), delivery.members) == (data, members)
    for read in (delivery.batch, delivery.rows, delivery.to_arrow):
        with pytest.raises(nervix_ffi.ProtocolError):
            read()
    assert delivery.reject("it is none", timeout=PATIENCE, check=False) is Settlement.STALE_REFERENCE
    assert taking.state is EndpointState.ACTIVE
    assert counts(node)["sessions"]["opened"] == 1


@pytest.mark.rule("F-4", "F-8", "EC-3")
@pytest.mark.parametrize(
    "body",
    [
        received(b"x", 1, identity=bytes(15)),
        received(b"x", 1, reference=bytes(17)),
        received(b"", 1),
        received(b"x", 0),
        ("CommandOutcome", {"execution_reference": "r", "origin": 0, "disposition": ("CommandCompleted", {}), "message": ""}),
    ],
)
def test_a_delivery_that_is_no_message_is_a_violation(
    node: LoopbackNode, session: nervix_ffi.Session, body: tuple[str, dict[str, Any]]
) -> None:
    taking = consumer(session)
    reading = Running(lambda: taking.next(timeout=PATIENCE))
    wait(node, parked_reads=1)
    node.control("inject", frame=reply(2, body))
    with pytest.raises(nervix_ffi.InterruptedReadError):
        reading.result()
    wait(node, sessions_ended=1)
    assert counts(node)["sessions"]["ended"]["end_stream"] == 0


@pytest.mark.rule("P-5", "C-3")
def test_an_outcome_that_comes_twice_is_taken_once(node: LoopbackNode, session: nervix_ffi.Session) -> None:
    """A second reply to one request belongs to none."""
    feed = producer(session)
    assert feed.send(rows(1), timeout=PATIENCE).completed  # The session's second request.
    outcome: tuple[str, dict[str, Any]] = ("SubmissionOutcome", {"disposition": ("SubmissionCompleted", {}), "message": ""})
    node.control("inject", frame=reply(2, outcome))
    assert feed.pending() == []
    assert feed.send(rows(2), timeout=PATIENCE).completed
    assert counts(node)["batches"]["received"] == 2
