"""Every way not to know what became of something: what the error says, what is true meanwhile, and how it is found out."""

from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import Callable, Iterator

import pytest

import nervix_ffi
from nervix_ffi import ErrorKind, Origin, Settlement, SubmissionResult, SubmissionUncertainty
from nervix_ffi.testing import LoopbackNode

from ..endpoints import BOTH, answer, consumer, ids, producer, resends, rows
from ..support import PATIENCE, Running, connect, executed, sent, wait
from ..wire.writer import encoded, server_frame

pytestmark = pytest.mark.usefixtures("generated")

CREATE = "CREATE SCHEMA made (id U32);"

#: What no error about something uncertain may say: that it is known.
KNOWN = re.compile(r"command (failed|succeeded|completed)|rolled back|undone|took no effect|nothing happened|did not happen")

BEFORE, AFTER = 0, 1


@pytest.fixture
def node() -> Iterator[LoopbackNode]:
    """A node with both graphs in one domain."""
    with LoopbackNode(load=BOTH) as one:
        yield one


# ---- commands: each way ends the call and returns what it raised


def no_way_back(node: LoopbackNode, **cut: str) -> None:
    """Have the session cut at a frame, and no other session to be had."""
    node.control("cut", how="abort", **cut)
    node.control("accept", mode="refuse")


def failure_of(call: Callable[[], object]) -> nervix_ffi.Error:
    with pytest.raises(nervix_ffi.Error) as caught:
        call()
    return caught.value


def deadline(node: LoopbackNode, execution: nervix_ffi.Execution) -> nervix_ffi.Error:
    node.control("delay", when="after")
    return failure_of(lambda: execution.run(timeout=0.3))


def deadline_before(node: LoopbackNode, execution: nervix_ffi.Execution) -> nervix_ffi.Error:
    node.control("delay", when="before")
    return failure_of(lambda: execution.run(timeout=0.3))


def cancel(node: LoopbackNode, execution: nervix_ffi.Execution) -> nervix_ffi.Error:
    node.control("delay", when="after")
    token = nervix_ffi.Cancel()
    call = Running(lambda: execution.run(cancel=token))
    wait(node, held=1)
    token.trigger()
    return failure_of(call.result)


def lost(node: LoopbackNode, execution: nervix_ffi.Execution) -> nervix_ffi.Error:
    no_way_back(node, direction="out", when="before", kind="CommandOutcome")
    return failure_of(lambda: execution.run(timeout=PATIENCE))


def lost_before(node: LoopbackNode, execution: nervix_ffi.Execution) -> nervix_ffi.Error:
    no_way_back(node, direction="in", when="before", kind="CommandRequest")
    return failure_of(lambda: execution.run(timeout=PATIENCE))


def never_answered(node: LoopbackNode, execution: nervix_ffi.Execution) -> nervix_ffi.Error:
    node.control("drop_reply", kind="CommandRequest", count=1000)
    return failure_of(lambda: execution.run(timeout=PATIENCE))


def silent(node: LoopbackNode, execution: nervix_ffi.Execution) -> nervix_ffi.Error:
    node.control("delay", when="after")
    call = Running(lambda: execution.run(timeout=PATIENCE))
    wait(node, held=1)
    node.control("silence")
    node.control("accept", mode="stall")
    return failure_of(call.result)


def unknown(node: LoopbackNode, execution: nervix_ffi.Execution) -> nervix_ffi.Error:
    node.control("disposition", disposition="OutcomeUnknown", execute=True, count=1000, message="the leader changed")
    return failure_of(lambda: execution.run(timeout=PATIENCE))


def unknown_undone(node: LoopbackNode, execution: nervix_ffi.Execution) -> nervix_ffi.Error:
    node.control("disposition", disposition="OutcomeUnknown", execute=False, count=1000, message="the leader changed")
    return failure_of(lambda: execution.run(timeout=PATIENCE))


def too_large(node: LoopbackNode, execution: nervix_ffi.Execution) -> nervix_ffi.Error:
    node.control("reject", reason="ReplyTooLarge")
    return failure_of(lambda: execution.run(timeout=PATIENCE))


def refused_after_doubt(node: LoopbackNode, execution: nervix_ffi.Execution) -> nervix_ffi.Error:
    # The first attempt took effect; that the second one is refused says nothing about it.
    node.control("cut", how="abort", direction="out", when="before", kind="CommandOutcome")
    node.control("reject", reason="InvalidRequest", nth=2)
    return failure_of(lambda: execution.run(timeout=PATIENCE))


def malformed(node: LoopbackNode, execution: nervix_ffi.Execution) -> nervix_ffi.Error:
    node.control("corrupt", kind="CommandOutcome", what="truncated")
    node.control("accept", mode="refuse")
    return failure_of(lambda: execution.run(timeout=PATIENCE))


def cancelled_by_the_server(node: LoopbackNode, execution: nervix_ffi.Execution, stage: int) -> nervix_ffi.Error:
    node.control("delay", when="after" if stage == AFTER else "before")
    call = Running(lambda: execution.run(timeout=PATIENCE))
    wait(node, held=1)
    reply = ("Reply", {"request_id": 1, "body": ("RequestCancelled", {"stage": stage})})
    node.control("inject", frame=encoded(server_frame(reply)))
    return failure_of(call.result)


def cancelled_before(node: LoopbackNode, execution: nervix_ffi.Execution) -> nervix_ffi.Error:
    return cancelled_by_the_server(node, execution, BEFORE)


def cancelled_after(node: LoopbackNode, execution: nervix_ffi.Execution) -> nervix_ffi.Error:
    return cancelled_by_the_server(node, execution, AFTER)


Way = Callable[[LoopbackNode, nervix_ffi.Execution], nervix_ffi.Error]

#: Each way, the kind of its error, how often the command was carried out by then, and what the error says.
WAYS: list[tuple[Way, ErrorKind, int, str]] = [
    (deadline, ErrorKind.DEADLINE, 1, "may have happened"),
    (deadline_before, ErrorKind.DEADLINE, 0, "may have happened"),
    (cancel, ErrorKind.CANCELLED, 1, "may have happened"),
    (lost, ErrorKind.UNCERTAIN, 1, "may have happened"),
    (lost_before, ErrorKind.UNCERTAIN, 0, "may have happened"),
    (never_answered, ErrorKind.UNCERTAIN, 1, "may have happened"),
    (silent, ErrorKind.UNCERTAIN, 1, "may have happened"),
    (unknown, ErrorKind.UNCERTAIN, 1, "may have happened"),
    (unknown_undone, ErrorKind.UNCERTAIN, 0, "may have happened"),
    (too_large, ErrorKind.UNCERTAIN, 0, "may have happened"),
    (refused_after_doubt, ErrorKind.UNCERTAIN, 1, "may have happened"),
    (malformed, ErrorKind.UNCERTAIN, 1, "may have happened"),
    (cancelled_before, ErrorKind.CANCELLED, 0, "this attempt had no effect"),
    (cancelled_after, ErrorKind.CANCELLED, 1, "its effect continues"),
]


def everything_works_again(node: LoopbackNode) -> None:
    node.control("silence", silent=False)
    node.control("accept", mode="accept")
    node.control("clear")


@pytest.mark.rule("B-1", "C-9", "C-10", "D-4", "D-6", "E-3", "E-6", "F-8", "N-3", "N-4")
@pytest.mark.parametrize(("way", "kind", "times", "words"), WAYS, ids=[way[0].__name__ for way in WAYS])
def test_a_command_of_unknown_outcome_is_told_straight_and_recovered(
    node: LoopbackNode, way: Way, kind: ErrorKind, times: int, words: str
) -> None:
    with connect(node, request_timeout=0.5, retry_timeout=1.5) as session, session.prepare(CREATE) as execution:
        failure = way(node, execution)
        assert (failure.kind, type(failure)) == (kind, nervix_ffi.errors.ERROR_CLASSES[kind])
        assert (failure.reference, failure.execution) == (execution.reference, execution)
        assert not isinstance(failure, nervix_ffi.CommandNotCompleted)
        said = str(failure)
        assert words in said
        assert execution.reference in said
        assert not KNOWN.search(said), said
        assert executed(node, execution.reference) == times
        everything_works_again(node)
        outcome = execution.run(timeout=PATIENCE)
        assert (outcome.completed, outcome.reference) == (True, execution.reference)
        assert executed(node, execution.reference) == 1


@pytest.mark.rule("B-1", "C-10", "E-3", "N-3")
def test_ctrl_c_says_nothing_of_the_command(node: LoopbackNode) -> None:
    with connect(node) as session, session.prepare(CREATE) as execution:
        node.control("delay", when="after")

        def interrupt() -> None:
            wait(node, held=1)
            os.kill(os.getpid(), signal.SIGINT)

        interrupting = Running(interrupt)
        with pytest.raises(KeyboardInterrupt) as caught:
            execution.run()
        interrupting.result()
        carried = vars(caught.value)
        assert (carried["execution"], carried["reference"]) == (execution, execution.reference)
        if sys.version_info >= (3, 11):
            assert execution.reference in carried["__notes__"][0]
        assert executed(node, execution.reference) == 1
        node.control("release")
        assert execution.run(timeout=PATIENCE).completed
        assert executed(node, execution.reference) == 1


@pytest.mark.rule("B-1", "E-2", "E-3", "N-2", "N-4")
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_session_that_is_closed_under_a_command_says_where_to_ask(node: LoopbackNode, when: str) -> None:
    session = connect(node)
    execution = session.prepare(CREATE)
    node.control("delay", when=when)
    call = Running(lambda: execution.run(timeout=PATIENCE))
    wait(node, held=1)
    session.close()
    failure = failure_of(call.result)
    assert isinstance(failure, nervix_ffi.ClosedError)
    assert failure.reference == execution.reference
    assert "may have happened" in str(failure)
    assert execution.reference in str(failure)
    assert "another session" in str(failure)
    assert not KNOWN.search(str(failure))
    wait(node, sessions={"exactly": 0})
    assert executed(node, execution.reference) == (0 if when == "before" else 1)
    node.control("clear")
    with connect(node) as other, other.prepare(CREATE, reference=failure.reference) as again:
        assert again.run(timeout=PATIENCE).completed
    assert executed(node, execution.reference) == 1


@pytest.mark.rule("E-3", "E-8", "N-4")
def test_an_answer_that_was_lost_is_asked_for_and_nobody_notices(node: LoopbackNode) -> None:
    node.control("cut", how="abort", direction="out", when="before", kind="CommandOutcome")
    with connect(node) as session:
        outcome = session.execute(CREATE, timeout=PATIENCE)
    assert (outcome.completed, outcome.origin) == (True, Origin.RECOVERED)
    assert executed(node, outcome.reference) == 1


@pytest.mark.rule("C-10", "D-4")
def test_a_command_that_was_never_sent_is_called_that(node: LoopbackNode) -> None:
    with connect(node, retry_timeout=1.0) as session:
        node.control("accept", mode="refuse")
        node.control("cut", how="abort")
        wait(node, sessions={"exactly": 0})
        with session.prepare(CREATE) as execution:
            failure = failure_of(lambda: execution.run(timeout=0.3))
            assert isinstance(failure, nervix_ffi.DeadlineError)
            assert "was not sent" in str(failure)
            failure = failure_of(lambda: execution.run(timeout=PATIENCE))
            assert not isinstance(failure, nervix_ffi.UncertainError)
            assert "was not sent" in str(failure)
            assert failure.reference == execution.reference
            assert executed(node, execution.reference) == 0
            node.control("accept", mode="accept")
            assert execution.run(timeout=PATIENCE).completed


# ---- settlements


def delivered(node: LoopbackNode, session: nervix_ffi.Session) -> tuple[nervix_ffi.Consumer, nervix_ffi.Delivery]:
    """A consumer and its first delivery, of row 1."""
    producer(session, "held").submit(rows(1), timeout=PATIENCE)
    taking = consumer(session)
    return taking, taking.next(timeout=PATIENCE)


def read(taking: nervix_ffi.Consumer) -> tuple[bytes, list[int]]:
    """The identity and the rows of the next delivery, which is left as it is."""
    with taking.next(timeout=PATIENCE) as delivery:
        return delivery.identity, ids(delivery)


@pytest.mark.rule("B-15", "EC-4", "EC-6", "N-6")
@pytest.mark.parametrize("way", ["deadline", "cancel"])
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_settlement_that_is_given_up_may_have_been_made(node: LoopbackNode, way: str, when: str) -> None:
    with connect(node) as session:
        taking, delivery = delivered(node, session)
        node.control("delay", kind="SettleEmitterBatchRequest", when=when)
        if way == "deadline":
            failure = failure_of(lambda: delivery.ack(timeout=0.3))
            assert isinstance(failure, nervix_ffi.DeadlineError)
        else:
            token = nervix_ffi.Cancel()
            call = Running(lambda: delivery.ack(cancel=token))
            wait(node, held=1)
            token.trigger()
            failure = failure_of(call.result)
            assert isinstance(failure, nervix_ffi.CancelledError)
        assert "may have been settled" in str(failure)
        node.control("release")
        # Asked again, the server says what is so.
        assert delivery.ack(timeout=PATIENCE) is Settlement.CONFIRMED
        producer(session, "held").submit(rows(2), timeout=PATIENCE)
        assert read(taking)[1] == [2]


@pytest.mark.rule("B-15", "B-16", "EC-4", "EC-6", "N-6")
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_settlement_that_was_given_up_and_cannot_be_asked_about_stays_open(node: LoopbackNode, when: str) -> None:
    with connect(node) as session:
        taking, delivery = delivered(node, session)
        node.control("delay", kind="SettleEmitterBatchRequest", when=when)
        failure_of(lambda: delivery.ack(timeout=0.3))
        node.control("cut", how="abort")
        assert session.execute("SHOW CLUSTER STATUS;", timeout=PATIENCE).completed
        failure = failure_of(lambda: delivery.ack(timeout=PATIENCE))
        assert isinstance(failure, nervix_ffi.RejectedError)
        # It was not sent to the new attachment, and whether the first one was made is not known here.
        assert "unless it was settled before" in str(failure)
        assert sent(node, "SettleEmitterBatchRequest") == 1
        producer(session, "held").submit(rows(2), timeout=PATIENCE)
        with pytest.raises(nervix_ffi.InterruptedReadError):
            taking.next(timeout=PATIENCE)
        seen = [read(taking)[1]]
        if when == "before":
            seen.append(read(taking)[1])
        assert sorted(seen) == ([[1], [2]] if when == "before" else [[2]])


@pytest.mark.rule("B-15", "EC-4", "EC-6", "N-6")
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_settlement_whose_session_is_lost_is_uncertain(node: LoopbackNode, when: str) -> None:
    with connect(node) as session:
        taking, delivery = delivered(node, session)
        node.control("cut", how="abort", direction="in", kind="SettleEmitterBatchRequest", when=when)
        failure = failure_of(lambda: delivery.ack(timeout=PATIENCE))
        assert isinstance(failure, nervix_ffi.UncertainError)
        assert "may have been settled" in str(failure)
        with pytest.raises(nervix_ffi.InterruptedReadError):
            taking.next(timeout=PATIENCE)
        if when == "before":
            assert read(taking)[0] == delivery.identity
        else:
            with pytest.raises(nervix_ffi.DeadlineError):
                taking.next(timeout=0.2)


@pytest.mark.rule("B-15", "EC-4", "N-6")
def test_a_settlement_that_came_too_late_says_nothing_of_earlier_ones(node: LoopbackNode) -> None:
    with connect(node) as session:
        _, delivery = delivered(node, session)
        # The first one was made, and its answer is that of one that was not.
        node.control("answer", **{"kind": "SettleEmitterBatchRequest", "with": "StaleReference", "execute": True})
        failure = failure_of(lambda: delivery.ack(timeout=PATIENCE))
        assert isinstance(failure, nervix_ffi.SettlementFailed)
        assert failure.settlement is Settlement.STALE_REFERENCE
        assert "unless it was settled before" in str(failure)


# ---- submissions


@pytest.mark.rule("B-14", "P-5", "P-8", "N-8")
@pytest.mark.parametrize("done", [False, True])
@pytest.mark.parametrize("cause", ["Interrupted", "OwnerLost", "SessionLost"])
def test_a_batch_of_unknown_outcome_may_have_been_processed_and_is_not_sent_again(
    node: LoopbackNode, cause: str, done: bool
) -> None:
    with connect(node) as session, connect(node) as other:
        if cause == "SessionLost":
            when = "after" if done else "before"
            node.control("cut", how="abort", direction="in", kind="SubmitBatchRequest", when=when)
        else:
            answer(node, "SubmitBatchRequest", cause, execute=done)
        taking = consumer(other)
        feeding = producer(session, "held")
        submission = feeding.submit(rows(1), timeout=PATIENCE)
        if done:
            # Completing it is what the answer is in place of.
            with taking.next(timeout=PATIENCE) as delivery:
                assert ids(delivery) == [1]
                delivery.ack(timeout=PATIENCE)
        with pytest.raises(nervix_ffi.OutcomeUnknown) as caught:
            submission.result(timeout=PATIENCE)
        outcome = caught.value.outcome
        assert outcome.result is SubmissionResult.OUTCOME_UNKNOWN
        names = {"Interrupted": "INTERRUPTED", "OwnerLost": "OWNER_LOST", "SessionLost": "SESSION_LOST"}
        assert outcome.uncertainty is SubmissionUncertainty[names[cause]]
        assert "may have been processed" in str(caught.value)
        assert resends(node) == 0


@pytest.mark.rule("B-14", "P-7", "N-3")
def test_a_submission_that_nobody_waits_for_is_still_under_way(node: LoopbackNode) -> None:
    with connect(node) as session:
        taking, feeding = consumer(session), producer(session, "held")
        failure = failure_of(lambda: feeding.send(rows(1), timeout=0.3))
        assert isinstance(failure, nervix_ffi.DeadlineError)
        assert not KNOWN.search(str(failure))
        submission = failure.submission
        assert submission is not None
        assert feeding.pending() == [submission]
        with taking.next(timeout=PATIENCE) as delivery:
            assert ids(delivery) == [1]
            delivery.ack(timeout=PATIENCE)
        assert submission.result(timeout=PATIENCE).completed
        assert resends(node) == 0
