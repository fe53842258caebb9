"""Producers and consumers without a server: outcomes, settlements, and what becomes of what is let go."""

from __future__ import annotations

import subprocess
from collections.abc import Callable

import pytest

from .test_signals import INTERRUPT

Run = Callable[[str], subprocess.CompletedProcess[str]]

FIELDS = '"id U32, name STRING OPTIONAL, secret BYTES SENSITIVE"'
ROWS = '[{"id": 1, "secret": b"x"}, {"id": 2, "name": "n", "secret": b""}]'

SESSION = f"""
session = connect("http://fake", domain="lab")
FIELDS, ROWS = {FIELDS}, {ROWS}
def raises(kind, call, words=""):
    try:
        call()
    except kind as failure:
        assert words in str(failure), failure
        return failure
    raise AssertionError(f"{{kind.__name__}} was not raised")

"""
PRODUCER = SESSION + 'producer = session.open_producer("in", FIELDS)\n'
CONSUMER = SESSION + 'consumer = session.open_consumer("out", FIELDS)\n'


@pytest.mark.rule("B-12")
def test_what_an_open_established_is_there(with_fake: Run) -> None:
    with_fake(
        SESSION
        + """
for endpoint in (session.open_producer("in", FIELDS), session.open_consumer("out", FIELDS, domain="lab")):
    assert (endpoint.domain, endpoint.generation, endpoint.contract, endpoint.state) == ("lab", 1, bytes(32), EndpointState.ACTIVE)
    assert endpoint.grant == Grant(2, 1024, 16, 512) and endpoint.policy == Policy(AckWindow.PARALLEL, 8, 60, 1, 2)
    assert endpoint.schema.names == ("id", "name", "secret") and endpoint.reopen_reason is None and endpoint.reopen_refusal is None
    endpoint.close()
    assert endpoint.state is EndpointState.CLOSED
    endpoint.release()
    raises(ClosedError, lambda: endpoint.state)
    assert "released" in repr(endpoint)
del endpoint
session.close()
nothing_is_left()
"""
    )


@pytest.mark.rule("B-12")
def test_a_refused_open_says_why_and_leaves_nothing(with_fake: Run) -> None:
    with_fake(
        SESSION
        + """
for call in (session.open_producer, session.open_consumer):
    failure = raises(OpenRefused, lambda: call("refused", FIELDS))
    assert isinstance(failure, RejectedError) and failure.refusal is OpenRefusal.DOMAIN_STOPPED
    wrong = [{"credit_batches": number} for number in (0, -1, 2**32)] + [{"credit_bytes": number} for number in (0, 2**64, 1.5)]
    for credit in wrong:
        raises(InvalidArgumentError, lambda: call("x", FIELDS, **credit))
    raises(DeadlineError, lambda: call("x", FIELDS, timeout=0))
    raises(InvalidArgumentError, lambda: call("x", "id U99"), "no type")
    raises(InvalidArgumentError, lambda: call("x", "id " + "VEC<" * 40 + "U8" + ">" * 40))
raises(InvalidArgumentError, lambda: session.open_consumer("x", FIELDS, settle="always"), "auto")
session.close()
nothing_is_left()
"""
    )


@pytest.mark.rule("B-14")
def test_each_outcome_reaches_python_with_its_cause(with_fake: Run) -> None:
    with_fake(
        PRODUCER
        + """
cases = [(1, refusal.value, NotAdmitted, "refusal", refusal) for refusal in SubmissionRefusal if refusal.name != "INVALID_BATCH"]
cases += [(1, 10 + defect.value, NotAdmitted, "defect", defect) for defect in BatchDefect]
cases += [(3, failure.value, ProcessingFailed, "failure", failure) for failure in ProcessingFailure]
cases += [(4, doubt.value, OutcomeUnknown, "uncertainty", doubt) for doubt in SubmissionUncertainty]
for result, cause, kind, name, value in cases:
    submission = producer.submit(ROWS)
    assert not submission.done() and submission.outcome is None
    raises(DeadlineError, lambda: submission.result(timeout=0))
    session.execute(f"outcome {submission.identity} {result} {cause}")
    assert submission.done()
    failure = raises(kind, submission.result, value.name)
    assert isinstance(failure, SubmissionNotCompleted) and failure.outcome is submission.outcome
    outcome = submission.result(check=False)
    assert outcome is submission.outcome and not outcome.completed and outcome.result == result and outcome.message == "why not"
    assert getattr(outcome, name) is value and (outcome.refusal is SubmissionRefusal.INVALID_BATCH) == (name == "defect")
    given = [outcome.refusal, outcome.defect, outcome.failure, outcome.uncertainty]
    assert len([one for one in given if one is not None]) == (2 if name == "defect" else 1)
    assert "may have" in str(failure) or kind is NotAdmitted
submission = producer.submit(ROWS)
session.execute(f"outcome {submission.identity} 2 0")
assert submission.result().completed and submission.result() is submission.result()
del submission, failure, outcome, producer
session.close()
nothing_is_left()
"""
    )


@pytest.mark.rule("B-14")
def test_a_submission_holds_credit_until_its_outcome_is_taken_or_it_is_let_go(with_fake: Run) -> None:
    with_fake(
        PRODUCER
        + """
first, second = producer.submit(ROWS), producer.submit_ipc(b"a stream")
assert producer.pending() == [first, second], "the same objects"
raises(DeadlineError, lambda: producer.submit(ROWS, timeout=0.05))
assert [one.identity for one in producer.pending()] == [1, 2], "nothing was submitted"
session.execute("outcome 2 2 0")
assert second.release().completed and second.result().completed
third = producer.submit(ROWS, timeout=5)
assert third.release() is None and third.release() is None
raises(InvalidArgumentError, third.result, "let go")
del second, third
gc.collect()
identity = first.identity
del first
assert [one.identity for one in producer.pending()] == [identity], "forgetting the object loses nothing"
session.execute("outcome 1 2 0")
assert producer.pending()[0].result().completed and producer.pending() == []
raises(InvalidArgumentError, lambda: producer.submit_ipc(b""))
"""
    )


def test_two_threads_that_wait_for_one_outcome_both_get_it(with_fake: Run) -> None:
    with_fake(
        PRODUCER
        + """
for _ in range(20):
    submission, taken = producer.submit(ROWS), []
    threads = [threading.Thread(target=lambda: taken.append(submission.result())) for _ in range(4)]
    for thread in threads:
        thread.start()
    session.execute(f"outcome {submission.identity} 2 0")
    for thread in threads:
        thread.join()
    assert len(taken) == 4 and all(outcome.completed and outcome == taken[0] for outcome in taken)
    """
    )


def test_send_submits_and_waits(with_fake: Run) -> None:
    with_fake(
        PRODUCER
        + """
def resolve(identity, result):
    until(producer.pending)
    session.execute(f"outcome {identity} {result} 3")
thread = threading.Thread(target=resolve, args=(1, 2))
thread.start()
assert producer.send(ROWS).completed
thread.join()
thread = threading.Thread(target=resolve, args=(2, 1))
thread.start()
assert producer.send(producer.batch(ROWS), check=False).refusal is SubmissionRefusal.BUSY
thread.join()
failure = raises(DeadlineError, lambda: producer.send(ROWS, timeout=0.05))
assert producer.pending() == [failure.submission], "it was submitted, and is not lost"
"""
    )


@pytest.mark.rule("B-14")
def test_what_ends_a_send_says_whether_the_batch_was_submitted(with_fake: Run) -> None:
    with_fake(
        PRODUCER
        + INTERRUPT
        + """
import pickle
def told(failure):
    assert failure.submission.producer is producer
    return failure.submission.identity
over = Cancel()
over.trigger()
assert raises(InvalidArgumentError, lambda: producer.send([{"id": -1}])).submission is None
assert raises(CancelledError, lambda: producer.send(ROWS, cancel=over)).submission is None
assert told(raises(DeadlineError, lambda: producer.send(ROWS, timeout=0.05))) == 1
assert told(raises(KeyboardInterrupt, lambda: interrupt(lambda: producer.send(ROWS)))) == 2
# There is no credit for more: each of these ends before it submitted anything.
assert raises(DeadlineError, lambda: producer.send(ROWS, timeout=0.05)).submission is None
assert raises(DeadlineError, lambda: producer.submit(ROWS, timeout=0.05)).submission is None
assert raises(DeadlineError, lambda: producer.submit_ipc(b"a stream", timeout=0.05)).submission is None
stopped = raises(KeyboardInterrupt, lambda: interrupt(lambda: producer.send(ROWS)))
assert stopped.submission is None and not getattr(stopped, "__notes__", [])
first, second = producer.pending()
failure = raises(DeadlineError, lambda: first.result(timeout=0.05))
assert failure.submission is first
assert pickle.loads(pickle.dumps(failure)).submission is None, "it stays with this process"
stopped = raises(KeyboardInterrupt, lambda: interrupt(second.result))
assert stopped.submission is second
assert sys.version_info < (3, 11) or "submission 2 of in" in stopped.__notes__[0] and len(stopped.__notes__) == 1
session.execute("outcome 1 1 3")
session.execute("outcome 2 2 0")
assert raises(NotAdmitted, failure.submission.result).submission is first
assert stopped.submission.result().completed
"""
    )


@pytest.mark.rule("B-14")
def test_what_was_read_for_a_batch_that_was_not_submitted_is_not_lost(with_fake: Run) -> None:
    with_fake(
        PRODUCER
        + INTERRUPT
        + """
import pickle
gc.disable()
class Rows:  # An iterator that is no generator goes on after an exception.
    def __init__(self, end): self.end, self.left = end, [{"id": 1, "secret": b""}, {"id": 2, "secret": b""}]
    def __iter__(self): return self
    def __next__(self):
        if self.left: return self.left.pop()
        raise self.end
rows = lambda: (dict(row) for row in ROWS)
filled = [producer.submit(ROWS), producer.submit(ROWS)]
for call in (producer.submit, producer.send):
    for data in (rows(), ROWS, producer.batch(ROWS)):
        before = live().get("batch", 0)
        once = not isinstance(data, (list, Batch))
        failure = raises(DeadlineError, lambda: call(data, timeout=0.02))
        assert failure.submission is None and failure.batch.rows() == producer.batch(ROWS).rows()
        assert (failure.batch is data) == isinstance(data, Batch)
        assert ("submit this exception's batch" in str(failure)) == once, failure
        assert pickle.loads(pickle.dumps(failure)).batch is None, "it stays with this process"
        again = raises(DeadlineError, lambda: call(failure.batch, timeout=0.02))
        assert again.batch is failure.batch and str(again).count("batch instead") == 0
        assert call is not producer.submit or not once or raises(InvalidArgumentError, lambda: call(data), "[] if").batch is None
        del failure, again
        assert live().get("batch", 0) == before, "what an exception carried goes with it, without the garbage collector"
        stopped = raises(KeyboardInterrupt, lambda: interrupt(lambda: call(rows() if once else data)))
        assert stopped.submission is None and stopped.batch.row_count == 2
        if sys.version_info >= (3, 11):
            assert ["submit this exception's batch" in note for note in getattr(stopped, "__notes__", [])] == [True] * once
        del stopped
        assert live().get("batch", 0) == before
        del data
for end in (KeyboardInterrupt(), KeyError("the iterator's own")):
    stopped = raises(type(end), lambda: producer.submit(Rows(end)))
    assert (stopped.submission, stopped.batch) == (None, None)
    assert sys.version_info < (3, 11) or "make it anew" in stopped.__notes__[0]
failure = raises(ClosedError, lambda: (producer.release(), producer.submit(rows())))
assert failure.batch.row_count == 2
del stopped, failure, filled, producer, call, end
session.close()
nothing_is_left()
"""
    )


def test_what_is_no_batch_is_refused_before_anything_is_sent(with_fake: Run) -> None:
    with_fake(
        PRODUCER
        + """
for data, kind, words in (
    (b"stream", TypeError, "submit_ipc"), ("text", TypeError, "not str"),
    (7, TypeError, "not int"), ({"id": 1}, TypeError, "not dict"),
    ([7], TypeError, "row 0"), ([{"id": 1, "secret": b""}, {"id": 2}], InvalidArgumentError, "column secret (BYTES), row 1"),
    ([{"id": 1, "secret": b"", "nmae": "x"}], InvalidArgumentError, "row 0 has a value for 'nmae'"),
    ([{"id": 2**32, "secret": b""}], InvalidArgumentError, "column id (U32), row 0"),
):
    raises(kind, lambda: producer.submit(data), words)
assert producer.pending() == [] and "batch" not in live() and "builder" not in live()
raises(InvalidArgumentError, lambda: Batch.from_rows(Schema(producer.schema.fields), ROWS), "description only")
"""
    )


@pytest.mark.rule("B-16")
def test_a_handle_that_is_over_says_why(with_fake: Run) -> None:
    with_fake(
        PRODUCER
        + """
consumer = session.open_consumer("out", FIELDS)
for reason in ReopenReason:
    session.execute(f"reopen {reason.value}")
    for endpoint, call in ((producer, lambda: producer.submit(ROWS)), (consumer, consumer.next), (consumer, lambda: list(consumer))):
        failure = raises(ReopenRequiredError, call)
        assert failure.reason is reason is endpoint.reopen_reason and endpoint.state is EndpointState.REOPEN_REQUIRED
        expected = OpenRefusal.SCHEMA_MISMATCH if reason is ReopenReason.REFUSED else None
        assert failure.refusal == endpoint.reopen_refusal == expected
"""
    )


def test_a_block_closes_its_producer_and_outcomes_stay(with_fake: Run) -> None:
    with_fake(
        PRODUCER
        + """
with producer:
    submission = producer.submit(ROWS)
assert producer.state is EndpointState.CLOSED
session.execute("outcome 1 2 0")
assert submission.result().completed
raises(ClosedError, lambda: producer.submit(ROWS))
failing = session.open_producer("in", FIELDS)
raises(KeyError, lambda: exec("with failing:\\n  raise KeyError"))
assert failing.state is EndpointState.CLOSED
failing.release()
with failing:
    pass
"""
    )


@pytest.mark.rule("B-15")
def test_a_delivery_has_its_rows_and_keeps_them(with_fake: Run) -> None:
    with_fake(
        CONSUMER
        + """
session.execute("deliver 2")
delivery = consumer.next()
assert delivery.identity == delivery.reference == bytes(15) + b"\\x01"
assert bool(delivery) and len(delivery) == delivery.members == 2
assert (delivery.source_relay, delivery.branch_fingerprint, delivery.execution_now) == ("relay", bytes(32), -1)
stream, batch = delivery.ipc, delivery.batch()
assert stream.readonly and bytes(stream) == b"the stream" and delivery.batch() is batch and len(batch) == batch.row_count == 2
rows = [{"id": 1, "name": "name", "secret": b"\\xff"}, {"id": 2, "name": None, "secret": b"\\xff"}]
assert delivery.rows() == batch.rows() == rows
arrow = delivery.to_arrow()
assert arrow.to_pylist() == rows and [arrow.schema.field(name).nullable for name in ("id", "name", "secret")] == [False, True, False]
assert arrow.schema.field("secret").metadata is None
import pyarrow
assert pyarrow.record_batch(delivery).equals(arrow) and pyarrow.record_batch(batch).equals(arrow)
assert delivery.ack() is Settlement.CONFIRMED is delivery.settlement
delivery.release()
raises(ClosedError, lambda: delivery.ipc)
raises(ClosedError, delivery.ack)
other = batch.ipc
batch.release()
raises(ClosedError, lambda: batch.rows())
assert bytes(stream) == bytes(other) == b"the stream"
del stream, other, delivery, batch, consumer, arrow
session.close()
nothing_is_left()
"""
    )


@pytest.mark.rule("B-2", "B-15")
@pytest.mark.parametrize(
    "order", ["session consumer delivery batch", "batch delivery consumer session", "consumer session batch delivery"]
)
def test_everything_is_released_once_in_any_order(with_fake: Run, order: str) -> None:
    with_fake(
        CONSUMER
        + f"""
producer = session.open_producer("in", FIELDS)
submission = producer.submit(ROWS)
session.execute("deliver 2")
delivery = consumer.next()
batch, view = delivery.batch(), delivery.ipc
delivery.ack()
things = dict(session=session, consumer=consumer, delivery=delivery, batch=batch, producer=producer)
del session, consumer, delivery, batch, producer
for name in {order!r}.split():
    thing = things.pop(name)
    thing.close() if name == "session" else thing.release()
    del thing
    gc.collect()
assert bytes(view) == b"the stream"
del view, submission
things.clear()
nothing_is_left()
"""
    )


@pytest.mark.rule("B-2", "B-15")
def test_references_are_released_by_any_thread(with_fake: Run) -> None:
    with_fake(
        CONSUMER
        + """
for _ in range(50):
    session.execute("deliver 2")
def work(delivery):
    delivery.ack()
    bytes(delivery.ipc), delivery.rows()
threads = [threading.Thread(target=work, args=(consumer.next(),)) for _ in range(50)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
threads.clear()
del thread, consumer
session.close()
nothing_is_left()
"""
    )


@pytest.mark.rule("B-15", "N-6")
def test_nothing_is_settled_by_itself_and_a_forgotten_delivery_is_told_of(with_fake: Run) -> None:
    with_fake(
        CONSUMER
        + """
import warnings
def told(call):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        call()
        gc.collect()
    assert all(issubclass(one.category, ResourceWarning) for one in caught)
    return [str(one.message) for one in caught]
def take(then=lambda delivery: None):
    session.execute("deliver 1")
    then(consumer.next())
before = fake.fake_executed()
messages = told(take)
assert len(messages) == 1 and "of out was neither settled nor released" in messages[0] and "ack()" in messages[0], messages
assert fake.fake_executed() == before + 1, "only the command"
def in_a_block(delivery):
    with delivery:
        delivery.rows()
for then in (Delivery.release, in_a_block, Delivery.ack, Delivery.retry, lambda delivery: delivery.reject("no")):
    assert told(lambda: take(then)) == []
session.execute("deliver 1")
held = consumer.next()
session.execute("interrupt")
raises(InterruptedReadError, consumer.next)
def forget():
    global held
    held = None
assert told(forget) == [], "it can be settled no longer"
session.execute("deliver 1")
held = consumer.next()
consumer.close()
assert told(forget) == [], "its consumer was closed"
"""
    )


def test_the_end_of_the_program_tells_of_no_delivery(with_fake: Run) -> None:
    with_fake(CONSUMER + 'session.execute("deliver 1")\nheld = consumer.next()\n')


@pytest.mark.rule("B-15", "EC-4")
def test_a_settlement_that_is_not_confirmed_is_an_error_unless_asked(with_fake: Run) -> None:
    with_fake(
        CONSUMER
        + """
def taken():
    session.execute("deliver 1")
    return consumer.next()
for settlement in Settlement:
    session.execute(f"settle {settlement.value}")
    for name, arguments in (("ack", ()), ("retry", ()), ("reject", ("because",))):
        assert getattr(taken(), name)(*arguments, check=False) is settlement
        if settlement is not Settlement.CONFIRMED:
            failure = raises(SettlementFailed, lambda: getattr(taken(), name)(*arguments), settlement.name)
            assert failure.settlement is settlement
session.execute("settle 1")
delivery = taken()
for reason in ("", "x" * 1025, "\\ud800"):
    raises(InvalidArgumentError, lambda: delivery.reject(reason))
raises(TypeError, lambda: delivery.reject(b"x"))
raises(DeadlineError, lambda: delivery.ack(timeout=0))
assert delivery.settlement is None
for code, kind in ((4, UncertainError), (5, RejectedError)):
    session.execute(f"settle {100 + code}")
    raises(kind, delivery.ack)
"""
    )


@pytest.mark.rule("B-15")
def test_a_settlement_whose_answer_a_signal_lost_is_uncertain(with_fake: Run) -> None:
    with_fake(
        CONSUMER
        + INTERRUPT
        + """
signal.signal(signal.SIGUSR1, lambda *_: None)
session.execute("deliver 1")
delivery = consumer.next()
session.execute("settle-waits")
raises(UncertainError, lambda: interrupt(delivery.ack, signal.SIGUSR1), "may have been acknowledged")
assert delivery.settlement is None
assert delivery.ack(check=False) is Settlement.STALE_REFERENCE
"""
    )


@pytest.mark.rule("B-15")
def test_a_block_settles_by_itself_only_when_that_was_asked_for(with_fake: Run) -> None:
    with_fake(
        SESSION
        + """
consumer = session.open_consumer("out", FIELDS, settle="auto")
def taken():
    session.execute("deliver 1")
    return consumer.next()
with taken() as delivery:
    pass
assert delivery.settlement is Settlement.CONFIRMED
session.execute("settle 2")
raises(SettlementFailed, lambda: taken().__enter__().__exit__(None, None, None))
delivery = taken()
def fails():
    with delivery:
        raise KeyError("the block's own")
raises(KeyError, fails, "the block's own")
assert delivery.settlement is Settlement.STALE_REFERENCE, "the retry was asked for and is over already"
session.execute("settle 105")
raises(KeyError, lambda: exec("with taken():\\n  raise KeyError"))
session.execute("settle 1")
before = fake.fake_executed()
with taken() as delivery:
    delivery.reject("bad")
assert fake.fake_executed() == before + 2, "the command and the rejection"
with taken() as delivery:
    delivery.release()
assert delivery.settlement is None
"""
    )


@pytest.mark.rule("B-16")
def test_a_consumer_is_iterated_until_it_is_closed_and_a_gap_is_raised_in_between(with_fake: Run) -> None:
    with_fake(
        CONSUMER
        + """
session.execute("deliver 1")
session.execute("interrupt")
raises(InterruptedReadError, lambda: next(iter(consumer)))
seen = []
def read():
    for delivery in consumer:
        seen.append(delivery.identity)
        delivery.ack()
thread = threading.Thread(target=read)
thread.start()
session.execute("deliver 1")
until(lambda: len(seen) == 2 and fake.fake_waiting() == 1)
consumer.close()
thread.join()
raises(ClosedError, consumer.next)
with consumer:
    pass
"""
    )


def test_a_consumer_that_is_released_ends_its_reader(with_fake: Run) -> None:
    with_fake(
        CONSUMER
        + """
ended = []
thread = threading.Thread(target=lambda: ended.append(list(consumer)))
thread.start()
until(lambda: fake.fake_waiting() == 1)
consumer.release()
thread.join()
assert ended == [[]]
del consumer
session.close()
nothing_is_left()
"""
    )


@pytest.mark.parametrize(
    "call",
    ["consumer.next", "lambda: producer.submit(ROWS)", "submission.result", "lambda: delivery.ack()"],
    ids=["next", "submit", "result", "ack"],
)
def test_ctrl_c_ends_a_waiting_call_and_the_object_goes_on(with_fake: Run, call: str) -> None:
    with_fake(
        PRODUCER
        + INTERRUPT
        + f"""
consumer = session.open_consumer("out", FIELDS)
session.execute("deliver 1")
delivery = consumer.next()
submission, other = producer.submit(ROWS), producer.submit(ROWS)
if {"ack" in call}:
    session.execute("settle-waits")
raises(KeyboardInterrupt, lambda: interrupt({call}))
session.execute("deliver 2")
with consumer.next() as two:
    assert len(two) == 2
for one in (submission, other):
    session.execute(f"outcome {{one.identity}} 2 0")
    assert one.result().completed
assert producer.submit(ROWS).identity == 3
delivery.ack(check=False)
session.execute("deliver 3")
consumer.next().ack(check=False)
"""
    )


def test_a_child_of_a_fork_can_use_none_of_it_and_frees_none_of_it(with_fake: Run) -> None:
    with_fake(
        PRODUCER
        + """
consumer, clock = session.open_consumer("out", FIELDS), session.attach_clock()
now = clock.read()
session.execute("deliver 1")
delivery, submission = consumer.next(), producer.submit(ROWS)
batch, view = delivery.batch(), delivery.ipc
before = live()
import warnings
warnings.simplefilter("ignore", DeprecationWarning)
child = os.fork()
if child == 0:
    status = 1
    try:
        for call in (producer.submit, consumer.next, delivery.ack, submission.result, clock.read, batch.rows):
            raises(ClosedError, (lambda: call(ROWS)) if call == producer.submit else call, "forked")
        raises(ClosedError, lambda: now.logical_time_at(1), "forked")
        with producer, consumer:
            pass
        del producer, consumer, delivery, submission, clock, now, batch, view
        gc.collect()
        assert live() == before and fake.fake_bad_frees() == 0
        status = 0
    finally:
        os._exit(status)
assert os.waitpid(child, 0)[1] == 0
delivery.ack()
assert bytes(view) == b"the stream"
"""
    )


def test_a_batch_is_built_column_by_column(with_fake: Run) -> None:
    with_fake(
        PRODUCER
        + """
from array import array
with BatchBuilder(producer.schema, 2) as builder:
    builder.fixed("id", 0, array("I", [1, 2]))
    builder.states(1, bytes([1, 2]))
    builder.varlen("name", 0, array("Q", [0, 1, 1]), b"n")
    builder.varlen("secret", 0, memoryview(bytearray(25))[1:], b"")
    batch = builder.finish()
    for call, words in (
        (lambda: builder.fixed("none", 0, b""), "no column 'none'"), (lambda: builder.fixed(3, 0, b""), "0 to 2"),
        (lambda: builder.fixed(0, -1, b""), "levels"), (lambda: builder.varlen(1, 0, b"123", b""), "8-byte"),
        (lambda: builder.states(0, b""), ""),
    ):
        raises(InvalidArgumentError, call, words)
assert len(batch) == 2 and producer.submit(batch).identity == 1
raises(ClosedError, builder.finish)
raises(InvalidArgumentError, lambda: BatchBuilder(producer.schema, -1))
del batch, builder, producer
session.close()
nothing_is_left()
"""
    )
