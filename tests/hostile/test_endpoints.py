"""Clocks, producers and consumers when frames are spoiled, and when processes are interrupted, killed, or just end."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator

import pytest

import nervix_ffi
from nervix_ffi import ClockChanged, ClockInterrupted, SubmissionUncertainty
from nervix_ffi.testing import LoopbackNode

from ..endpoints import GRAPH, consumer, ids, producer, rows
from ..support import DOMAIN, PATIENCE, connect, counts, expect_line, finish, python, sent, wait
from .test_processes import PRELUDE, interrupt

#: Spoiled frames: what is no frame, and what is none of the schema's.
SPOILED = ["identifier", "inner_offset", "truncated", "union_tag", "required"]


@pytest.fixture
def node() -> Iterator[LoopbackNode]:
    """A node with the graph of endpoints."""
    with LoopbackNode(load=GRAPH) as one:
        yield one


# ---- spoiled frames


@pytest.mark.rule("F-8", "P-5", "P-8")
@pytest.mark.parametrize("what", SPOILED)
def test_a_spoiled_outcome_leaves_the_batch_unknown(node: LoopbackNode, session: nervix_ffi.Session, what: str) -> None:
    feed = producer(session)
    node.control("corrupt", what=what, kind="SubmissionOutcome")
    outcome = feed.submit(rows(1), timeout=PATIENCE).result(timeout=PATIENCE, check=False)
    assert outcome.uncertainty is SubmissionUncertainty.SESSION_LOST
    assert feed.send(rows(2), timeout=PATIENCE).completed
    assert counts(node)["batches"] == {"received": 2, "resent": 0, "forbidden_resends": 0, "contents": 2}


@pytest.mark.rule("F-8", "EC-5", "B-16")
@pytest.mark.parametrize("what", SPOILED)
def test_a_spoiled_delivery_comes_again(node: LoopbackNode, session: nervix_ffi.Session, what: str) -> None:
    with connect(node) as other:
        feed, taking = producer(other, "held"), consumer(session)
        node.control("corrupt", what=what, kind="ReadEmitterBatchOutcome")
        submission = feed.submit(rows(1), timeout=PATIENCE)
        with pytest.raises(nervix_ffi.InterruptedReadError):
            taking.next(timeout=PATIENCE)
        with taking.next(timeout=PATIENCE) as delivery:
            assert ids(delivery) == [1]
            delivery.ack(timeout=PATIENCE)
        assert submission.result(timeout=PATIENCE).completed


@pytest.mark.rule("F-8", "EC-6", "B-15")
def test_a_spoiled_settlement_is_uncertain(node: LoopbackNode, session: nervix_ffi.Session) -> None:
    feed, taking = producer(session, "held"), consumer(session)
    feed.submit(rows(1), timeout=PATIENCE)
    delivery = taking.next(timeout=PATIENCE)
    node.control("corrupt", what="enum", kind="SettleEmitterBatchOutcome")
    with pytest.raises(nervix_ffi.UncertainError):
        delivery.ack(timeout=PATIENCE)
    with pytest.raises(nervix_ffi.InterruptedReadError):
        taking.next(timeout=PATIENCE)


@pytest.mark.rule("F-8", "P-1", "EC-1")
@pytest.mark.parametrize("what", SPOILED)
def test_a_spoiled_open_opens_nothing(node: LoopbackNode, session: nervix_ffi.Session, what: str) -> None:
    for kind, call in (("OpenIngestorOutcome", producer), ("OpenEmitterOutcome", consumer)):
        node.control("corrupt", what=what, kind=kind)
        with pytest.raises(nervix_ffi.ProtocolError):
            call(session)
    feed = producer(session)
    assert feed.send(rows(1), timeout=PATIENCE).completed
    wait(node, producers={"exactly": 1}, consumers=0)


@pytest.mark.rule("F-8", "K-5", "B-9")
@pytest.mark.parametrize("what", SPOILED)
def test_a_spoiled_clock_is_a_gap(node: LoopbackNode, session: nervix_ffi.Session, what: str) -> None:
    clock = session.attach_clock(timeout=PATIENCE)
    node.control("corrupt", what=what, kind="DomainClockObserved")
    node.control("execute", domain=DOMAIN, statement="STOP;")
    assert isinstance(clock.next(timeout=PATIENCE), ClockInterrupted)
    restored = clock.next(timeout=PATIENCE)
    assert isinstance(restored, ClockChanged)
    assert restored.state is nervix_ffi.ClockState.STOPPED


# ---- signals

OPEN = """
    FIELDS = "id U64, note STRING OPTIONAL"
    session = nervix_ffi.connect(sys.argv[1], domain="lab", timeout=30)
"""

#: Calls that wait, with what comes before each and what must still work after it.
WAITS = {
    "submit": (
        "feed = session.open_producer('held', FIELDS, credit_batches=1)\n    first = feed.submit([{'id': 1}])",
        "lambda: feed.submit([{'id': 2}])",
        "[one.identity for one in feed.pending()] == [first.identity]",
    ),
    "result": (
        "feed = session.open_producer('held', FIELDS)\n    first = feed.submit([{'id': 1}])",
        "lambda: first.result()",
        "feed.pending() == [first] and not first.done()",
    ),
    "close": (
        "feed = session.open_producer('held', FIELDS)\n    first = feed.submit([{'id': 1}])",
        "lambda: feed.close()",
        "feed.state == 5 and not first.done()",
    ),
    "next": (
        "taking = session.open_consumer('out', FIELDS)",
        "lambda: taking.next()",
        "session.open_producer('held', FIELDS).submit([{'id': 1}]) and taking.next(timeout=30).ack() == 1",
    ),
    "iteration": (
        "taking = session.open_consumer('out', FIELDS)",
        "lambda: list(taking)",
        "session.open_producer('held', FIELDS).submit([{'id': 1}]) and taking.next(timeout=30).ack() == 1",
    ),
    "clock": ("clock = session.attach_clock()", "lambda: clock.next()", "clock.read().generation == 1"),
    "sleep": (
        "clock = session.attach_clock()",
        "lambda: clock.sleep_until(time.time_ns() + 3600 * 10**9)",
        "clock.sleep_until(time.time_ns() + 10**6, timeout=30)",
    ),
}


@pytest.mark.rule("B-11", "B-14", "B-15", "P-7", "EC-2")
@pytest.mark.parametrize("name", WAITS)
def test_interrupt_in_every_wait(node: LoopbackNode, name: str) -> None:
    before, call, after = WAITS[name]
    process = python(
        PRELUDE + OPEN + f"    {before}\n    interrupted({name!r}, {call})\n    print({after}, flush=True)\n", node.uri
    )
    interrupt(process, name)
    expect_line(process, "True")
    assert finish(process) == ("", "")


@pytest.mark.rule("EC-2", "B-15")
def test_a_signal_that_changes_nothing_loses_no_delivery(node: LoopbackNode) -> None:
    """Handlers run while the call waits, and the call goes on; what arrives meanwhile is handed out once."""
    process = python(
        PRELUDE
        + OPEN
        + """
    seen = []
    signal.signal(signal.SIGUSR1, lambda *_: seen.append(1))
    taking = session.open_consumer("out", FIELDS)
    print("WAITING", flush=True)
    found = []
    for delivery in taking:
        found += delivery.batch().column("id").to_list()
        delivery.ack()
        if len(found) == 20:
            break
    print(sorted(found) == list(range(20)) and len(seen) > 0, flush=True)
""",
        node.uri,
    )
    with connect(node) as session:
        feed = producer(session, "held", credit_batches=32)
        expect_line(process, "WAITING")
        submissions = []
        for number in range(20):
            process.send_signal(signal.SIGUSR1)
            submissions.append(feed.submit(rows(number), timeout=PATIENCE))
        expect_line(process, "True")
        assert finish(process) == ("", "")
        # A settlement whose answer the signal lost would have raised.
        assert [one.result(timeout=PATIENCE).completed for one in submissions] == [True] * 20


# ---- processes that end

HOLDING = (
    PRELUDE
    + OPEN
    + """
    feed, taking = session.open_producer("held", FIELDS), session.open_consumer("out", FIELDS)
    clock = session.attach_clock()
    submission = feed.submit([{"id": 1}])
    delivery = taking.next(timeout=30)
    for call in (submission.result, taking.next, clock.next, lambda: clock.sleep_until(2**62)):
        threading.Thread(target=call, daemon=True).start()
    print("HOLDING", flush=True)
"""
)


@pytest.mark.rule("P-8", "EC-6", "X-7")
@pytest.mark.parametrize("how", ["ends", "exits", "is killed"])
def test_a_process_that_holds_everything_ends(node: LoopbackNode, how: str) -> None:
    """It comes to its end at once and says nothing; what it had not settled comes again to somebody else."""
    endings = {"ends": "", "exits": "    sys.exit(3)\n", "is killed": "    sys.stdin.read()\n"}
    process = python(HOLDING + endings[how], node.uri)
    expect_line(process, "HOLDING")
    if how == "is killed":
        process.kill()
    output, errors = finish(process)
    assert (output, errors) == ("", "")
    assert process.returncode == {"ends": 0, "exits": 3, "is killed": -signal.SIGKILL}[how]
    wait(node, sessions=0, producers=0, consumers=0, clocks=0)
    assert counts(node)["sessions"]["ended"]["end_stream"] == 0
    with connect(node) as session, consumer(session) as taking:
        delivery = taking.next(timeout=PATIENCE)
        assert ids(delivery) == [1]
        delivery.ack(timeout=PATIENCE)
    assert sent(node, "SubmitBatchRequest") == 1


@pytest.mark.rule("P-8", "EC-5")
def test_a_node_that_stops_ends_no_call_for_ever(node: LoopbackNode, session: nervix_ffi.Session) -> None:
    feed, taking = producer(session, "held"), consumer(session)
    submission = feed.submit(rows(1), timeout=PATIENCE)
    delivery = taking.next(timeout=PATIENCE)
    node.stop()
    assert submission.result(timeout=PATIENCE, check=False).uncertainty is SubmissionUncertainty.SESSION_LOST
    with pytest.raises(nervix_ffi.InterruptedReadError):
        taking.next(timeout=PATIENCE)
    with pytest.raises(nervix_ffi.RejectedError):
        delivery.ack(timeout=PATIENCE)
    calls: list[Callable[[], object]] = [
        lambda: feed.submit(rows(2), timeout=0.1),
        lambda: taking.next(timeout=0.1),
        lambda: session.open_producer("quick", "id U64", timeout=0.1),
    ]
    for call in calls:
        with pytest.raises(nervix_ffi.DeadlineError):
            call()
    feed.close(timeout=PATIENCE)
    taking.close(timeout=PATIENCE)
