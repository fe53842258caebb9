"""Frames of the library's encoder and of the node read the same through code that flatc generated for another language."""

from __future__ import annotations

from typing import Any

import pytest

import nervix_ffi
from nervix_ffi import Rows
from nervix_ffi.testing import LoopbackNode

from ..probes import golden
from ..support import DOMAIN, PATIENCE, next_event
from . import reader
from .tap import DATA, END_STREAM, HEADERS, PREFACE, Tap, http2_frames


def talk(tap: Tap) -> dict[str, nervix_ffi.Outcome]:
    """A session that uses every request there is, through the relay: its outcomes by what they are."""
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
