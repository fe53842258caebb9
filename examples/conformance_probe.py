"""The conformance probe: prints what a client sees, one observation a line.

    conformance_probe.py          reads one relay: commands, rows, retention, cancellation
    conformance_probe.py clock    follows a paced domain clock while others stop, start and cut it
    conformance_probe.py io       hands batches to an ingestor and settles what its emitter delivers, across a cut

Probes of other hosts print the same lines, so their reports are compared byte for byte. A check that fails is one line on standard
error, `probe failed: ...`, and status 1. The environment says what to read:

    NERVIX_PROBE_GRPC_URI, NERVIX_PROBE_USERNAME, NERVIX_PROBE_PASSWORD, NERVIX_PROBE_DOMAIN
    NERVIX_PROBE_RELAY, NERVIX_PROBE_SUBSCRIPTION, NERVIX_PROBE_ROWS    for the rows
    NERVIX_PROBE_INGESTOR, NERVIX_PROBE_EMITTER                         for io
    NERVIX_CLIENT_LIBRARY          another library of the same interface (optional)

Values print by type and exactly: `i64:-1`, floats as their bits (`f32:7fc00001`), text and bytes as hex (`str:68c3a9`), DATETIME as
nanoseconds, `null`, `redacted`, lists as `[a,b]`.
"""

from __future__ import annotations

import gc
import os
import struct
import sys
import threading
from collections.abc import Callable, Iterable
from typing import Any

import nervix_ffi
from nervix_ffi import (
    Batch,
    CellState,
    ClockChanged,
    ClockEvent,
    ClockInterrupted,
    ClockRestorationFailed,
    ClockState,
    ClockTick,
    Column,
    Consumer,
    Delivery,
    DomainClock,
    Endpoint,
    Field,
    Fields,
    NestedColumn,
    Part,
    Producer,
    Rows,
    Schema,
    Session,
    Submission,
    SubmissionOutcome,
    Type,
)

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


def connect() -> Session:
    return nervix_ffi.connect(
        setting("GRPC_URI"),
        domain=setting("DOMAIN"),
        username=setting("USERNAME"),
        password=setting("PASSWORD"),
        timeout=PATIENCE,
    )


# ---- the run without argument


def rows_run() -> None:
    relay, name, wanted = setting("RELAY"), setting("SUBSCRIPTION"), int(setting("ROWS"))
    with connect() as session:
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


# ---- the clock run


def report_clock(word: str, clock: DomainClock | ClockChanged) -> None:
    pacing = clock.pacing
    if pacing is None:
        return
    say(
        f"{word} domain={clock.domain} generation={clock.generation} state=paced period={pacing.period} skew={pacing.skew} "
        f"origin={pacing.logical_origin} rate=f64:{struct.pack('>d', pacing.time_rate).hex()}"
    )


def report_projection(clock: DomainClock) -> None:
    """What the attached clock says about its own anchor."""
    pacing = clock.pacing
    if pacing is None:
        raise ProbeFailed("the attached clock is not paced")
    origin, utc = pacing.logical_origin, pacing.utc_anchor

    def instant(value: int) -> str:
        return "origin" if value == origin else str(value)

    def admitted(event: int) -> str:
        return "admitted" if clock.admits(event, utc=utc) else "refused"

    window = clock.admission_window(utc)
    if window is None:
        raise ProbeFailed("a paced clock has no admission window")
    say(
        f"PROJECTION domain={clock.domain} generation={clock.generation} anchor={instant(clock.logical_time_at(utc))} "
        f"wait={clock.wall_duration_until(origin + pacing.period, utc=utc)} window={instant(window[0])}..{instant(window[1])} "
        f"skew={admitted(origin + pacing.skew)} beyond={admitted(origin + pacing.skew + 1)}"
    )


def next_state(session: Session) -> None:
    """Reads to the next state of a paced clock; ticks before it are those of an older one."""
    while True:
        event = session.next_clock_event(timeout=PATIENCE)
        if isinstance(event, ClockChanged):
            if event.pacing is not None:
                report_clock("STATE", event)
                return
        elif not isinstance(event, (ClockTick, ClockRestorationFailed)):
            raise ProbeFailed(f"instead of a state came {event!r}")


def next_tick(session: Session) -> None:
    """Reads the next tick, which is held to the clock as it is now."""
    event: ClockEvent = session.next_clock_event(timeout=PATIENCE)
    if not isinstance(event, ClockTick):
        raise ProbeFailed(f"instead of a tick came {event!r}")
    clock = session.domain_clock(event.domain)
    if clock is None or clock.pacing is None:
        raise ProbeFailed("a tick came from a clock that is not paced")
    check(event.generation == clock.generation, "a tick is of another generation than the clock")
    origin, tick = clock.pacing.logical_origin, event.tick
    check(tick.logical_boundary == origin + (tick.id - 1) * clock.pacing.period, "a boundary is not that of its tick")
    check(tick.serving_logical >= origin, "the serving node read a time before the origin")
    say(f"TICK domain={event.domain} generation={event.generation} boundary=origin+(id-1)*period")


def next_interruption(session: Session) -> None:
    while True:
        event = session.next_clock_event(timeout=PATIENCE)
        if isinstance(event, ClockInterrupted):
            say(f"INTERRUPTED domain={event.domain}")
            return
        check(isinstance(event, ClockTick), f"instead of an interruption came {event!r}")


def check_clock_waits(session: Session) -> None:
    """A wait of a session that follows no clock ends with its token, and in time."""
    triggered = nervix_ffi.Cancel()
    timer = threading.Timer(0.05, triggered.trigger)
    timer.start()
    check_ends(nervix_ffi.CancelledError, lambda: session.next_clock_event(cancel=triggered), "a cancelled wait")
    timer.join()
    check_ends(nervix_ffi.DeadlineError, lambda: session.next_clock_event(timeout=0.05), "an expired wait")


def clock_run() -> None:
    with connect() as session:
        check_clock_waits(session)
        session.execute("ATTACH DOMAIN CLOCK;", timeout=PATIENCE)
        say("ATTACHED completed")
        attached = session.domain_clock()
        if attached is None:
            raise ProbeFailed("an attached clock cannot be read")
        check(attached.state == ClockState.PACED, "the attached clock is not paced")
        report_clock("CLOCK", attached)
        report_projection(attached)
        next_tick(session)
        next_state(session)
        next_tick(session)
        next_interruption(session)
        next_state(session)
        next_tick(session)
        session.execute("DETACH DOMAIN CLOCK;", timeout=PATIENCE)
        check(session.domain_clock() is None, "a detached clock can still be read")
        say("DETACHED completed")
    thread = threading.Thread(target=attached.release)
    thread.start()
    thread.join()
    say("CHECKS ok")
    say("PASS")


# ---- the io run


INPUT = Fields.parse(
    """id U32, tenant STRING, u8v U8, i8v I8, u16v U16, i16v I16, u32v U32, i32v I32, u64v U64, i64v I64, f32v F32, f64v F64,
    flag BOOL, text STRING OPTIONAL, raw BYTES OPTIONAL, at DATETIME, maybe I64 OPTIONAL, tags VEC<STRING>, grid ARRAY<I16, 2, 2>,
    spans VEC<ARRAY<DATETIME, 2>> OPTIONAL, secret STRING SENSITIVE"""
)
OUTPUT = Fields([*INPUT, *Fields.parse("echo U32")])
CREDIT_BYTES = 1024 * 1024


def unsigned(bits: int) -> int:
    return int(2**bits - 1)


def signed(bits: int) -> int:
    return int(2 ** (bits - 1) - 1)


def row(number: int) -> dict[str, Any]:
    """A plain row."""
    return {
        "id": number,
        "tenant": "acme",
        **dict.fromkeys(("u8v", "u16v", "u32v"), 1),
        **dict.fromkeys(("i8v", "i16v", "i32v"), -1),
        "u64v": 2**53 + 1,
        "i64v": -(2**53 + 1),
        "f32v": 1.5,
        "f64v": 0.1,
        "flag": True,
        "text": None,
        "raw": None,
        "at": 1,
        "maybe": 2**53,
        "tags": ["x"],
        "grid": [[-1, 1], [2, -2]],
        "spans": [],
        "secret": f"s{number}",
    }


def first_rows() -> list[dict[str, Any]]:
    """The values that break careless readers."""
    largest = {f"u{bits}v": unsigned(bits) for bits in (8, 16, 32, 64)} | {f"i{bits}v": signed(bits) for bits in (8, 16, 32, 64)}
    smallest = {f"u{bits}v": 0 for bits in (8, 16, 32, 64)} | {f"i{bits}v": -signed(bits) - 1 for bits in (8, 16, 32, 64)}
    return [
        row(1)
        | largest
        | {
            "f32v": struct.unpack(">f", bytes.fromhex("7f7fffff"))[0],
            "f64v": sys.float_info.max,
            "text": "h\u00e9llo \u4e16\u754c \U0001f680",
            "raw": bytes.fromhex("00fffe8000"),
            "at": signed(64),
            "maybe": None,
            "tags": ["a", "", "h\u00e9llo"],
            "grid": [[1, -2], [signed(16), -signed(16) - 1]],
            "spans": [[-signed(64) - 1, signed(64)]],
        },
        row(2)
        | smallest
        | {
            "f32v": -0.0,
            "f64v": 5e-324,
            "flag": False,
            "text": "a\0b",
            "raw": b"",
            "at": -signed(64) - 1,
            "maybe": 0,
            "tags": [],
            "grid": [[0, 0], [0, 0]],
            "spans": None,
        },
        row(3),
    ]


def innermost(column: Column) -> list[str]:
    """The cells of a column's innermost level."""
    kind = Type(column.field.levels[-1].type)
    if kind in HEX_DIGITS:
        raw = column.values.cast("B")
        return bits_of(kind, raw.cast("I") if kind == Type.F32 else raw.cast("Q"))
    if kind in (Type.STRING, Type.BYTES):
        ends, data = column.offsets.tolist(), bytes(column.data)
        cells = [data[start:end] for start, end in zip(ends, ends[1:])]
        return [text_of(kind, cell.decode("utf-8") if kind == Type.STRING else cell) for cell in cells]
    return [text_of(kind, value) for value in column.values]


def batch_cells(column: Column) -> list[str]:
    """The cells of a column of a batch, one level at a time."""
    texts = innermost(column)
    for level in reversed(range(len(column.field.levels) - 1)):
        outer = column.field.levels[level]
        if outer.type == Type.LIST:
            assert isinstance(column, NestedColumn)
            ends = column.level_offsets(level).tolist()
        else:
            ends = list(range(0, len(texts) + 1, outer.length))
        texts = [f"[{','.join(texts[start:end])}]" for start, end in zip(ends, ends[1:])]
    return [words(state, text) for state, text in zip(column.states, texts)]


def report_rows(delivery: Delivery) -> None:
    batch = delivery.batch()
    columns = [batch_cells(batch.column(index)) for index in range(len(batch.schema.fields))]
    for cells_of_row in zip(*columns):
        say("ROW " + " ".join(f"{name}={cell}" for name, cell in zip(batch.schema.names, cells_of_row)))


def report_fields(word: str, endpoint: Endpoint) -> None:
    for field in endpoint.schema.fields:
        nullable = "nullable" if field.nullable else "required"
        say(f"{word} FIELD {field.name} {field.spelling} {nullable} {'sensitive' if field.sensitive else 'public'}")


def policy_of(endpoint: Endpoint) -> str:
    policy, grant = endpoint.policy, endpoint.grant
    window = f"{name_of(policy.window)}/{policy.outstanding}"
    return f"window={window} ack_timeout={policy.ack_timeout} credit={grant.batches}/{grant.bytes}"


def name_of(value: Any) -> str:
    """An enumeration's member, as it prints."""
    return str(value.name).lower()


def report_outcome(outcome: SubmissionOutcome) -> None:
    causes = (outcome.result, outcome.refusal, outcome.defect, outcome.failure, outcome.uncertainty)
    say("OUTCOME " + " ".join(name_of(cause) for cause in causes if cause is not None))


def report_refusals(session: Session, ingestor: str, emitter: str) -> None:
    """The same fields, but one that is sensitive is not expected to be."""

    def public(fields: Fields) -> Fields:
        return Fields.parse(", ".join(str(field) for field in fields).replace(" SENSITIVE", ""))

    for what, call in (
        ("producer", lambda: open_producer(session, ingestor, public(INPUT))),
        ("consumer", lambda: open_consumer(session, emitter, public(OUTPUT))),
    ):
        refusal = check_ends(nervix_ffi.OpenRefused, call, f"the open of a {what} with other fields").refusal
        say(f"REFUSED {what} {name_of(refusal).replace('_', ' ')}")


def open_producer(session: Session, ingestor: str, fields: Fields) -> Producer:
    return session.open_producer(ingestor, fields, credit_batches=2, credit_bytes=CREDIT_BYTES, timeout=PATIENCE)


def open_consumer(session: Session, emitter: str, fields: Fields) -> Consumer:
    return session.open_consumer(emitter, fields, credit_batches=4, credit_bytes=CREDIT_BYTES, timeout=PATIENCE)


class Io:
    """A producer and a consumer of one session."""

    def __init__(self, producer: Producer, consumer: Consumer) -> None:
        self.producer = producer
        self.consumer = consumer

    def submit(self, word: str, rows: list[dict[str, Any]]) -> Submission:
        submission = self.producer.submit(rows, timeout=PATIENCE)
        say(f"SUBMITTED {word}")
        return submission

    def next(self) -> Delivery:
        return self.consumer.next(timeout=PATIENCE)

    def ack_next(self) -> None:
        self.ack(self.next())

    def ack(self, delivery: Delivery) -> None:
        say(f"ACK {name_of(delivery.ack(timeout=PATIENCE, check=False))}")

    def outcome(self, submission: Submission) -> None:
        report_outcome(submission.result(timeout=PATIENCE, check=False))


def report_waits(io: Io) -> None:
    check_ends(nervix_ffi.DeadlineError, lambda: io.consumer.next(timeout=0.05), "an expired read")
    say("NEXT deadline")
    triggered = nervix_ffi.Cancel()
    timer = threading.Timer(0.05, triggered.trigger)
    timer.start()
    check_ends(nervix_ffi.CancelledError, lambda: io.consumer.next(cancel=triggered), "a cancelled read")
    timer.join()
    say("NEXT cancelled")


def report_wrong_schema(io: Io) -> None:
    with Batch.from_rows(io.consumer.schema, [row(9) | {"echo": 9}]) as batch:
        submit = lambda: io.producer.submit(batch, timeout=PATIENCE)  # noqa: E731
        check_ends(nervix_ffi.InvalidArgumentError, submit, "a batch of another schema")
        say("SUBMIT invalid argument")
        io.outcome(io.producer.submit_ipc(batch.ipc, timeout=PATIENCE))


def report_first(io: Io) -> None:
    """Three rows, delivered, retried and acknowledged."""
    submission = io.submit("first", first_rows())
    delivery = io.next()
    branch = "none" if delivery.branch_fingerprint is None else len(delivery.branch_fingerprint)
    say(
        f"DELIVERY relay={delivery.source_relay} members={delivery.members} branch={branch} "
        f"identity={len(delivery.identity)} reference={len(delivery.reference)}"
    )
    check(io.producer.pending() == [submission], "the submission is not pending")
    say(f"PENDING first {'resolved' if submission.done() else 'unresolved'}")
    report_rows(delivery)
    say(f"RETRY {name_of(delivery.retry(timeout=PATIENCE, check=False))}")
    again = io.next()
    check(again.identity == delivery.identity, "a retried batch has another identity")
    check(again.reference != delivery.reference, "a retried batch has the same reference")
    check(bytes(again.ipc) == bytes(delivery.ipc), "a retried batch has other bytes")
    say("REDELIVERED same identity new reference")
    io.ack(delivery)
    io.ack(again)
    io.outcome(submission)


def report_credit(io: Io) -> None:
    """Two batches use up the credit, which their outcomes give back."""
    third, fourth = io.submit("third", [row(5)]), io.submit("fourth", [row(6)])
    check_ends(nervix_ffi.DeadlineError, lambda: io.producer.submit([row(7)], timeout=0.1), "a submission without credit")
    say("SUBMIT deadline")
    io.ack_next()
    io.ack_next()
    io.outcome(third)
    io.outcome(fourth)
    fifth = io.submit("fifth", [row(7)])
    io.ack_next()
    io.outcome(fifth)


def report_cut(io: Io, session: Session, ingestor: str) -> Producer:
    """A batch that is held when the session is cut comes again on the restored one."""
    extra = open_producer(session, ingestor, INPUT)
    say("PRODUCER extra opened")
    submission = extra.submit([row(8)], timeout=PATIENCE)
    held = io.next()
    say("SUBMITTED held")
    say("HOLDING")
    check_ends(nervix_ffi.InterruptedReadError, lambda: io.consumer.next(timeout=PATIENCE), "a read across the cut")
    say("NEXT interrupted")
    check_ends(nervix_ffi.RejectedError, lambda: held.ack(timeout=PATIENCE), "an ack across the cut")
    say("ACK expired")
    io.outcome(submission)
    extra.close(timeout=PATIENCE)
    say("CLOSED extra producer")
    say("WAITING restore")
    again = io.next()
    check(again.identity == held.identity, "the held batch has another identity")
    say("REDELIVERED held same identity")
    io.ack(again)
    return extra


def io_run() -> None:
    ingestor, emitter = setting("INGESTOR"), setting("EMITTER")
    with connect() as session:
        report_refusals(session, ingestor, emitter)
        consumer = open_consumer(session, emitter, OUTPUT)
        grant = consumer.grant
        say(
            f"CONSUMER generation={consumer.generation} state={name_of(consumer.state)} {policy_of(consumer)} "
            f"max={grant.max_batch_rows}/{grant.max_batch_bytes}"
        )
        report_fields("OUTPUT", consumer)
        producer = open_producer(session, ingestor, INPUT)
        say(
            f"PRODUCER generation={producer.generation} state={name_of(producer.state)} admission={name_of(producer.admission)} "
            f"{policy_of(producer)}"
        )
        report_fields("INPUT", producer)
        say("OPENED")
        io = Io(producer, consumer)
        report_waits(io)
        report_wrong_schema(io)
        report_first(io)
        second = io.submit("second", [row(4)])
        say(f"REJECT {name_of(io.next().reject('not wanted', timeout=PATIENCE, check=False))}")
        io.outcome(second)
        report_credit(io)
        extra = report_cut(io, session, ingestor)
        sixth = io.submit("sixth", [row(9)])
        io.ack_next()
        io.outcome(sixth)
        say(f"STATE producer={name_of(producer.state)} extra={name_of(extra.state)} consumer={name_of(consumer.state)}")
        producer.close(timeout=PATIENCE)
        consumer.close(timeout=PATIENCE)
        say("CLOSED completed")
    gc.collect()
    say("CHECKS ok")
    say("PASS")


RUNS: dict[tuple[str, ...], Callable[[], None]] = {(): rows_run, ("clock",): clock_run, ("io",): io_run}


def main() -> int:
    """Run the probe."""
    run = RUNS.get(tuple(sys.argv[1:]))
    if run is None:
        print(f"probe failed: there is no run called {' '.join(sys.argv[1:])}", file=sys.stderr)
        return 1
    try:
        run()
    except (ProbeFailed, nervix_ffi.Error) as error:
        reason = " ".join(str(error).split())
        print(f"probe failed: {reason}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
