"""Sessions that outlive their connections, over real sockets: how they come back, how often they ask, and what they bring along.

How evenly and how often is measured exactly in simulated time (``core/engine/tests/rules/recovery.rs``). Here nothing is asserted of
time but that it passed: an attempt is never seen before it was made.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import nervix_ffi
from nervix_ffi import (
    ClockChanged,
    ClockInterrupted,
    ClockRestorationFailed,
    EndpointState,
    Interrupted,
    InterruptedReadError,
    RestorationFailed,
    Rows,
    SubmissionUncertainty,
)
from nervix_ffi.testing import LoopbackNode

from ..endpoints import BOTH, answer, consumer, ids, producer, resends, rows
from ..support import DOMAIN, PATIENCE, Running, connect, counts, executed, next_event, publish, row_ids, sent, wait
from ..wire import reader
from ..wire.tap import Tap, grpc_messages

pytestmark = pytest.mark.usefixtures("generated")

CREATE = "CREATE SCHEMA made (id U32);"

#: Seconds a session may be silent before its server is asked whether it is there.
SILENCE = 0.5


@pytest.fixture
def node() -> Iterator[LoopbackNode]:
    """A node with both graphs in one domain."""
    with LoopbackNode(load=BOTH) as one:
        yield one


def take(taking: nervix_ffi.Consumer) -> list[Any]:
    """The ids of the next delivery, which is acknowledged."""
    delivery = taking.next(timeout=PATIENCE)
    found = ids(delivery)
    delivery.ack(timeout=PATIENCE)
    return found


# ---- many at once


@pytest.mark.rule("D-5", "S-7", "B-7")
def test_a_hundred_sessions_cut_at_once_all_come_back_with_their_subscriptions(node: LoopbackNode) -> None:
    hosts = 100
    sessions = [connect(node) for _ in range(hosts)]
    kept = [session.subscribe("readings") for session in sessions]
    node.control("cut", how="abort")
    wait(
        node,
        sessions={"exactly": hosts},
        sessions_opened=2 * hosts,
        subscriptions={"exactly": hosts},
        frames={"out": {"SubscribeOutcome": 2 * hosts}},
    )
    found = counts(node)
    # Each of them needed one connection to come back, and none asked for more.
    assert (found["connections"]["opened"], found["connections"]["refused"]) == (2 * hosts, 0)
    assert found["sessions"]["opened"] == 2 * hosts
    publish(node, 1)
    for one in kept:
        assert isinstance(next_event(one), Interrupted)
        event = next_event(one)
        assert row_ids(event) == [1]
        assert event.generation != one.generation
    for session in sessions:
        session.close()


# ---- a node that stays away


def least(attempts: int) -> float:
    """Seconds that so many attempts take at least: half of waits that double from 100 ms to a second."""
    return sum(min(0.1 * 2.0**failure, 1.0) / 2 for failure in range(attempts - 1))


@pytest.mark.rule("D-2", "D-4", "D-6", "S-7", "B-7")
@pytest.mark.parametrize("waits", ["events", "command", "delivery"])
def test_a_node_that_stays_away_is_asked_at_a_bounded_rate_and_found_again(node: LoopbackNode, waits: str) -> None:
    attempts = 8
    with Tap(node.uri) as door, connect(node, door.uri) as session:
        kept = session.subscribe("readings")
        taking = consumer(session)
        opened = sent(node, "SubscribeRequest")
        since = time.monotonic()
        door.shut()
        assert isinstance(next_event(kept), Interrupted)
        with pytest.raises(InterruptedReadError):
            taking.next(timeout=PATIENCE)
        calls: dict[str, Callable[[], object]] = {
            "events": lambda: row_ids(next_event(kept)),
            "command": lambda: session.execute(CREATE, timeout=PATIENCE).completed,
            "delivery": lambda: take(taking),
        }
        call = Running(calls[waits])
        door.wait_for(attempts, PATIENCE)
        took = door.turned_away[attempts - 1] - since
        door.open()
        wait(node, sessions={"exactly": 1}, subscriptions={"exactly": 1}, frames={"out": {"SubscribeOutcome": 2}})
        publish(node, 1)
        if waits == "delivery":
            with producer(session, "held") as giving:
                giving.submit(rows(7), timeout=PATIENCE)
                assert call.result() == [7]
        else:
            assert call.result() == ([1] if waits == "events" else True)
        print(f"\n{attempts} attempts in {took:.2f} s, which take {least(attempts):.2f} s at least")
        assert took >= least(attempts)
        assert sent(node, "SubscribeRequest") == opened + 1


@pytest.mark.rule("D-2", "D-6", "S-7")
def test_a_node_that_ends_every_session_it_begins_is_asked_at_a_bounded_rate(node: LoopbackNode) -> None:
    attempts = 8
    with connect(node) as session, session.subscribe("readings") as kept:
        reading = Running(lambda: [next_event(kept), next_event(kept)])
        node.control("cut", direction="out", when="after", kind="LeadershipObserved", how="abort", count=attempts - 1)
        since = time.monotonic()
        node.control("cut", how="abort")
        wait(node, sessions_opened=1 + attempts)
        took = time.monotonic() - since
        wait(node, subscriptions={"exactly": 1})
        publish(node, 1)
        gap, after = reading.result()
        # Nothing was open on the sessions between, so there was one gap.
        assert isinstance(gap, Interrupted)
        assert row_ids(after) == [1]
        print(f"\n{attempts} sessions in {took:.2f} s, which take {least(attempts):.2f} s at least")
        assert took >= least(attempts)


@pytest.mark.rule("S-7", "K-5", "EC-5", "P-8", "B-7", "B-9", "B-16")
def test_refused_restorations_are_told_and_repeated_on_the_session_that_refused(node: LoopbackNode) -> None:
    refusals = 3
    with connect(node) as session:
        clock = session.attach_clock(timeout=PATIENCE)
        kept = session.subscribe("readings")
        taking, giving = consumer(session), producer(session)
        node.control("refuse_subscribe", count=refusals, message="not now")
        answer(node, "AttachDomainClockRequest", "RequestFailed", count=refusals)
        for kind in ("OpenIngestorRequest", "OpenEmitterRequest"):
            answer(node, kind, "EndpointUnavailable", count=refusals)
        # Read as they come: those that nobody reads are told as one.
        events = Running(lambda: [next_event(kept) for _ in range(1 + refusals)])
        clock_events = Running(lambda: [clock.next(timeout=PATIENCE) for _ in range(1 + refusals + 1)])
        node.control("cut", how="abort")
        with pytest.raises(InterruptedReadError):
            taking.next(timeout=PATIENCE)
        delivery = Running(lambda: take(taking))
        submission = giving.submit(rows(1), timeout=PATIENCE)
        assert submission.result(timeout=PATIENCE).completed
        gap, *failures = events.result()
        assert isinstance(gap, Interrupted)
        assert [type(event) for event in failures] == [RestorationFailed] * refusals
        assert all("not now" in str(event) for event in failures)
        told = [type(event) for event in clock_events.result()]
        assert told == [ClockInterrupted, *[ClockRestorationFailed] * refusals, ClockChanged]
        wait(node, subscriptions={"exactly": 1}, consumers={"exactly": 1}, parked_reads=1)
        publish(node, 2)
        assert row_ids(next_event(kept)) == [2]
        with producer(session, "held") as held:
            held.submit(rows(3), timeout=PATIENCE)
            assert delivery.result() == [3]
        found = counts(node)
        assert found["sessions"]["opened"] == 2
        asked = found["frames"]["in"]
        # The first one, those that were refused, and the one that was not.
        for kind in ("SubscribeRequest", "AttachDomainClockRequest", "OpenEmitterRequest"):
            assert asked[kind] == 1 + refusals + 1, kind
        assert asked["OpenIngestorRequest"] == 1 + refusals + 1 + 1


# ---- silence


@pytest.mark.rule("T-8", "EC-2", "S-9")
def test_what_is_idle_outlives_ten_request_timeouts_on_one_session(node: LoopbackNode) -> None:
    with connect(node, request_timeout=SILENCE) as session:
        clock = session.attach_clock(timeout=PATIENCE)
        kept = session.subscribe("readings")
        held = producer(session, "held")
        taking, idle = consumer(session), consumer(session)
        reading = Running(lambda: next_event(kept))
        delivery = Running(lambda: taking.next(timeout=PATIENCE))
        wait(node, parked_reads=1)
        # Each of them is asked after a silence of a request timeout, and is the only thing that is asked.
        wait(node, frames={"in": {"ListDomainsRequest": 10}})
        found = counts(node)
        assert (found["sessions"]["opened"], found["connections"]["opened"]) == (1, 1)
        assert (found["clocks"], found["subscriptions"], found["producers"], found["consumers"]) == (1, 1, 1, 2)
        publish(node, 1)
        assert row_ids(reading.result()) == [1]
        submission = held.submit(rows(2), timeout=PATIENCE)
        taken = delivery.result()
        assert ids(taken) == [2]
        taken.ack(timeout=PATIENCE)
        assert submission.result(timeout=PATIENCE).completed
        assert (clock.read().domain, idle.state) == (DOMAIN, EndpointState.ACTIVE)
        assert counts(node)["sessions"]["opened"] == 1


def subscribed(session: nervix_ffi.Session) -> Callable[[], None]:
    kept = session.subscribe("readings")

    def gap() -> None:
        assert isinstance(next_event(kept), Interrupted)

    return gap


def following(session: nervix_ffi.Session) -> Callable[[], None]:
    clock = session.attach_clock(timeout=PATIENCE)

    def gap() -> None:
        assert isinstance(clock.next(timeout=PATIENCE), ClockInterrupted)
        assert isinstance(clock.next(timeout=PATIENCE), ClockChanged)

    return gap


def consuming(session: nervix_ffi.Session) -> Callable[[], None]:
    taking = consumer(session)

    def gap() -> None:
        with pytest.raises(InterruptedReadError):
            taking.next(timeout=PATIENCE)
        assert taking.state is EndpointState.INTERRUPTED
        with pytest.raises(nervix_ffi.DeadlineError):
            taking.next(timeout=SILENCE)

    return gap


def producing(session: nervix_ffi.Session) -> Callable[[], None]:
    giving = producer(session)

    def gap() -> None:
        # Nothing was lost with the connection, so nothing is unknown.
        assert giving.state is EndpointState.INTERRUPTED
        assert giving.submit(rows(1), timeout=PATIENCE).result(timeout=PATIENCE).completed

    return gap


@pytest.mark.rule("T-8", "D-6", "S-7", "K-5", "EC-5", "P-8")
@pytest.mark.parametrize("thing", [subscribed, following, consuming, producing])
def test_a_connection_that_carries_nothing_any_more_is_replaced_though_nobody_waits(
    node: LoopbackNode, thing: Callable[[nervix_ffi.Session], Callable[[], None]]
) -> None:
    with Tap(node.uri) as tap, connect(node, tap.uri, request_timeout=SILENCE) as session:
        gap = thing(session)
        since = time.monotonic()
        tap.black_hole()
        assert tap.connections[0].client_closed.wait(PATIENCE), "the client still trusts it"
        print(f"\ngiven up after {time.monotonic() - since:.2f} s, and {2 * SILENCE} s are meant")
        gap()
        wait(node, sessions_opened=2)
        assert counts(node)["sessions"]["opened"] == 2
        assert resends(node) == 0


@pytest.mark.rule("T-8", "D-6", "E-3", "P-8", "EC-6", "X-6", "N-7")
def test_whatever_is_in_flight_on_such_a_connection_is_told_or_goes_on(node: LoopbackNode) -> None:
    with Tap(node.uri) as tap, connect(node, tap.uri, request_timeout=SILENCE) as session:
        held = producer(session, "held")
        taking = consumer(session)
        submission = held.submit(rows(1), timeout=PATIENCE)
        delivery = taking.next(timeout=PATIENCE)
        with session.transaction(DOMAIN) as transaction:
            transaction.execute(CREATE, timeout=PATIENCE)
            tap.black_hole()
            settling = Running(lambda: delivery.ack(timeout=PATIENCE))
            outcome = transaction.execute("CREATE SCHEMA more (id U32);", timeout=PATIENCE)
            assert (outcome.completed, executed(node, outcome.reference)) == (True, 1)
            with pytest.raises((nervix_ffi.UncertainError, nervix_ffi.RejectedError)):
                settling.result()
            told = submission.result(timeout=PATIENCE, check=False)
            assert told.uncertainty is SubmissionUncertainty.SESSION_LOST
        assert (resends(node), counts(node)["forbidden_in_transaction"]) == (0, {})


@pytest.mark.rule("P-5", "P-7", "T-8", "B-14")
def test_a_batch_that_is_never_answered_is_the_hosts_to_wait_for(node: LoopbackNode) -> None:
    node.control("drop_reply", kind="SubmitBatchRequest")
    with connect(node, request_timeout=SILENCE) as session, producer(session) as giving:
        submission = giving.submit(rows(1), timeout=PATIENCE)
        wait(node, frames={"in": {"ListDomainsRequest": 3}})
        with pytest.raises(nervix_ffi.DeadlineError):
            submission.result(timeout=0.1)
        # It may yet come, and it holds its credit until then; nothing is sent again and no session is given up for it.
        assert [one.done() for one in giving.pending()] == [False]
        assert giving.send(rows(2), timeout=PATIENCE).completed
        assert (counts(node)["sessions"]["opened"], resends(node)) == (1, 0)
        node.control("cut", how="abort")
        told = submission.result(timeout=PATIENCE, check=False)
        assert told.uncertainty is SubmissionUncertainty.SESSION_LOST


# ---- the order of the restoration


def requests(tap: Tap, connection: int) -> list[tuple[str, Any]]:
    """What the client asked on one of its connections, in order."""
    frames = bytes(tap.connections[connection].from_client)
    return [(name, body) for _, name, body in (reader.client(message) for _, message in grpc_messages(frames))]


def command(body: Any) -> tuple[Any, ...]:
    """All that a repetition repeats."""
    preview = body.ExpectedPreview()
    of = None if preview is None else (preview.TransactionId(), preview.Position())
    return body.Query(), body.Domain(), body.ExecutionReference(), body.ExpectedTransactionPosition(), of


@pytest.mark.rule("D-5", "D-1", "E-2", "X-2", "X-6", "S-7", "K-5", "P-8", "EC-5", "L-3", "B-7", "B-9", "B-16")
@pytest.mark.parametrize("when", ["before", "after"])
def test_everything_comes_back_in_its_order(node: LoopbackNode, when: str) -> None:
    with Tap(node.uri) as tap, connect(node, tap.uri) as session:
        clock = session.attach_clock(timeout=PATIENCE)
        first, second = session.subscribe("readings", name="first"), session.subscribe("sites", name="second")
        held, taking = producer(session, "held"), consumer(session)
        with session.transaction(DOMAIN) as transaction:
            transaction.execute("CREATE SCHEMA zero (id U32);", timeout=PATIENCE)
            node.control("cut", direction="in", when=when, kind="CommandRequest")
            node.control("accept", mode="refuse")
            appending = Running(lambda: transaction.execute(CREATE, timeout=PATIENCE))
            assert isinstance(clock.next(timeout=PATIENCE), ClockInterrupted)
            for one in (first, second):
                assert isinstance(next_event(one), Interrupted)
            with pytest.raises(InterruptedReadError):
                taking.next(timeout=PATIENCE)
            delivery = Running(lambda: take(taking))
            submitting = Running(lambda: held.submit(rows(1), timeout=PATIENCE))
            refused = counts(node)["connections"]["refused"]
            # Time enough for both calls to wait for their attachments.
            wait(node, connections_refused=refused + 3)
            node.control("accept", mode="accept")
            assert appending.result().completed
            assert isinstance(clock.next(timeout=PATIENCE), ClockChanged)
            assert submitting.result() is not None
            assert delivery.result() == [1]
            transaction.execute("CREATE SCHEMA last (id U32);", timeout=PATIENCE)
        publish(node, 5)
        event = next_event(first)
        assert isinstance(event, Rows)
        assert event.generation != first.generation

    ordered = [(name, body) for name, body in requests(tap, -1) if name not in ("ReadEmitterBatchRequest", "SubmitBatchRequest")]
    names = [name for name, _ in ordered]
    assert names[:3] == ["AttachDomainClockRequest", "SubscribeRequest", "SubscribeRequest"]
    assert sorted(names[3:5]) == ["OpenEmitterRequest", "OpenIngestorRequest"]
    assert names[5:7] == ["AttachTransactionRequest", "CommandRequest"]
    lost = [body for name, body in requests(tap, 0) if name == "CommandRequest"][-1]
    again = [body for name, body in ordered if name == "CommandRequest"]
    assert command(again[0]) == command(lost)
    assert (lost.Query(), lost.ExpectedTransactionPosition()) == (CREATE.encode(), 1)
    # What was not sent before goes where the newest outcome says.
    assert [body.ExpectedTransactionPosition() for body in again] == [1, 2, 3]
    reference = lost.ExecutionReference().decode()
    assert executed(node, reference) == 1
    assert (resends(node), counts(node)["forbidden_in_transaction"]) == (0, {})
