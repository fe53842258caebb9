"""Frames of the library's encoder and of the node read the same through code that flatc generated for another language."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest

import nervix_ffi
from nervix_ffi import Rows
from nervix_ffi.testing import LoopbackNode

from .. import endpoints
from ..probes import golden
from ..support import DOMAIN, PATIENCE, Running, connect, next_event, wait
from . import reader
from .tap import DATA, END_STREAM, HEADERS, PREFACE, Tap, http2_frames


def talk(tap: Tap) -> dict[str, nervix_ffi.Outcome]:
    """A session that uses commands and what is like them, through the relay: its outcomes by what they are."""
    with nervix_ffi.connect(tap.uri, domain=DOMAIN, timeout=PATIENCE) as session:
        outcomes = {
            "made": session.execute("CREATE SCHEMA made (id U32);", timeout=PATIENCE),
            "failed": session.execute("CREATE RELAY;", timeout=PATIENCE, check=False),
            "listed": session.execute("LIST DOMAINS;", timeout=PATIENCE),
            "opened": session.execute("CREATE SUBSCRIPTION s TO sites WHERE id > 1;", timeout=PATIENCE),
            "closed": session.execute("DELETE SUBSCRIPTION s;", timeout=PATIENCE),
        }
        session.execute("USE other;", timeout=PATIENCE)
        session.execute("SHOW CLUSTER STATUS;", timeout=PATIENCE)
        session.suggest("SHOW é CREATE ", 6, page_size=7, timeout=PATIENCE)
    return outcomes


@pytest.mark.rule("F-1", "F-2", "C-1", "L-1", "E-1", "S-1", "F-5")
def test_requests_say_what_the_caller_said(tap: Tap) -> None:
    outcomes = talk(tap)
    requests = [reader.client(frame) for frame in tap.client_messages()]
    identities = [identity for identity, _, _ in requests]
    assert len(set(identities)) == len(identities)
    assert 0 not in identities

    commands: list[Any] = [body for _, name, body in requests if name == "CommandRequest"]
    assert [command.Query() for command in commands] == [
        b"CREATE SCHEMA made (id U32);",
        b"CREATE RELAY;",
        b"SHOW CLUSTER STATUS;",
    ]
    assert [command.Domain() for command in commands] == [b"lab", b"lab", b"other"]
    assert commands[0].ExecutionReference().decode() == outcomes["made"].reference
    assert commands[1].ExecutionReference().decode() == outcomes["failed"].reference
    for command in commands:
        # Outside a transaction both are absent, and absent is not zero.
        assert command.ExpectedTransactionPosition() is None
        assert command.ExpectedPreview() is None

    (subscribe,) = (body for _, name, body in requests if name == "SubscribeRequest")
    assert subscribe.Domain() == b"lab"
    texts = [value for value in strings(subscribe) if value.upper().startswith(b"CREATE")]
    assert texts == [b"CREATE SUBSCRIPTION s TO sites WHERE id > 1;"] or texts == [b"CREATE SUBSCRIPTION s TO sites WHERE id > 1"]
    assert subscribe.SubscriptionType() == reader.class_of("SubscriptionType").Row

    (suggest,) = (body for _, name, body in requests if name == "SuggestRequest")
    assert (suggest.Input(), suggest.Cursor(), suggest.PageSize()) == ("SHOW é CREATE ".encode(), 7, 7)
    assert [name for _, name, _ in requests if name == "ListDomainsRequest"] == ["ListDomainsRequest"]


def strings(table: Any) -> list[bytes]:
    """Every string a generated table hands out."""
    found = []
    for name in dir(type(table)):
        if name[0].isupper() and name not in ("Init", "GetRootAs") and not name.startswith("GetRoot"):
            try:
                value = getattr(table, name)()
            except TypeError:
                continue
            if isinstance(value, bytes):
                found.append(value)
    return found


@pytest.mark.rule("F-1", "E-5", "S-2")
def test_replies_say_what_the_library_handed_out(tap: Tap) -> None:
    outcomes = talk(tap)
    replies = [found for frame in tap.server_messages() if (found := reader.reply(frame)) is not None]
    commands = [body for _, name, body in replies if name == "CommandOutcome"]
    for body, outcome in zip(commands, (outcomes["made"], outcomes["failed"])):
        assert body.Message().decode() == outcome.message
        assert body.ExecutionReference().decode() == outcome.reference
        kind, _ = reader.member(body, "Disposition", "CommandDisposition")
        assert kind == ("CommandCompleted" if outcome.completed else "RequestFailed")
        assert body.Origin() == reader.class_of("OutcomeOrigin").Executed
        read = []
        for index in range(body.DiagnosticsLength()):
            diagnostic = body.Diagnostics(index)
            span = diagnostic.Span()
            read.append((diagnostic.Message().decode(), None if span is None else (span.Start(), span.End())))
        assert read == [(diagnostic.message, diagnostic.span) for diagnostic in outcome.diagnostics]

    (opened,) = (body for _, name, body in replies if name == "SubscribeOutcome")
    kind, subscription = reader.member(opened, "Disposition", "SubscribeDisposition")
    assert kind == "SubscriptionOpened"
    handed = outcomes["opened"]
    assert handed.subscription is not None
    assert handed.schema is not None
    assert subscription.Subscription().Name().decode() == handed.subscription.name
    assert subscription.Subscription().Generation() == handed.subscription.generation
    schema = subscription.Schema()
    assert fields(schema, "Fields") == [(field.name, field.nullable, field.sensitive) for field in handed.schema.fields]
    assert schema.Branch().Branch().decode() == handed.schema.branch
    assert fields(schema.Branch(), "Fields") == [
        (field.name, field.nullable, field.sensitive) for field in handed.schema.key_fields
    ]


def fields(owner: Any, name: str) -> list[tuple[str, bool, bool]]:
    found = [getattr(owner, name)(index) for index in range(getattr(owner, f"{name}Length")())]
    return [(field.Name().decode(), field.Nullable(), field.Sensitive()) for field in found]


@pytest.mark.rule("F-1", "F-9", "R-3", "R-5", "B-3", "N-5")
@pytest.mark.parametrize("name", ["rows", "keys", "lists"])
def test_rows_are_the_scenarios_rows(name: str) -> None:
    """The frame that an event lends, read by the second reader, holds the cells that the scenario's file holds."""
    scenario = golden.read_scenario(name)
    with (
        LoopbackNode(load=golden.SCENARIOS / f"{name}.nspl") as node,
        nervix_ffi.connect(node.uri, domain="conformance", timeout=PATIENCE) as session,
        session.subscribe(scenario.relay) as subscription,
    ):
        for batch in golden.batches(name):
            node.control("publish", domain="conformance", relay=scenario.relay, rows=batch)
            event = next_event(subscription)
            assert isinstance(event, Rows)
            kind, body = reader.server(bytes(event.frame))
            assert kind == "SubscriptionRows"
            assert body.Subscription().Name().decode() == event.subscription
            assert body.Subscription().Generation() == event.generation
            found = body.Batch()
            rows = [reader.cells(found.Rows(index)) for index in range(found.RowsLength())]
            assert [" ".join(named(scenario.fields, row)) for row in rows] == [
                golden.cells(scenario.fields, row) for row in batch
            ]
            key = found.BranchKey()
            if scenario.branch is None:
                assert key is None
            else:
                assert " ".join(named(scenario.key, reader.cells(key))) == golden.cells(scenario.key, batch[0])


def named(fields: list[golden.Field], row: list[str]) -> list[str]:
    return [f"{field.name}={cell}" for field, cell in zip(fields, row, strict=True)]


@pytest.mark.rule("F-2", "T-1", "X-7")
def test_the_stream_is_http_2_with_raw_messages_and_is_never_half_closed(tap: Tap) -> None:
    talk(tap)
    (connection,) = tap.connections
    assert connection.client_closed.wait(PATIENCE)
    data = bytes(connection.from_client)
    assert data.startswith(PREFACE)
    frames = list(http2_frames(data))
    calls = {frame.stream for frame in frames if frame.kind == HEADERS}
    assert len(calls) == 1
    for frame in frames:
        if frame.kind in (DATA, HEADERS):
            assert not frame.flags & END_STREAM
    # Every message is one whole frame: its identifier is where a frame without a size prefix has it.
    for message in tap.client_messages():
        assert message[4:8] == b"NXCM"
        assert int.from_bytes(message[:4], "little") < len(message)
    for message in tap.server_messages():
        assert message[4:8] == b"NXSM"


@pytest.mark.rule("E-2", "C-1")
def test_a_repetition_sends_the_same_command_under_a_new_identity(node: LoopbackNode, tap: Tap) -> None:
    node.control("drop_reply", count=2)
    with (
        nervix_ffi.connect(tap.uri, domain=DOMAIN, timeout=PATIENCE, request_timeout=0.4) as session,
        session.prepare("CREATE SCHEMA made (id U32); // as written") as execution,
    ):
        session.execute("USE elsewhere;", timeout=PATIENCE)
        assert execution.run(timeout=PATIENCE).completed
    requests = [reader.client(frame) for frame in tap.client_messages()]
    commands = [body for _, name, body in requests if name == "CommandRequest"]
    assert len(commands) == 3
    said = {(one.Query(), one.Domain(), one.ExecutionReference(), one.ExpectedTransactionPosition()) for one in commands}
    assert said == {(b"CREATE SCHEMA made (id U32); // as written", b"lab", execution.reference.encode(), None)}
    assert len(tap.connections) == 3


# ---- everything there is


@pytest.fixture
def tapped() -> Iterator[tuple[LoopbackNode, Tap]]:
    """A node with the graph of endpoints, behind a relay."""
    with LoopbackNode(load=endpoints.GRAPH) as node, Tap(node.uri) as tap:
        yield node, tap


#: Requests that no call of a host needs, and whose replies nobody handles.
NEVER_SENT = {"ChoiceLookupRequest", "InspectTransactionRequest", "SelectDomainRequest"}


def use_everything(node: LoopbackNode, session: nervix_ffi.Session) -> None:
    """Have a session send every request that it has a use for."""
    session.attach_clock(timeout=PATIENCE).detach(timeout=PATIENCE)
    session.subscribe("watched", timeout=PATIENCE).delete(timeout=PATIENCE)
    session.execute("LIST DOMAINS;", timeout=PATIENCE)
    node.control("delay", kind="SuggestRequest", when="before")
    given_up = nervix_ffi.Cancel()
    suggesting = Running(lambda: session.suggest("SHOW ", cancel=given_up))
    wait(node, held=1)
    given_up.trigger()
    with pytest.raises(nervix_ffi.CancelledError):
        suggesting.result()
    node.control("release")
    with session.transaction(timeout=PATIENCE) as tx:
        tx.execute("CREATE SCHEMA made (id U32);", timeout=PATIENCE)
        node.control("transaction", action="detach")
        tx.execute("CREATE RELAY made_rows SCHEMA made UNBRANCHED;", timeout=PATIENCE)
        session.execute("DESCRIBE TRANSACTION;", timeout=PATIENCE)
    with endpoints.producer(session, "held") as feed, endpoints.consumer(session) as taking:
        submission = feed.submit(endpoints.rows(1), timeout=PATIENCE)
        taking.next(timeout=PATIENCE).ack(timeout=PATIENCE)
        assert submission.result(timeout=PATIENCE).completed
        feed.close(timeout=PATIENCE)
        taking.close(timeout=PATIENCE)


@pytest.mark.rule("CF-1", "Q-1", "F-1", "F-5", "C-1", "X-2")
def test_every_request_is_sent_but_those_whose_replies_nobody_handles(tapped: tuple[LoopbackNode, Tap]) -> None:
    node, tap = tapped
    with connect(node, tap.uri) as session:
        use_everything(node, session)
    requests = [reader.client(frame) for frame in tap.client_messages()]
    identities = [identity for identity, _, _ in requests]
    assert sorted(set(identities)) == sorted(identities)
    assert 0 not in identities
    union = {name for name, tag in vars(reader.class_of("ClientRequest")).items() if isinstance(tag, int)} - {"NONE"}
    assert {name for _, name, _ in requests} == union - NEVER_SENT
    positions = {body.Query(): body.ExpectedTransactionPosition() for _, name, body in requests if name == "CommandRequest"}
    # Position 0 is written, and no position is left out.
    assert positions[b"BEGIN;"] is None
    assert positions[b"CREATE SCHEMA made (id U32);"] == 0
    assert positions[b"CREATE RELAY made_rows SCHEMA made UNBRANCHED;"] == 1


@pytest.mark.rule("P-1", "EC-1", "B-12", "F-1")
def test_opens_say_the_fields_and_the_credit_that_the_caller_said(tapped: tuple[LoopbackNode, Tap]) -> None:
    node, tap = tapped
    described = "id U64, note STRING OPTIONAL, tags VEC<ARRAY<I16, 2>>, secret BYTES SENSITIVE"
    with connect(node, tap.uri) as session:
        opens: list[Callable[..., object]] = [session.open_producer, session.open_consumer]
        for call in opens:
            with pytest.raises(nervix_ffi.OpenRefused):
                call("nothing", described, credit_batches=7, credit_bytes=3 << 20, timeout=PATIENCE)
    bodies = {name: body for _, name, body in map(reader.client, tap.client_messages()) if name.startswith("Open")}
    assert set(bodies) == {"OpenIngestorRequest", "OpenEmitterRequest"}
    assert bodies["OpenIngestorRequest"].Ingestor() == bodies["OpenEmitterRequest"].Emitter() == b"nothing"
    for body in bodies.values():
        assert body.Domain() == b"lab"
        assert fields(body, "ExpectedFields") == [
            ("id", False, False),
            ("note", True, False),
            ("tags", False, False),
            ("secret", False, True),
        ]
        kind, outer = reader.member(body.ExpectedFields(2).FieldType(), "Shape", "FieldTypeShape")
        assert kind == "ListFieldType"
        kind, inner = reader.member(outer.Element(), "Shape", "FieldTypeShape")
        assert (kind, inner.Length()) == ("FixedListFieldType", 2)
        assert (body.MaxOutstandingBatches(), body.MaxOutstandingBytes()) == (7, 3 << 20)


#: The same rows in every form that a caller may have them in, some with what no batch may hold.
ROWS = [{"id": 2**64 - 1, "note": "sought after"}, {"id": 0, "note": None}, {"id": 1, "note": ""}]
FORMS: dict[str, Callable[[], Any]] = {
    "rows": lambda: ROWS,
    "table": lambda: pa.table({"id": pa.array([row["id"] for row in ROWS], pa.uint64()), "note": [row["note"] for row in ROWS]}),
    "metadata": lambda: FORMS["table"]().replace_schema_metadata({"a": "b"}),
    "chunks": lambda: pa.concat_tables([FORMS["table"]().slice(0, 1), FORMS["table"]().slice(1)]),
    "large text": lambda: FORMS["table"]().set_column(1, "note", pa.array([row["note"] for row in ROWS], pa.large_string())),
    "slice": lambda: pa.concat_tables([FORMS["table"]()] * 3).combine_chunks().slice(3, 3),
}


@pytest.mark.rule("P-3", "P-4", "B-13")
@pytest.mark.parametrize("form", FORMS)
def test_a_batch_is_one_canonical_stream_whatever_it_was_made_of(tapped: tuple[LoopbackNode, Tap], form: str) -> None:
    """As another implementation of Arrow reads it, message by message."""
    node, tap = tapped
    with connect(node, tap.uri) as session, endpoints.producer(session) as feed:
        assert feed.send(FORMS[form](), timeout=PATIENCE).completed
        grant = feed.grant
    (submitted,) = (body for _, name, body in map(reader.client, tap.client_messages()) if name == "SubmitBatchRequest")
    data = bytes(submitted.BatchAsNumpy())
    assert len(data) <= grant.max_batch_bytes
    assert data.endswith(b"\xff\xff\xff\xff\0\0\0\0")
    messages = list(pa.ipc.MessageReader.open_stream(data))
    assert [message.type for message in messages] == ["schema", "record batch"]
    # Neither compressed nor encoded: the text is there as it is, once.
    assert messages[1].body.to_pybytes().count(b"sought after") == 1
    schema = pa.ipc.read_schema(messages[0])
    assert schema.equals(
        pa.schema([pa.field("id", pa.uint64(), nullable=False), pa.field("note", pa.string())]), check_metadata=True
    )
    assert schema.metadata is None
    assert [field.metadata for field in schema] == [None, None]
    batch = pa.ipc.read_record_batch(messages[1], schema)
    batch.validate(full=True)
    assert batch.to_pylist() == ROWS
