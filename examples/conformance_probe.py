"""The conformance probe: reads one relay and prints what it reads, one observation a line.

Probes of other hosts print the same lines, so their reports are compared byte for byte. A check that fails is one line on standard
error, `probe failed: ...`, and status 1. The environment says what to read:

    NERVIX_PROBE_GRPC_URI, NERVIX_PROBE_USERNAME, NERVIX_PROBE_PASSWORD, NERVIX_PROBE_DOMAIN
    NERVIX_PROBE_RELAY, NERVIX_PROBE_SUBSCRIPTION, NERVIX_PROBE_ROWS
    NERVIX_CLIENT_LIBRARY          another library of the same interface (optional)

Values print by type and exactly: `i64:-1`, floats as their bits (`f32:7fc00001`), text and bytes as hex (`str:68c3a9`), DATETIME as
nanoseconds, `null`, `redacted`, lists as `[a,b]`.
"""

from __future__ import annotations

import gc
import os
import sys
import threading
from collections.abc import Callable, Iterable
from typing import Any

import nervix_ffi
from nervix_ffi import CellState, Column, Field, Part, Rows, Schema, Session, Type

PATIENCE = 60.0
"""Seconds that any one wait may take."""

HEX_DIGITS = {Type.F32: 8, Type.F64: 16}
"""How many digits the bits of a float have."""


class ProbeFailed(Exception):
    """A check that did not hold."""


def check(condition: bool, what: str) -> None:
    if not condition:
        raise ProbeFailed(what)


def say(line: str) -> None:
    print(line, flush=True)


# ---- values


def text_of(kind: Type, value: Any) -> str:
    """A scalar that is not a float, as it prints."""
    if kind == Type.BOOL:
        return "bool:true" if value else "bool:false"
    if kind == Type.STRING:
        return f"str:{value.encode('utf-8').hex()}"
    if kind == Type.BYTES:
        return f"bytes:{value.hex()}"
    return f"{kind.name.lower()}:{value}"


def bits_of(kind: Type, values: Iterable[int]) -> list[str]:
    """Floats by their bits."""
    return [f"{kind.name.lower()}:{value:0{HEX_DIGITS[kind]}x}" for value in values]


def scalar_cells(column: Column) -> list[str]:
    """The cells of a scalar column."""
    kind = Type(column.type)
    if kind in HEX_DIGITS:
        raw = column.values.cast("B")
        texts = bits_of(kind, raw.cast("I") if kind == Type.F32 else raw.cast("Q"))
    else:
        texts = ["" if value is None else text_of(kind, value) for value in present(column)]
    return [words(state, text) for state, text in zip(column.states, texts)]


def present(column: Column) -> Iterable[Any]:
    """The values of a column, None where there is none to print."""
    for state, value in zip(column.states, column.to_list()):
        yield value if state == CellState.VALUE else None


def words(state: int, text: str) -> str:
    return {CellState.NULL: "null", CellState.REDACTED: "redacted"}.get(CellState(state), text)


def list_cells(field: Field, array: Any, states: Iterable[int]) -> list[str]:
    """The cells of a list column, read from Arrow, which keeps the bits of floats inside lists."""
    texts = list_texts([Type(level.type) for level in field.levels], array)
    return [words(state, text) for state, text in zip(states, texts)]


def list_texts(levels: list[Type], array: Any) -> list[str]:
    kind = levels[0]
    if kind in (Type.LIST, Type.FIXED_LIST):
        # flatten() leaves out what lies under nulls, so each present list takes its own length from the front.
        inner = iter(list_texts(levels[1:], array.flatten()))
        lengths = [None if value is None else len(value) for value in array.to_pylist()]
        return ["" if length is None else f"[{','.join(next(inner) for _ in range(length))}]" for length in lengths]
    if kind in HEX_DIGITS:
        return bits_of(kind, array.view("uint32" if kind == Type.F32 else "uint64").to_pylist())
    values = array.view("int64") if kind == Type.DATETIME else array
    return [text_of(kind, value) for value in values.to_pylist()]


def cells(event: Rows, part: Part, fields: tuple[Field, ...]) -> list[str]:
    """The rows of an event, or its key, as `name=value` joined by one space."""
    columns = []
    for index, field in enumerate(fields):
        if field.is_list:
            column = event.column(index, part)
            columns.append(list_cells(field, event.to_arrow().column(index), column.states))
        else:
            columns.append(scalar_cells(event.column(index, part)))
    return [" ".join(f"{field.name}={cell}" for field, cell in zip(fields, row)) for row in zip(*columns)]


# ---- what the probe reports


def report_schema(schema: Schema) -> None:
    def line(prefix: str, field: Field) -> str:
        kind = Type(field.type).name
        nullable = "nullable" if field.nullable else "required"
        return f"{prefix} {field.name} {kind} {nullable} {'sensitive' if field.sensitive else 'public'}"

    for field in schema.fields:
        say(line("FIELD", field))
    if schema.branch is not None:
        say(f"BRANCH {schema.branch}")
        for field in schema.key_fields:
            say(line("KEY", field))


def report_failure(session: Session) -> None:
    """A malformed statement fails, and says where."""
    outcome = session.execute("CREATE RELAY;", check=False, timeout=PATIENCE)
    check(outcome.disposition == nervix_ffi.Disposition.FAILED, "CREATE RELAY; did not fail")
    check(bool(outcome.diagnostics), "a failed command has no diagnostic")
    span = outcome.diagnostics[0].span
    place = "none" if span is None else f"{span[0]}..{span[1]}"
    say(f"ERROR failed diagnostics={len(outcome.diagnostics)} span={place}")


# ---- checks without a line of their own


def check_frames(events: list[Rows]) -> None:
    """Frames stay as they are through collections, and when their events are released by another thread."""
    views = [event.frame for event in events]
    copies = [bytes(view) for view in views]
    for event in events:
        texts = [index for index, field in enumerate(event.schema.fields) if field.type in (Type.STRING, Type.BYTES)]
        for index in texts:
            column = event.column(index)
            for row in range(len(event)):
                if column.states[row] == CellState.VALUE:
                    copied = column.data[column.offsets[row] : column.offsets[row + 1]]
                    check(event.cell(row, index) == copied, "a value copied differs from the same value borrowed")
    gc.collect()

    def release() -> None:
        for event in events:
            event.release()

    thread = threading.Thread(target=release)
    thread.start()
    thread.join()
    gc.collect()
    for view, copy in zip(views, copies):
        check(bytes(view[4:8]) == b"NXSM", "a frame does not start with NXSM at byte 4")
        check(view == copy, "a frame changed after its event was released")


def check_ends(kind: type[nervix_ffi.Error], call: Callable[[], object], what: str) -> nervix_ffi.Error:
    try:
        call()
    except kind as error:
        return error
    raise ProbeFailed(f"{what} came back")


def check_cancellation(session: Session) -> None:
    """A cancelled wait, an expired one, and a command under a token that was triggered before."""
    triggered = nervix_ffi.Cancel()
    timer = threading.Timer(0.05, triggered.trigger)
    timer.start()
    check_ends(nervix_ffi.CancelledError, lambda: session.next_event(cancel=triggered), "a cancelled wait")
    timer.join()
    check_ends(nervix_ffi.DeadlineError, lambda: session.next_event(timeout=0.05), "an expired wait")
    execution = session.prepare("SHOW CLUSTER STATUS;")
    error = check_ends(nervix_ffi.CancelledError, lambda: execution.run(cancel=triggered), "a command with a triggered token")
    check(error.reference == execution.reference, "a cancelled command does not name its reference")


def setting(name: str) -> str:
    value = os.environ.get(f"NERVIX_PROBE_{name}")
    if value is None:
        raise ProbeFailed(f"NERVIX_PROBE_{name} is not set")
    return value


def probe() -> None:
    relay, name, wanted = setting("RELAY"), setting("SUBSCRIPTION"), int(setting("ROWS"))
    with nervix_ffi.connect(
        setting("GRPC_URI"),
        domain=setting("DOMAIN"),
        username=setting("USERNAME"),
        password=setting("PASSWORD"),
        timeout=PATIENCE,
    ) as session:
        session.execute(f"SHOW CREATE RELAY {relay};", timeout=PATIENCE)
        say("OPERATION completed")
        report_failure(session)

        outcome = session.execute(f"CREATE SUBSCRIPTION {name} TO {relay};", timeout=PATIENCE)
        schema = outcome.schema
        if schema is None:
            raise ProbeFailed("CREATE SUBSCRIPTION handed out no schema")
        report_schema(schema)
        say("SUBSCRIBED")

        events: list[Rows] = []
        seen = 0
        while seen < wanted:
            event = session.next_event(timeout=PATIENCE)
            if not isinstance(event, Rows):
                raise ProbeFailed(f"instead of rows came {event!r}")
            keys = cells(event, Part.BRANCH_KEY, schema.key_fields) or [""]
            for row in cells(event, Part.ROWS, schema.fields):
                say(f"ROW [{keys[0]}] {row}")
            seen += len(event)
            events.append(event)
        check(seen == wanted, f"{seen} rows came instead of {wanted}")

        check_frames(events)
        check_cancellation(session)
        say("CHECKS ok")
        session.execute(f"DELETE SUBSCRIPTION {name};", timeout=PATIENCE)
        say("CLOSED completed")
    say("PASS")


def main() -> int:
    """Run the probe."""
    if len(sys.argv) > 1:
        print(f"probe failed: there is no run called {sys.argv[1]}", file=sys.stderr)
        return 1
    try:
        probe()
    except (ProbeFailed, nervix_ffi.Error) as error:
        reason = " ".join(str(error).split())
        print(f"probe failed: {reason}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
