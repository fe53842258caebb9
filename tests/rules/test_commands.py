"""Commands keep one reference, and whatever happens on the way, each happens once."""

from __future__ import annotations

import time
import uuid
from typing import Any

import pytest

import nervix_ffi
from nervix_ffi import Disposition, Origin
from nervix_ffi.testing import LoopbackNode

from ..support import PATIENCE, Running, connect, counts, executed, sent, wait

CREATE = "CREATE SCHEMA made (id U32);"


def recover(node: LoopbackNode, session: nervix_ffi.Session) -> nervix_ffi.Outcome:
    """Runs CREATE under whatever is armed, and checks that it completed and was carried out exactly once."""
    outcome = session.execute(CREATE, timeout=PATIENCE)
    assert outcome.completed
    assert executed(node, outcome.reference) == 1
    return outcome


@pytest.mark.rule("E-1")
def test_every_command_has_a_reference_of_its_own_made_of_the_present_time(session: nervix_ffi.Session) -> None:
    before = time.time()
    references = [session.prepare("SHOW CLUSTER STATUS;").reference for _ in range(50)]
    after = time.time()
    assert len(set(references)) == 50
    for reference in references:
        made = uuid.UUID(reference)
        assert made.version == 7
        assert made.variant == uuid.RFC_4122
        assert before - 0.002 <= (made.int >> 80) / 1000 <= after


@pytest.mark.rule("E-3", "E-8", "B-1")
def test_a_command_whose_reply_never_came_is_recovered(node: LoopbackNode) -> None:
    node.control("drop_reply")
    with connect(node, request_timeout=0.5) as session:
        outcome = recover(node, session)
    # The session on which the reply stayed out is over; the recovered outcome is the command's own.
    assert outcome.origin == Origin.RECOVERED
    assert counts(node)["sessions"]["opened"] == 2


@pytest.mark.rule("E-2", "E-3", "E-8", "D-6", "C-4", "SM-1", "SM-2")
@pytest.mark.parametrize("how", ["close", "abort", "reset", "goaway", "status"])
@pytest.mark.parametrize(
    ("direction", "when", "origin"),
    [
        ("in", "before", Origin.EXECUTED),
        ("in", "after", Origin.RECOVERED),
        ("out", "before", Origin.RECOVERED),
        ("out", "after", Origin.EXECUTED),
    ],
)
def test_a_session_cut_around_a_command_costs_nothing(
    node: LoopbackNode, session: nervix_ffi.Session, how: str, direction: str, when: str, origin: Origin
) -> None:
    kind = "CommandRequest" if direction == "in" else "CommandOutcome"
    node.control("cut", direction=direction, when=when, kind=kind, how=how)
    outcome = recover(node, session)
    assert outcome.origin == origin
    assert session.execute("SHOW CREATE SCHEMA made;", timeout=PATIENCE).completed


@pytest.mark.rule("E-2", "D-6")
def test_sessions_cut_again_and_again_are_opened_again_until_the_outcome_is_known(
    node: LoopbackNode, session: nervix_ffi.Session
) -> None:
    node.control("cut", direction="in", when="before", kind="CommandRequest", how="reset", count=3)
    node.control("cut", direction="out", when="before", kind="CommandOutcome", how="abort", count=2)
    outcome = recover(node, session)
    assert outcome.origin == Origin.RECOVERED
    assert counts(node)["sessions"]["opened"] == 6


@pytest.mark.rule("E-3", "D-4", "B-1", "N-4")
def test_an_uncertain_command_names_its_reference_and_runs_again(node: LoopbackNode) -> None:
    with connect(node, retry_timeout=1.0) as session:
        node.control("cut", direction="out", when="before", kind="CommandOutcome", how="abort")
        node.control("accept", mode="refuse")
        with pytest.raises(nervix_ffi.UncertainError) as caught:
            session.execute(CREATE, timeout=PATIENCE)
        reference = caught.value.reference
        assert reference is not None
        assert reference in str(caught.value)
        assert executed(node, reference) == 1

        node.control("accept", mode="accept")
        execution = caught.value.execution
        assert execution is not None
        outcome = execution.run(timeout=PATIENCE)
        assert (outcome.completed, outcome.reference, outcome.origin) == (True, reference, Origin.RECOVERED)
        assert executed(node, reference) == 1


@pytest.mark.rule("D-4", "C-10", "B-1", "N-2", "N-3")
@pytest.mark.parametrize("way", ["deadline", "cancel"])
def test_a_command_that_is_no_longer_waited_for_still_happens_once(
    node: LoopbackNode, session: nervix_ffi.Session, way: str
) -> None:
    node.control("delay", when="after")
    with session.prepare(CREATE) as execution:
        if way == "deadline":
            with pytest.raises(nervix_ffi.DeadlineError) as caught:
                execution.run(timeout=0.2)
        else:
            cancel = nervix_ffi.Cancel()
            call = Running(lambda: execution.run(cancel=cancel))
            wait(node, held=1)
            cancel.trigger()
            with pytest.raises(nervix_ffi.CancelledError) as caught:  # type: ignore[assignment]
                call.result()
        assert caught.value.reference == execution.reference
        assert caught.value.execution is execution
        # It did happen, and giving up the wait took nothing back.
        with connect(node) as other:
            assert "made" in other.execute("SHOW CREATE SCHEMA made;", timeout=PATIENCE).message
        node.control("release")
        assert execution.run(timeout=PATIENCE).completed
        assert executed(node, execution.reference) == 1


@pytest.mark.rule("C-3", "C-10")
def test_a_reply_that_comes_after_its_caller_left_completes_no_other_request(
    node: LoopbackNode, session: nervix_ffi.Session
) -> None:
    node.control("delay", when="after")
    with pytest.raises(nervix_ffi.DeadlineError):
        session.execute(CREATE, timeout=0.2)
    node.control("release")
    for _ in range(5):
        assert "CREATE RELAY readings" in session.execute("SHOW CREATE RELAY readings;", timeout=PATIENCE).message
    assert counts(node)["sessions"]["opened"] == 1


@pytest.mark.rule("B-1", "E-3")
def test_an_execution_with_an_outcome_gives_an_equal_one_again(node: LoopbackNode, session: nervix_ffi.Session) -> None:
    with session.prepare(CREATE) as execution:
        first = execution.run(timeout=PATIENCE)
        second = execution.run(timeout=PATIENCE)
    for name in ("disposition", "message", "reference", "diagnostics", "already_existed"):
        assert getattr(first, name) == getattr(second, name)
    assert executed(node, first.reference) == 1
    with session.prepare("CREATE RELAY;") as execution:
        failed = [execution.run(timeout=PATIENCE, check=False) for _ in range(2)]
    assert failed[0].disposition == failed[1].disposition == Disposition.FAILED
    assert failed[0].diagnostics == failed[1].diagnostics


@pytest.mark.rule("T-6")
@pytest.mark.parametrize("code", [11, 13])
def test_a_command_that_the_server_calls_malformed_is_not_sent_again(
    node: LoopbackNode, session: nervix_ffi.Session, code: int
) -> None:
    node.control("cut", direction="in", when="before", kind="CommandRequest", how="status", code=code, message="malformed")
    with pytest.raises(nervix_ffi.UncertainError) as caught:
        session.execute(CREATE, timeout=PATIENCE)
    # The node ended the call in place of the frame, and saw no other.
    assert sent(node, "CommandRequest") == 0
    assert executed(node, caught.value.reference) == 0
    # The session is over, the object is not.
    assert session.execute("SHOW CREATE RELAY readings;", timeout=PATIENCE).completed


@pytest.mark.rule("T-6")
@pytest.mark.parametrize("how", ["reset", "goaway"])
@pytest.mark.parametrize("code", [1, 2, 11, 13])
def test_a_reset_with_any_code_is_only_a_lost_session(
    node: LoopbackNode, session: nervix_ffi.Session, how: str, code: int
) -> None:
    node.control("cut", direction="in", when="before", kind="CommandRequest", how=how, code=code)
    recover(node, session)


@pytest.mark.rule("E-5", "F-8")
def test_an_outcome_under_another_reference_ends_the_session_and_is_not_taken(
    node: LoopbackNode, session: nervix_ffi.Session
) -> None:
    node.control("wrong_reference", reference="0199aaaa-0000-7000-8000-000000000000")
    outcome = recover(node, session)
    assert outcome.origin == Origin.RECOVERED
    assert counts(node)["sessions"]["opened"] == 2
    assert counts(node)["sessions"]["ended"]["end_stream"] == 0


# ---- dispositions


@pytest.mark.rule("E-6", "E-8a", "N-4")
@pytest.mark.parametrize("cause", ["LeadershipLost", "StillApplying", "NotYetAuthoritative"])
@pytest.mark.parametrize("done", [False, True])
def test_an_unknown_outcome_is_asked_for_again_under_the_same_reference(
    node: LoopbackNode, session: nervix_ffi.Session, cause: str, done: bool
) -> None:
    node.control("disposition", disposition="OutcomeUnknown", cause=cause, execute=done, count=2, message="effects were applied")
    outcome = recover(node, session)
    assert sent(node, "CommandRequest") == 3
    assert outcome.message != "effects were applied"


@pytest.mark.rule("E-6", "N-4")
def test_an_outcome_that_stays_unknown_is_uncertain_and_never_a_failure(node: LoopbackNode) -> None:
    node.control("disposition", disposition="OutcomeUnknown", count=1000)
    with connect(node, retry_timeout=1.0) as session:
        with pytest.raises(nervix_ffi.UncertainError) as caught:
            session.execute(CREATE, timeout=PATIENCE)
        node.control("clear")
        execution = caught.value.execution
        assert execution is not None
        assert execution.run(timeout=PATIENCE).completed


FINAL: list[tuple[str, dict[str, Any], Disposition]] = [
    ("RequestFailed", {}, Disposition.FAILED),
    ("TransactionTakenOver", {"transaction_id": "t1"}, Disposition.TRANSACTION_TAKEN_OVER),
    ("ExecutionReferenceConflict", {}, Disposition.EXECUTION_REFERENCE_CONFLICT),
    ("ExecutionReferenceConflict", {"conflict": "Domain"}, Disposition.EXECUTION_REFERENCE_CONFLICT),
    ("PreviewStale", {"transaction_id": "t1"}, Disposition.PREVIEW_STALE),
]


@pytest.mark.rule("E-6", "E-4")
@pytest.mark.parametrize(("name", "details", "disposition"), FINAL)
def test_a_final_disposition_is_reported_as_it_is_and_not_repeated(
    node: LoopbackNode, session: nervix_ffi.Session, name: str, details: dict[str, Any], disposition: Disposition
) -> None:
    node.control("disposition", disposition=name, message="as told", **details)
    with pytest.raises(nervix_ffi.CommandNotCompleted) as caught:
        session.execute(CREATE, timeout=PATIENCE)
    assert caught.value.outcome.disposition == disposition
    assert caught.value.outcome.message == "as told"
    assert isinstance(caught.value, nervix_ffi.CommandFailed) == (disposition == Disposition.FAILED)
    assert sent(node, "CommandRequest") == 1
    outcome = session.execute("SHOW CREATE RELAY readings;", timeout=PATIENCE)
    assert outcome.completed


@pytest.mark.rule("E-4")
def test_a_reference_that_expired_says_nothing_of_the_command(node: LoopbackNode) -> None:
    node.control("drop_reply")
    with connect(node, request_timeout=1.0) as session, session.prepare(CREATE) as execution:
        with pytest.raises(nervix_ffi.DeadlineError):
            execution.run(timeout=0.2)
        node.control("expire", reference=execution.reference)
        with pytest.raises(nervix_ffi.ReferenceExpired, match="may have happened") as caught:
            execution.run(timeout=PATIENCE)
        assert isinstance(caught.value, nervix_ffi.UncertainError)
        assert caught.value.outcome is not None
        assert caught.value.outcome.disposition == Disposition.EXECUTION_REFERENCE_EXPIRED
        assert caught.value.reference == execution.reference
        assert executed(node, execution.reference) == 1


@pytest.mark.rule("E-6")
def test_a_completed_command_that_changed_nothing_says_so(session: nervix_ffi.Session) -> None:
    first = session.execute(CREATE, timeout=PATIENCE)
    again = session.execute("CREATE IF NOT EXISTS SCHEMA made (id U32);", timeout=PATIENCE)
    assert (first.already_existed, again.already_existed) == (False, True)


# ---- rejections


@pytest.mark.rule("C-8")
@pytest.mark.parametrize("reason", ["InvalidRequest", "UnsupportedRequest", "UnsupportedValue", "DuplicateRequestId"])
def test_a_request_rejected_as_defective_is_not_sent_again(node: LoopbackNode, session: nervix_ffi.Session, reason: str) -> None:
    node.control("reject", reason=reason, message="no such thing")
    with pytest.raises(nervix_ffi.RejectedError, match="no such thing"):
        session.execute(CREATE, timeout=PATIENCE)
    assert sent(node, "CommandRequest") == 1
    assert session.execute(CREATE, timeout=PATIENCE).completed
    assert counts(node)["sessions"]["opened"] == 1


@pytest.mark.rule("C-6", "C-8")
@pytest.mark.parametrize("reason", ["TooManyRequestsInFlight", "ServerBusy"])
def test_a_request_rejected_for_now_is_sent_again(node: LoopbackNode, session: nervix_ffi.Session, reason: str) -> None:
    node.control("reject", reason=reason, count=2)
    recover(node, session)
    assert sent(node, "CommandRequest") == 3


@pytest.mark.rule("C-8", "N-4")
def test_a_command_whose_reply_was_too_large_is_uncertain(node: LoopbackNode, session: nervix_ffi.Session) -> None:
    node.control("reject", reason="ReplyTooLarge")
    with pytest.raises(nervix_ffi.UncertainError) as caught:
        session.execute(CREATE, timeout=PATIENCE)
    execution = caught.value.execution
    assert execution is not None
    assert caught.value.reference == execution.reference
    assert execution.run(timeout=PATIENCE).completed


@pytest.mark.rule("C-8")
@pytest.mark.parametrize("kind", ["SubscribeRequest", "ListDomainsRequest", "UnsubscribeRequest"])
def test_other_requests_are_rejected_alike(node: LoopbackNode, session: nervix_ffi.Session, kind: str) -> None:
    session.execute("CREATE SUBSCRIPTION here TO readings;", timeout=PATIENCE)
    statement = {
        "SubscribeRequest": "CREATE SUBSCRIPTION other TO readings;",
        "ListDomainsRequest": "LIST DOMAINS;",
        "UnsubscribeRequest": "DELETE SUBSCRIPTION here;",
    }[kind]
    node.control("reject", kind=kind, reason="UnsupportedValue")
    with pytest.raises(nervix_ffi.RejectedError):
        session.execute(statement, timeout=PATIENCE)
    assert session.execute(statement, timeout=PATIENCE).completed


# ---- several callers


@pytest.mark.rule("C-1", "C-2", "C-3")
def test_commands_of_several_threads_each_get_their_own_answer(node: LoopbackNode, session: nervix_ffi.Session) -> None:
    def create(number: int) -> str:
        session.execute(f"CREATE SCHEMA s{number} (id U32);", timeout=PATIENCE)
        return session.execute(f"SHOW CREATE SCHEMA s{number};", timeout=PATIENCE).message

    calls = [Running(lambda number=number: create(number)) for number in range(16)]  # type: ignore[misc]
    for number, call in enumerate(calls):
        assert f"s{number} " in call.result()
    assert counts(node)["sessions"]["opened"] == 1
