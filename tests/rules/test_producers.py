"""Producers: opening, credit, outcomes, suspension, and following an ingestor across sessions."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest

import nervix_ffi
from nervix_ffi import (
    Admission,
    BatchDefect,
    EndpointState,
    NotAdmitted,
    OpenRefusal,
    OutcomeUnknown,
    ProcessingFailed,
    ProcessingFailure,
    ReopenReason,
    SubmissionRefusal,
    SubmissionResult,
    SubmissionUncertainty,
)
from nervix_ffi.testing import LoopbackNode

from ..endpoints import FIELDS, GRAPH, answer, consumer, describe, emitter, execute, ids, ingestor, producer, resends, rows
from ..support import DOMAIN, PATIENCE, Running, connect, counts, sent, wait

MIB = 1 << 20


@pytest.fixture
def node() -> Iterator[LoopbackNode]:
    """A node with the graph of endpoints."""
    with LoopbackNode(load=GRAPH) as one:
        yield one


@pytest.fixture
def quick(session: nervix_ffi.Session) -> nervix_ffi.Producer:
    """A producer whose batches complete at once."""
    return producer(session)


@pytest.fixture
def held(session: nervix_ffi.Session) -> nervix_ffi.Producer:
    """A producer whose batches wait until a consumer settled them."""
    return producer(session, "held")


def suspended(node: LoopbackNode, name: str = "quick") -> None:
    node.control("suspend", domain=DOMAIN, ingestor=name)


def resumed(node: LoopbackNode, name: str = "quick") -> None:
    node.control("resume", domain=DOMAIN, ingestor=name)


def until(condition: Callable[[], bool], session: nervix_ffi.Session) -> None:
    """Repeat commands, each a frame that arrives after all that were sent before it, until a condition holds."""
    for _ in range(1000):
        if condition():
            return
        session.execute("SHOW CLUSTER STATUS;", timeout=PATIENCE)
    raise AssertionError("it never came true")


def lose(node: LoopbackNode, session: nervix_ffi.Session) -> None:
    """Cut the session, and wait until the client knows: what is asked of it from then on goes to the next one."""
    with consumer(session) as watching:
        told = Running(lambda: watching.next(timeout=PATIENCE))
        wait(node, parked_reads=1)
        node.control("cut")
        with pytest.raises(nervix_ffi.InterruptedReadError):
            told.result()


# ---- opening


@pytest.mark.rule("P-1", "B-12")
def test_what_an_open_establishes(node: LoopbackNode, session: nervix_ffi.Session) -> None:
    made = producer(session, credit_batches=7, credit_bytes=3 * MIB)
    assert (made.domain, made.name, made.generation) == (DOMAIN, "quick", 1)
    assert len(made.contract) == 32
    assert made.grant == nervix_ffi.Grant(batches=7, bytes=3 * MIB, max_batch_rows=65_536, max_batch_bytes=3 * MIB)
    second = 1_000_000_000
    assert made.policy == nervix_ffi.Policy(nervix_ffi.AckWindow.PARALLEL, 64, 60 * second, second // 100, second // 25)
    assert (made.state, made.admission) == (EndpointState.ACTIVE, Admission.OPEN)
    assert [(field.name, field.nullable, field.sensitive) for field in made.schema.fields] == [
        ("id", False, False),
        ("note", True, False),
    ]
    assert producer(session, credit_bytes=32 * MIB - 3 * MIB).grant.max_batch_bytes == 4 * MIB - 256
    execute(node, "STOP;", ingestor("single", "quiet", window="SEQUENTIAL"), "START;")
    single = producer(session, "single")
    assert (single.policy.window, single.policy.outstanding, single.generation) == (nervix_ffi.AckWindow.SEQUENTIAL, 1, 2)


@pytest.mark.rule("P-1", "B-12")
def test_an_open_is_refused_for_what_is_wrong_with_it(node: LoopbackNode, session: nervix_ffi.Session) -> None:
    def refused(name: str = "quick", fields: str = FIELDS, domain: str = DOMAIN, **options: Any) -> Any:
        with pytest.raises(nervix_ffi.OpenRefused) as caught:
            session.open_producer(name, fields, domain=domain, timeout=PATIENCE, **options)
        assert isinstance(caught.value, nervix_ffi.RejectedError)
        return caught.value.refusal

    assert refused(domain="nowhere") is OpenRefusal.DOMAIN_NOT_FOUND
    assert refused("nothing") is OpenRefusal.ENDPOINT_NOT_FOUND
    for fields in (
        "id U64",
        "id U64, note STRING",
        "id U32, note STRING OPTIONAL",
        "note STRING OPTIONAL, id U64",
        "id U64 SENSITIVE, note STRING OPTIONAL",
        "id U64, Note STRING OPTIONAL",
        "id U64, note STRING OPTIONAL, more BOOL",
        "id U64, note VEC<STRING> OPTIONAL",
    ):
        assert refused(fields=fields) is OpenRefusal.SCHEMA_MISMATCH
    execute(node, "STOP;")
    assert refused() is OpenRefusal.DOMAIN_STOPPED
    assert counts(node)["producers"] == 0


@pytest.mark.rule("P-1", "P-4")
def test_sessions_and_nodes_share_their_credit(node: LoopbackNode, session: nervix_ffi.Session) -> None:
    def refused(owner: nervix_ffi.Session) -> Any:
        with pytest.raises(nervix_ffi.OpenRefused) as caught:
            producer(owner, credit_bytes=1024)
        return caught.value.refusal

    many = [producer(session, credit_batches=1, credit_bytes=1024) for _ in range(32)]
    assert refused(session) is OpenRefusal.TOO_MANY_ENDPOINTS
    for one in many:
        one.close(timeout=PATIENCE)
    big = producer(session, credit_bytes=32 * MIB)
    assert refused(session) is OpenRefusal.SESSION_CAPACITY_EXHAUSTED
    others = [connect(node) for _ in range(4)]
    more = [producer(other, credit_bytes=32 * MIB) for other in others[:3]]
    assert refused(others[3]) is OpenRefusal.NODE_CAPACITY_EXHAUSTED
    # What is closed gives its credit back.
    big.close(timeout=PATIENCE)
    producer(session, credit_bytes=1024)
    del more
    for other in others:
        other.close()


#: The refusals that a correct client cannot cause here, by their name on the wire.
OTHER_REFUSALS = {
    "NotClientIngestor": OpenRefusal.NOT_CLIENT_ENDPOINT,
    "EndpointUnavailable": OpenRefusal.ENDPOINT_UNAVAILABLE,
    "InvalidLimits": OpenRefusal.INVALID_LIMITS,
    "InTransaction": OpenRefusal.IN_TRANSACTION,
}


@pytest.mark.rule("P-1", "B-12")
@pytest.mark.parametrize(("name", "refusal"), OTHER_REFUSALS.items())
def test_every_other_refusal_reaches_its_caller(
    node: LoopbackNode, session: nervix_ffi.Session, name: str, refusal: OpenRefusal
) -> None:
    answer(node, "OpenIngestorRequest", name)
    with pytest.raises(nervix_ffi.OpenRefused) as caught:
        producer(session)
    assert caught.value.refusal is refusal
    assert producer(session).send(rows(1), timeout=PATIENCE).completed


@pytest.mark.rule("P-1", "P-4")
@pytest.mark.parametrize("credit", [(0, MIB), (1, 0), (1025, MIB), (1, 32 * MIB + 1), (2**32 - 1, 1), (1, 2**64 - 1)])
def test_credit_that_cannot_be_asked_for_is_not_asked_for(
    node: LoopbackNode, session: nervix_ffi.Session, credit: tuple[int, int]
) -> None:
    with pytest.raises(nervix_ffi.InvalidArgumentError):
        producer(session, credit_batches=credit[0], credit_bytes=credit[1])
    assert sent(node, "OpenIngestorRequest") == 0


@pytest.mark.rule("P-2")
def test_an_open_that_nobody_waits_for_is_let_go_of(node: LoopbackNode, session: nervix_ffi.Session) -> None:
    node.control("delay", kind="OpenIngestorRequest", when="after")
    cancel = nervix_ffi.Cancel()
    opening = Running(lambda: session.open_producer("quick", FIELDS, cancel=cancel))
    wait(node, held=1)
    cancel.trigger()
    with pytest.raises(nervix_ffi.CancelledError):
        opening.result()
    node.control("release")
    wait(node, producers=0)
    assert producer(session).send(rows(1), timeout=PATIENCE).completed


@pytest.mark.rule("P-2")
def test_what_happens_to_a_producer_right_after_its_open_finds_it(node: LoopbackNode, session: nervix_ffi.Session) -> None:
    node.control("delay", kind="OpenIngestorRequest", when="after")
    opening = Running(lambda: producer(session))
    wait(node, held=1)
    suspended(node)
    node.control("release")
    made = opening.result()
    until(lambda: made.admission is Admission.SUSPENDED, session)


@pytest.mark.rule("P-2")
def test_frames_about_other_producers_are_ignored(
    node: LoopbackNode, session: nervix_ffi.Session, quick: nervix_ffi.Producer
) -> None:
    for what in ({"what": "suspended"}, {"what": "open"}, {"what": "ended", "reason": "EndpointRemoved"}):
        node.control("producer_frame", producer=987_654, **what)
    assert quick.send(rows(1), timeout=PATIENCE).completed
    assert (quick.state, quick.admission) == (EndpointState.ACTIVE, Admission.OPEN)


# ---- outcomes


@pytest.mark.rule("P-5")
def test_a_batch_completes_when_the_graph_is_through_with_it(
    node: LoopbackNode, session: nervix_ffi.Session, held: nervix_ffi.Producer
) -> None:
    submission = held.submit(rows(1, 2), timeout=PATIENCE)
    wait(node, outstanding_batches=1)
    assert not submission.done()
    assert submission.outcome is None
    with consumer(session) as taking:
        delivery = taking.next(timeout=PATIENCE)
        assert ids(delivery) == [1, 2]
        assert not submission.done(), "delivered is not processed"
        delivery.ack(timeout=PATIENCE)
        outcome = submission.result(timeout=PATIENCE)
    assert outcome == nervix_ffi.SubmissionOutcome(SubmissionResult.COMPLETED)
    assert held.pending() == []


#: What the node's control endpoint can answer a batch, and what a host must read.
OUTCOMES = {
    "MalformedBatch": BatchDefect.MALFORMED,
    "UnexpectedMessage": BatchDefect.UNEXPECTED_MESSAGE,
    "CompressedBatch": BatchDefect.COMPRESSED,
    "SchemaMismatch": BatchDefect.SCHEMA_MISMATCH,
    "NotOneBatch": BatchDefect.NOT_ONE_BATCH,
    "TooManyRows": BatchDefect.TOO_MANY_ROWS,
    "BatchTooLarge": BatchDefect.TOO_LARGE,
    "InvalidData": BatchDefect.INVALID_DATA,
    "Draining": SubmissionRefusal.DRAINING,
    "ProducerEnded": SubmissionRefusal.PRODUCER_ENDED,
    "CreditExceeded": SubmissionRefusal.CREDIT_EXCEEDED,
    "AckTimedOut": ProcessingFailure.ACK_TIMED_OUT,
    "Rejected": ProcessingFailure.REJECTED,
    "Interrupted": SubmissionUncertainty.INTERRUPTED,
    "OwnerLost": SubmissionUncertainty.OWNER_LOST,
}


@pytest.mark.rule("P-5", "B-14")
@pytest.mark.parametrize("name", OUTCOMES)
def test_every_outcome_reaches_its_submitter_and_is_sent_no_more(
    node: LoopbackNode, quick: nervix_ffi.Producer, name: str
) -> None:
    answer(node, "SubmitBatchRequest", name, message="that is why")
    expected = OUTCOMES[name]
    submission = quick.submit(rows(1), timeout=PATIENCE)
    kind, field = {
        BatchDefect: (NotAdmitted, "defect"),
        SubmissionRefusal: (NotAdmitted, "refusal"),
        ProcessingFailure: (ProcessingFailed, "failure"),
        SubmissionUncertainty: (OutcomeUnknown, "uncertainty"),
    }[type(expected)]
    with pytest.raises(kind, match="that is why") as caught:
        submission.result(timeout=PATIENCE)
    outcome = caught.value.outcome
    assert getattr(outcome, field) is expected
    assert outcome.message == "that is why"
    assert not outcome.completed
    if isinstance(expected, BatchDefect):
        assert outcome.refusal is SubmissionRefusal.INVALID_BATCH
    assert sum(value is not None for value in (outcome.refusal, outcome.failure, outcome.uncertainty)) == 1
    # Its credit is back, and the producer goes on.
    assert quick.send(rows(2), timeout=PATIENCE).completed
    assert counts(node)["batches"] == {"received": 2, "resent": 0, "forbidden_resends": 0, "contents": 2}


def stream(batch: pa.RecordBatch, batches: int = 1, **options: Any) -> bytes:
    """An Arrow IPC stream that holds the batch so many times."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        for _ in range(batches):
            writer.write_batch(batch)
    data: bytes = sink.getvalue().to_pybytes()
    return data


SCHEMA = pa.schema([pa.field("id", pa.uint64(), nullable=False), pa.field("note", pa.string())])


def batch_of(count: int) -> pa.RecordBatch:
    return pa.record_batch([pa.array(range(count), pa.uint64()), pa.array(["x"] * count)], schema=SCHEMA)


def broken_text() -> bytes:
    """A stream whose one string is no UTF-8."""
    data = bytearray(stream(pa.record_batch([pa.array([1], pa.uint64()), pa.array(["needle"])], schema=SCHEMA)))
    at = data.index(b"needle")
    data[at] = 0xFF
    return bytes(data)


def dictionary() -> bytes:
    note = pa.array(["x"]).dictionary_encode()
    fields = [SCHEMA.field("id"), pa.field("note", note.type)]
    return stream(pa.record_batch([pa.array([1], pa.uint64()), note], schema=pa.schema(fields)))


#: Streams that a host may write itself, and what the server finds wrong with them.
DEFECTS: dict[str, tuple[Callable[[], bytes], BatchDefect]] = {
    "no stream at all": (lambda: b"nothing", BatchDefect.MALFORMED),
    "cut short": (lambda: stream(batch_of(3))[:-9], BatchDefect.MALFORMED),
    "something behind the end": (lambda: stream(batch_of(3)) + b"\0", BatchDefect.MALFORMED),
    "no batch": (lambda: stream(batch_of(3), 0), BatchDefect.NOT_ONE_BATCH),
    "two batches": (lambda: stream(batch_of(3), 2), BatchDefect.NOT_ONE_BATCH),
    "a dictionary": (dictionary, BatchDefect.UNEXPECTED_MESSAGE),
    "compressed": (lambda: stream(batch_of(2000), compression="lz4"), BatchDefect.COMPRESSED),
    "another type": (
        lambda: stream(batch_of(1).cast(pa.schema([pa.field("id", pa.int64(), nullable=False), SCHEMA.field("note")]))),
        BatchDefect.SCHEMA_MISMATCH,
    ),
    "another name": (lambda: stream(batch_of(1).rename_columns(["id", "noted"])), BatchDefect.SCHEMA_MISMATCH),
    "a nullable key": (
        lambda: stream(batch_of(1).cast(pa.schema([pa.field("id", pa.uint64()), SCHEMA.field("note")]))),
        BatchDefect.SCHEMA_MISMATCH,
    ),
    "field metadata": (
        lambda: stream(
            pa.RecordBatch.from_arrays(
                batch_of(1).columns, schema=pa.schema([SCHEMA.field("id").with_metadata({"a": "b"}), SCHEMA.field("note")])
            )
        ),
        BatchDefect.SCHEMA_MISMATCH,
    ),
    "too many rows": (lambda: stream(batch_of(65_537)), BatchDefect.TOO_MANY_ROWS),
    "no text": (broken_text, BatchDefect.INVALID_DATA),
}


@pytest.mark.rule("P-3", "B-13")
@pytest.mark.parametrize("name", DEFECTS)
def test_a_stream_of_the_host_is_judged_by_the_server(node: LoopbackNode, quick: nervix_ffi.Producer, name: str) -> None:
    make, defect = DEFECTS[name]
    data = bytearray(make())
    submission = quick.submit_ipc(data, timeout=PATIENCE)
    data[:] = bytes(len(data))  # The buffer is the host's again.
    outcome = submission.result(timeout=PATIENCE, check=False)
    assert (outcome.refusal, outcome.defect) == (SubmissionRefusal.INVALID_BATCH, defect), outcome
    again = quick.submit_ipc(stream(batch_of(3)), timeout=PATIENCE)
    assert again.result(timeout=PATIENCE).completed


@pytest.mark.rule("P-5", "EC-4")
def test_a_rejection_fails_the_batch(node: LoopbackNode, session: nervix_ffi.Session, held: nervix_ffi.Producer) -> None:
    with consumer(session) as taking:
        submission = held.submit(rows(1), timeout=PATIENCE)
        taking.next(timeout=PATIENCE).reject("not like this", timeout=PATIENCE)
        with pytest.raises(ProcessingFailed) as caught:
            submission.result(timeout=PATIENCE)
    assert caught.value.outcome.failure is ProcessingFailure.REJECTED
    assert "may have had effects" in str(caught.value)


@pytest.mark.rule("P-5")
def test_a_batch_that_nobody_acknowledges_times_out(node: LoopbackNode, held: nervix_ffi.Producer) -> None:
    node.control("clock", frozen=True)
    submission = held.submit(rows(1), timeout=PATIENCE)
    wait(node, outstanding_batches=1)
    node.control("clock", advance="59s")
    assert counts(node)["outstanding_batches"] == 1
    node.control("clock", advance="2s")
    assert submission.result(timeout=PATIENCE, check=False).failure is ProcessingFailure.ACK_TIMED_OUT


@pytest.mark.rule("P-5")
def test_a_busy_ingestor_gets_the_batch_again_and_the_host_hears_nothing(node: LoopbackNode, quick: nervix_ffi.Producer) -> None:
    answer(node, "SubmitBatchRequest", "Busy", count=4, domain=DOMAIN, ingestor="quick")
    assert quick.send(rows(1), timeout=PATIENCE).completed
    assert counts(node)["batches"] == {"received": 5, "resent": 4, "forbidden_resends": 0, "contents": 1}


@pytest.mark.rule("P-5")
def test_batches_keep_their_order_where_one_at_a_time_is_outstanding(node: LoopbackNode, session: nervix_ffi.Session) -> None:
    """One that is sent again would come behind those that were sent since: there are none."""
    feeding, taking = producer(session, "held", credit_batches=1), consumer(session)
    answer(node, "SubmitBatchRequest", "Busy", count=3, domain=DOMAIN, ingestor="held")
    first = feeding.submit(rows(1), timeout=PATIENCE)
    second = Running(lambda: feeding.submit(rows(2), timeout=PATIENCE))
    delivery = taking.next(timeout=PATIENCE)
    assert ids(delivery) == [1]
    delivery.ack(timeout=PATIENCE)
    assert counts(node)["batches"]["contents"] == 1, "the other one was sent beside it"
    assert first.result(timeout=PATIENCE).completed
    delivery = taking.next(timeout=PATIENCE)
    assert ids(delivery) == [2]
    delivery.ack(timeout=PATIENCE)
    assert second.result().result(timeout=PATIENCE).completed
    assert resends(node) == 0


@pytest.mark.rule("P-5")
def test_the_window_of_an_ingestor_makes_it_busy_until_there_is_room(node: LoopbackNode, session: nervix_ffi.Session) -> None:
    execute(node, "STOP;", ingestor("narrow", "watched", window="SEQUENTIAL"), "START;")
    feeding = producer(session, "narrow")
    submissions = [feeding.submit(rows(number), timeout=PATIENCE) for number in range(3)]
    with consumer(session) as taking:
        for _ in submissions:
            taking.next(timeout=PATIENCE).ack(timeout=PATIENCE)
    assert [one.result(timeout=PATIENCE).completed for one in submissions] == [True] * 3
    assert resends(node) == 0


@pytest.mark.rule("C-8", "P-5")
def test_a_rejected_submission_was_not_admitted(node: LoopbackNode, quick: nervix_ffi.Producer) -> None:
    node.control("reject", kind="SubmitBatchRequest", reason="InvalidRequest")
    with pytest.raises(NotAdmitted):
        quick.send(rows(1), timeout=PATIENCE)
    assert quick.send(rows(2), timeout=PATIENCE).completed
    assert sent(node, "SubmitBatchRequest") == 2


@pytest.mark.rule("P-7", "B-14")
def test_an_outcome_waits_for_whoever_asks_again(node: LoopbackNode, quick: nervix_ffi.Producer) -> None:
    node.control("delay", kind="SubmitBatchRequest", when="after")
    submission = quick.submit(rows(1), timeout=PATIENCE)
    wait(node, held=1)
    with pytest.raises(nervix_ffi.DeadlineError):
        submission.result(timeout=0.05)
    cancel = nervix_ffi.Cancel()
    cancel.trigger()
    with pytest.raises(nervix_ffi.CancelledError):
        submission.result(cancel=cancel)
    assert quick.pending() == [submission]
    node.control("release")
    assert submission.result(timeout=PATIENCE).completed
    assert counts(node)["frames"]["in"].get("CancelRequest", 0) == 0
    quick.release()
    with pytest.raises(nervix_ffi.ClosedError):
        quick.pending()


# ---- credit


@pytest.mark.rule("P-4", "B-14")
def test_credit_bounds_what_is_outstanding_until_an_outcome_is_taken(node: LoopbackNode, session: nervix_ffi.Session) -> None:
    narrow = producer(session, credit_batches=2)
    first, second = narrow.submit(rows(1), timeout=PATIENCE), narrow.submit(rows(2), timeout=PATIENCE)
    until(lambda: first.done() and second.done(), session)
    with pytest.raises(nervix_ffi.DeadlineError):
        narrow.submit(rows(3), timeout=0.05)
    assert sent(node, "SubmitBatchRequest") == 2
    waiting = Running(lambda: narrow.submit(rows(3), timeout=PATIENCE))
    assert first.result(timeout=PATIENCE).completed
    third = waiting.result()
    assert third.result(timeout=PATIENCE).completed
    assert second.release() is not None
    assert narrow.pending() == []
    assert counts(node)["batches"]["received"] == 3


@pytest.mark.rule("P-4")
def test_bytes_are_credit_too(node: LoopbackNode, session: nervix_ffi.Session) -> None:
    node.control("delay", kind="SubmitBatchRequest", when="after", count=2)
    roomy = producer(session)
    batch = roomy.batch([{"id": 1, "note": "x" * 4000}])
    size = len(batch.ipc)
    narrow = producer(session, credit_batches=10, credit_bytes=2 * size + 1)
    held_back = [narrow.submit(batch, timeout=PATIENCE), narrow.submit(batch, timeout=PATIENCE)]
    with pytest.raises(nervix_ffi.DeadlineError):
        narrow.submit(batch, timeout=0.05)
    wait(node, batches={"exactly": 2})
    node.control("release")
    for one in held_back:
        assert one.result(timeout=PATIENCE).completed
    assert narrow.submit(batch, timeout=PATIENCE).result(timeout=PATIENCE).completed


@pytest.mark.rule("P-4", "B-14")
def test_a_submission_that_is_let_go_gives_its_credit_back(node: LoopbackNode, session: nervix_ffi.Session) -> None:
    node.control("delay", kind="SubmitBatchRequest", when="after")
    narrow = producer(session, credit_batches=1)
    submission = narrow.submit(rows(1), timeout=PATIENCE)
    wait(node, held=1)
    assert submission.release() is None
    assert narrow.pending() == []
    with pytest.raises(nervix_ffi.DeadlineError):
        narrow.submit(rows(2), timeout=0.05)
    node.control("release")
    assert narrow.send(rows(3), timeout=PATIENCE).completed
    with pytest.raises(nervix_ffi.InvalidArgumentError):
        submission.result(timeout=PATIENCE)


@pytest.mark.rule("P-4", "P-8")
def test_credit_that_was_exceeded_ends_the_producer(
    node: LoopbackNode, session: nervix_ffi.Session, quick: nervix_ffi.Producer
) -> None:
    """A correct client never exceeds it, so the node says so."""
    node.control("end_producer", reason="ProtocolViolated")
    until(lambda: quick.state is EndpointState.REOPEN_REQUIRED, session)
    with pytest.raises(nervix_ffi.ReopenRequiredError) as caught:
        quick.send(rows(1), timeout=PATIENCE)
    assert caught.value.reason is ReopenReason.PROTOCOL_VIOLATED


@pytest.mark.rule("P-3", "P-4")
def test_a_batch_above_the_limits_is_not_sent(node: LoopbackNode, session: nervix_ffi.Session) -> None:
    small = producer(session, credit_bytes=1024)
    with pytest.raises(nervix_ffi.InvalidArgumentError, match="1024"):
        small.submit([{"id": 1, "note": "x" * 2000}])
    for data in (b"", bytes(1025)):
        with pytest.raises(nervix_ffi.InvalidArgumentError):
            small.submit_ipc(data)
    roomy = producer(session)
    with pytest.raises(nervix_ffi.InvalidArgumentError, match=r"65,?536"):
        roomy.submit(batch_of(65_537))
    assert sent(node, "SubmitBatchRequest") == 0
    assert roomy.submit(batch_of(65_536)).result(timeout=PATIENCE).completed


ONCE: dict[str, Callable[[pa.RecordBatch], Any]] = {
    "generator": lambda batch: (row for row in batch.to_pylist()),
    "iterator": lambda batch: iter(batch.to_pylist()),
    "reader": lambda batch: pa.Table.from_batches([batch, batch[:0]]).to_reader(),
}


@pytest.mark.rule("P-4", "B-14")
@pytest.mark.parametrize("name", ONCE)
def test_data_that_can_be_read_only_once_is_submitted_from_the_exception(
    node: LoopbackNode, session: nervix_ffi.Session, name: str
) -> None:
    narrow, taking = producer(session, "held", credit_batches=1), consumer(session)
    first = narrow.submit(rows(7), timeout=PATIENCE)
    delivery = taking.next(timeout=PATIENCE)
    data = ONCE[name](batch_of(3))
    with pytest.raises(nervix_ffi.DeadlineError, match="submit this exception's batch") as caught:
        narrow.submit(data, timeout=0.05)
    assert (caught.value.submission, narrow.pending()) == (None, [first])
    delivery.ack(timeout=PATIENCE)
    first.result(timeout=PATIENCE)
    for call in (narrow.submit, narrow.send, narrow.batch):
        with pytest.raises(nervix_ffi.InvalidArgumentError, match="was read before"):
            call(data)
    assert caught.value.batch is not None
    again = narrow.submit(caught.value.batch, timeout=PATIENCE)
    delivery = taking.next(timeout=PATIENCE)
    assert ids(delivery) == [0, 1, 2]
    delivery.ack(timeout=PATIENCE)
    assert again.result(timeout=PATIENCE).completed
    # An empty batch is one that was asked for.
    for empty in ([], pa.table(batch_of(0)), batch_of(0)):
        assert narrow.send(empty, timeout=PATIENCE).completed
    assert counts(node)["batches"]["received"] == 5


# ---- suspension


@pytest.mark.rule("P-6")
def test_nothing_new_is_sent_while_admission_is_suspended(
    node: LoopbackNode, session: nervix_ffi.Session, quick: nervix_ffi.Producer
) -> None:
    suspended(node)
    until(lambda: quick.admission is Admission.SUSPENDED, session)
    kept = [quick.submit(rows(number), timeout=PATIENCE) for number in range(3)]
    session.execute("SHOW CLUSTER STATUS;", timeout=PATIENCE)
    assert sent(node, "SubmitBatchRequest") == 0
    assert [one.done() for one in kept] == [False] * 3
    resumed(node)
    assert [one.result(timeout=PATIENCE).completed for one in kept] == [True] * 3
    assert quick.admission is Admission.OPEN


@pytest.mark.rule("P-5", "P-6")
def test_a_batch_that_met_the_suspension_is_sent_again_when_it_is_over(
    node: LoopbackNode, session: nervix_ffi.Session, quick: nervix_ffi.Producer
) -> None:
    answer(node, "SubmitBatchRequest", "Suspended", domain=DOMAIN, ingestor="quick")
    submission = quick.submit(rows(1), timeout=PATIENCE)
    assert submission.result(timeout=PATIENCE).completed
    assert counts(node)["batches"] == {"received": 2, "resent": 1, "forbidden_resends": 0, "contents": 1}


@pytest.mark.rule("P-6")
def test_outcomes_arrive_during_a_suspension(node: LoopbackNode, session: nervix_ffi.Session, held: nervix_ffi.Producer) -> None:
    submission = held.submit(rows(1), timeout=PATIENCE)
    wait(node, outstanding_batches=1)
    suspended(node, "held")
    with consumer(session) as taking:
        taking.next(timeout=PATIENCE).ack(timeout=PATIENCE)
    assert submission.result(timeout=PATIENCE).completed


# ---- ends and restorations


@pytest.mark.rule("P-8", "B-14")
def test_a_lost_session_leaves_sent_batches_unknown_and_sends_them_no_more(
    node: LoopbackNode, session: nervix_ffi.Session, held: nervix_ffi.Producer
) -> None:
    submission = held.submit(rows(1), timeout=PATIENCE)
    wait(node, outstanding_batches=1)
    node.control("cut", how="abort")
    outcome = submission.result(timeout=PATIENCE, check=False)
    assert (outcome.result, outcome.uncertainty) == (SubmissionResult.OUTCOME_UNKNOWN, SubmissionUncertainty.SESSION_LOST)
    assert outcome.message
    assert (held.state, held.admission) == (EndpointState.INTERRUPTED, Admission.SUSPENDED)
    again = held.submit(rows(2), timeout=PATIENCE)
    assert (held.state, held.admission) == (EndpointState.ACTIVE, Admission.OPEN)
    with consumer(session) as taking:
        for expected in ([1], [2]):  # It was processed after all.
            delivery = taking.next(timeout=PATIENCE)
            assert ids(delivery) == expected
            delivery.ack(timeout=PATIENCE)
    assert again.result(timeout=PATIENCE).completed
    assert (resends(node), counts(node)["batches"]["received"]) == (0, 2)


@pytest.mark.rule("P-8")
def test_a_lost_session_leaves_kept_batches_not_admitted(
    node: LoopbackNode, session: nervix_ffi.Session, quick: nervix_ffi.Producer
) -> None:
    suspended(node)
    until(lambda: quick.admission is Admission.SUSPENDED, session)
    kept = quick.submit(rows(1), timeout=PATIENCE)
    node.control("cut")
    outcome = kept.result(timeout=PATIENCE, check=False)
    assert (outcome.result, outcome.refusal) == (SubmissionResult.NOT_ADMITTED, SubmissionRefusal.PRODUCER_ENDED)
    resumed(node)
    assert quick.send(rows(1), timeout=PATIENCE).completed
    assert counts(node)["batches"] == {"received": 1, "resent": 0, "forbidden_resends": 0, "contents": 1}


@pytest.mark.rule("P-8", "P-5")
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_batch_that_is_cut_off_is_never_sent_again(
    node: LoopbackNode, session: nervix_ffi.Session, held: nervix_ffi.Producer, when: str
) -> None:
    node.control("cut", direction="in", kind="SubmitBatchRequest", when=when, how="abort")
    submission = held.submit(rows(1), timeout=PATIENCE)
    with pytest.raises(OutcomeUnknown) as caught:
        submission.result(timeout=PATIENCE)
    assert caught.value.outcome.uncertainty is SubmissionUncertainty.SESSION_LOST
    again = held.submit(rows(2), timeout=PATIENCE)
    taken: list[Any] = []
    with consumer(session) as taking:
        while 2 not in taken:
            delivery = taking.next(timeout=PATIENCE)
            taken += ids(delivery)
            delivery.ack(timeout=PATIENCE)
    assert again.result(timeout=PATIENCE).completed
    assert taken == ([1, 2] if when == "after" else [2])
    assert counts(node)["batches"] == {"received": len(taken), "resent": 0, "forbidden_resends": 0, "contents": len(taken)}
    assert sent(node, "OpenIngestorRequest") == 2


@pytest.mark.rule("P-8")
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
def test_a_producer_is_not_restored_on_another_contract(
    node: LoopbackNode, session: nervix_ffi.Session, quick: nervix_ffi.Producer, change: str, reason: ReopenReason
) -> None:
    node.control("describe_otherwise", kind="OpenIngestorRequest", change=change)
    node.control("cut")
    wait(node, sessions_ended=1)
    until(lambda: quick.state != EndpointState.ACTIVE, session)
    with pytest.raises(nervix_ffi.ReopenRequiredError) as caught:
        quick.send(rows(1), timeout=PATIENCE)
    assert caught.value.reason is reason
    assert (quick.state, quick.reopen_reason, quick.reopen_refusal) == (EndpointState.REOPEN_REQUIRED, reason, None)
    # What was attached under another contract is let go of.
    wait(node, producers=0)
    assert sent(node, "SubmitBatchRequest") == 0
    assert quick.pending() == []
    quick.close(timeout=PATIENCE)
    assert producer(session).send(rows(1), timeout=PATIENCE).completed


@pytest.mark.rule("P-8", "B-16")
@pytest.mark.parametrize(
    ("name", "reason", "refusal"),
    [
        ("IngestorNotFound", ReopenReason.ENDPOINT_REMOVED, None),
        ("DomainNotFound", ReopenReason.ENDPOINT_REMOVED, None),
        ("DomainStopped", ReopenReason.DOMAIN_STOPPED, None),
        ("SchemaMismatch", ReopenReason.SCHEMA_CHANGED, None),
        ("NotClientIngestor", ReopenReason.CONTRACT_CHANGED, None),
        ("InvalidLimits", ReopenReason.REFUSED, OpenRefusal.INVALID_LIMITS),
    ],
)
def test_a_restoration_that_is_refused_for_good_ends_the_handle(
    node: LoopbackNode,
    session: nervix_ffi.Session,
    quick: nervix_ffi.Producer,
    name: str,
    reason: ReopenReason,
    refusal: OpenRefusal | None,
) -> None:
    answer(node, "OpenIngestorRequest", name)
    node.control("cut")
    wait(node, sessions_ended=1)
    until(lambda: quick.state != EndpointState.ACTIVE, session)
    with pytest.raises(nervix_ffi.ReopenRequiredError) as caught:
        quick.send(rows(1), timeout=PATIENCE)
    assert (caught.value.reason, caught.value.refusal) == (reason, refusal)
    assert (quick.reopen_reason, quick.reopen_refusal) == (reason, refusal)


@pytest.mark.rule("P-8")
@pytest.mark.parametrize("name", ["EndpointUnavailable", "SessionCapacityExhausted", "NodeCapacityExhausted", "TooManyProducers"])
def test_a_restoration_that_is_refused_for_now_is_tried_again(
    node: LoopbackNode, session: nervix_ffi.Session, quick: nervix_ffi.Producer, name: str
) -> None:
    answer(node, "OpenIngestorRequest", name, count=3)
    node.control("cut")
    wait(node, sessions_ended=1)
    until(lambda: quick.state != EndpointState.ACTIVE, session)
    assert quick.send(rows(1), timeout=PATIENCE).completed
    assert sent(node, "OpenIngestorRequest") == 5


@pytest.mark.rule("P-6", "P-8")
@pytest.mark.parametrize("reason", ["Relocated", "OwnerLost", "ShuttingDown", "EndpointChanged"])
def test_a_producer_that_was_ended_is_opened_again_where_it_is_the_same(
    node: LoopbackNode, session: nervix_ffi.Session, held: nervix_ffi.Producer, reason: str
) -> None:
    submission = held.submit(rows(1), timeout=PATIENCE)
    wait(node, outstanding_batches=1)
    node.control("end_producer", reason=reason)
    outcome = submission.result(timeout=PATIENCE, check=False)
    assert outcome.result is SubmissionResult.OUTCOME_UNKNOWN
    assert outcome.uncertainty in (SubmissionUncertainty.INTERRUPTED, SubmissionUncertainty.OWNER_LOST)
    second = held.submit(rows(2), timeout=PATIENCE)
    with consumer(session) as taking:
        for _ in range(2):
            taking.next(timeout=PATIENCE).ack(timeout=PATIENCE)
    assert second.result(timeout=PATIENCE).completed
    assert (sent(node, "OpenIngestorRequest"), resends(node)) == (2, 0)
    assert counts(node)["sessions"]["opened"] == 1


@pytest.mark.rule("P-6", "P-8")
@pytest.mark.parametrize(
    ("statements", "reason"),
    [
        (["STOP;"], ReopenReason.DOMAIN_STOPPED),
        (["STOP;", "START;"], ReopenReason.DOMAIN_STOPPED),
        (["DROP INGESTOR held;"], ReopenReason.ENDPOINT_REMOVED),
    ],
)
def test_the_graph_ends_a_producer_for_good(
    node: LoopbackNode, session: nervix_ffi.Session, held: nervix_ffi.Producer, statements: list[str], reason: ReopenReason
) -> None:
    submission = held.submit(rows(1), timeout=PATIENCE)
    wait(node, outstanding_batches=1)
    execute(node, *statements)
    until(lambda: held.state is EndpointState.REOPEN_REQUIRED, session)
    assert held.reopen_reason is reason
    outcome = submission.result(timeout=PATIENCE, check=False)
    assert outcome.uncertainty is SubmissionUncertainty.INTERRUPTED
    with pytest.raises(nervix_ffi.ReopenRequiredError) as caught:
        held.submit(rows(2), timeout=PATIENCE)
    assert caught.value.reason is reason
    held.close(timeout=PATIENCE)
    assert sent(node, "SubmitBatchRequest") == 1


@pytest.mark.rule("P-8")
def test_a_new_generation_is_not_the_old_one(node: LoopbackNode, session: nervix_ffi.Session, quick: nervix_ffi.Producer) -> None:
    node.control("accept", mode="refuse")
    lose(node, session)
    assert quick.state is EndpointState.INTERRUPTED
    execute(node, "STOP;", "START;")
    node.control("accept", mode="accept")
    with pytest.raises(nervix_ffi.ReopenRequiredError) as caught:
        quick.submit(rows(1), timeout=PATIENCE)
    assert caught.value.reason is ReopenReason.GENERATION_CHANGED
    assert producer(session).generation == 2


@pytest.mark.rule("P-8")
def test_submitting_waits_for_the_restoration_under_its_own_time(
    node: LoopbackNode, session: nervix_ffi.Session, quick: nervix_ffi.Producer
) -> None:
    node.control("accept", mode="refuse")
    lose(node, session)
    assert quick.state is EndpointState.INTERRUPTED
    with pytest.raises(nervix_ffi.DeadlineError):
        quick.submit(rows(1), timeout=0.1)
    waiting = Running(lambda: quick.send(rows(2), timeout=PATIENCE))
    node.control("accept", mode="accept")
    assert waiting.result().completed
    assert counts(node)["batches"] == {"received": 1, "resent": 0, "forbidden_resends": 0, "contents": 1}


@pytest.mark.rule("P-8")
def test_a_close_waits_for_every_outcome(node: LoopbackNode, session: nervix_ffi.Session, held: nervix_ffi.Producer) -> None:
    submission = held.submit(rows(1), timeout=PATIENCE)
    wait(node, outstanding_batches=1)
    with pytest.raises(nervix_ffi.DeadlineError):
        held.close(timeout=0.05)
    with pytest.raises(nervix_ffi.ClosedError):
        held.submit(rows(2), timeout=PATIENCE)
    closing = Running(lambda: held.close(timeout=PATIENCE))
    with consumer(session) as taking:
        taking.next(timeout=PATIENCE).ack(timeout=PATIENCE)
    closing.result()
    assert submission.result(timeout=PATIENCE).completed
    assert (held.state, sent(node, "CloseIngestorRequest"), counts(node)["producers"]) == (EndpointState.CLOSED, 1, 0)
    held.close(timeout=PATIENCE)


@pytest.mark.rule("P-8", "C-6")
def test_a_close_that_the_node_has_no_room_for_is_asked_again(
    node: LoopbackNode, session: nervix_ffi.Session, held: nervix_ffi.Producer
) -> None:
    submission = held.submit(rows(1), timeout=PATIENCE)
    wait(node, outstanding_batches=1)
    node.control("reject", kind="CloseIngestorRequest", reason="TooManyRequestsInFlight", count=2)
    closing = Running(lambda: held.close(timeout=PATIENCE))
    wait(node, frames={"in": {"CloseIngestorRequest": 3}})
    assert not submission.done()
    with consumer(session) as taking:
        taking.next(timeout=PATIENCE).ack(timeout=PATIENCE)
    closing.result()
    assert submission.result(timeout=PATIENCE).completed
    wait(node, producers=0)


@pytest.mark.rule("P-8")
@pytest.mark.parametrize("token", ["none", "over", "triggered"])
def test_a_close_that_nobody_waits_for_goes_on(node: LoopbackNode, quick: nervix_ffi.Producer, token: str) -> None:
    if token == "none":
        with pytest.raises(KeyError), quick:
            raise KeyError
    elif token == "over":
        with contextlib.suppress(nervix_ffi.DeadlineError):  # Unless it is through already.
            quick.close(timeout=0)
    else:
        cancel = nervix_ffi.Cancel()
        cancel.trigger()
        with contextlib.suppress(nervix_ffi.CancelledError):
            quick.close(cancel=cancel)
    assert quick.state is EndpointState.CLOSED
    wait(node, producers=0)
    quick.close(timeout=PATIENCE)


@pytest.mark.rule("P-8")
def test_closing_wins_over_a_restoration(node: LoopbackNode, session: nervix_ffi.Session, quick: nervix_ffi.Producer) -> None:
    node.control("delay", kind="OpenIngestorRequest", when="after")
    lose(node, session)
    assert quick.state is EndpointState.INTERRUPTED
    waiting = Running(lambda: quick.submit(rows(1), timeout=PATIENCE))
    wait(node, held=1)
    quick.close(timeout=PATIENCE)
    with pytest.raises(nervix_ffi.ClosedError):
        waiting.result()
    node.control("release")
    wait(node, producers=0, frames={"in": {"CloseIngestorRequest": 1}})
    assert sent(node, "SubmitBatchRequest") == 0


@pytest.mark.rule("P-8")
def test_a_lost_session_closes_a_producer_that_was_closing(node: LoopbackNode, held: nervix_ffi.Producer) -> None:
    submission = held.submit(rows(1), timeout=PATIENCE)
    wait(node, outstanding_batches=1)
    closing = Running(lambda: held.close(timeout=PATIENCE))
    wait(node, frames={"in": {"CloseIngestorRequest": 1}})
    node.control("cut", how="abort")
    closing.result()
    assert submission.result(timeout=PATIENCE, check=False).uncertainty is SubmissionUncertainty.SESSION_LOST
    assert held.state is EndpointState.CLOSED


@pytest.mark.rule("P-8", "B-2")
def test_a_released_producer_closes_without_waiting(
    node: LoopbackNode, session: nervix_ffi.Session, held: nervix_ffi.Producer
) -> None:
    submission = held.submit(rows(1), timeout=PATIENCE)
    wait(node, outstanding_batches=1)
    waiting = Running(lambda: submission.result(timeout=PATIENCE))
    held.release()
    with pytest.raises(nervix_ffi.ClosedError):
        waiting.result()
    with consumer(session) as taking:
        taking.next(timeout=PATIENCE).ack(timeout=PATIENCE)
    wait(node, producers=0)


@pytest.mark.rule("B-2")
def test_a_producer_outlives_its_session_object(node: LoopbackNode) -> None:
    session = connect(node)
    made = producer(session)
    session.close()
    assert made.send(rows(1), timeout=PATIENCE).completed
    made.close(timeout=PATIENCE)
    made.release()
    wait(node, sessions=0, producers=0)


@pytest.mark.rule("P-8")
def test_producers_stay_where_they_were_opened_when_commands_move() -> None:
    with LoopbackNode(3, load=GRAPH) as cluster, connect(cluster, cluster.followers[0]) as session:
        made = producer(session, "held")
        submission = made.submit(rows(1), timeout=PATIENCE)
        wait(cluster, outstanding_batches=1)
        session.execute("CREATE SCHEMA other (n U8);", timeout=PATIENCE)  # Redirected to the leader.
        assert not submission.done()
        second = made.submit(rows(2), timeout=PATIENCE)
        with consumer(session) as taking:
            for _ in range(2):
                taking.next(timeout=PATIENCE).ack(timeout=PATIENCE)
        assert submission.result(timeout=PATIENCE).completed
        assert second.result(timeout=PATIENCE).completed
        assert sent(cluster, "OpenIngestorRequest") == 1
        assert resends(cluster) == 0


@pytest.mark.rule("P-4", "P-8", "EC-6")
def test_what_endpoints_hold_is_nothing_when_all_is_settled(node: LoopbackNode, session: nervix_ffi.Session) -> None:
    feeding, taking = producer(session, "held"), consumer(session)
    submissions = [feeding.submit(rows(number), timeout=PATIENCE) for number in range(8)]
    wait(node, outstanding_batches=8)
    assert describe(node, "INGESTOR held")["outstanding batches"] == "8"
    assert describe(node, "EMITTER out")["consumers"] == "1"
    for _ in submissions:
        taking.next(timeout=PATIENCE).ack(timeout=PATIENCE)
    for one in submissions:
        one.result(timeout=PATIENCE)
    feeding.close(timeout=PATIENCE)
    taking.close(timeout=PATIENCE)
    said = describe(node, "INGESTOR held")
    assert (said["producers"], said["outstanding batches"], said["outstanding bytes"]) == ("0", "0", "0")
    said = describe(node, "EMITTER out")
    assert (said["consumers"], said["retained batches"]) == ("0", "0")


def test_a_detached_emitter_completes_the_batch_at_once(node: LoopbackNode, session: nervix_ffi.Session) -> None:
    detached = emitter("later", "quiet").replace("CREATE EMITTER", "CREATE DETACHED EMITTER")
    execute(node, "STOP;", detached, "START;")
    assert producer(session).send(rows(1), timeout=PATIENCE).completed
    with consumer(session, "later") as taking:
        delivery = taking.next(timeout=PATIENCE)
        assert ids(delivery) == [1]
        delivery.ack(timeout=PATIENCE)
