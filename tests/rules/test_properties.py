"""Random schemas and rows go from the node to Python and Arrow and come back equal."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings

import nervix_ffi
from nervix_ffi import REDACTED, CellState, Part, Rows, Type
from nervix_ffi.testing import LoopbackNode

from ..support import PATIENCE, next_event
from .values import Case, Field, Kind, cases, from_arrow, from_python, to_json, without_payload

SERIAL = itertools.count()


@pytest.fixture(scope="module")
def lab() -> Iterator[tuple[LoopbackNode, nervix_ffi.Session]]:
    """One node and session for every example."""
    with (
        LoopbackNode(load="CREATE UNPACED DOMAIN lab; USE lab; START;") as node,
        nervix_ffi.connect(node.uri, domain="lab", timeout=PATIENCE) as session,
    ):
        yield node, session


def wanted(field: Field, value: Any) -> Any:
    """A cell as `rows()` must give it, floats without their payload."""
    return REDACTED if field.sensitive else without_payload(field.kind, value)


def given_value(field: Field, value: Any) -> Any:
    return value if value is REDACTED else from_python(field.kind, value)


def state(field: Field, value: Any) -> CellState:
    if field.sensitive:
        return CellState.REDACTED
    return CellState.NULL if value is None else CellState.VALUE


def levels(kind: Kind) -> list[tuple[Type, int]]:
    """The levels of a type, outermost first."""
    if kind.element is None:
        return [(Type[kind.name], 0)]
    return [(Type.LIST if kind.name == "VEC" else Type.FIXED_LIST, kind.length), *levels(kind.element)]


def compare_arrow(field: Field, column: pa.Array, described: pa.Field, values: list[Any]) -> None:
    """An Arrow column holds exactly the values, floats by their bits; a withheld one is nulls that say so."""
    assert described.name == field.name
    assert described.type == field.kind.arrow()
    if field.sensitive:
        assert described.nullable
        assert described.metadata == {b"nervix.redacted": b"true"}
        assert column.null_count == len(column)
        return
    assert described.nullable == field.nullable
    assert not described.metadata
    column.validate(full=True)
    assert from_arrow(field.kind, column) == values


def check_event(case: Case, event: Rows, by_id: dict[int, dict[str, Any]]) -> list[int]:
    """Every way to read an event gives the rows that were published under its ids."""
    ids: list[Any] = event.column("id").to_list()
    rows = [by_id[number] for number in ids]

    for read, row in zip(event.rows(), rows):
        assert list(read) == [field.name for field in case.fields]
        for field in case.fields:
            assert given_value(field, read[field.name]) == wanted(field, row[field.name])

    batch = event.to_arrow()
    imported = pa.record_batch(event)
    for made in (batch, imported):
        for index, field in enumerate(case.fields):
            compare_arrow(field, made.column(index), made.schema.field(index), [row[field.name] for row in rows])

    for field in case.fields:
        column = event.column(field.name)
        assert list(column.states) == [state(field, row[field.name]) for row in rows]
        if field.kind.name in ("F32", "F64") and not field.sensitive:
            bits = column.values.cast("B").cast("I" if field.kind.name == "F32" else "Q")
            assert list(bits) == [row[field.name] or 0 for row in rows]

    key_fields = [field for name in case.key for field in case.fields if field.name == name]
    if not key_fields:
        assert event.key is None
    else:
        key = event.key
        assert key is not None
        for field in key_fields:
            assert given_value(field, key[field.name]) == wanted(field, rows[0][field.name])
            column = event.column(field.name, Part.BRANCH_KEY)
            assert list(column.states) == [state(field, rows[0][field.name])]
    return ids


@pytest.mark.rule("R-3", "R-4", "R-5", "B-4", "B-6")
@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(case=cases())
def test_rows_come_back_equal(lab: tuple[LoopbackNode, nervix_ffi.Session], case: Case) -> None:
    node, session = lab
    number = next(SERIAL)
    session.execute(f"CREATE SCHEMA s{number} ({', '.join(field.nspl() for field in case.fields)});", timeout=PATIENCE)
    branching = "UNBRANCHED"
    if case.key:
        keys = [field.nspl() for name in case.key for field in case.fields if field.name == name]
        session.execute(f"CREATE SCHEMA k{number} ({', '.join(keys)});", timeout=PATIENCE)
        session.execute(f"CREATE BRANCH b{number} SCHEMA k{number} TTL 1m;", timeout=PATIENCE)
        branching = f"BRANCHED BY b{number}"
    session.execute(f"CREATE RELAY r{number} SCHEMA s{number} {branching};", timeout=PATIENCE)
    with session.subscribe(f"r{number}") as subscription:
        for described, field in zip(subscription.schema.fields, case.fields, strict=True):
            assert [(level.type, level.length) for level in described.levels] == levels(field.kind)
            assert (described.name, described.nullable, described.sensitive) == (field.name, field.nullable, field.sensitive)
        rows = [{field.name: to_json(field.kind, row[field.name]) for field in case.fields} for row in case.rows]
        node.control("publish", domain="lab", relay=f"r{number}", rows=rows)
        by_id = {row["id"]: row for row in case.rows}
        seen: list[int] = []
        while len(seen) < len(case.rows):
            event = next_event(subscription)
            assert isinstance(event, Rows), event
            with event:
                seen += check_event(case, event, by_id)
        assert sorted(seen) == sorted(by_id)
        assert case.key or seen == list(by_id)


@pytest.mark.rule("R-3", "R-5")
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(case=cases())
def test_an_arrow_batch_that_is_published_comes_back_as_it_was(lab: tuple[LoopbackNode, nervix_ffi.Session], case: Case) -> None:
    """Arrow in through the control endpoint, typed rows over the wire, Arrow out: cell for cell and bit for bit."""
    node, session = lab
    number = next(SERIAL)
    fields = [field._replace(sensitive=False) for field in case.fields]
    session.execute(f"CREATE SCHEMA s{number} ({', '.join(field.nspl() for field in fields)});", timeout=PATIENCE)
    session.execute(f"CREATE RELAY r{number} SCHEMA s{number} UNBRANCHED;", timeout=PATIENCE)
    source = session.subscribe(f"r{number}", name="first")
    node.control(
        "publish",
        domain="lab",
        relay=f"r{number}",
        rows=[{field.name: to_json(field.kind, row[field.name]) for field in fields} for row in case.rows],
    )
    event = next_event(source)
    assert isinstance(event, Rows)
    batch = event.to_arrow()
    source.delete(timeout=PATIENCE)
    with session.subscribe(f"r{number}") as subscription:
        node.publish(f"r{number}", batch, domain="lab")
        again = next_event(subscription)
        assert isinstance(again, Rows)
        for index, field in enumerate(fields):
            values = [row[field.name] for row in case.rows]
            assert from_arrow(field.kind, again.to_arrow().column(index)) == values
        assert again.to_arrow().schema.equals(batch.schema)
