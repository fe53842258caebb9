"""Consumers: opening, reading, settling, redelivery, and following an emitter across sessions."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import nervix_ffi
from nervix_ffi import EndpointState, OpenRefusal, ProcessingFailure, ReopenReason, Settlement, SettlementFailed
from nervix_ffi.testing import LoopbackNode

from ..endpoints import FIELDS, GRAPH, answer, consumer, describe, emitter, execute, ids, producer, rows
from ..support import DOMAIN, PATIENCE, Running, connect, counts, sent, wait

KIB = 1 << 10
MIB = 1 << 20
SECOND = 1_000_000_000


@pytest.fixture
def node() -> Iterator[LoopbackNode]:
    """A node with the graph of endpoints."""
    with LoopbackNode(load=GRAPH) as one:
        yield one


@pytest.fixture
def feed(session: nervix_ffi.Session) -> nervix_ffi.Producer:
    """A producer for the emitter."""
    return producer(session, "held")


@pytest.fixture
def taking(session: nervix_ffi.Session) -> nervix_ffi.Consumer:
    """A consumer of the emitter."""
    return consumer(session)


def next_of(source: nervix_ffi.Consumer) -> nervix_ffi.Delivery:
    """The next delivery."""
    return source.next(timeout=PATIENCE)


def restored(source: nervix_ffi.Consumer) -> nervix_ffi.Delivery:
    """The delivery after the interruption, which must come first."""
    with pytest.raises(nervix_ffi.InterruptedReadError):
        source.next(timeout=PATIENCE)
    return source.next(timeout=PATIENCE)


def ids_of(delivery: nervix_ffi.Delivery) -> list[Any]:
    """The ids of a delivery, which is acknowledged."""
    found = ids(delivery)
    delivery.ack(timeout=PATIENCE)
    return found


def settlements(node: LoopbackNode) -> int:
    return sent(node, "SettleEmitterBatchRequest")


# ---- opening


@pytest.mark.rule("EC-1", "B-12")
def test_what_an_open_establishes(node: LoopbackNode, session: nervix_ffi.Session) -> None:
    made = consumer(session, credit_batches=7, credit_bytes=3 * MIB)
    assert (made.domain, made.name, made.generation, made.state) == (DOMAIN, "out", 1, EndpointState.ACTIVE)
    assert len(made.contract) == 32
    assert made.grant == nervix_ffi.Grant(batches=7, bytes=3 * MIB, max_batch_rows=16, max_batch_bytes=64 * KIB)
    assert made.policy == nervix_ffi.Policy(nervix_ffi.AckWindow.PARALLEL, 64, 20 * SECOND, SECOND // 100, SECOND // 25)
    assert made.schema.names == ("id", "note")
    assert producer(session, "held").contract != made.contract


@pytest.mark.rule("EC-1", "B-12")
def test_an_open_is_refused_for_what_is_wrong_with_it(node: LoopbackNode, session: nervix_ffi.Session) -> None:
    def refused(name: str = "out", fields: str = FIELDS, domain: str = DOMAIN, **options: Any) -> Any:
        with pytest.raises(nervix_ffi.OpenRefused) as caught:
            session.open_consumer(name, fields, domain=domain, timeout=PATIENCE, **options)
        return caught.value.refusal

    assert refused(domain="nowhere") is OpenRefusal.DOMAIN_NOT_FOUND
    assert refused("nothing") is OpenRefusal.ENDPOINT_NOT_FOUND
    assert refused("held") is OpenRefusal.ENDPOINT_NOT_FOUND, "an ingestor is no emitter"
    for fields in ("id U64", "id U64, note STRING", "note STRING OPTIONAL, id U64", "id U64 SENSITIVE, note STRING OPTIONAL"):
        assert refused(fields=fields) is OpenRefusal.SCHEMA_MISMATCH
    # One batch of the emitter's maximum must fit.
    assert refused(credit_bytes=64 * KIB - 1) is OpenRefusal.INVALID_LIMITS
    execute(node, "STOP;")
    assert refused() is OpenRefusal.DOMAIN_STOPPED
    assert counts(node)["consumers"] == 0


@pytest.mark.rule("EC-1")
def test_sessions_and_nodes_share_their_credit(node: LoopbackNode, session: nervix_ffi.Session) -> None:
    def refused(owner: nervix_ffi.Session) -> Any:
        with pytest.raises(nervix_ffi.OpenRefused) as caught:
            consumer(owner, credit_bytes=64 * KIB)
        return caught.value.refusal

    many = [consumer(session, credit_batches=1, credit_bytes=64 * KIB) for _ in range(32)]
    assert refused(session) is OpenRefusal.TOO_MANY_ENDPOINTS
    for one in many:
        one.close(timeout=PATIENCE)
    big = consumer(session, credit_bytes=32 * MIB)
    assert refused(session) is OpenRefusal.SESSION_CAPACITY_EXHAUSTED
    others = [connect(node) for _ in range(4)]
    more = [consumer(other, credit_bytes=32 * MIB) for other in others[:3]]
    assert refused(others[3]) is OpenRefusal.NODE_CAPACITY_EXHAUSTED
    big.close(timeout=PATIENCE)
    consumer(session, credit_bytes=64 * KIB)
    del more
    for other in others:
        other.close()


@pytest.mark.rule("EC-1", "B-12")
@pytest.mark.parametrize(
    ("name", "refusal"),
    [
        ("NotClientEmitter", OpenRefusal.NOT_CLIENT_ENDPOINT),
        ("EndpointUnavailable", OpenRefusal.ENDPOINT_UNAVAILABLE),
        ("InTransaction", OpenRefusal.IN_TRANSACTION),
    ],
)
def test_every_other_refusal_reaches_its_caller(
    node: LoopbackNode, session: nervix_ffi.Session, name: str, refusal: OpenRefusal
) -> None:
    answer(node, "OpenEmitterRequest", name)
    with pytest.raises(nervix_ffi.OpenRefused) as caught:
        consumer(session)
    assert caught.value.refusal is refusal
    assert consumer(session).state is EndpointState.ACTIVE


@pytest.mark.rule("EC-1")
@pytest.mark.parametrize("credit", [(0, MIB), (1, 0), (1025, MIB), (1, 32 * MIB + 1)])
def test_credit_that_cannot_be_asked_for_is_not_asked_for(
    node: LoopbackNode, session: nervix_ffi.Session, credit: tuple[int, int]
) -> None:
    with pytest.raises(nervix_ffi.InvalidArgumentError):
        consumer(session, credit_batches=credit[0], credit_bytes=credit[1])
    assert sent(node, "OpenEmitterRequest") == 0


@pytest.mark.rule("EC-6")
def test_an_open_that_nobody_waits_for_is_let_go_of(node: LoopbackNode, session: nervix_ffi.Session) -> None:
    node.control("delay", kind="OpenEmitterRequest", when="after")
    cancel = nervix_ffi.Cancel()
    opening = Running(lambda: session.open_consumer("out", FIELDS, cancel=cancel))
    wait(node, held=1)
    cancel.trigger()
    with pytest.raises(nervix_ffi.CancelledError):
        opening.result()
    node.control("release")
    wait(node, consumers=0)


# ---- reading


@pytest.mark.rule("EC-3", "B-15")
def test_what_a_delivery_is(node: LoopbackNode, feed: nervix_ffi.Producer, taking: nervix_ffi.Consumer) -> None:
    given: list[dict[str, Any]] = [{"id": 1, "note": "one"}, {"id": 2, "note": None}]
    feed.submit(given, timeout=PATIENCE)
    delivery = next_of(taking)
    assert (len(delivery.identity), len(delivery.reference)) == (16, 16)
    assert (delivery.source_relay, delivery.members, delivery.branch_fingerprint) == ("watched", 2, None)
    assert delivery.execution_now > 1_700_000_000 * SECOND
    assert delivery.rows() == given == delivery.to_arrow().to_pylist()
    assert delivery.to_arrow().schema.names == ["id", "note"], "metadata is no column"
    delivery.ack(timeout=PATIENCE)


@pytest.mark.rule("EC-3")
def test_branches_are_told_apart_by_a_fingerprint(node: LoopbackNode, session: nervix_ffi.Session) -> None:
    execute(
        node,
        "STOP;",
        "CREATE SCHEMA note_key (note STRING);",
        "CREATE SCHEMA noted (id U64, note STRING);",
        "CREATE BRANCH by_note SCHEMA note_key TTL 5m;",
        "CREATE RELAY branched SCHEMA noted BRANCHED BY by_note;",
        "CREATE INGESTOR splitting FROM CLIENT SCHEMA noted MODE ACK PARALLEL MAX 8 ACK TIMEOUT 60s RETRY POLICY BACKOFF 10ms"
        " MAX 40ms ON QUIESCE SUSPEND TIMESTAMP NOW TO branched INHERIT ALL BRANCHED BY by_note SET note = message.note"
        " FLUSH IMMEDIATE ON MESSAGE ERROR LOG ON GENERAL ERROR LOG;",
        emitter("split", "branched", schema="noted"),
        "START;",
    )
    fields = "id U64, note STRING"
    feeding = session.open_producer("splitting", fields, timeout=PATIENCE)
    reading = session.open_consumer("split", fields, timeout=PATIENCE)
    submission = feeding.submit([{"id": number, "note": "ab"[number % 2]} for number in range(4)], timeout=PATIENCE)
    found: dict[Any, list[Any]] = {}
    for _ in range(2):
        delivery = next_of(reading)
        assert delivery.branch_fingerprint is not None
        assert len(delivery.branch_fingerprint) == 32
        assert b"a" not in (delivery.branch_fingerprint, delivery.identity)
        (note,) = {row["note"] for row in delivery.rows()}
        found[note] = [delivery.branch_fingerprint, ids(delivery)]
        delivery.ack(timeout=PATIENCE)
    assert {note: numbers for note, (_, numbers) in found.items()} == {"a": [0, 2], "b": [1, 3]}
    assert found["a"][0] != found["b"][0]
    assert submission.result(timeout=PATIENCE).completed


@pytest.mark.rule("EC-2")
def test_a_parked_read_holds_up_nothing(
    node: LoopbackNode, session: nervix_ffi.Session, feed: nervix_ffi.Producer, taking: nervix_ffi.Consumer
) -> None:
    other = consumer(session)
    parked = [Running(lambda: next_of(taking)), Running(lambda: next_of(other))]
    wait(node, parked_reads=2)
    assert session.execute("SHOW CLUSTER STATUS;", timeout=PATIENCE).completed
    assert producer(session).send(rows(9), timeout=PATIENCE).completed
    for number in range(2):
        feed.submit(rows(number), timeout=PATIENCE)
    deliveries = [one.result() for one in parked]
    assert sorted(ids(delivery)[0] for delivery in deliveries) == [0, 1]
    for delivery in deliveries:
        delivery.ack(timeout=PATIENCE)


@pytest.mark.rule("EC-2")
def test_a_read_that_was_given_up_stays_for_the_next(
    node: LoopbackNode, feed: nervix_ffi.Producer, taking: nervix_ffi.Consumer
) -> None:
    with pytest.raises(nervix_ffi.DeadlineError):
        taking.next(timeout=0.05)
    wait(node, parked_reads=1)
    feed.submit(rows(1), timeout=PATIENCE)
    wait(node, frames={"out": {"ReadEmitterBatchOutcome": 1}})
    assert ids_of(next_of(taking)) == [1]
    assert (sent(node, "ReadEmitterBatchRequest"), sent(node, "CancelRequest")) == (1, 0)


def test_consumers_compete(node: LoopbackNode, session: nervix_ffi.Session, feed: nervix_ffi.Producer) -> None:
    with connect(node) as another:
        readers = [consumer(session), consumer(another)]
        submissions = [feed.submit(rows(number), timeout=PATIENCE) for number in range(8)]
        found: list[list[Any]] = [[], []]
        for turn in range(8):
            delivery = next_of(readers[turn % 2])
            found[turn % 2] += ids(delivery)
            delivery.ack(timeout=PATIENCE)
        assert sorted(found[0] + found[1]) == list(range(8))
        assert [one.result(timeout=PATIENCE).completed for one in submissions] == [True] * 8


# ---- settling


@pytest.mark.rule("EC-4", "EC-5", "B-15")
def test_a_retried_delivery_comes_again_unchanged(
    node: LoopbackNode, feed: nervix_ffi.Producer, taking: nervix_ffi.Consumer
) -> None:
    submission = feed.submit(rows(1, 2), timeout=PATIENCE)
    first = next_of(taking)
    assert first.retry(timeout=PATIENCE) is Settlement.CONFIRMED
    second = next_of(taking)
    assert second.identity == first.identity
    assert second.reference != first.reference
    assert bytes(second.ipc) == bytes(first.ipc)
    assert (second.members, second.source_relay, second.execution_now) == (first.members, first.source_relay, first.execution_now)
    with pytest.raises(SettlementFailed) as caught:
        first.ack(timeout=PATIENCE)
    assert caught.value.settlement is Settlement.STALE_REFERENCE
    assert not submission.done()
    assert second.ack(timeout=PATIENCE) is Settlement.CONFIRMED
    assert submission.result(timeout=PATIENCE).completed


@pytest.mark.rule("EC-4")
def test_acknowledging_again_changes_nothing(feed: nervix_ffi.Producer, taking: nervix_ffi.Consumer) -> None:
    submission = feed.submit(rows(1), timeout=PATIENCE)
    delivery = next_of(taking)
    assert delivery.ack(timeout=PATIENCE) is Settlement.CONFIRMED
    assert delivery.ack(timeout=PATIENCE) is Settlement.CONFIRMED
    assert submission.result(timeout=PATIENCE).completed


@pytest.mark.rule("EC-4")
def test_a_rejected_delivery_does_not_come_again(
    node: LoopbackNode, feed: nervix_ffi.Producer, taking: nervix_ffi.Consumer
) -> None:
    submission = feed.submit(rows(1), timeout=PATIENCE)
    delivery = next_of(taking)
    assert delivery.reject("ü" * 512, timeout=PATIENCE) is Settlement.CONFIRMED
    assert submission.result(timeout=PATIENCE, check=False).failure is ProcessingFailure.REJECTED
    feed.submit(rows(2), timeout=PATIENCE)
    assert ids_of(next_of(taking)) == [2]


@pytest.mark.rule("EC-4", "B-15")
@pytest.mark.parametrize("reason", ["", "x" * 1025, "ü" * 513, "\ud800"])
def test_a_reason_that_is_none_is_not_sent(
    node: LoopbackNode, feed: nervix_ffi.Producer, taking: nervix_ffi.Consumer, reason: str
) -> None:
    feed.submit(rows(1), timeout=PATIENCE)
    delivery = next_of(taking)
    with pytest.raises(nervix_ffi.InvalidArgumentError):
        delivery.reject(reason, timeout=PATIENCE)
    assert settlements(node) == 0
    assert delivery.settlement is None
    assert delivery.ack(timeout=PATIENCE) is Settlement.CONFIRMED


@pytest.mark.rule("EC-4", "B-15")
@pytest.mark.parametrize(
    ("name", "settlement"),
    [
        ("StaleReference", Settlement.STALE_REFERENCE),
        ("WrongConsumer", Settlement.WRONG_CONSUMER),
        ("InvalidReason", Settlement.INVALID_REASON),
        ("ConsumerEnded", Settlement.CONSUMER_ENDED),
    ],
)
def test_every_settlement_reaches_its_caller(
    node: LoopbackNode, feed: nervix_ffi.Producer, taking: nervix_ffi.Consumer, name: str, settlement: Settlement
) -> None:
    feed.submit(rows(1), timeout=PATIENCE)
    delivery = next_of(taking)
    answer(node, "SettleEmitterBatchRequest", name, count=2)
    with pytest.raises(SettlementFailed, match=settlement.name) as caught:
        delivery.reject("no", timeout=PATIENCE)
    assert caught.value.settlement is settlement is delivery.settlement
    assert delivery.ack(timeout=PATIENCE, check=False) is settlement
    assert delivery.ack(timeout=PATIENCE) is Settlement.CONFIRMED is delivery.settlement


@pytest.mark.rule("EC-5", "B-15")
def test_an_attempt_that_is_not_settled_comes_again_after_its_time(
    node: LoopbackNode, feed: nervix_ffi.Producer, taking: nervix_ffi.Consumer
) -> None:
    node.control("clock", frozen=True)
    feed.submit(rows(1), timeout=PATIENCE)
    first = next_of(taking)
    reading = Running(lambda: next_of(taking))
    wait(node, parked_reads=1)
    node.control("clock", advance="19s")
    assert counts(node)["parked_reads"] == 1
    node.control("clock", advance="2s")
    second = reading.result()
    assert (second.identity, bytes(second.ipc)) == (first.identity, bytes(first.ipc))
    assert second.reference != first.reference
    assert first.ack(timeout=PATIENCE, check=False) is Settlement.STALE_REFERENCE
    assert second.ack(timeout=PATIENCE) is Settlement.CONFIRMED


@pytest.mark.rule("EC-6", "B-15")
@pytest.mark.parametrize("how", ["cut", "drop"])
def test_a_settlement_whose_answer_is_lost_is_uncertain(
    node: LoopbackNode, feed: nervix_ffi.Producer, taking: nervix_ffi.Consumer, how: str
) -> None:
    feed.submit(rows(1), timeout=PATIENCE)
    delivery = next_of(taking)
    if how == "drop":
        node.control("drop_reply", kind="SettleEmitterBatchRequest")
        settling = Running(lambda: delivery.ack(timeout=PATIENCE))
        wait(node, frames={"in": {"SettleEmitterBatchRequest": 1}})
        node.control("cut", how="abort")
    else:
        node.control("cut", direction="in", kind="SettleEmitterBatchRequest", when="after", how="abort")
        settling = Running(lambda: delivery.ack(timeout=PATIENCE))
    with pytest.raises(nervix_ffi.UncertainError):
        settling.result()
    # It had been settled: nothing comes again, and nothing was sent to the new attachment.
    feed.submit(rows(2), timeout=PATIENCE)
    assert ids_of(restored(taking)) == [2]
    assert settlements(node) == 2
    with pytest.raises(nervix_ffi.RejectedError):
        delivery.ack(timeout=PATIENCE)
    assert settlements(node) == 2


@pytest.mark.rule("EC-6", "EC-5", "B-16")
def test_a_lost_session_revokes_what_was_delivered(
    node: LoopbackNode, feed: nervix_ffi.Producer, taking: nervix_ffi.Consumer
) -> None:
    feed.submit(rows(1), timeout=PATIENCE)
    first = next_of(taking)
    node.control("cut", how="abort")
    wait(node, sessions_ended=1)
    second = restored(taking)
    assert (second.identity, bytes(second.ipc)) == (first.identity, bytes(first.ipc))
    assert second.reference != first.reference
    settles: list[Callable[[], object]] = [first.ack, first.retry, lambda: first.reject("why")]
    for settle in settles:
        with pytest.raises(nervix_ffi.RejectedError):
            settle()
    assert settlements(node) == 0
    assert second.ack(timeout=PATIENCE) is Settlement.CONFIRMED
    assert first.rows() == second.rows(), "what was read stays"


@pytest.mark.rule("EC-3", "EC-5", "B-16")
def test_an_attachment_that_the_server_ended_is_interrupted_and_restored(
    node: LoopbackNode, feed: nervix_ffi.Producer, taking: nervix_ffi.Consumer
) -> None:
    feed.submit(rows(1), timeout=PATIENCE)
    first = next_of(taking)
    reading = Running(lambda: next_of(taking))
    wait(node, parked_reads=1)
    node.control("end_consumer")
    with pytest.raises(nervix_ffi.InterruptedReadError):
        reading.result()
    assert taking.state is EndpointState.INTERRUPTED
    with pytest.raises(nervix_ffi.RejectedError):
        first.ack(timeout=PATIENCE)
    second = next_of(taking)
    assert second.identity == first.identity
    assert counts(node)["sessions"]["opened"] == 1
    second.ack(timeout=PATIENCE)


@pytest.mark.rule("EC-4")
def test_a_server_that_says_the_consumer_ended_says_so_to_the_settler(
    node: LoopbackNode, feed: nervix_ffi.Producer, taking: nervix_ffi.Consumer
) -> None:
    feed.submit(rows(1), timeout=PATIENCE)
    first = next_of(taking)
    node.control("end_consumer")
    assert first.ack(timeout=PATIENCE, check=False) is Settlement.CONSUMER_ENDED
    again = restored(taking)
    assert again.identity == first.identity
    again.ack(timeout=PATIENCE)


@pytest.mark.rule("EC-6")
def test_a_close_gives_everything_back(
    node: LoopbackNode, session: nervix_ffi.Session, feed: nervix_ffi.Producer, taking: nervix_ffi.Consumer
) -> None:
    submissions = [feed.submit(rows(number), timeout=PATIENCE) for number in range(3)]
    held = [next_of(taking), next_of(taking)]
    over = nervix_ffi.Cancel()
    over.trigger()
    with pytest.raises(nervix_ffi.CancelledError):
        consumer(session, "out").next(cancel=over)
    taking.close(timeout=PATIENCE)
    assert taking.state is EndpointState.CLOSED
    with pytest.raises(nervix_ffi.ClosedError):
        taking.next(timeout=PATIENCE)
    assert list(taking) == []
    with pytest.raises(nervix_ffi.RejectedError):
        held[0].ack(timeout=PATIENCE)
    assert settlements(node) == 0
    other = consumer(session)
    found = [next_of(other) for _ in range(3)]
    assert {one.identity for one in held} <= {one.identity for one in found}
    assert sorted(number for one in found for number in ids(one)) == [0, 1, 2]
    for delivery in found:
        delivery.ack(timeout=PATIENCE)
    assert [one.result(timeout=PATIENCE).completed for one in submissions] == [True] * 3
    other.close(timeout=PATIENCE)
    assert describe(node, "EMITTER out")["retained batches"] == "0"


@pytest.mark.rule("EC-6", "C-6")
def test_a_close_that_the_node_has_no_room_for_is_asked_again(
    node: LoopbackNode, session: nervix_ffi.Session, feed: nervix_ffi.Producer, taking: nervix_ffi.Consumer
) -> None:
    feed.submit(rows(1), timeout=PATIENCE)
    first = next_of(taking)
    node.control("reject", kind="CloseEmitterRequest", reason="TooManyRequestsInFlight", count=2)
    taking.close(timeout=PATIENCE)
    # What it held is free for another one at once, and not when its time is over.
    wait(node, consumers=0)
    assert sent(node, "CloseEmitterRequest") == 3
    again = next_of(consumer(session))
    assert again.identity == first.identity
    again.ack(timeout=PATIENCE)


@pytest.mark.rule("EC-6")
def test_a_close_ends_a_read_that_waits(node: LoopbackNode, taking: nervix_ffi.Consumer) -> None:
    reading = Running(lambda: next_of(taking))
    looping = Running(lambda: list(taking))
    wait(node, parked_reads=1)
    taking.close(timeout=PATIENCE)
    with pytest.raises(nervix_ffi.ClosedError):
        reading.result()
    assert looping.result() == []
    wait(node, consumers=0, parked_reads=0)


@pytest.mark.rule("EC-6")
def test_closing_wins_over_a_restoration(node: LoopbackNode, taking: nervix_ffi.Consumer) -> None:
    node.control("delay", kind="OpenEmitterRequest", when="after")
    node.control("cut")
    wait(node, sessions_ended=1)
    with pytest.raises(nervix_ffi.InterruptedReadError):
        next_of(taking)
    reading = Running(lambda: next_of(taking))
    wait(node, held=1)
    taking.close(timeout=PATIENCE)
    with pytest.raises(nervix_ffi.ClosedError):
        reading.result()
    node.control("release")
    wait(node, consumers=0, frames={"in": {"CloseEmitterRequest": 1}})


# ---- following the emitter


@pytest.mark.rule("EC-5", "B-16")
@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ("Generation", ReopenReason.GENERATION_CHANGED),
        ("Fields", ReopenReason.SCHEMA_CHANGED),
        ("Contract", ReopenReason.CONTRACT_CHANGED),
        ("Window", ReopenReason.CONTRACT_CHANGED),
        ("AckTimeout", ReopenReason.CONTRACT_CHANGED),
        ("Retry", ReopenReason.CONTRACT_CHANGED),
        ("GrantedBatches", ReopenReason.CONTRACT_CHANGED),
        ("GrantedBytes", ReopenReason.CONTRACT_CHANGED),
        ("MaxBatchBytes", ReopenReason.CONTRACT_CHANGED),
        ("MaxBatchRows", ReopenReason.CONTRACT_CHANGED),
    ],
)
def test_a_consumer_is_not_restored_on_another_contract(
    node: LoopbackNode, session: nervix_ffi.Session, taking: nervix_ffi.Consumer, change: str, reason: ReopenReason
) -> None:
    node.control("describe_otherwise", kind="OpenEmitterRequest", change=change)
    node.control("cut")
    wait(node, sessions_ended=1)
    with pytest.raises(nervix_ffi.InterruptedReadError):
        next_of(taking)
    with pytest.raises(nervix_ffi.ReopenRequiredError) as caught:
        next_of(taking)
    assert (caught.value.reason, taking.reopen_reason, taking.reopen_refusal) == (reason, reason, None)
    wait(node, consumers=0)
    assert sent(node, "ReadEmitterBatchRequest") == 0
    taking.close(timeout=PATIENCE)


@pytest.mark.rule("EC-5", "B-16")
@pytest.mark.parametrize(
    ("name", "reason", "refusal"),
    [
        ("EmitterNotFound", ReopenReason.ENDPOINT_REMOVED, None),
        ("DomainStopped", ReopenReason.DOMAIN_STOPPED, None),
        ("SchemaMismatch", ReopenReason.SCHEMA_CHANGED, None),
        ("InvalidLimits", ReopenReason.REFUSED, OpenRefusal.INVALID_LIMITS),
    ],
)
def test_a_restoration_that_is_refused_for_good_ends_the_handle(
    node: LoopbackNode, taking: nervix_ffi.Consumer, name: str, reason: ReopenReason, refusal: OpenRefusal | None
) -> None:
    answer(node, "OpenEmitterRequest", name)
    node.control("cut")
    wait(node, sessions_ended=1)
    with pytest.raises(nervix_ffi.InterruptedReadError):
        next_of(taking)
    with pytest.raises(nervix_ffi.ReopenRequiredError) as caught:
        next_of(taking)
    assert (caught.value.reason, caught.value.refusal) == (reason, refusal)


@pytest.mark.rule("EC-5")
@pytest.mark.parametrize("name", ["EndpointUnavailable", "SessionCapacityExhausted", "TooManyConsumers"])
def test_a_restoration_that_is_refused_for_now_is_tried_again(
    node: LoopbackNode, feed: nervix_ffi.Producer, taking: nervix_ffi.Consumer, name: str
) -> None:
    answer(node, "OpenEmitterRequest", name, count=3)
    feed.submit(rows(1), timeout=PATIENCE)
    wait(node, outstanding_batches=1)
    node.control("cut")
    wait(node, sessions_ended=1)
    assert ids_of(restored(taking)) == [1]
    assert sent(node, "OpenEmitterRequest") == 5


@pytest.mark.rule("EC-5", "B-16")
@pytest.mark.parametrize(
    ("statements", "reason"),
    [
        (["STOP;"], ReopenReason.DOMAIN_STOPPED),
        (["STOP;", "START;"], ReopenReason.GENERATION_CHANGED),
        (["DROP EMITTER out;"], ReopenReason.ENDPOINT_REMOVED),
    ],
)
def test_the_graph_ends_a_consumer_for_good(
    node: LoopbackNode, taking: nervix_ffi.Consumer, statements: list[str], reason: ReopenReason
) -> None:
    reading = Running(lambda: next_of(taking))
    wait(node, parked_reads=1)
    execute(node, *statements)
    with pytest.raises(nervix_ffi.InterruptedReadError):
        reading.result()
    with pytest.raises(nervix_ffi.ReopenRequiredError) as caught:
        next_of(taking)
    assert caught.value.reason is reason


@pytest.mark.rule("EC-2", "EC-6")
def test_a_consumer_outlives_its_session_object(node: LoopbackNode, feed: nervix_ffi.Producer) -> None:
    session = connect(node)
    reading = consumer(session)
    session.close()
    feed.submit(rows(1), timeout=PATIENCE)
    delivery = next_of(reading)
    reading.release()
    # The delivery alone keeps the session; its attachment is closed, so it comes again.
    assert ids(delivery) == [1]
    delivery.release()
    wait(node, sessions={"exactly": 1}, consumers=0)


@pytest.mark.rule("EC-6")
def test_consumers_stay_where_they_were_opened_when_commands_move() -> None:
    with LoopbackNode(3, load=GRAPH) as cluster, connect(cluster, cluster.followers[0]) as session:
        reading, feeding = consumer(session), producer(session, "held")
        submission = feeding.submit(rows(1), timeout=PATIENCE)
        delivery = next_of(reading)
        session.execute("CREATE SCHEMA other (n U8);", timeout=PATIENCE)  # Redirected to the leader.
        assert delivery.ack(timeout=PATIENCE) is Settlement.CONFIRMED
        assert submission.result(timeout=PATIENCE).completed
        again = feeding.submit(rows(2), timeout=PATIENCE)
        next_of(reading).ack(timeout=PATIENCE)
        assert again.result(timeout=PATIENCE).completed
        assert sent(cluster, "OpenEmitterRequest") == 1


# ---- settling by itself


@pytest.mark.rule("B-15")
def test_an_automatic_consumer_settles_at_the_end_of_a_block(
    node: LoopbackNode, session: nervix_ffi.Session, feed: nervix_ffi.Producer
) -> None:
    submission = feed.submit(rows(1), timeout=PATIENCE)
    with consumer(session, settle="auto") as reading:
        with pytest.raises(KeyError), next_of(reading) as first:
            raise KeyError
        with next_of(reading) as second:
            assert second.identity == first.identity
    assert second.settlement is Settlement.CONFIRMED
    assert submission.result(timeout=PATIENCE).completed


@pytest.mark.rule("B-15", "EC-5")
@pytest.mark.parametrize(("end", "waits"), [(KeyError, 2.0), (KeyboardInterrupt, 0.1), (SystemExit, 0.1), (GeneratorExit, 0.1)])
def test_a_retry_that_a_block_sent_goes_on_when_it_waits_no_longer(
    node: LoopbackNode, session: nervix_ffi.Session, feed: nervix_ffi.Producer, end: type[BaseException], waits: float
) -> None:
    node.control("clock", frozen=True)
    feed.submit(rows(1), timeout=PATIENCE)
    with consumer(session, settle="auto") as reading:
        first = next_of(reading)
        node.control("delay", kind="SettleEmitterBatchRequest", when="before")
        begun = time.monotonic()
        with pytest.raises(end), first:
            raise end
        assert waits * 0.9 <= time.monotonic() - begun < waits + 0.9
        assert (settlements(node), sent(node, "CancelRequest")) == (1, 0)
        node.control("release")
        wait(node, frames={"out": {"SettleEmitterBatchOutcome": 1}})
        node.control("clock", advance="1s")  # Its own time is over only after 20 s.
        with next_of(reading) as second:
            assert second.identity == first.identity


@pytest.mark.rule("B-16")
def test_of_several_readers_one_alone_hears_of_an_interruption(
    node: LoopbackNode, feed: nervix_ffi.Producer, taking: nervix_ffi.Consumer
) -> None:
    readers = [Running(lambda: next_of(taking)) for _ in range(3)]
    wait(node, parked_reads=1)
    node.control("end_consumer")
    heard: list[BaseException] = []
    found: list[list[Any]] = []
    wait(node, frames={"in": {"OpenEmitterRequest": 2}})
    for number in range(2):
        feed.submit(rows(number), timeout=PATIENCE)
    for reader in readers:
        try:
            found.append(ids_of(reader.result()))
        except nervix_ffi.InterruptedReadError as failure:
            heard.append(failure)
    assert len(heard) == 1
    assert sorted(found) == [[0], [1]]


@pytest.mark.rule("B-15")
def test_a_block_settles_nothing_unless_asked(node: LoopbackNode, feed: nervix_ffi.Producer, taking: nervix_ffi.Consumer) -> None:
    feed.submit(rows(1), timeout=PATIENCE)
    with next_of(taking) as delivery:
        delivery.rows()
    assert settlements(node) == 0
