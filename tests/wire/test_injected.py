"""Frames that a test wrote: what belongs to nobody is ignored, and rows that do not fit their schema are a violation."""

from __future__ import annotations

from typing import Any

import pytest

import nervix_ffi
from nervix_ffi import Interrupted, Rows
from nervix_ffi.testing import LoopbackNode

from ..support import DOMAIN, PATIENCE, Running, connect, counts, next_event, publish, read_ids, reopened, row_ids, wait
from . import reader
from .writer import cell, encoded, rows_frame, server_frame

Cells = list[tuple[str, dict[str, Any]]]


def inject(node: LoopbackNode, frame: bytes) -> None:
    """Have the node send a frame on every session."""
    node.control("inject", frame=encoded(frame))


def good(number: int) -> Cells:
    """A row of `readings`."""
    return [cell("U32Cell", value=number), cell("NullCell"), cell("StringCell", value="note")]


def handle(name: str, generation: int) -> tuple[str, dict[str, Any]]:
    return ("SubscriptionHandle", {"name": name, "generation": generation})


def opened(node: LoopbackNode, session: nervix_ffi.Session, name: str, *fields: str, key: tuple[str, ...] = ()) -> Any:
    """A subscription that the server says has this name, and these fields and key fields, each a U32."""
    u32 = ("FieldType", {"shape": ("ScalarFieldType", {"scalar": 4})})

    def of(names: tuple[str, ...]) -> list[Any]:
        return [("RowField", {"name": one, "field_type": u32, "nullable": False, "sensitive": False}) for one in names]

    schema: dict[str, Any] = {"fields": of(fields)}
    if key:
        schema["branch"] = ("RowBranch", {"branch": "b", "fields": of(key)})
    said = {"subscription": handle(name, 77), "domain": DOMAIN, "relay": "readings", "subscription_type": 0}
    outcome = {
        "disposition": ("SubscriptionOpened", {**said, "schema": ("RowSchema", schema)}),
        "message": "m",
        "diagnostics": [],
    }
    node.control("drop_reply", kind="SubscribeRequest")
    opening = Running(lambda: session.subscribe("readings", name="s", timeout=PATIENCE))
    wait(node, frames={"in": {"SubscribeRequest": 1}})
    inject(node, server_frame(("Reply", {"request_id": 1, "body": ("SubscribeOutcome", outcome)})))
    return opening.result()


def u32s(*numbers: int) -> Cells:
    return [cell("U32Cell", value=number) for number in numbers]


@pytest.mark.rule("R-1")
def test_rows_of_two_fields_of_one_name_lose_no_value(node: LoopbackNode) -> None:
    with connect(node) as session:
        subscription = opened(node, session, "s", "a", "b", "a", key=("k", "k"))
        inject(node, rows_frame("s", 77, [u32s(1, 2, 3), u32s(4, 5, 6)], u32s(7, 8)))
        event = next_event(subscription)
        assert isinstance(event, Rows)
        for read in (event.rows, lambda: event.key):
            with pytest.raises(
                nervix_ffi.TypeMismatchError, match=r"two columns are called [ak], .* read column\(\) by position"
            ):
                read()
        assert [event.column(index).to_list() for index in range(3)] == [[1, 4], [2, 5], [3, 6]]
        made = event.to_arrow()
        assert [column.to_pylist() for column in made.columns] == [[1, 4], [2, 5], [3, 6]]
        assert made.schema.metadata[b"nervix.branch_key"] == b'{"k": 7, "k": 8}'


@pytest.mark.rule("R-1")
def test_what_a_server_calls_things_is_shown_short_and_harmless(node: LoopbackNode) -> None:
    evil = "named\x1b[31m\x07\r\n\u202e" + "x" * 100_000
    with connect(node) as session:
        subscription = opened(node, session, evil, evil, "second")
        inject(node, rows_frame(evil, 77, [u32s(1, 2)]))
        event = next_event(subscription)
        assert isinstance(event, Rows)
        batch = object.__new__(nervix_ffi.Batch)
        batch.__dict__.update(_schema=event.schema, _count=1)
        shown = [repr(one) for one in (subscription, event, event.column(0), batch, nervix_ffi.Fields(event.schema.fields))]
        inject(node, server_frame(("SubscriptionEnded", {"subscription": handle(evil, 77), "reason": 0, "message": evil})))
        shown.append(repr(next_event(subscription)))
        reads: list[Any] = [lambda: event.column("third"), lambda: event.column(0).data, subscription.next]
        for read in reads:
            with pytest.raises(nervix_ffi.Error) as caught:
                read()
            shown += str(caught.value).split("\n")[:1]
            assert all(line.isprintable() for line in str(caught.value).split("\n"))
            assert len(str(caught.value)) < 6000
        for text in shown:
            assert "named" in text
            assert text.isprintable()
            assert len(text) < 6000
        assert subscription.name == evil, "a program still reads all of it"


@pytest.mark.rule("R-1")
def test_rows_without_fields_are_still_rows(node: LoopbackNode) -> None:
    with connect(node) as session:
        subscription = opened(node, session, "s")
        inject(node, rows_frame("s", 77, [[], []]))
        event = next_event(subscription)
        assert isinstance(event, Rows)
        assert event.rows() == [{}, {}] == event.to_arrow().to_pylist()


@pytest.mark.rule("S-3")
def test_frames_of_handles_that_are_not_held_are_ignored(node: LoopbackNode) -> None:
    with connect(node) as session, session.subscribe("readings", name="s") as subscription:
        held = subscription.generation
        others = [("s", held + 1000), ("t", held), ("", held)]
        for name, generation in others:
            inject(node, rows_frame(name, generation, [good(99)]))
            inject(
                node, server_frame(("SubscriptionDeliveryLost", {"subscription": handle(name, generation), "dropped_rows": 5}))
            )
            inject(
                node,
                server_frame(
                    (
                        "SubscriptionRowsSkipped",
                        {"subscription": handle(name, generation), "cause": 0, "skipped_rows": 5, "message": "x"},
                    )
                ),
            )
            inject(
                node, server_frame(("SubscriptionEnded", {"subscription": handle(name, generation), "reason": 0, "message": "x"}))
            )
        publish(node, 1)
        assert read_ids(subscription, 1) == [1]
        inject(node, rows_frame("s", held, [good(2)]))
        assert read_ids(subscription, 1) == [2]
    assert counts(node)["sessions"]["opened"] == 1


@pytest.mark.rule("S-3", "S-4")
def test_the_end_of_an_earlier_generation_does_not_end_a_later_one(node: LoopbackNode) -> None:
    with connect(node) as session:
        first = session.subscribe("readings", name="s")
        first.delete(timeout=PATIENCE)
        with session.subscribe("readings", name="s") as second:
            assert second.generation != first.generation
            end = {"subscription": handle("s", first.generation), "reason": 1, "message": "late"}
            inject(node, server_frame(("SubscriptionEnded", end)))
            inject(node, rows_frame("s", first.generation, [good(9)]))
            publish(node, 1)
            assert read_ids(second, 1) == [1]


@pytest.mark.rule("S-4")
def test_rows_after_the_end_of_their_generation_are_ignored(node: LoopbackNode) -> None:
    with connect(node) as session:
        subscription = session.subscribe("readings", name="s")
        other = session.subscribe("sites", name="other")
        end = {"subscription": handle("s", subscription.generation), "reason": 1, "message": "changed"}
        inject(node, server_frame(("SubscriptionEnded", end)))
        inject(node, rows_frame("s", subscription.generation, [good(1)]))
        inject(node, rows_frame("s", subscription.generation, [[cell("StringCell", value="of no schema")]]))
        assert isinstance(next_event(subscription), nervix_ffi.Ended)
        node.control("publish", domain=DOMAIN, relay="sites", rows=[{"id": 7, "site": "a", "secret": "b"}])
        assert read_ids(other, 1) == [7]
        with pytest.raises(nervix_ffi.DeadlineError):
            session.next_event(timeout=0.05)
    assert counts(node)["sessions"]["opened"] == 1


@pytest.mark.rule("S-5", "B-7", "N-1")
def test_gaps_are_events_with_their_counts(node: LoopbackNode) -> None:
    with connect(node) as session, session.subscribe("readings", name="s") as subscription:
        mine = handle("s", subscription.generation)
        inject(node, rows_frame("s", subscription.generation, [good(1)]))
        inject(node, server_frame(("SubscriptionDeliveryLost", {"subscription": mine, "dropped_rows": (1 << 64) - 1})))
        for cause in range(3):
            skipped = {"subscription": mine, "cause": cause, "skipped_rows": cause + 1, "message": f"because {cause}"}
            inject(node, server_frame(("SubscriptionRowsSkipped", skipped)))
        inject(node, rows_frame("s", subscription.generation, [good(2)]))
        events = [next_event(subscription) for _ in range(6)]
    assert row_ids(events[0]) == [1]
    assert isinstance(events[1], nervix_ffi.DeliveryLost)
    assert (events[1].count, events[1].local) == ((1 << 64) - 1, False)
    for cause, event in zip(nervix_ffi.SkipCause, events[2:5]):
        assert isinstance(event, nervix_ffi.RowsSkipped)
        assert (event.cause, event.count, event.message) == (cause, int(cause), f"because {int(cause) - 1}")
    assert row_ids(events[5]) == [2]


@pytest.mark.rule("C-3")
def test_a_reply_to_a_request_that_was_given_up_is_dropped(node: LoopbackNode) -> None:
    with connect(node) as session:
        node.control("drop_reply", kind="SuggestRequest")
        with pytest.raises(nervix_ffi.DeadlineError):
            session.suggest("SHOW ", timeout=0.2)
        outcome = (
            "CommandOutcome",
            {
                "execution_reference": "r",
                "origin": 0,
                "disposition": ("CommandCompleted", {}),
                "message": "not for you",
                "diagnostics": [],
                "statements": [],
            },
        )
        # The first request of the session was the suggestion; its answer comes now, and another with it.
        inject(node, server_frame(("Reply", {"request_id": 1, "body": outcome})))
        done = session.execute("SHOW CREATE RELAY readings;", timeout=PATIENCE)
        assert "not for you" not in done.message
        assert done.completed


@pytest.mark.rule("Q-1", "Q-2", "CF-1", "C-3", "F-8")
@pytest.mark.parametrize("status", ["Ready", "MissingContext", "StaleContext", "LookupFailed"])
def test_a_choice_that_nobody_looked_up_is_dropped_and_answers_no_other_request(node: LoopbackNode, status: str) -> None:
    found = ("ChoiceOutcome", {"status": getattr(reader.class_of("ChoiceStatus"), status), "choices": []})
    with connect(node) as session:
        node.control("delay", kind="SuggestRequest", when="before")
        suggesting = Running(lambda: session.suggest("SHOW ", timeout=PATIENCE))
        wait(node, held=1)
        inject(node, server_frame(("Reply", {"request_id": 77, "body": found})))
        assert session.execute("SHOW CLUSTER STATUS;", timeout=PATIENCE).completed
        assert counts(node)["sessions"]["opened"] == 1
        # The completion is the session's first request: what is no completion does not answer it.
        inject(node, server_frame(("Reply", {"request_id": 1, "body": found})))
        with pytest.raises(nervix_ffi.ProtocolError):
            suggesting.result()
        assert session.suggest("SHOW ", timeout=PATIENCE) is not None
    assert counts(node)["sessions"]["opened"] == 2


@pytest.mark.rule("C-7", "C-3")
def test_notices_disturb_nothing(node: LoopbackNode) -> None:
    with connect(node) as session, session.subscribe("readings") as subscription:
        for number in range(300):
            node.control("notice", message="n" * number, level=["Info", "Warning", "Error"][number % 3])
        publish(node, 1)
        assert read_ids(subscription, 1) == [1]
        assert session.execute("SHOW CLUSTER STATUS;", timeout=PATIENCE).completed


U32 = cell("U32Cell", value=1)
NULL = cell("NullCell")
NOTE = cell("StringCell", value="note")

#: Rows that do not fit (id U32, value I64 OPTIONAL, note STRING), and a branch key where there is no branch.
MISFITS: dict[str, tuple[list[Cells], Cells | None]] = {
    "too few cells": ([[U32, NULL]], None),
    "too many cells": ([[U32, NULL, NOTE, NULL]], None),
    "no cells": ([[]], None),
    "too few cells in the second row": ([[U32, NULL, NOTE], [U32]], None),
    "null where a value is required": ([[NULL, NULL, NOTE]], None),
    "a withheld value of a public field": ([[cell("RedactedCell"), NULL, NOTE]], None),
    "a withheld value of a nullable field": ([[U32, cell("RedactedCell"), NOTE]], None),
    "another width": ([[cell("U64Cell", value=1), NULL, NOTE]], None),
    "another sign": ([[cell("I32Cell", value=1), NULL, NOTE]], None),
    "an instant for an integer": ([[U32, cell("DatetimeCell", unix_nanos=1), NOTE]], None),
    "bytes for text": ([[U32, NULL, cell("BytesCell", value=b"x")]], None),
    "a list for a scalar": ([[U32, NULL, cell("ListCell", elements=[NOTE])]], None),
    "a key without a branch": ([[U32, NULL, NOTE]], [NOTE]),
    "cells in another order": ([[NOTE, NULL, U32]], None),
    "no rows": ([], None),
}


@pytest.mark.rule("R-2", "F-8", "F-4")
@pytest.mark.parametrize("what", MISFITS)
def test_rows_that_do_not_fit_their_schema_end_the_session_before_a_value_shows(node: LoopbackNode, what: str) -> None:
    rows, key = MISFITS[what]
    with connect(node) as session, session.subscribe("readings", name="s") as subscription:
        waiting = Running(lambda: next_event(subscription))
        inject(node, rows_frame("s", subscription.generation, rows, key))
        assert isinstance(waiting.result(), Interrupted)
        reopened(node)
        publish(node, 5)
        assert read_ids(subscription, 1) == [5]


SITE = cell("StringCell", value="a")
SECRET = cell("RedactedCell")

#: Rows that do not fit (id U32, site STRING, secret STRING SENSITIVE) branched by (site STRING).
BRANCHED_MISFITS: dict[str, tuple[list[Cells], Cells | None]] = {
    "no key": ([[U32, SITE, SECRET]], None),
    "an empty key": ([[U32, SITE, SECRET]], []),
    "a key of two": ([[U32, SITE, SECRET]], [SITE, SITE]),
    "a key of another type": ([[U32, SITE, SECRET]], [U32]),
    "a key of nothing": ([[U32, SITE, SECRET]], [NULL]),
    "a sensitive value": ([[U32, SITE, cell("StringCell", value="s3cret")]], [SITE]),
    "no value in a sensitive field": ([[U32, SITE, NULL]], [SITE]),
    "a sensitive value in the last row": ([[U32, SITE, SECRET], [U32, SITE, cell("StringCell", value="s3cret")]], [SITE]),
}


@pytest.mark.rule("R-2", "R-4", "F-8")
@pytest.mark.parametrize("what", BRANCHED_MISFITS)
def test_branched_rows_that_do_not_fit_their_schema_end_the_session(node: LoopbackNode, what: str) -> None:
    rows, key = BRANCHED_MISFITS[what]
    with connect(node) as session, session.subscribe("sites", name="s") as subscription:
        waiting = Running(lambda: next_event(subscription))
        inject(node, rows_frame("s", subscription.generation, rows, key))
        gap = waiting.result()
        assert isinstance(gap, Interrupted)
        assert "s3cret" not in (gap.message or "")


@pytest.mark.rule("R-2", "R-3")
def test_rows_that_fit_are_read_whoever_wrote_them(node: LoopbackNode) -> None:
    with connect(node) as session, session.subscribe("sites", name="s") as subscription:
        inject(node, rows_frame("s", subscription.generation, [[U32, SITE, SECRET]], [SITE]))
        event = next_event(subscription)
        assert isinstance(event, Rows)
        assert event.rows() == [{"id": 1, "site": "a", "secret": nervix_ffi.REDACTED}]
        assert event.key == {"site": "a"}
