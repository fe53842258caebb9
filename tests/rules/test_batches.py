"""Typed rows go from the host through the graph and back, equal and uncopied; what is no batch is refused before it is sent."""

from __future__ import annotations

import array
import itertools
import os
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import nervix_ffi
from nervix_ffi import BatchBuilder, CellState, Fields, NestedColumn, Type
from nervix_ffi.testing import LoopbackNode

from ..endpoints import GRAPH, consumer, execute, ids, producer, rows
from ..support import DOMAIN, PATIENCE, Running, connect, counts, sent
from .values import Case, Field, cases, from_arrow, from_python, without_payload

SERIAL = itertools.count()


@pytest.fixture
def node() -> Iterator[LoopbackNode]:
    """A node with the graph of endpoints."""
    with LoopbackNode(load=GRAPH) as one:
        yield one


@pytest.fixture(scope="module")
def lab() -> Iterator[tuple[LoopbackNode, nervix_ffi.Session]]:
    """One node and session for every example."""
    with (
        LoopbackNode(load="CREATE UNPACED DOMAIN lab; USE lab; START;") as node,
        nervix_ffi.connect(node.uri, domain="lab", timeout=PATIENCE) as session,
    ):
        yield node, session


# ---- there and back


def way(session: nervix_ffi.Session, fields: list[Field], size: int) -> tuple[nervix_ffi.Producer, nervix_ffi.Consumer]:
    """An ingestor and an emitter of the fields, and their two ends."""
    number = next(SERIAL)
    spelled = ", ".join(field.nspl() for field in fields)
    hidden = [field.name for field in fields if field.sensitive]
    leaked = ", ".join(f"{name} = leak_sensitive(input.{name})" for name in hidden)
    taken = f"INHERIT ALL EXCEPT {', '.join(hidden)} SET {leaked}" if hidden else "INHERIT ALL"
    mode = "MODE ACK PARALLEL MAX 8 ACK TIMEOUT 60s RETRY POLICY BACKOFF 10ms MAX 40ms"
    for statement in (
        f"CREATE SCHEMA s{number} ({spelled});",
        f"CREATE RELAY r{number} SCHEMA s{number} UNBRANCHED;",
        f"CREATE INGESTOR i{number} FROM CLIENT SCHEMA s{number} {mode} ON QUIESCE SUSPEND TIMESTAMP NOW TO r{number} INHERIT ALL"
        " FLUSH IMMEDIATE ON MESSAGE ERROR LOG ON GENERAL ERROR LOG;",
        f"CREATE EMITTER e{number} FROM r{number} TO CLIENT SCHEMA s{number} {mode} {taken} BATCH MAX MESSAGES {size}"
        " MAX SIZE 1MiB FLUSH IMMEDIATE ON MESSAGE ERROR LOG ON GENERAL ERROR LOG;",
    ):
        session.execute(statement, timeout=PATIENCE)
    return (
        session.open_producer(f"i{number}", spelled, credit_bytes=1 << 20, timeout=PATIENCE),
        session.open_consumer(f"e{number}", Fields.parse(spelled), credit_bytes=1 << 20, timeout=PATIENCE),
    )


def arrow_of(case: Case) -> pa.RecordBatch:
    """The rows as Arrow, made without the package; floats by their bits."""
    arrays = []
    for field in case.fields:
        values = [row[field.name] for row in case.rows]
        arrays.append(arrow_array(field.kind, values))
    schema = pa.schema([pa.field(field.name, field.kind.arrow(), nullable=field.nullable) for field in case.fields])
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def arrow_array(kind: Any, values: list[Any]) -> pa.Array:
    if kind.element is None:
        if kind.name in ("F32", "F64"):
            return pa.array(values, pa.uint32() if kind.name == "F32" else pa.uint64()).view(kind.arrow())
        if kind.name == "DATETIME":
            return pa.array(values, pa.int64()).view(kind.arrow())
        return pa.array(values, kind.arrow())
    mask = pa.array([value is None for value in values])
    if kind.name == "ARRAY":
        blank = next((value for value in values if value is not None), None)
        if blank is None:
            return pa.nulls(len(values), kind.arrow())
        flat = [item for value in values for item in (blank if value is None else value)]
        return pa.FixedSizeListArray.from_arrays(arrow_array(kind.element, flat), type=kind.arrow(), mask=mask)
    ends = [0, *itertools.accumulate(len(value or []) for value in values)]
    flat = [item for value in values for item in value or []]
    items, offsets = arrow_array(kind.element, flat), pa.array(ends, pa.int32())
    return pa.ListArray.from_arrays(offsets, items, type=kind.arrow(), mask=mask if None in values else None)


def python_of(case: Case) -> list[dict[str, Any]]:
    """The rows as Python values."""

    def value(kind: Any, given_value: Any) -> Any:
        if given_value is None:
            return None
        if kind.element is not None:
            return [value(kind.element, item) for item in given_value]
        if kind.name in ("F32", "F64"):
            width = 4 if kind.name == "F32" else 8
            return array.array("f" if width == 4 else "d", given_value.to_bytes(width, "little"))[0]
        return given_value

    return [{field.name: value(field.kind, row[field.name]) for field in case.fields} for row in case.rows]


def stream_of(batch: pa.RecordBatch) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    data: bytes = sink.getvalue().to_pybytes()
    return data


WAYS: dict[str, Callable[[nervix_ffi.Producer, Case], nervix_ffi.Submission]] = {
    "rows": lambda feed, case: feed.submit(python_of(case), timeout=PATIENCE),
    "arrow": lambda feed, case: feed.submit(arrow_of(case), timeout=PATIENCE),
    "table": lambda feed, case: feed.submit(pa.table(arrow_of(case)), timeout=PATIENCE),
    "slice": lambda feed, case: feed.submit(
        pa.Table.from_batches([arrow_of(case)] * 3).combine_chunks().to_batches()[0].slice(len(case.rows), len(case.rows)),
        timeout=PATIENCE,
    ),
    "batch": lambda feed, case: feed.submit(feed.batch(arrow_of(case)), timeout=PATIENCE),
    "ipc": lambda feed, case: feed.submit_ipc(stream_of(arrow_of(case)), timeout=PATIENCE),
}


def canonical(case: Case, batch: pa.RecordBatch) -> list[list[Any]]:
    return [from_arrow(field.kind, batch.column(index)) for index, field in enumerate(case.fields)]


@pytest.mark.rule("P-3", "EC-3", "B-13", "R-5")
@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(case=cases(), name=st.sampled_from(sorted(WAYS)))
def test_what_is_submitted_is_what_is_delivered(lab: tuple[LoopbackNode, nervix_ffi.Session], case: Case, name: str) -> None:
    """Whatever way rows come in, they come out equal in every way to read them, and what is sensitive has its values."""
    _, session = lab
    feed, taking = way(session, case.fields, 16)
    with feed, taking:
        submission = WAYS[name](feed, case)
        delivery = taking.next(timeout=PATIENCE)
        with delivery:
            lossy = name == "rows"  # Python's floats keep no payload of a NaN.
            columns = [[row[field.name] for row in case.rows] for field in case.fields]
            plain = [[without_payload(field.kind, value) for value in column] for field, column in zip(case.fields, columns)]
            rows_read = delivery.rows()
            assert [[from_python(f.kind, row[f.name]) for row in rows_read] for f in case.fields] == plain
            own = pa.ipc.open_stream(pa.py_buffer(delivery.ipc)).read_next_batch()
            for batch in (delivery.to_arrow(), pa.record_batch(delivery), own):
                batch.validate(full=True)
                found = canonical(case, batch)
                if lossy:
                    found = [[without_payload(f.kind, value) for value in column] for f, column in zip(case.fields, found)]
                assert found == (plain if lossy else columns)
                for index, field in enumerate(case.fields):
                    described = batch.schema.field(index)
                    assert (described.name, described.type, described.nullable, described.metadata) == (
                        field.name,
                        field.kind.arrow(),
                        field.nullable,
                        None,
                    )
            for index, field in enumerate(case.fields):
                column = delivery.batch().column(field.name)
                assert list(column.states) == [CellState.NULL if value is None else CellState.VALUE for value in columns[index]]
                assert [from_python(field.kind, value) for value in column.to_list()] == plain[index]
            delivery.ack(timeout=PATIENCE)
        assert submission.result(timeout=PATIENCE).completed


@pytest.mark.rule("P-3", "EC-3")
def test_a_batch_without_rows_completes_and_a_batch_of_the_most_rows_is_cut_up(
    node: LoopbackNode, session: nervix_ffi.Session
) -> None:
    feed, taking = producer(session, "held"), consumer(session)
    assert feed.send([], timeout=PATIENCE).completed
    submission = feed.submit(rows(*range(100)), timeout=PATIENCE)
    found: list[Any] = []
    while len(found) < 100:
        delivery = taking.next(timeout=PATIENCE)
        assert delivery.members <= 16
        found += ids(delivery)
        delivery.ack(timeout=PATIENCE)
    assert found == list(range(100))
    assert submission.result(timeout=PATIENCE).completed


def buffers(column: pa.Array) -> list[pa.Buffer]:
    """The buffers that hold the cells of a column, at every level; those of no cells are nobody's."""
    if not len(column):
        return []
    if isinstance(column, (pa.ListArray, pa.FixedSizeListArray)):
        own = column.buffers()[: 2 if isinstance(column, pa.ListArray) else 1]
        return [buffer for buffer in own if buffer is not None] + buffers(column.values)
    return [buffer for buffer in column.buffers() if buffer is not None and buffer.size]


@pytest.mark.rule("B-15", "EC-3")
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(case=cases())
def test_reading_a_delivery_as_arrow_copies_nothing(lab: tuple[LoopbackNode, nervix_ffi.Session], case: Case) -> None:
    """Every buffer lies inside of the delivery's stream, and keeps it."""
    _, session = lab
    feed, taking = way(session, case.fields, 16)
    with feed, taking:
        feed.submit(arrow_of(case), timeout=PATIENCE)
        delivery = taking.next(timeout=PATIENCE)
        stream = pa.py_buffer(delivery.ipc)
        inside = range(stream.address, stream.address + stream.size + 1)
        batches = [delivery.to_arrow(), pa.record_batch(delivery), delivery.batch().to_arrow()]
        for batch in batches:
            for column in batch.columns:
                for buffer in buffers(column):
                    assert buffer.address in inside
                    assert buffer.address + buffer.size in inside
                    assert buffer.address % 8 == 0
        delivery.ack(timeout=PATIENCE)
        delivery.release()
        expected = canonical(case, arrow_of(case))
        del stream, delivery
        assert [canonical(case, batch) for batch in batches] == [expected] * 3


@pytest.mark.rule("B-15")
def test_references_are_not_shared_out_again(node: LoopbackNode, session: nervix_ffi.Session) -> None:
    feed, taking = producer(session, "held"), consumer(session)
    feed.submit(rows(1), timeout=PATIENCE)
    delivery = taking.next(timeout=PATIENCE)
    assert delivery.batch() is delivery.batch()
    assert bytes(delivery.batch().ipc) == bytes(delivery.ipc)
    delivery.ack(timeout=PATIENCE)


# ---- batches that are none: refused before anything is sent

EVERYTHING = (
    "id U64, maybe I32 OPTIONAL, flag BOOL, text STRING, raw BYTES OPTIONAL, real F32, at DATETIME,"
    " tags VEC<STRING>, grid ARRAY<I16, 2, 2>, spans VEC<ARRAY<DATETIME, 2>> OPTIONAL"
)


def u64(*numbers: int) -> bytes:
    return array.array("Q", numbers).tobytes()


#: The calls that fill a builder of two rows correctly.
GOOD: dict[str, tuple[Any, ...]] = {
    "id": ("fixed", "id", 0, u64(1, 2)),
    "maybe states": ("states", "maybe", bytes([1, 2])),
    "maybe": ("fixed", "maybe", 0, bytes(8)),
    "flag": ("fixed", "flag", 0, bytes([0, 1])),
    "text": ("varlen", "text", 0, u64(0, 1, 3), "aü".encode()),
    "raw": ("varlen", "raw", 0, u64(0, 0, 2), b"\xff\xfe"),
    "real": ("fixed", "real", 0, bytes(8)),
    "at": ("fixed", "at", 0, bytes(16)),
    "tags": ("offsets", "tags", 0, u64(0, 1, 3)),
    "tags values": ("varlen", "tags", 1, u64(0, 1, 2, 3), b"abc"),
    "grid": ("fixed", "grid", 2, bytes(16)),
    "spans": ("offsets", "spans", 0, u64(0, 1, 1)),
    "spans values": ("fixed", "spans", 2, bytes(16)),
}


def build(schema: nervix_ffi.Schema, calls: dict[str, tuple[Any, ...]], count: int = 2) -> nervix_ffi.Batch:
    with BatchBuilder(schema, count) as builder:
        for method, *arguments in calls.values():
            getattr(builder, method)(*arguments)
        return builder.finish()


@pytest.fixture
def wide(node: LoopbackNode, session: nervix_ffi.Session) -> Iterator[nervix_ffi.Producer]:
    """A producer of a column of everything. Nothing reached the node when the test is over, and the session works on."""
    for statement in (
        f"CREATE SCHEMA everything ({EVERYTHING});",
        "CREATE RELAY all SCHEMA everything UNBRANCHED;",
        "CREATE INGESTOR wide FROM CLIENT SCHEMA everything MODE ACK PARALLEL MAX 8 ACK TIMEOUT 60s RETRY POLICY BACKOFF 10ms"
        " MAX 40ms ON QUIESCE SUSPEND TIMESTAMP NOW TO all INHERIT ALL FLUSH IMMEDIATE ON MESSAGE ERROR LOG"
        " ON GENERAL ERROR LOG;",
    ):
        session.execute(statement, timeout=PATIENCE)
    made = session.open_producer("wide", EVERYTHING, timeout=PATIENCE)
    yield made
    assert counts(node)["batches"]["received"] == 0
    assert made.pending() == []
    assert made.send(build(made.schema, GOOD), timeout=PATIENCE).completed


@pytest.mark.rule("B-13")
def test_a_batch_built_column_by_column(wide: nervix_ffi.Producer) -> None:
    batch = build(wide.schema, GOOD)
    assert batch.rows() == [
        {
            "id": 1, "maybe": 0, "flag": False, "text": "a", "raw": b"", "real": 0.0, "at": 0,
            "tags": ["a"], "grid": [[0, 0], [0, 0]], "spans": [[0, 0]],
        },
        {
            "id": 2, "maybe": None, "flag": True, "text": "ü", "raw": b"\xff\xfe", "real": 0.0, "at": 0,
            "tags": ["b", "c"], "grid": [[0, 0], [0, 0]], "spans": [],
        },
    ]  # fmt: skip
    tags = batch.column("tags")
    assert isinstance(tags, NestedColumn)
    assert list(tags.level_offsets(0)) == [0, 1, 3]
    with pytest.raises(nervix_ffi.TypeMismatchError):
        tags.level_offsets(1)
    with pytest.raises(nervix_ffi.InvalidArgumentError):
        batch.column("nothing")


#: Calls that replace good ones, and are refused at once or when the batch is finished.
BAD: dict[str, tuple[str, tuple[Any, ...]]] = {
    "too few values": ("id", ("fixed", "id", 0, u64(1))),
    "too many values": ("id", ("fixed", "id", 0, u64(1, 2, 3))),
    "half a value": ("id", ("fixed", "id", 0, bytes(15))),
    "another width": ("maybe", ("fixed", "maybe", 0, bytes(16))),
    "too few states": ("maybe states", ("states", "maybe", bytes([1]))),
    "a state of 0": ("maybe states", ("states", "maybe", bytes([1, 0]))),
    "a redacted state": ("maybe states", ("states", "maybe", bytes([1, 3]))),
    "a state of 4": ("maybe states", ("states", "maybe", bytes([1, 4]))),
    "a null in a required field": ("id", ("states", "id", bytes([1, 2]))),
    "a null in a required list": ("tags", ("states", "tags", bytes([2, 1]))),
    "a bool of 2": ("flag", ("fixed", "flag", 0, bytes([0, 2]))),
    "a bool of 255": ("flag", ("fixed", "flag", 0, bytes([255, 0]))),
    "no UTF-8": ("text", ("varlen", "text", 0, u64(0, 1, 2), b"\xc3\xbc")),
    "half a character": ("text", ("varlen", "text", 0, u64(0, 1, 2), b"a\xc3")),
    "a surrogate": ("text", ("varlen", "text", 0, u64(0, 3, 3), b"\xed\xa0\x80")),
    "no UTF-8 in a list": ("tags values", ("varlen", "tags", 1, u64(0, 1, 2, 3), b"a\xffc")),
    "text offsets that decrease": ("text", ("varlen", "text", 0, u64(0, 3, 2), b"abc")),
    "text offsets that do not begin at 0": ("text", ("varlen", "text", 0, u64(1, 2, 3), b"abc")),
    "text offsets that end early": ("text", ("varlen", "text", 0, u64(0, 1, 2), b"abc")),
    "text offsets that end late": ("text", ("varlen", "text", 0, u64(0, 1, 4), b"abc")),
    "text offsets beyond everything": ("text", ("varlen", "text", 0, u64(0, 2**63, 3), b"abc")),
    "too few text offsets": ("text", ("varlen", "text", 0, u64(0, 3), b"abc")),
    "no text offsets": ("text", ("varlen", "text", 0, b"", b"")),
    "list offsets that decrease": ("tags", ("offsets", "tags", 0, u64(0, 3, 2))),
    "list offsets that do not begin at 0": ("tags", ("offsets", "tags", 0, u64(1, 2, 3))),
    "list offsets that end late": ("tags", ("offsets", "tags", 0, u64(0, 1, 4))),
    "list offsets beyond 32 bits": ("tags", ("offsets", "tags", 0, u64(0, 1, 2**31))),
    "list offsets beyond 64 bits": ("tags", ("offsets", "tags", 0, u64(0, 2**64 - 1, 3))),
    "offsets of a fixed list": ("grid", ("offsets", "grid", 0, u64(0, 1, 2))),
    "offsets of a scalar": ("id", ("offsets", "id", 0, u64(0, 1, 2))),
    "a level that is none": ("grid", ("fixed", "grid", 3, bytes(16))),
    "an outer level": ("grid", ("fixed", "grid", 0, bytes(16))),
    "too few elements": ("grid", ("fixed", "grid", 2, bytes(14))),
    "text as numbers": ("text", ("fixed", "text", 0, bytes(2))),
    "numbers as text": ("id", ("varlen", "id", 0, u64(0, 1, 2), b"ab")),
    "a column that is none": ("id", ("fixed", 10, 0, bytes(2))),
    "a name that is none": ("id", ("fixed", "identity", 0, bytes(2))),
}


#: Those that take a column for what it is not.
OTHERWISE = {"offsets of a fixed list", "offsets of a scalar", "an outer level", "text as numbers", "numbers as text"}


@pytest.mark.rule("B-13", "P-3")
@pytest.mark.parametrize("name", BAD)
def test_a_column_that_is_none(wide: nervix_ffi.Producer, name: str) -> None:
    place, call = BAD[name]
    calls = {**GOOD, place: call}
    with pytest.raises(nervix_ffi.TypeMismatchError if name in OTHERWISE else nervix_ffi.InvalidArgumentError) as caught:
        build(wide.schema, calls)
    assert "\n" not in str(caught.value)


@pytest.mark.rule("B-13")
@pytest.mark.parametrize("name", [key for key in GOOD if key not in ("maybe states",)])
def test_a_column_that_is_missing_is_named(wide: nervix_ffi.Producer, name: str) -> None:
    calls = {key: call for key, call in GOOD.items() if key != name}
    with pytest.raises(nervix_ffi.InvalidArgumentError, match=name.split()[0]):
        build(wide.schema, calls)


@pytest.mark.rule("B-13")
def test_what_was_set_stays_until_the_batch_is_good(wide: nervix_ffi.Producer) -> None:
    with BatchBuilder(wide.schema, 2) as builder:
        for key, (method, *arguments) in GOOD.items():
            if key != "flag":
                getattr(builder, method)(*arguments)
        with pytest.raises(nervix_ffi.InvalidArgumentError):
            builder.finish()
        builder.fixed("flag", 0, bytes([1, 1]))
        assert builder.finish().column("flag").to_list() == [True, True]
        with pytest.raises(nervix_ffi.InvalidArgumentError):
            builder.finish()  # It is empty now.


def without(name: str) -> pa.Schema:
    return arrow_schema().remove(arrow_schema().get_field_index(name))


def arrow_schema() -> pa.Schema:
    return pa.schema(
        [
            pa.field("id", pa.uint64(), nullable=False),
            pa.field("maybe", pa.int32()),
            pa.field("flag", pa.bool_(), nullable=False),
            pa.field("text", pa.string(), nullable=False),
            pa.field("raw", pa.binary()),
            pa.field("real", pa.float32(), nullable=False),
            pa.field("at", pa.timestamp("ns", tz="+00:00"), nullable=False),
            pa.field("tags", pa.list_(pa.string()), nullable=False),
            pa.field("grid", pa.list_(pa.list_(pa.int16(), 2), 2), nullable=False),
            pa.field("spans", pa.list_(pa.list_(pa.timestamp("ns", tz="UTC"), 2))),
        ]
    )


def table(**columns: Any) -> pa.Table:
    """One good row of everything, columns replaced by others."""
    good: dict[str, Any] = {
        "id": 1, "maybe": 2, "flag": True, "text": "t", "raw": b"r", "real": 1.5, "at": 0, "tags": ["a"],
        "grid": [[1, 2], [3, 4]], "spans": [[0, 1]],
    }  # fmt: skip
    made = pa.table({name: pa.array([value], arrow_schema().field(name).type) for name, value in good.items()})
    for name, column in columns.items():
        made = made.set_column(made.schema.get_field_index(name), name, column)
    return made


BAD_ARROW: dict[str, tuple[Callable[[], Any], str]] = {
    "another width": (lambda: table(id=pa.array([1], pa.int64())), "id"),
    "another unit": (lambda: table(at=pa.array([0], pa.timestamp("us", tz="UTC"))), "at"),
    "another zone": (lambda: table(at=pa.array([0], pa.timestamp("ns", tz="Europe/Berlin"))), "at"),
    "no zone": (lambda: table(at=pa.array([0], pa.timestamp("ns"))), "at"),
    "a dictionary": (lambda: table(text=pa.array(["t"]).dictionary_encode()), "text"),
    "a null in a required column": (lambda: table(text=pa.array([None], pa.string())), "text"),
    "a null in a list": (lambda: table(tags=pa.array([["a", None]])), "tags"),
    "another fixed length": (lambda: table(grid=pa.array([[[1, 2, 3]]], pa.list_(pa.list_(pa.int16(), 3), 1))), "grid"),
    "a list for a fixed one": (lambda: table(grid=pa.array([[[1, 2], [3, 4]]])), "grid"),
    "a missing column": (lambda: table().drop_columns(["flag"]), "flag"),
    "one column more": (lambda: table().append_column("more", pa.array([1])), "more"),
    "other names": (lambda: table().rename_columns([*arrow_schema().names[:-1], "spun"]), "spun"),
    "another order": (lambda: table().select([*arrow_schema().names[1:], "id"]), "id"),
}


@pytest.mark.rule("P-3", "B-13")
@pytest.mark.parametrize("name", BAD_ARROW)
def test_arrow_of_another_schema_is_refused_by_name(wide: nervix_ffi.Producer, name: str) -> None:
    make, field = BAD_ARROW[name]
    with pytest.raises(nervix_ffi.InvalidArgumentError, match=field):
        wide.submit(make(), timeout=PATIENCE)
    wide.batch(table())


@pytest.mark.rule("P-3")
def test_too_many_rows_are_none(wide: nervix_ffi.Producer) -> None:
    one = table().to_batches()[0]
    many = pa.Table.from_batches([one] * 65_537)
    with pytest.raises(nervix_ffi.InvalidArgumentError, match=r"65,?536"):
        wide.submit(many, timeout=PATIENCE)


@pytest.mark.rule("P-3")
def test_a_batch_of_another_endpoint(node: LoopbackNode, session: nervix_ffi.Session, wide: nervix_ffi.Producer) -> None:
    other = producer(session)
    for batch in (other.batch(rows(1)), other.batch([])):
        with pytest.raises(nervix_ffi.InvalidArgumentError):
            wide.submit(batch, timeout=PATIENCE)


# ---- fields


@pytest.mark.rule("B-12")
def test_fields_that_a_frame_holds_and_fields_that_it_does_not(node: LoopbackNode, session: nervix_ffi.Session) -> None:
    def deep(levels: int) -> str:
        return "VEC<" * levels + "U8" + ">" * levels

    mode = "MODE ACK PARALLEL MAX 8 ACK TIMEOUT 60s RETRY POLICY BACKOFF 10ms MAX 40ms ON QUIESCE SUSPEND TIMESTAMP NOW"
    execute(
        node,
        f"CREATE SCHEMA deep (nested {deep(16)});",
        "CREATE RELAY deep SCHEMA deep UNBRANCHED;",
        f"CREATE INGESTOR deep FROM CLIENT SCHEMA deep {mode} TO deep INHERIT ALL FLUSH IMMEDIATE ON MESSAGE ERROR LOG"
        " ON GENERAL ERROR LOG;",
    )
    opened = session.open_producer("deep", f"nested {deep(16)}", timeout=PATIENCE)
    assert len(opened.schema.fields[0].levels) == 17
    value: Any = 7
    for _ in range(16):
        value = [value]
    assert opened.batch([{"nested": value}]).rows() == [{"nested": value}]
    assert opened.send([{"nested": value}], timeout=PATIENCE).completed
    with pytest.raises(nervix_ffi.OpenRefused) as caught:
        session.open_producer("deep", f"nested {deep(28)}", timeout=PATIENCE)
    assert caught.value.refusal is nervix_ffi.OpenRefusal.SCHEMA_MISMATCH
    opens = sent(node, "OpenIngestorRequest"), sent(node, "OpenEmitterRequest")
    for levels in (29, 32, 33):
        for call in (session.open_producer, session.open_consumer):
            with pytest.raises(nervix_ffi.InvalidArgumentError):
                call("deep", f"nested {deep(levels)}", timeout=PATIENCE)
    assert (sent(node, "OpenIngestorRequest"), sent(node, "OpenEmitterRequest")) == opens
    assert opened.send([{"nested": value}], timeout=PATIENCE).completed


@pytest.mark.rule("B-12")
@pytest.mark.parametrize(
    "fields",
    [
        "",
        "id",
        "id U99",
        "id ARRAY<U8, 0>",
        "id ARRAY<U8>",
        "id ARRAY<U8, 2147483648>",
        "id ARRAY<U8, -1>",
        "id VEC<U8, 3>",
        "id VEC<>",
        "id U8, id U8",
    ],
)
def test_fields_that_are_none(node: LoopbackNode, session: nervix_ffi.Session, fields: str) -> None:
    for call in (session.open_producer, session.open_consumer):
        with pytest.raises(nervix_ffi.InvalidArgumentError):
            call("quick", fields, timeout=PATIENCE)
    level = nervix_ffi.Level(Type.FIXED_LIST, 0)
    described = nervix_ffi.Field("id", Type.FIXED_LIST, False, False, (level, nervix_ffi.Level(Type.U8)))
    with pytest.raises(nervix_ffi.InvalidArgumentError):
        session.open_producer("quick", [described], timeout=PATIENCE)
    assert sent(node, "OpenIngestorRequest") == sent(node, "OpenEmitterRequest") == 0


@pytest.mark.rule("B-14")
def test_a_submission_that_is_unknown(session: nervix_ffi.Session) -> None:
    made = producer(session)
    submission = made.submit(rows(1), timeout=PATIENCE)
    stranger = nervix_ffi.Submission(made, submission.identity + 1)
    stranger.HANDOVER = 0.01
    with pytest.raises(nervix_ffi.InvalidArgumentError):
        stranger.result(timeout=PATIENCE)
    with pytest.raises(nervix_ffi.InvalidArgumentError):
        stranger.release()
    assert submission.result(timeout=PATIENCE).completed


@pytest.mark.rule("B-14")
def test_a_submission_that_another_thread_took_a_moment_ago_is_let_go(session: nervix_ffi.Session) -> None:
    class Overtaken(nervix_ffi.Submission):
        """Another thread takes its outcome right after it was looked for."""

        overtaken = False

        def _look(self) -> bool:
            if self.overtaken:
                return super()._look()
            self.overtaken = True
            assert Running(lambda: self.result(timeout=PATIENCE)).result().completed
            return False

    made = producer(session)
    submission = Overtaken(made, made.submit(rows(1), timeout=PATIENCE).identity)
    outcome = submission.release()
    assert outcome is not None
    assert outcome.completed


# ---- processes


@pytest.mark.rule("B-2", "X-7")
@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_a_fork_while_endpoints_are_open(node: LoopbackNode) -> None:
    """The child's copies are closed at once, and let go of nothing; the parent's go on; the child may open its own."""
    session = connect(node)
    feed, taking, followed = producer(session, "held"), consumer(session), producer(session)
    submission = feed.submit(rows(1), timeout=PATIENCE)
    delivery = taking.next(timeout=PATIENCE)
    batch = delivery.batch()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            for call in (
                lambda: feed.submit(rows(2), timeout=PATIENCE),
                lambda: submission.result(timeout=PATIENCE),
                lambda: taking.next(timeout=PATIENCE),
                lambda: delivery.ack(timeout=PATIENCE),
                lambda: delivery.rows() if delivery._batch is None else delivery.ipc,
                lambda: batch.rows(),
                lambda: session.domain_clock("lab"),
                lambda: followed.close(timeout=PATIENCE),
            ):
                try:
                    call()
                except nervix_ffi.ClosedError:
                    continue
                os._exit(2)
            for thing in (batch, delivery, submission.producer, taking, followed):
                thing.release()
            with nervix_ffi.connect(node.uri, domain=DOMAIN, timeout=PATIENCE) as own, producer(own) as made:
                status = 0 if made.send(rows(3), timeout=PATIENCE).completed else 3
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert delivery.rows() == rows(1)
    delivery.ack(timeout=PATIENCE)
    assert submission.result(timeout=PATIENCE).completed
    assert followed.send(rows(4), timeout=PATIENCE).completed
    session.close()
