"""Whatever a server writes, what a person reads of it is short, and obeyed by no terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

import nervix_ffi
from nervix_ffi import Disposition, Outcome, ReferenceExpired, UncertainError
from nervix_ffi.execution import not_completed
from nervix_ffi.testing import LoopbackNode

from .. import endpoints
from ..endpoints import FIELDS
from ..support import PATIENCE, connect

#: What a terminal would obey (a colour, a bell, a line that takes the place of another, text that runs backwards), without end.
EVIL = "that is why\x1b[31m\x07\r\nTraceback\u202e" + "x" * 300_000

CREATE = "CREATE SCHEMA made (id U32);"


@pytest.fixture
def node() -> Iterator[LoopbackNode]:
    with LoopbackNode(load=endpoints.BOTH) as one:
        yield one


def execute(session: nervix_ffi.Session) -> object:
    return session.execute(CREATE, timeout=PATIENCE)


def subscribe(session: nervix_ffi.Session) -> object:
    return session.subscribe("readings", timeout=PATIENCE)


def open_producer(session: nervix_ffi.Session) -> object:
    return session.open_producer("quick", FIELDS, timeout=PATIENCE)


def send(session: nervix_ffi.Session) -> object:
    return endpoints.producer(session).send(endpoints.rows(1), timeout=PATIENCE)


def suggest(session: nervix_ffi.Session) -> object:
    return session.suggest("CREATE ", timeout=PATIENCE)


#: A call, what the node is told before it, and the error's class.
SAID: dict[str, tuple[Callable[[nervix_ffi.Session], object], dict[str, Any], type[nervix_ffi.Error]]] = {
    "expired": (execute, {"do": "disposition", "disposition": "ExecutionReferenceExpired"}, ReferenceExpired),
    "taken-over": (
        execute,
        {"do": "disposition", "disposition": "TransactionTakenOver", "transaction_id": "t"},
        nervix_ffi.Error,
    ),
    "failed": (subscribe, {"do": "refuse_subscribe"}, nervix_ffi.CommandFailed),
    "rejected": (
        execute,
        {"do": "reject", "kind": "CommandRequest", "reason": "InvalidRequest", "field": EVIL},
        nervix_ffi.RejectedError,
    ),
    "too-large": (execute, {"do": "reject", "kind": "CommandRequest", "reason": "ReplyTooLarge", "field": EVIL}, UncertainError),
    "completions": (
        suggest,
        {"do": "reject", "kind": "SuggestRequest", "reason": "UnsupportedValue", "field": EVIL},
        nervix_ffi.RejectedError,
    ),
    "open": (open_producer, {"do": "answer", "kind": "OpenIngestorRequest", "with": "IngestorNotFound"}, nervix_ffi.OpenRefused),
    "batch": (send, {"do": "answer", "kind": "SubmitBatchRequest", "with": "Rejected"}, nervix_ffi.ProcessingFailed),
}


@pytest.mark.rule("B-1", "C-7")
@pytest.mark.parametrize("name", SAID)
def test_what_a_server_says_is_told_short_and_harmless(node: LoopbackNode, name: str) -> None:
    call, told, kind = SAID[name]
    with connect(node) as session:
        arguments = dict(told)
        node.control(arguments.pop("do"), count=1, message=EVIL, **arguments)
        with pytest.raises(kind) as caught:
            call(session)
    text = str(caught.value)
    assert len(text) < 6000
    assert all(line.isprintable() for line in text.split("\n"))
    assert "that is why" in text


@pytest.mark.rule("B-1", "E-4")
@pytest.mark.parametrize("disposition", [Disposition.OUTCOME_UNKNOWN, Disposition.EXECUTION_REFERENCE_EXPIRED])
def test_an_outcome_that_nobody_knows_keeps_to_one_line(session: nervix_ffi.Session, disposition: Disposition) -> None:
    with session.prepare(CREATE) as execution:
        failure = not_completed(execution, Outcome(disposition, EVIL, execution.reference))
    assert isinstance(failure, UncertainError)
    assert failure.outcome is not None
    assert failure.outcome.message == EVIL, "a program still reads all of it"
    assert str(failure).isprintable()
    assert "(that is why" in str(failure)
    assert len(str(failure)) < 5000
