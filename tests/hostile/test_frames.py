"""Frames that break the protocol end the session, are never taken for an answer, and the next call opens a new session."""

from __future__ import annotations

import base64

import pytest

import nervix_ffi
from nervix_ffi import Interrupted, Origin
from nervix_ffi.testing import LoopbackNode

from ..support import PATIENCE, Running, connect, counts, executed, next_event, publish, read_ids, reopened, wait

CREATE = "CREATE SCHEMA made (id U32);"

#: Each way to spoil a frame, with the rule that forbids it.
CORRUPTIONS = {
    "identifier": "F-3",
    "root_offset": "F-3",
    "inner_offset": "F-3",
    "vtable": "F-3",
    "oversize": "F-3",
    "truncated": "F-3",
    "short": "F-3",
    "empty": "F-3",
    "nesting": "F-3",
    "tables": "F-3",
    "apparent_size": "F-3",
    "utf8": "F-3",
    "union_tag": "F-4",
    "union_none": "F-4",
    "reply_tag": "F-4",
    "disposition_tag": "F-4",
    "enum": "F-4",
    "required": "F-4",
    "required_scalar": "F-4",
    "zero": "F-4",
    "empty_vector": "F-4",
    "compressed": "T-1",
}

PARTS = [
    "other_request",
    "other_total",
    "total_above_limit",
    "first_offset",
    "offset_gap",
    "offset_overlap",
    "empty_chunk",
    "overrun",
    "nested_part",
    "not_a_reply",
    "other_reply",
    "malformed",
]


def test_every_defect_that_the_node_can_make_is_tried(node: LoopbackNode) -> None:
    from nervix_ffi.testing import LoopbackError

    with pytest.raises(LoopbackError) as caught:
        node.control("corrupt", what="nothing")
    listed = str(caught.value).split("one of ")[1].split(", not `")[0].split(", ")
    assert {*listed, "compressed"} == set(CORRUPTIONS)
    with pytest.raises(LoopbackError) as caught:
        node.control("parts", bad="nothing")
    listed = str(caught.value).split("one of ")[1].split(", not `")[0].split(", ")
    assert set(listed) == {*PARTS, "unfinished"}


def check_violation(node: LoopbackNode, outcome: nervix_ffi.Outcome) -> None:
    """One session ended by the client, with a reset; the command carried out once and recovered on the next."""
    assert outcome.completed
    assert outcome.origin == Origin.RECOVERED
    assert executed(node, outcome.reference) == 1
    found = counts(node)["sessions"]
    assert found["opened"] == 2
    assert found["ended"]["end_stream"] == found["ended"]["server"] == 0
    assert found["ended"]["reset"] + found["ended"]["lost"] == 1


@pytest.mark.rule("F-3", "F-4", "F-8", "T-1", "E-3", "D-6", "SM-1")
@pytest.mark.parametrize("what", CORRUPTIONS)
def test_a_spoiled_answer_is_a_violation_and_the_command_is_recovered(
    node: LoopbackNode, session: nervix_ffi.Session, what: str
) -> None:
    node.control("corrupt", what=what, kind="CommandOutcome")
    check_violation(node, session.execute(CREATE, timeout=PATIENCE))


@pytest.mark.rule("F-7", "F-8", "E-3")
@pytest.mark.parametrize("bad", PARTS)
def test_parts_that_do_not_fit_are_a_violation_and_the_command_is_recovered(
    node: LoopbackNode, session: nervix_ffi.Session, bad: str
) -> None:
    node.control("parts", bad=bad, kind="CommandOutcome")
    check_violation(node, session.execute(CREATE, timeout=PATIENCE))


@pytest.mark.rule("F-7", "D-4")
def test_parts_that_never_end_are_given_up_like_any_late_reply(node: LoopbackNode) -> None:
    with connect(node, request_timeout=0.5) as session:
        node.control("parts", bad="unfinished", kind="CommandOutcome")
        check_violation(node, session.execute(CREATE, timeout=PATIENCE))


@pytest.mark.rule("F-8", "B-7", "S-7")
@pytest.mark.parametrize("what", CORRUPTIONS)
def test_a_spoiled_frame_that_nobody_asked_for_interrupts_who_waits_for_events(
    node: LoopbackNode, session: nervix_ffi.Session, what: str
) -> None:
    with session.subscribe("readings", name="kept") as kept:
        waiting = Running(lambda: next_event(kept))
        node.control("corrupt", what=what, kind="ServerNotice")
        node.control("notice", message="spoiled")
        gap = waiting.result()
        assert isinstance(gap, Interrupted)
        assert gap.generation == kept.generation
        reopened(node)
        publish(node, 1)
        assert read_ids(kept, 1) == [1]
        found = counts(node)["sessions"]["ended"]
        assert found["end_stream"] == 0


@pytest.mark.rule("F-3", "F-4", "F-8")
@pytest.mark.parametrize("what", ["identifier", "inner_offset", "union_tag", "truncated", "required"])
def test_rows_that_are_spoiled_yield_no_value(node: LoopbackNode, session: nervix_ffi.Session, what: str) -> None:
    with session.subscribe("readings") as kept:
        node.control("corrupt", what=what, kind="SubscriptionRows", nth=2)
        publish(node, 1)
        publish(node, 2)
        assert read_ids(kept, 1) == [1]
        assert isinstance(next_event(kept), Interrupted)
        reopened(node)
        publish(node, 3)
        assert read_ids(kept, 1) == [3]


@pytest.mark.rule("F-8", "C-4")
def test_a_violation_ends_every_request_in_flight_at_once(node: LoopbackNode, session: nervix_ffi.Session) -> None:
    node.control("delay", kind="SuggestRequest", when="after", count=5)
    suggestions = [Running(lambda: session.suggest("SHOW ", timeout=PATIENCE)) for _ in range(5)]
    node.control("delay", kind="CommandRequest", when="after")
    command = Running(lambda: session.execute(CREATE, timeout=PATIENCE))
    wait(node, held=6)
    node.control("inject", frame=base64.b64encode(b"\0\0\0\0NOPE").decode())
    for call in suggestions:
        with pytest.raises(nervix_ffi.ProtocolError):
            call.result()
    outcome = command.result()
    assert outcome.completed
    assert executed(node, outcome.reference) == 1
    assert session.suggest("SHOW ", timeout=PATIENCE) is not None


@pytest.mark.rule("F-8")
def test_a_first_frame_that_is_spoiled_fails_the_connect_and_not_the_next(node: LoopbackNode) -> None:
    node.control("corrupt", what="union_tag", kind="LeadershipObserved")
    with pytest.raises(nervix_ffi.ConnectError):
        connect(node)
    with connect(node) as session:
        assert session.execute("SHOW CLUSTER STATUS;", timeout=PATIENCE).completed
    assert counts(node)["sessions"]["ended"]["end_stream"] == 0


@pytest.mark.rule("F-8", "D-4")
def test_a_server_that_only_sends_nonsense_is_given_up_and_no_call_hangs(node: LoopbackNode) -> None:
    with connect(node, retry_timeout=1.0) as session:
        node.control("corrupt", what="identifier", kind="CommandOutcome", count=100_000)
        with pytest.raises(nervix_ffi.UncertainError) as caught:
            session.execute(CREATE, timeout=PATIENCE)
        node.control("clear")
        execution = caught.value.execution
        assert execution is not None
        assert execution.run(timeout=PATIENCE).origin == Origin.RECOVERED
        assert executed(node, execution.reference) == 1
