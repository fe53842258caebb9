"""A producer and a consumer against models of their state machines, while everything around them fails in random order.

Time stands still in the node, so timeouts happen when a step says so. A step knows what must be true after it, or what may be.
"""

from __future__ import annotations

import contextlib
import itertools
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, precondition, rule, run_state_machine_as_test

import nervix_ffi
from nervix_ffi import (
    EndpointState,
    ProcessingFailure,
    Settlement,
    SubmissionOutcome,
    SubmissionRefusal,
    SubmissionResult,
    SubmissionUncertainty,
)
from nervix_ffi.testing import LoopbackNode

from ..endpoints import GRAPH, answer, consumer, describe, ids, ingestor, producer, rows
from ..support import DOMAIN, PATIENCE, connect, counts, wait

#: What a wait for something that must not come may take.
MOMENT = 0.03


class Machine(RuleBasedStateMachine):
    """A node whose time stands still, a session that lasts and one that is cut."""

    def __init__(self, graph: str) -> None:
        super().__init__()
        self.node = LoopbackNode(load=graph, options=["--frozen-time"])
        self.steady = connect(self.node)
        self.shaken = connect(self.node)
        self.numbers = itertools.count(1)

    def cut(self) -> None:
        """Lose the shaken session, and wait until its client has noticed."""
        for session in counts(self.node)["sessions"]["list"][1:]:
            if session["ended"] is None:
                self.node.control("cut", session=session["id"], how="abort")
        self.noticed()

    def noticed(self) -> None:
        """A command is answered by a session that is open, whatever became of the one before."""
        assert self.shaken.execute("SHOW CLUSTER STATUS;", timeout=PATIENCE).completed

    def stop(self) -> None:
        self.shaken.close()
        self.steady.close()
        self.node.stop()


# ---- producers

CREDIT = 3


@dataclass
class Submitted:
    """A submission, and what may have happened to it."""

    handle: nervix_ffi.Submission
    ids: list[int]
    producer: nervix_ffi.Producer
    outcome: SubmissionOutcome | None = None
    released: bool = False


#: Outcomes that the node gives to the next batch without carrying it out, and whether nothing came of it by its own word.
FORCED = ["InvalidData", "AckTimedOut", "Rejected", "Interrupted", "OwnerLost"]


class ProducerMachine(Machine):
    """A producer of an ingestor that takes two batches at a time, under credit for three."""

    submissions = Bundle("submissions")

    def __init__(self) -> None:
        super().__init__(GRAPH.replace(ingestor("held", "watched"), ingestor("held", "watched", window="PARALLEL MAX 2")))
        self.consumer = consumer(self.steady)
        self.producer = producer(self.shaken, "held", credit_batches=CREDIT)
        self.all: list[Submitted] = []
        #: Batches by id, as a consumer saw them: the identity under which, and whether it acknowledged or rejected them.
        self.seen: dict[int, bytes] = {}
        self.acknowledged: set[int] = set()
        self.rejected: set[int] = set()
        self.cuts = self.ends = self.advances = 0
        self.forced: set[str] = set()
        self.closed = False
        self.suspended = False

    def held(self) -> list[Submitted]:
        """What holds credit for sure."""
        return [one for one in self.all if one.producer is self.producer and one.outcome is None and not one.released]

    def let_go(self) -> list[Submitted]:
        """What may hold credit, since nobody waits for its outcome."""
        return [one for one in self.all if one.producer is self.producer and one.released and one.outcome is None]

    def submitted(self, size: int) -> Submitted | None:
        chosen = [next(self.numbers) for _ in range(size)]
        full = len(self.held()) >= CREDIT
        sure = full or not self.let_go()
        try:
            handle = self.producer.submit(rows(*chosen), timeout=MOMENT if full else PATIENCE if sure else 1.0)
        except nervix_ffi.DeadlineError:
            assert full or not sure, "credit leaked"
            return None
        assert not full, "more is outstanding than was granted"
        made = Submitted(handle, chosen, self.producer)
        self.all.append(made)
        return made

    @precondition(lambda self: not self.closed)
    @rule(target=submissions, size=st.integers(1, 3))
    def submit(self, size: int) -> Any:
        made = self.submitted(size)
        return made if made is not None else self.all[-1]

    @precondition(lambda self: self.closed)
    @rule()
    def submit_to_what_is_closed(self) -> None:
        with pytest.raises(nervix_ffi.ClosedError):
            self.producer.submit(rows(next(self.numbers)), timeout=PATIENCE)

    @rule(one=submissions)
    def take(self, one: Submitted) -> None:
        if one.released:
            return
        # An outcome that is not there yet may arrive while it is looked for.
        patience = PATIENCE if one.handle.done() else 0
        try:
            outcome = one.handle.result(timeout=patience, check=False)
        except nervix_ffi.DeadlineError:
            assert patience == 0, "an outcome that was there did not come"
        else:
            self.took(one, outcome)

    def took(self, one: Submitted, outcome: SubmissionOutcome) -> None:
        """Take an outcome; there is one, and it is possible."""
        if one.outcome is not None:
            assert outcome is one.outcome
            return
        one.outcome = outcome
        seen = [number for number in one.ids if number in self.seen]
        if outcome.result == SubmissionResult.NOT_ADMITTED:
            assert not seen, "what was not admitted was processed"
            assert outcome.refusal in (
                SubmissionRefusal.INVALID_BATCH,
                SubmissionRefusal.PRODUCER_ENDED,
                SubmissionRefusal.DRAINING,
            )
            assert outcome.refusal != SubmissionRefusal.INVALID_BATCH or "InvalidData" in self.forced
        elif outcome.result == SubmissionResult.COMPLETED:
            assert self.acknowledged.issuperset(one.ids), "what completed was not processed"
        elif outcome.failure == ProcessingFailure.REJECTED:
            assert self.rejected & set(one.ids) or "Rejected" in self.forced
        elif outcome.failure == ProcessingFailure.ACK_TIMED_OUT:
            assert self.advances or "AckTimedOut" in self.forced
        elif outcome.uncertainty == SubmissionUncertainty.SESSION_LOST:
            assert self.cuts
        else:
            assert self.ends or self.forced & {"Interrupted", "OwnerLost"}

    @rule(one=submissions)
    def release(self, one: Submitted) -> None:
        if one.released or one.outcome is not None:
            return
        outcome = one.handle.release()
        if outcome is None:
            one.released = True
        else:
            self.took(one, outcome)

    @rule(count=st.integers(1, 3))
    def be_busy(self, count: int) -> None:
        answer(self.node, "SubmitBatchRequest", "Busy", count=count, domain=DOMAIN, ingestor="held")

    @rule(with_=st.sampled_from(FORCED))
    def decide(self, with_: str) -> None:
        self.forced.add(with_)
        answer(self.node, "SubmitBatchRequest", with_, domain=DOMAIN, ingestor="held")

    @rule(suspend=st.booleans())
    def admit(self, suspend: bool) -> None:
        self.suspended = suspend
        self.node.control("suspend" if suspend else "resume", domain=DOMAIN, ingestor="held")

    @rule()
    def keep_outcomes_back(self) -> None:
        self.node.control("delay", kind="SubmitBatchRequest", when="after", count=2)

    @rule()
    def let_outcomes_go(self) -> None:
        self.node.control("release")

    @rule()
    def lose_the_session(self) -> None:
        self.cuts += 1
        self.cut()
        if not self.closed:
            assert self.producer.state in (EndpointState.INTERRUPTED, EndpointState.ACTIVE)
        for one in self.held():
            assert one.handle.done(), "its outcome is known: unknown, or not admitted"

    @rule(when=st.sampled_from(["before", "after"]))
    def lose_the_session_at_a_batch(self, when: str) -> None:
        self.cuts += 1
        self.node.control("cut", direction="in", kind="SubmitBatchRequest", when=when, how="abort")

    @rule(reason=st.sampled_from(["Relocated", "OwnerLost", "ShuttingDown"]))
    def end_the_attachment(self, reason: str) -> None:
        self.ends += 1
        self.node.control("end_producer", reason=reason)

    @rule()
    def let_time_pass(self) -> None:
        self.advances += 1
        self.node.control("clock", advance="61s")

    @rule(accept=st.booleans(), most=st.integers(1, 3))
    def process(self, accept: bool, most: int) -> None:
        for _ in range(most):
            try:
                delivery = self.consumer.next(timeout=MOMENT)
            except nervix_ffi.DeadlineError:
                return
            self.processed(delivery, accept)

    def processed(self, delivery: nervix_ffi.Delivery, accept: bool) -> None:
        for number in ids(delivery):
            assert self.seen.setdefault(number, delivery.identity) == delivery.identity, "it was sent twice"
        settled = self.acknowledged if accept else self.rejected
        # Told before it is settled: the outcome may be there at once.
        settled |= set(ids(delivery))
        delivery.ack(timeout=PATIENCE, check=False) if accept else delivery.reject("no", timeout=PATIENCE, check=False)

    @precondition(lambda self: not self.closed)
    @rule(wait_for_it=st.booleans())
    def close(self, wait_for_it: bool) -> None:
        self.ends += 1
        self.closed = True
        with contextlib.suppress(nervix_ffi.DeadlineError):
            self.producer.close(timeout=MOMENT if wait_for_it else 0)
        assert self.producer.state is EndpointState.CLOSED

    @precondition(lambda self: self.closed)
    @rule()
    def open_another(self) -> None:
        self.producer = producer(self.shaken, "held", credit_batches=CREDIT)
        self.closed = False

    @invariant()
    def nothing_is_sent_again_that_must_not_be(self) -> None:
        assert counts(self.node)["batches"]["forbidden_resends"] == 0

    @invariant()
    def what_is_pending_is_what_was_not_taken(self) -> None:
        assert self.producer.pending() == [one.handle for one in self.held()]
        assert self.producer.reopen_reason is None

    def teardown(self) -> None:
        try:
            self.node.control("clear")
            self.node.control("resume", domain=DOMAIN, ingestor="held")
            self.noticed()
            while not all(one.handle.done() for one in self.all if not one.released):
                self.process(True, 8)
            for one in self.all:
                if not one.released:
                    self.took(one, one.handle.result(timeout=PATIENCE, check=False))
                    assert one.handle.result(timeout=PATIENCE, check=False) is one.outcome
            # All credit is back: as many batches as were granted fit at once.
            if not self.closed:
                for one in self.let_go():
                    one.outcome = SubmissionOutcome(SubmissionResult.COMPLETED)  # Whatever it was, it has to be in soon.
                last = []
                for _ in range(CREDIT):
                    made = None
                    while made is None:
                        self.process(True, 8)
                        made = Submitted(self.producer.submit(rows(next(self.numbers)), timeout=PATIENCE), [], self.producer)
                    last.append(made)
                while not all(one.handle.done() for one in last):
                    self.process(True, 8)
                for one in last:
                    assert one.handle.result(timeout=PATIENCE).completed
            assert self.producer.pending() == []
            self.nothing_is_sent_again_that_must_not_be()
            self.producer.close(timeout=PATIENCE)
            wait(self.node, producers=0, outstanding_batches=0)
        finally:
            self.stop()


@pytest.mark.rule("SM-5", "P-4", "P-5", "P-6", "P-7", "P-8", "B-14", "N-7")
@pytest.mark.timeout(280)
def test_a_producer_under_a_model() -> None:
    run_state_machine_as_test(
        ProducerMachine,
        settings=settings(
            max_examples=25,
            stateful_step_count=25,
            deadline=None,
            # Making a failure smaller takes a node and its waits each time: longer than to read it as it is.
            phases=[Phase.reuse, Phase.generate],
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
        ),
    )


# ---- consumers


@dataclass
class Fed:
    """A batch of one row: what is known of it and of its newest attempt."""

    number: int
    identity: bytes | None = None
    stream: bytes = b""
    references: set[bytes] = field(default_factory=set)
    #: The attempt that can be settled, None when it waits to be delivered.
    attempt: nervix_ffi.Delivery | None = None
    #: It waits for its backoff, which only a step ends.
    resting: bool = False
    settled: bool = False


class ConsumerMachine(Machine):
    """A consumer that may have three batches unsettled, each of one row."""

    deliveries = Bundle("deliveries")

    def __init__(self) -> None:
        super().__init__(GRAPH.replace("MAX MESSAGES 16", "MAX MESSAGES 1"))
        self.feed = producer(self.steady, "held", credit_batches=1024)
        self.consumer = consumer(self.shaken, credit_batches=CREDIT)
        self.batches: dict[int, Fed] = {}
        #: The attachment ended and no read was told so; ``quietly`` when the client does not know yet either.
        self.interrupted = self.quietly = False
        #: A read that nobody waits for any more lies with the node; ``aged`` when attempts ran out since, its own perhaps.
        self.parked = self.aged = False
        #: Such a read lay there when the attachment ended quietly: what it got before is still handed out.
        self.kept = False
        self.stale: list[nervix_ffi.Delivery] = []
        #: Deliveries of attachments that are over.
        self.revoked: list[nervix_ffi.Delivery] = []
        self.released: list[nervix_ffi.Delivery] = []

    def unsettled(self) -> list[Fed]:
        return [one for one in self.batches.values() if one.attempt is not None]

    def available(self) -> list[Fed]:
        return [one for one in self.batches.values() if not one.settled and one.attempt is None and not one.resting]

    def lost(self) -> None:
        """The attachment is over: what it delivered comes again."""
        self.interrupted = True
        self.kept = self.quietly and self.parked
        self.parked = self.aged = False
        self.revoked += self.stale
        self.stale.clear()
        for one in self.unsettled():
            assert one.attempt is not None
            self.revoked.append(one.attempt)
            one.attempt = None
        for one in self.batches.values():
            one.resting = False

    @rule(count=st.integers(1, 3))
    def feed_some(self, count: int) -> None:
        for _ in range(count):
            number = next(self.numbers)
            received = counts(self.node)["batches"]["received"]
            self.feed.submit(rows(number), timeout=PATIENCE).release()
            wait(self.node, batches=received + 1)
            self.batches[number] = Fed(number)

    @rule(target=deliveries)
    def read(self) -> Any:
        delivery = self.read_one()
        return (
            delivery
            if delivery is not None
            else (self.stale + self.revoked + [one.attempt for one in self.unsettled()] or [None])[-1]
        )

    def read_one(self) -> nervix_ffi.Delivery | None:
        if self.interrupted:
            with contextlib.suppress(nervix_ffi.InterruptedReadError):
                self.revoked.append(self.consumer.next(timeout=PATIENCE))
                assert self.kept, "a delivery came before the interruption was told"
                with pytest.raises(nervix_ffi.InterruptedReadError):
                    self.consumer.next(timeout=PATIENCE)
            self.interrupted = self.quietly = self.kept = False
        possible = bool(self.available()) and len(self.unsettled()) < CREDIT
        try:
            delivery = self.consumer.next(timeout=PATIENCE if possible else MOMENT)
        except nervix_ffi.DeadlineError:
            assert not possible
            self.parked = True
            return None
        aged, self.parked, self.aged = self.aged, False, False
        assert len(self.unsettled()) < CREDIT, "more is unsettled than was granted"
        (number,) = ids(delivery)
        one = self.batches[number]
        assert not one.settled, "what was settled came again"
        assert one.attempt is None, "it was delivered twice at once"
        assert one.identity in (None, delivery.identity)
        assert one.stream in (b"", bytes(delivery.ipc))
        assert delivery.reference not in one.references
        assert all(other.identity != delivery.identity for other in self.batches.values() if other is not one)
        one.identity, one.stream, one.attempt, one.resting = delivery.identity, bytes(delivery.ipc), delivery, False
        one.references.add(delivery.reference)
        if aged:
            # Whether the read lying there got it before attempts ran out or after cannot be told from here: make it so.
            self.let_attempts_time_out()
        return delivery

    @rule(delivery=deliveries, how=st.sampled_from(["ack", "ack", "retry", "reject"]))
    def settle(self, delivery: nervix_ffi.Delivery | None, how: str) -> None:
        if delivery is None or delivery in self.released:
            return
        one = self.batches[ids(delivery)[0]]
        before = counts(self.node)["frames"]["in"].get("SettleEmitterBatchRequest", 0)
        arguments = ["because"] if how == "reject" else []
        try:
            settlement = getattr(delivery, how)(*arguments, timeout=PATIENCE, check=False)
        except nervix_ffi.RejectedError:
            assert delivery in self.revoked
            assert counts(self.node)["frames"]["in"].get("SettleEmitterBatchRequest", 0) == before, "nothing is sent"
            return
        if delivery is one.attempt:
            assert settlement is Settlement.CONFIRMED
            one.attempt = None
            one.settled, one.resting = how != "retry", how == "retry"
            self.stale.append(delivery)
        elif delivery in self.revoked:
            assert self.quietly
            assert settlement is Settlement.CONSUMER_ENDED
        else:
            # Repeating what was confirmed may be confirmed; nothing else is.
            assert settlement in (Settlement.STALE_REFERENCE, Settlement.CONFIRMED)
            assert settlement is Settlement.STALE_REFERENCE or one.settled

    @rule(delivery=deliveries, when=st.sampled_from(["before", "after"]))
    def settle_and_lose_the_answer(self, delivery: nervix_ffi.Delivery | None, when: str) -> None:
        if delivery is None or delivery in self.released or self.quietly:
            return
        one = self.batches[ids(delivery)[0]]
        if delivery is not one.attempt:
            return
        self.node.control("cut", direction="in", kind="SettleEmitterBatchRequest", when=when, how="abort")
        with pytest.raises(nervix_ffi.UncertainError):
            delivery.ack(timeout=PATIENCE)
        self.noticed()
        if when == "after":
            one.attempt, one.settled = None, True
            self.revoked.append(delivery)
        self.lost()

    @rule()
    def lose_the_session(self) -> None:
        self.cut()
        self.quietly = False
        self.lost()

    @precondition(lambda self: not self.interrupted)
    @rule()
    def end_the_attachment(self) -> None:
        if not counts(self.node)["consumers"]:
            # The one before ended a moment ago, and the next waits for somebody to read, or for its time.
            return
        self.node.control("end_consumer")
        self.quietly = True
        self.lost()

    @rule()
    def let_backoffs_pass(self) -> None:
        self.node.control("clock", advance="100ms")
        for one in self.batches.values():
            one.resting = False

    @rule()
    def let_attempts_time_out(self) -> None:
        self.node.control("clock", advance="21s")
        self.aged = self.parked
        for one in self.batches.values():
            one.resting = False
            if one.attempt is not None:
                self.stale.append(one.attempt)
                one.attempt = None

    @rule()
    def close_and_open_another(self) -> None:
        self.consumer.close(timeout=PATIENCE)
        assert self.consumer.state is EndpointState.CLOSED
        with pytest.raises(nervix_ffi.ClosedError):
            self.consumer.next(timeout=PATIENCE)
        self.lost()
        self.interrupted = self.quietly = False
        self.consumer = consumer(self.shaken, credit_batches=CREDIT)

    @rule(delivery=consumes(deliveries))
    def let_go(self, delivery: nervix_ffi.Delivery | None) -> None:
        """Releasing settles nothing; the attempt stays until its time is over."""
        if delivery is None:
            return
        self.released.append(delivery)
        delivery.release()
        with pytest.raises(nervix_ffi.ClosedError):
            delivery.ack(timeout=PATIENCE)

    @invariant()
    def the_handle_lives(self) -> None:
        assert self.consumer.reopen_reason is None
        assert self.consumer.state in (EndpointState.ACTIVE, EndpointState.INTERRUPTED)

    def teardown(self) -> None:
        """Whatever was not settled comes again, under its identity."""
        try:
            self.node.control("clear")
            while not all(one.settled for one in self.batches.values()):
                for _ in range(CREDIT):
                    delivery = self.read_one()
                    if delivery is not None and delivery not in self.stale:
                        assert delivery.ack(timeout=PATIENCE) is Settlement.CONFIRMED
                        one = self.batches[ids(delivery)[0]]
                        one.attempt, one.settled = None, True
                self.let_attempts_time_out()
            assert self.read_one() is None
            assert describe(self.node, "EMITTER out")["retained batches"] == "0"
            self.consumer.close(timeout=PATIENCE)
            wait(self.node, consumers=0, parked_reads=0)
        finally:
            for one in self.unsettled():
                assert one.attempt is not None
                one.attempt.release()
            for delivery in self.stale + self.revoked:
                delivery.release()
            self.stop()


@pytest.mark.rule("EC-2", "EC-4", "EC-5", "EC-6", "B-15", "B-16", "N-6")
@pytest.mark.timeout(280)
def test_a_consumer_under_a_model() -> None:
    run_state_machine_as_test(
        ConsumerMachine,
        settings=settings(
            max_examples=25,
            stateful_step_count=25,
            deadline=None,
            # Making a failure smaller takes a node and its waits each time: longer than to read it as it is.
            phases=[Phase.reuse, Phase.generate],
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
        ),
    )
