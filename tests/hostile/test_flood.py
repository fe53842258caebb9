"""A node that sends what nobody asked for as fast as it can, or takes nothing: every reply arrives, and memory stays bounded."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import nervix_ffi
from nervix_ffi import ClockTick, DeadlineError, DeliveryLost, Interrupted, Overflow, Rows, RowsSkipped
from nervix_ffi.testing import LoopbackNode

from .. import endpoints
from ..support import DOMAIN, PATIENCE, connect, counts, expect_line, finish, next_event, python, reading, row_ids, wait
from ..wire.writer import cell, encoded, rows_frame, server_frame
from .test_processes import PRELUDE, WORST, interrupt

pytestmark = pytest.mark.usefixtures("generated")

MIB = 1 << 20

#: What a subscription may hold unread, and all of a session together.
ONE, ALL = 8 * MIB, 64 * MIB
#: What a connection may hold besides: its window, a frame in pieces and put together, and where the cells of one stand.
RECEIVING = 2 * MIB + 2 * 4 * MIB + 2 * 4 * MIB
#: What the allocator may keep of what was given back, and Python of what the tests make.
ALLOWANCE = 32 * MIB

GRAPH = (
    endpoints.GRAPH
    + """
USE lab;
CREATE SCHEMA reading (id U32, value I64 OPTIONAL, note STRING);
CREATE RELAY readings SCHEMA reading UNBRANCHED;
CREATE PACED DOMAIN beat WITH PERIOD 1s SKEW 1s;
USE beat;
START;
"""
)


@pytest.fixture
def node() -> Iterator[LoopbackNode]:
    """A node whose clocks tick only in a flood."""
    with LoopbackNode(load=GRAPH, options=["--frozen-time"]) as one:
        yield one


@contextmanager
def growth_below(bound: int, what: str) -> Iterator[None]:
    """The peak of this process's resident memory in the block stays within `bound` of what it was before."""

    def status(name: str) -> int:
        lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name))

    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # The peak begins anew.
    before = status("VmRSS")
    yield
    growth = status("VmHWM") - before
    print(f"{what}: {growth / MIB:.1f} MiB of {bound / MIB:.0f}")
    assert growth < bound


def newest(node: LoopbackNode) -> int:
    """The number of the newest session."""
    number: int = counts(node)["sessions"]["list"][-1]["id"]
    return number


@contextmanager
def flood(node: LoopbackNode, frames: list[bytes], session: int | None = None, **more: Any) -> Iterator[dict[str, Any]]:
    """Flood a session for as long as the block takes. What was sent is in what the block is given, afterwards."""
    number = newest(node) if session is None else session
    node.control("flood_frames", session=number, frames=[encoded(frame) for frame in frames], **more)
    sent: dict[str, Any] = {}
    yield sent
    sent.update(node.control("flood_end", session=number))


def rows_of(subscription: nervix_ffi.Subscription, size: int) -> bytes:
    """A frame of one row of a subscription, of about this size."""
    assert subscription.generation is not None
    row = [cell("U32Cell", value=1), cell("NullCell"), cell("StringCell", value="x" * max(1, size - 256))]
    return rows_frame(subscription.name, subscription.generation, [row])


def handle(name: str, generation: int) -> tuple[str, dict[str, Any]]:
    return ("SubscriptionHandle", {"name": name, "generation": generation})


def lost(name: str, generation: int, rows: int) -> bytes:
    return server_frame(("SubscriptionDeliveryLost", {"subscription": handle(name, generation), "dropped_rows": rows}))


def skipped(name: str, generation: int, rows: int, message: str = "no time") -> bytes:
    fields = {"subscription": handle(name, generation), "cause": 1, "skipped_rows": rows, "message": message}
    return server_frame(("SubscriptionRowsSkipped", fields))


def ended(name: str, generation: int) -> bytes:
    return server_frame(("SubscriptionEnded", {"subscription": handle(name, generation), "reason": 1, "message": "changed"}))


def strangers() -> list[bytes]:
    """Frames about thousands of things that no session has, each of them legal."""
    frames = []
    for number in range(300):
        unknown = 1_000_000 + number
        frames += [
            lost(f"nobody{number}", unknown, 1),
            skipped(f"nobody{number}", unknown, 1),
            ended(f"nobody{number}", unknown),
            rows_frame(f"nobody{number}", unknown, [[cell("U32Cell", value=1)]]),
            server_frame(("ProducerAdmissionChanged", {"producer": unknown, "admission": number % 2})),
            server_frame(("ProducerEnded", {"producer": unknown, "reason": 0, "message": "gone"})),
            server_frame(("DomainClockTicked", {"domain": f"d{number}", "generation": 1, "tick_id": unknown})),
            server_frame(("DomainClockAttachmentEnded", {"domain": f"d{number}", "reason": 0})),
            server_frame(("Reply", {"request_id": unknown, "body": ("RequestCancelled", {"stage": 0})})),
            server_frame(("ServerNotice", {"level": 0, "message": f"notice {number}" * 100})),
            server_frame(("DomainsObserved", {"domains": []})),
        ]
        # Leaders that do not exist, a few of which are remembered (D-3).
        uri = f"http://{'long' * 60}-{number}:1"
        leader = ("LeaderEndpoints", {"node": f"node-{number}", "grpc_uri": uri})
        frames.append(server_frame(("LeadershipObserved", {"leadership": ("LeaderIsRemote", {"leader": leader})})))
    return frames


def together(count: int, work: Callable[[int], None]) -> None:
    """Do something in several threads at once."""
    failures: list[BaseException] = []

    def run(index: int) -> None:
        try:
            work(index)
        except BaseException as failure:
            failures.append(failure)

    threads = [threading.Thread(target=run, args=(index,), daemon=True) for index in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(3 * PATIENCE)  # For all of its calls.
        assert not thread.is_alive(), "a call did not come back"
    for failure in failures:
        raise failure


def everything_is_answered(session: nervix_ffi.Session, producer: nervix_ffi.Producer) -> None:
    """Eight threads have commands, completions and batches answered, each its own."""

    def work(index: int) -> None:
        for number in range(5):
            name = f"made_{index}_{number}"
            assert session.execute(f"CREATE SCHEMA {name} (id U32);", timeout=PATIENCE).completed
            assert name in (session.execute(f"SHOW CREATE SCHEMA {name};", timeout=PATIENCE).message or "")
            with pytest.raises(nervix_ffi.CommandFailed, match=f"missing_{index}_{number}"):
                session.execute(f"SHOW CREATE SCHEMA missing_{index}_{number};", timeout=PATIENCE)
            assert session.suggest("CREATE ", timeout=PATIENCE).items
            submission = producer.submit(endpoints.rows(index, number), timeout=PATIENCE)
            assert submission.result(timeout=PATIENCE).completed

    together(8, work)


@pytest.mark.rule("C-3", "C-7", "S-8", "K-3")
@pytest.mark.parametrize("size", [64, 64 << 10, 4 * MIB - 4096])
def test_a_host_that_reads_nothing_gets_every_reply(node: LoopbackNode, size: int) -> None:
    with connect(node) as session, session.subscribe("readings", name="s") as subscription:
        producer = session.open_producer("quick", endpoints.FIELDS, timeout=PATIENCE)
        clock = session.attach_clock("beat", timeout=PATIENCE)
        frame = rows_of(subscription, size)
        with growth_below(ONE + RECEIVING + ALLOWANCE, f"frames of {size} bytes"):
            with flood(node, [frame], tick="beat", generation=1, after=10) as sent:
                everything_is_answered(session, producer)
                wait(node, frames={"out": {"Injected": 500}})
            # Behind the flood: all of it has arrived.
            assert session.execute("SHOW CLUSTER STATUS;", timeout=PATIENCE).completed
        assert isinstance(next_event(subscription), Overflow)
        tick = clock.next(timeout=PATIENCE)
        assert isinstance(tick, ClockTick)
        assert tick.tick.id == 10 + sent["ticks"]
        for source in (subscription, clock):
            with pytest.raises(DeadlineError):
                source.next(timeout=0)
        assert counts(node)["sessions"]["opened"] == 1


@pytest.mark.rule("C-3", "C-7", "D-3", "K-2", "P-2", "S-3")
def test_what_belongs_to_nobody_costs_nothing(node: LoopbackNode) -> None:
    with connect(node) as session:
        producer = session.open_producer("quick", endpoints.FIELDS, timeout=PATIENCE)
        frames = strangers()
        with growth_below(RECEIVING + ALLOWANCE, "frames of strangers"), flood(node, frames):
            everything_is_answered(session, producer)
            wait(node, frames={"out": {"Injected": 2 * len(frames)}})
        with pytest.raises(DeadlineError):
            session.next_event(timeout=0)
        with pytest.raises(DeadlineError):
            session.next_clock_event(timeout=0)
        assert counts(node)["sessions"]["opened"] == 1


@pytest.mark.rule("C-7", "S-8")
def test_many_subscriptions_stay_within_the_bound_of_all(node: LoopbackNode) -> None:
    with connect(node) as session:
        subscriptions = [session.subscribe("readings") for _ in range(12)]
        frames = [rows_of(one, 64 << 10) for one in subscriptions]
        with growth_below(ALL + RECEIVING + ALLOWANCE, "twelve subscriptions"), flood(node, frames):
            wait(node, frames={"out": {"Injected": 5000}})
            assert session.execute("SHOW CLUSTER STATUS;", timeout=PATIENCE).completed
        for one in subscriptions:
            assert isinstance(next_event(one), Overflow)
        for one in subscriptions:
            one.close()


@pytest.mark.rule("S-5", "S-8")
def test_what_was_lost_adds_up(node: LoopbackNode) -> None:
    """A host that reads late finds every row and every count, in order; one that reads too late is told so."""
    with connect(node) as session, session.subscribe("readings", name="s") as subscription:
        assert subscription.generation is not None
        kinds = [lost("s", subscription.generation, 3), skipped("s", subscription.generation, 5), rows_of(subscription, 300)]
        node.control("flood_frames", session=newest(node), frames=[encoded(frame) for frame in kinds], rounds=40)
        wait(node, frames={"out": {"Injected": 120}})
        assert session.execute("SHOW CLUSTER STATUS;", timeout=PATIENCE).completed
        for _ in range(40):
            first, second, third = (next_event(subscription) for _ in kinds)
            assert isinstance(first, DeliveryLost)
            assert isinstance(second, RowsSkipped)
            assert (first.count, second.count, row_ids(third)) == (3, 5, [1])
        with pytest.raises(DeadlineError):
            subscription.next(timeout=0)
        node.control("flood_frames", session=newest(node), frames=[encoded(frame) for frame in kinds], rounds=1000)
        wait(node, frames={"out": {"Injected": 3120}})
        assert session.execute("SHOW CLUSTER STATUS;", timeout=PATIENCE).completed
        assert isinstance(next_event(subscription), Overflow)
        wait(node, frames={"in": {"UnsubscribeRequest": 1}})
        node.control("cut")
        assert isinstance(next_event(subscription), Interrupted)
        wait(node, subscriptions=1, sessions_opened=2)
        node.control("publish", domain=DOMAIN, relay="readings", rows=[reading(9)])
        assert row_ids(next_event(subscription)) == [9]


@pytest.mark.rule("S-5", "S-8", "C-7")
@pytest.mark.parametrize("known", [True, False], ids=["read-before", "never-read"])
def test_what_is_said_to_a_reader_that_does_not_come_is_bounded_and_each_gap_is_kept(node: LoopbackNode, known: bool) -> None:
    """One subscription is read, and the long messages of another, which is not, pile up past it."""
    with connect(node) as session:
        quick, slow = session.subscribe("readings", name="quick"), session.subscribe("readings", name="slow")
        assert quick.generation is not None
        assert slow.generation is not None
        if known:
            with pytest.raises(DeadlineError):
                slow.next(timeout=0)
        frames = [skipped("slow", slow.generation, 3, "m" * (2 * MIB)), lost("quick", quick.generation, 1)]
        for _ in range(20):
            for frame in frames:
                node.control("inject", frame=encoded(frame))
            assert isinstance(next_event(quick), DeliveryLost)
        gaps = [slow.next(timeout=0) for _ in range(20)]
        told = []
        for gap in gaps:
            assert isinstance(gap, RowsSkipped)
            assert gap.count == 3
            assert gap.message is not None
            told.append(gap.message)
        assert 14 * MIB < sum(map(len, told)) < 17 * MIB
        assert told[0] == "m" * (2 * MIB), "what there was room for is whole"
        assert told[-1].startswith("mm")
        assert told[-1].endswith("…")


@pytest.mark.rule("C-7")
def test_sessions_beside_flooded_ones_are_served(node: LoopbackNode) -> None:
    """More sessions are flooded than the library has threads."""
    flooded = [connect(node) for _ in range(3)]
    numbers = [entry["id"] for entry in counts(node)["sessions"]["list"]]
    for number, one in zip(numbers, flooded):
        frame = rows_of(one.subscribe("readings"), 64 << 10)
        node.control("flood_frames", session=number, frames=[encoded(frame)])
    with connect(node) as session:
        for _ in range(20):
            assert session.execute("SHOW CLUSTER STATUS;", timeout=PATIENCE).completed
        # Closing waits for nobody, and the node hears of it behind its own flood.
        for one in flooded:
            one.close()
        wait(node, sessions={"exactly": 1})
    assert counts(node)["sessions"]["ended"]["end_stream"] == 0
    threads = [task for task in Path("/proc/self/task").iterdir() if "nervix-client" in (task / "comm").read_text()]
    assert len(threads) <= 2 + 8  # The two that serve all sessions, and those of name resolution.


@pytest.mark.rule("C-7", "S-8")
def test_reading_a_flood_goes_on_without_growing(node: LoopbackNode) -> None:
    """A host that reads while it is flooded either keeps up or is told of the overflow."""
    with connect(node) as session, session.subscribe("readings", name="s") as subscription:
        frame = rows_of(subscription, 64 << 10)
        with growth_below(ONE + RECEIVING + ALLOWANCE, "a host that reads"), flood(node, [frame]):
            read = 0
            while read < 2000:
                event = next_event(subscription)
                if isinstance(event, Overflow):
                    break
                assert isinstance(event, Rows)
                read += 1
        print(f"{read} events were read before the overflow")


@pytest.mark.rule("S-5", "S-8")
def test_what_one_reader_keeps_for_another_is_bounded_and_adds_up(node: LoopbackNode) -> None:
    """Who reads one subscription reads past the events of the other, of which some wait and the rest is counted."""
    with connect(node) as session, session.subscribe("readings") as taken, session.subscribe("readings") as left:
        frames = [encoded(rows_of(one, 64 << 10)) for one in (taken, left)]
        with growth_below(2 * ONE + 16 * MIB + RECEIVING + ALLOWANCE, "a subscription beside one that is read"):
            for _ in range(10):
                node.control("flood_frames", session=newest(node), frames=frames, rounds=60)
                for _ in range(60):
                    assert row_ids(next_event(taken)) == [1]
        read = lost = 0
        while read + lost < 600:
            event = next_event(left)
            if isinstance(event, DeliveryLost):
                assert event.local
                lost += event.count
            else:
                read += len(row_ids(event))
        assert read + lost == 600
        assert 0 < lost < 600


# ---- a peer that takes nothing


@pytest.fixture
def stopped(node: LoopbackNode) -> Iterator[Callable[[], None]]:
    """Stops the node's process; it goes on at the end in any case."""
    yield lambda: os.kill(node.pid, signal.SIGSTOP)
    os.kill(node.pid, signal.SIGCONT)


@pytest.mark.rule("B-14", "P-4", "T-8")
def test_a_peer_that_stops_reading_bounds_what_waits_for_it(node: LoopbackNode, stopped: Callable[[], None]) -> None:
    ids = list(range(30_000))
    with connect(node) as session:
        producer = session.open_producer("quick", endpoints.FIELDS, credit_bytes=16 * MIB, timeout=PATIENCE)
        batch = producer.batch(endpoints.rows(*ids))
        size = len(batch.ipc)
        assert MIB // 2 < size < 2 * MIB
        room = min(producer.grant.batches, producer.grant.bytes // size)
        submitted: list[nervix_ffi.Submission] = []
        slowest = [0.0]
        stopped()

        def work(_: int) -> None:
            for _ in range(8):
                began = time.monotonic()
                try:
                    submitted.append(producer.submit(batch, timeout=0.2))
                except DeadlineError:
                    slowest[0] = max(slowest[0], time.monotonic() - began)

        # Each batch that has credit waits as a frame, and its bytes are kept for its outcome.
        with growth_below(2 * 16 * MIB + ALLOWANCE, "batches for a peer that takes nothing"):
            together(8, work)
        assert 0 < slowest[0] < 0.2 + WORST
        assert len(submitted) == room
        with pytest.raises(DeadlineError):
            session.execute("SHOW CLUSTER STATUS;", timeout=0.2)
        os.kill(node.pid, signal.SIGCONT)
        assert all(one.result(timeout=PATIENCE).completed for one in submitted)
        # What ended with its deadline submitted nothing.
        assert counts(node)["batches"]["received"] == room
        assert session.execute("SHOW CLUSTER STATUS;", timeout=PATIENCE).completed


@pytest.mark.rule("B-14")
def test_interrupt_in_a_submission_to_a_peer_that_stops_reading(node: LoopbackNode, stopped: Callable[[], None]) -> None:
    process = python(
        PRELUDE
        + """
    fields = "id U64, note STRING OPTIONAL"
    session = nervix_ffi.connect(sys.argv[1], domain="lab", timeout=30)
    producer = session.open_producer("quick", fields, credit_bytes=8 << 20, timeout=30)
    batch = producer.batch([{"id": number, "note": "x" * 1000} for number in range(1000)])
    print("READY", flush=True)
    sys.stdin.readline()
    submitted = []

    def submit():
        while True:
            submitted.append(producer.submit(batch))

    interrupted("submit", submit)
    sys.stdin.readline()
    print(all(one.result(timeout=30).completed for one in submitted), flush=True)
""",
        node.uri,
    )
    assert process.stdin is not None
    expect_line(process, "READY")
    stopped()
    process.stdin.write("\n")
    process.stdin.flush()
    interrupt(process, "submit")
    os.kill(node.pid, signal.SIGCONT)
    process.stdin.write("\n")
    assert finish(process) == ("True\n", "")
    assert process.returncode == 0
