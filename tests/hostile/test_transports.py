"""Each way in which a transport breaks, against each call that waits on it: who waits is told, or goes on, as the manual says.

A proxy (``proxy.py``) between host and node does the breaking; the node knows nothing of it. What a breakage means is one of four: it
ends nothing, the session is lost, it is lost and what was in flight is not sent again by itself (T-6), or the session is over (T-5).
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from enum import Enum, auto
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

import pytest

import nervix_ffi
from nervix_ffi import ClockChanged, ClockInterrupted, ClockTick, Interrupted, Origin, Settlement, SubmissionUncertainty
from nervix_ffi.testing import LoopbackNode

from ..cuts.host import graph
from ..cuts.invariants import leave_nothing
from ..endpoints import FIELDS, execute, ids
from ..soak.residue import Residue, left_behind
from ..support import PATIENCE, Running, connect, executed, expect_line, finish, python, row_ids, wait
from .proxy import ANY_STREAM, FIN, NO_STREAM, RST, STREAM, TO_CLIENT, Line, Plan, Proxy, go_away, headers, reset_stream
from .test_tls import Authority

pytestmark = pytest.mark.rule("C-4", "D-4", "D-6", "F-8", "T-8", "SM-1", "SM-2")

#: Seconds after which a session whose server says nothing is replaced, where that is what is tried.
HASTE = 1.0


class End(Enum):
    """What a breakage means."""

    NOTHING = auto()
    LOST = auto()
    #: Lost, and nothing of what was in flight is sent again by the library.
    CONDEMNED = auto()
    #: The session cannot come back.
    REFUSED = auto()


T = TypeVar("T")

Act = Callable[[Line], None]


def say(data: bytes, *, last: bool = False) -> Act:
    """Something said to the client in the server's name, and perhaps nothing after it."""
    return lambda line: line.last(data) if last else line.put(data)


def ends(data: bytes, how: str) -> Act:
    """Something said, and the end of the connection after it."""

    def act(line: Line) -> None:
        line.put(data)
        line.end(how)

    return act


def close(line: Line) -> None:
    """An end."""
    line.end(FIN)


def abort(line: Line) -> None:
    """A reset."""
    line.end(RST)


def status(code: int) -> bytes:
    """What ends a call with a status of gRPC."""
    return headers(grpc_status=str(code), grpc_message="so be it")


def answer(http: int, **fields: str) -> bytes:
    """What answers a call, and ends it, before it began."""
    return headers(status=str(http), content_type="application/grpc", **fields)


GARBAGE = bytes(range(256)) * 4


@dataclass(frozen=True)
class Breakage:
    """What happens to an open session's connection, and to those that the client opens then."""

    act: Act
    end: End = End.LOST
    then: tuple[Act, ...] = ()
    #: The connection after it leads to a server that speaks TLS where this one does not, or the other way round.
    astray: bool = False
    #: Whether nobody is told, so that a timeout has to tell.
    silent: bool = False
    #: Whether the connection is one over TLS, into which nothing can be put that makes sense.
    secure: bool = False


BREAKAGES = {
    "close": Breakage(close),
    "abort": Breakage(abort),
    "silence": Breakage(Line.mute, silent=True),
    "half a frame and close": Breakage(ends(b"\0\0\x40\0\0\0\0\0\x01half", FIN)),
    "garbage": Breakage(say(GARBAGE, last=True)),
    "GOAWAY without us": Breakage(say(go_away(NO_STREAM, 0), last=True)),
    "GOAWAY without us and close": Breakage(ends(go_away(NO_STREAM, 0), FIN)),
    "GOAWAY without us, code 11": Breakage(say(go_away(NO_STREAM, 11), last=True)),
    "GOAWAY with us": Breakage(say(go_away(STREAM, 0)), End.NOTHING),
    "GOAWAY with us, code 2": Breakage(say(go_away(STREAM, 2)), End.NOTHING),
    "a graceful GOAWAY": Breakage(say(go_away(ANY_STREAM, 0) + go_away(STREAM, 0)), End.NOTHING),
    "GOAWAY with us and close": Breakage(ends(go_away(STREAM, 0), FIN)),
    **{f"RST_STREAM {code}": Breakage(say(reset_stream(code), last=True)) for code in (0, 2, 7, 8, 11)},
    **{f"grpc-status {code}": Breakage(say(status(code), last=True)) for code in (0, 1, 8, 14)},
    **{f"grpc-status {code}": Breakage(say(status(code), last=True), End.CONDEMNED) for code in (11, 13)},
    "grpc-status 16": Breakage(say(status(16), last=True), End.REFUSED),
    "HTTP 503 in the middle": Breakage(say(answer(503), last=True)),
    "HTTP 503 to the next": Breakage(close, then=(say(answer(503), last=True),)),
    "grpc-status 14 to the next two": Breakage(abort, then=(say(answer(200, grpc_status="14"), last=True),) * 2),
    "grpc-status 13 to the next": Breakage(close, then=(say(answer(200, grpc_status="13"), last=True),)),
    "grpc-status 16 to the next": Breakage(close, End.REFUSED, (say(answer(200, grpc_status="16"), last=True),)),
    "HTTP 401 to the next": Breakage(abort, End.REFUSED, (say(answer(401), last=True),)),
    "garbage to the next": Breakage(close, then=(say(GARBAGE, last=True),)),
    "GOAWAY without the next": Breakage(abort, then=(say(go_away(NO_STREAM, 0), last=True),)),
    "TLS: close": Breakage(close, secure=True),
    "TLS: abort": Breakage(abort, secure=True),
    "TLS: silence": Breakage(Line.mute, silent=True, secure=True),
    "TLS: garbage": Breakage(say(GARBAGE, last=True), secure=True),
    "TLS: a record that is none of the server's": Breakage(say(b"\x17\x03\x03\0\x40" + bytes(64), last=True), secure=True),
    "TLS: garbage to the next": Breakage(abort, then=(say(GARBAGE, last=True),), secure=True),
    "no TLS where TLS was": Breakage(close, astray=True, secure=True),
    "TLS where none was": Breakage(abort, astray=True),
}


# ---- where it happens


class Server:
    """A node with standing time behind a proxy. Every test has a domain of its own."""

    def __init__(self, **tls: Path) -> None:
        self.trust = {"ca_file": tls.pop("ca_file")} if tls else {}
        self.node = LoopbackNode(options=["--frozen-time"], **tls)  # type: ignore[arg-type]
        self.proxy = Proxy(self.node.uri)

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self.proxy.__exit__(None, None, None)
        self.node.stop()


class Servers:
    """One in the clear, and one over TLS."""

    def __init__(self, plain: Server, secure: Server) -> None:
        self.plain, self._secure = plain, secure

    def pair(self, secure: bool) -> tuple[Server, Server]:
        """The one that is asked for, and the other."""
        return (self._secure, self.plain) if secure else (self.plain, self._secure)


@pytest.fixture(scope="module")
def everywhere(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Servers]]:
    """Servers for each of the waiters, and that no thread, descriptor or handle is left behind by all that goes on there."""
    authority = Authority(tmp_path_factory.mktemp("tls") / "ours")
    chain, key = authority.issue("127.0.0.1")
    tls = {"tls_cert": chain, "tls_key": key, "ca_file": authority.file}
    with ExitStack() as stack:
        found = [Servers(stack.enter_context(Server()), stack.enter_context(Server(**tls))) for _ in WAITERS]
        # What every process has that connected once.
        connect(found[0].plain.node).close()
        leave_nothing(found[0].plain.node)
        before, failed = Residue.now(), request.session.testsfailed
        yield found
        # What a test that failed had open is kept with its failure.
        assert request.session.testsfailed > failed or not left_behind(before)


@pytest.fixture
def servers(everywhere: list[Servers]) -> Servers:
    """Servers for a test that needs no more."""
    return everywhere[0]


NUMBERS = count(1)


class Place:
    """A session behind a proxy, to be broken, in a running domain of its own."""

    def __init__(self, server: Server, **options: Any) -> None:
        self.node, self.proxy = server.node, server.proxy
        self._trust = server.trust
        number = next(NUMBERS)
        self.domain = f"place{number}"
        #: Ids of rows are unique, since the node tells batches apart by their content.
        self.base = number * 100
        for statement in graph(self.domain):
            domain = {} if "DOMAIN" in statement else {"domain": self.domain}
            self.node.control("execute", **domain, statement=statement)
        #: How many of its sessions will have been lost.
        self.losing = 0
        #: What keeps a session until it is released.
        self._opened: list[Any] = []
        self._others: list[nervix_ffi.Session] = []
        self.proxy.fresh()
        self.before = self.node.counts()
        self.session = connect(self.node, self.proxy.uri, domain=self.domain, **self._trust, **options)

    def __enter__(self) -> Place:
        return self

    def __exit__(self, *_: object) -> None:
        self.node.control("clear")
        for opened in reversed(self._opened):
            opened.release()
        for session in (self.session, *self._others):
            session.close()
        self.proxy.settled()
        execute(self.node, "STOP;", f"DROP DOMAIN {self.domain};", domain=self.domain)

    def over(self) -> None:
        """Nothing is left, nothing was sent that must not be, and nobody half-closed (X-7)."""
        now = leave_nothing(self.node)
        assert now["sessions"]["ended"]["end_stream"] == 0
        assert now["batches"]["forbidden_resends"] == 0
        assert now["violations"] == self.before["violations"]

    def elsewhere(self) -> nervix_ffi.Session:
        """A session that nothing happens to."""
        self._others.append(connect(self.node, domain=self.domain, **self._trust))
        return self._others[-1]

    def rows(self, *numbers: int) -> list[dict[str, Any]]:
        """Rows of the graph that no other test has."""
        return [{"id": self.base + number, "note": "x"} for number in numbers]

    def ids(self, *numbers: int) -> list[int]:
        """Their ids."""
        return [self.base + number for number in numbers]

    def producer(self, session: nervix_ffi.Session) -> nervix_ffi.Producer:
        return self.keep(session.open_producer("held", FIELDS, timeout=PATIENCE))

    def consumer(self, session: nervix_ffi.Session) -> nervix_ffi.Consumer:
        return self.keep(session.open_consumer("out", FIELDS, timeout=PATIENCE))

    def keep(self, opened: T) -> T:
        """Sees to it that something is released in the end."""
        self._opened.append(opened)
        return opened

    def acknowledge(self, *numbers: int) -> None:
        """Takes the batches that the emitter holds, each of one of these rows, and acknowledges them elsewhere."""
        with self.consumer(self.elsewhere()) as taking:
            for number in numbers:
                with taking.next(timeout=PATIENCE) as delivery:
                    assert ids(delivery) == self.ids(number)
                    delivery.ack(timeout=PATIENCE)

    def feed(self, number: int) -> nervix_ffi.Submission:
        """A batch of one row from elsewhere."""
        return self.producer(self.elsewhere()).submit(self.rows(number), timeout=PATIENCE)

    def reopened(self, **held: int) -> None:
        """Waits until the next session holds so many of something, and no other session is there."""
        ended = self.before["sessions"]["ended"]
        wait(
            self.node,
            sessions={"exactly": 1},
            sessions_ended=sum(ended.values()) + self.losing,
            **{name: {"exactly": number} for name, number in held.items()},
        )

    def seen(self, kind: str) -> int:
        """How many requests of a kind had reached the node before."""
        number: int = self.before["frames"]["in"].get(kind, 0)
        return number

    def hold(self, kind: str = "CommandRequest") -> None:
        """Has the next request of a kind be carried out and not be answered for now."""
        self.node.control("delay", kind=kind, when="after")

    def held(self) -> None:
        """Waits until it was carried out."""
        wait(self.node, held={"exactly": 1})

    def publish(self, number: int) -> None:
        self.node.control("publish", domain=self.domain, relay="news", rows=self.rows(number))

    def executed(self, execution: nervix_ffi.Execution) -> int:
        return executed(self.node, execution.reference)


# ---- who waits


class Waiter(ABC):
    """A call that waits, and what it must come to."""

    def __init__(self, place: Place) -> None:
        self.place, self.node, self.session = place, place.node, place.session

    @abstractmethod
    def begin(self) -> None:
        """Has the call wait."""

    @abstractmethod
    def went_on(self) -> None:
        """Nothing was lost: it comes to what it waits for."""

    @abstractmethod
    def lost(self) -> None:
        """The session was lost: it was told, or goes on, and works on the next session."""

    def condemned(self) -> None:
        """As that, and what was in flight is not sent again."""
        self.lost()

    @abstractmethod
    def refused(self) -> None:
        """It was told that the session cannot come back, whatever else is known."""


class Command(Waiter):
    """A command that was carried out and waits for its answer."""

    query = "CREATE SCHEMA made (id U32);"

    def begin(self) -> None:
        self.execution = self.session.prepare(self.query)
        self.place.hold()
        self.call = Running(lambda: self.execution.run(timeout=PATIENCE))
        self.place.held()

    def once(self, outcome: nervix_ffi.Outcome, origin: Origin) -> None:
        assert (outcome.completed, outcome.origin, outcome.reference) == (True, origin, self.execution.reference)
        assert self.place.executed(self.execution) == 1

    def went_on(self) -> None:
        self.node.control("release")
        self.once(self.call.result(), Origin.EXECUTED)

    def lost(self) -> None:
        self.once(self.call.result(), Origin.RECOVERED)

    def uncertain(self) -> None:
        with pytest.raises(nervix_ffi.UncertainError, match="may have happened") as caught:
            self.call.result()
        assert (caught.value.reference, caught.value.execution) == (self.execution.reference, self.execution)
        assert self.place.executed(self.execution) == 1

    def condemned(self) -> None:
        self.uncertain()
        self.once(self.execution.run(timeout=PATIENCE), Origin.RECOVERED)

    def refused(self) -> None:
        self.uncertain()
        # Another session recovers it.
        again = self.place.elsewhere().prepare(self.query, reference=self.execution.reference)
        self.once(again.run(timeout=PATIENCE), Origin.RECOVERED)


class Commit(Waiter):
    """The commit of a transaction that was carried out and waits for its answer."""

    def begin(self) -> None:
        self.transaction = self.session.transaction()
        self.transaction.begin(timeout=PATIENCE)
        self.transaction.execute("CREATE SCHEMA made (id U32);", timeout=PATIENCE)
        self.place.hold()
        self.call = Running(lambda: self.transaction.commit(timeout=PATIENCE))
        self.place.held()

    def once(self, outcome: nervix_ffi.Outcome) -> None:
        assert outcome.completed
        told = [one for one in self.node.transactions() if one["domain"] == self.place.domain]
        assert [(one["state"], one["applied"]) for one in told] == [("COMMITTED", 1)]

    def went_on(self) -> None:
        self.node.control("release")
        self.once(self.call.result())

    def lost(self) -> None:
        self.once(self.call.result())

    def condemned(self) -> None:
        with pytest.raises(nervix_ffi.UncertainError, match="may have happened") as caught:
            self.call.result()
        assert caught.value.execution is not None
        self.once(caught.value.execution.run(timeout=PATIENCE))

    def refused(self) -> None:
        with pytest.raises(nervix_ffi.UncertainError, match="may have happened"):
            self.call.result()


class Rows(Waiter):
    """A subscription that waits for rows."""

    def begin(self) -> None:
        self.subscription = self.session.subscribe("news", name="news", timeout=PATIENCE)
        self.call = Running(lambda: self.subscription.next(timeout=PATIENCE))

    def went_on(self) -> None:
        self.place.publish(1)
        event = self.call.result()
        assert row_ids(event) == self.place.ids(1)
        assert event.generation == self.subscription.generation

    def lost(self) -> None:
        gap = self.call.result()
        assert isinstance(gap, Interrupted)
        assert gap.generation == self.subscription.generation
        self.place.reopened(subscriptions=1)
        self.place.publish(2)
        event = self.subscription.next(timeout=PATIENCE)
        assert row_ids(event) == self.place.ids(2)
        assert event.generation != gap.generation

    def refused(self) -> None:
        assert isinstance(self.call.result(), Interrupted)
        with pytest.raises(nervix_ffi.ClosedError):
            self.subscription.next(timeout=PATIENCE)


class Subscribing(Waiter):
    """A subscription that is being opened."""

    def begin(self) -> None:
        self.place.hold("SubscribeRequest")
        self.call = Running(lambda: self.session.subscribe("news", name="news", timeout=PATIENCE))
        self.place.held()

    def read(self, subscription: nervix_ffi.Subscription) -> None:
        self.place.publish(1)
        event = subscription.next(timeout=PATIENCE)
        assert row_ids(event) == self.place.ids(1)
        assert event.generation == subscription.generation

    def went_on(self) -> None:
        self.node.control("release")
        self.read(self.call.result())

    def lost(self) -> None:
        subscription = self.call.result()
        self.place.reopened(subscriptions=1)
        self.read(subscription)

    def told(self) -> None:
        with pytest.raises(nervix_ffi.TransportError) as caught:
            self.call.result()
        assert caught.value.execution is not None
        assert caught.value.reference == caught.value.execution.reference

    def condemned(self) -> None:
        self.told()
        subscription = self.session.subscribe("news", name="news", timeout=PATIENCE)
        self.place.reopened(subscriptions=1)
        self.read(subscription)

    def refused(self) -> None:
        with pytest.raises(nervix_ffi.UncertainError):
            self.call.result()


class Ticks(Waiter):
    """A clock that waits for its tick."""

    def begin(self) -> None:
        self.clock = self.session.attach_clock(timeout=PATIENCE)
        self.first = self.clock.next(timeout=PATIENCE)
        assert isinstance(self.first, ClockTick)
        self.call = Running(lambda: self.clock.next(timeout=PATIENCE))

    def ticked(self, event: object) -> None:
        assert isinstance(event, ClockTick)
        assert isinstance(self.first, ClockTick)
        assert event.generation == self.first.generation
        assert event.tick.id > self.first.tick.id

    def went_on(self) -> None:
        self.node.control("clock", advance="100ms")
        self.ticked(self.call.result())

    def lost(self) -> None:
        assert isinstance(self.call.result(), ClockInterrupted)
        assert isinstance(self.clock.next(timeout=PATIENCE), ClockChanged)
        # The newest one, which it has had.
        again = self.clock.next(timeout=PATIENCE)
        assert isinstance(again, ClockTick)
        self.node.control("clock", advance="100ms")
        self.ticked(self.clock.next(timeout=PATIENCE))

    def refused(self) -> None:
        assert isinstance(self.call.result(), ClockInterrupted)
        with pytest.raises(nervix_ffi.ClosedError):
            self.clock.next(timeout=PATIENCE)


class Attach(Waiter):
    """A clock that is being attached."""

    def begin(self) -> None:
        self.place.hold("AttachDomainClockRequest")
        self.call = Running(lambda: self.session.attach_clock(timeout=PATIENCE))
        self.place.held()

    def attached(self, clock: nervix_ffi.Clock) -> None:
        assert clock.read().generation == 1
        assert isinstance(clock.next(timeout=PATIENCE), ClockTick)
        wait(self.node, clocks={"exactly": 1})

    def went_on(self) -> None:
        self.node.control("release")
        self.attached(self.call.result())

    def lost(self) -> None:
        self.attached(self.call.result())

    def condemned(self) -> None:
        with pytest.raises((nervix_ffi.TransportError, nervix_ffi.UncertainError)):
            self.call.result()
        self.attached(self.session.attach_clock(timeout=PATIENCE))

    def refused(self) -> None:
        with pytest.raises(nervix_ffi.UncertainError):
            self.call.result()


class Outcome(Waiter):
    """A submission that waits for its outcome."""

    def begin(self) -> None:
        self.producer = self.place.producer(self.session)
        self.submission = self.producer.submit(self.place.rows(1), timeout=PATIENCE)
        wait(self.node, outstanding_batches={"exactly": 1})
        self.call = Running(lambda: self.submission.result(timeout=PATIENCE, check=False))

    def went_on(self) -> None:
        self.place.acknowledge(1)
        assert self.call.result().completed

    def unknown(self) -> None:
        outcome = self.call.result()
        assert outcome.uncertainty is SubmissionUncertainty.SESSION_LOST
        assert self.submission.result(timeout=PATIENCE, check=False) == outcome

    def lost(self) -> None:
        self.unknown()
        again = self.producer.submit(self.place.rows(2), timeout=PATIENCE)
        # It was processed after all, and once.
        self.place.acknowledge(1, 2)
        assert again.result(timeout=PATIENCE).completed

    def refused(self) -> None:
        self.unknown()
        with pytest.raises(nervix_ffi.ClosedError):
            self.producer.submit(self.place.rows(2), timeout=PATIENCE)
        self.place.acknowledge(1)


class Closing(Waiter):
    """A producer that is being closed, which waits for its batches' outcomes."""

    def begin(self) -> None:
        self.producer = self.place.producer(self.session)
        self.submission = self.producer.submit(self.place.rows(1), timeout=PATIENCE)
        self.call = Running(lambda: self.producer.close(timeout=PATIENCE))
        wait(self.node, frames={"in": {"CloseIngestorRequest": self.place.seen("CloseIngestorRequest") + 1}})

    def went_on(self) -> None:
        self.place.acknowledge(1)
        self.call.result()
        assert self.submission.result(timeout=PATIENCE).completed

    def lost(self) -> None:
        self.call.result()
        with pytest.raises(nervix_ffi.OutcomeUnknown):
            self.submission.result(timeout=PATIENCE)
        with pytest.raises(nervix_ffi.ClosedError):
            self.producer.submit(self.place.rows(2), timeout=PATIENCE)
        self.place.acknowledge(1)

    def refused(self) -> None:
        self.lost()


class Opening(Waiter):
    """A producer that is being opened."""

    def begin(self) -> None:
        self.place.hold("OpenIngestorRequest")
        self.call = Running(lambda: self.place.producer(self.session))
        self.place.held()

    def went_on(self) -> None:
        self.node.control("release")
        self.used(self.call.result())

    def used(self, producer: nervix_ffi.Producer) -> None:
        submission = producer.submit(self.place.rows(1), timeout=PATIENCE)
        wait(self.node, producers={"exactly": 1})
        self.place.acknowledge(1)
        assert submission.result(timeout=PATIENCE).completed

    def lost(self) -> None:
        with pytest.raises(nervix_ffi.TransportError):
            self.call.result()
        self.used(self.place.producer(self.session))

    def refused(self) -> None:
        with pytest.raises(nervix_ffi.TransportError):
            self.call.result()
        with pytest.raises(nervix_ffi.ClosedError):
            self.place.producer(self.session)


class Read(Waiter):
    """A consumer that waits for a delivery."""

    def begin(self) -> None:
        self.consumer = self.place.consumer(self.session)
        self.call = Running(lambda: self.consumer.next(timeout=PATIENCE))
        wait(self.node, parked_reads={"exactly": 1})

    def taken(self, submission: nervix_ffi.Submission, delivery: nervix_ffi.Delivery) -> None:
        with delivery:
            assert ids(delivery) == self.place.ids(1)
            assert delivery.ack(timeout=PATIENCE) is Settlement.CONFIRMED
        assert submission.result(timeout=PATIENCE).completed

    def went_on(self) -> None:
        self.taken(self.place.feed(1), self.call.result())

    def lost(self) -> None:
        with pytest.raises(nervix_ffi.InterruptedReadError):
            self.call.result()
        self.taken(self.place.feed(1), self.consumer.next(timeout=PATIENCE))

    def refused(self) -> None:
        with pytest.raises(nervix_ffi.InterruptedReadError):
            self.call.result()
        with pytest.raises(nervix_ffi.ClosedError):
            self.consumer.next(timeout=PATIENCE)


class Settling(Waiter):
    """An acknowledgement that took effect and waits for its answer."""

    def begin(self) -> None:
        self.submission = self.place.feed(1)
        self.consumer = self.place.consumer(self.session)
        self.delivery = self.place.keep(self.consumer.next(timeout=PATIENCE))
        assert ids(self.delivery) == self.place.ids(1)
        self.place.hold("SettleEmitterBatchRequest")
        self.call = Running(lambda: self.delivery.ack(timeout=PATIENCE))
        self.place.held()

    def went_on(self) -> None:
        self.node.control("release")
        assert self.call.result() is Settlement.CONFIRMED
        assert self.submission.result(timeout=PATIENCE).completed

    def uncertain(self) -> None:
        with pytest.raises(nervix_ffi.UncertainError):
            self.call.result()
        assert self.submission.result(timeout=PATIENCE).completed
        # Its attachment is gone, and nothing is sent to another.
        with pytest.raises(nervix_ffi.RejectedError):
            self.delivery.ack(timeout=PATIENCE)

    def lost(self) -> None:
        self.uncertain()
        with pytest.raises(nervix_ffi.InterruptedReadError):
            self.consumer.next(timeout=PATIENCE)
        self.place.feed(2)
        with self.consumer.next(timeout=PATIENCE) as delivery:
            assert ids(delivery) == self.place.ids(2)
            assert delivery.ack(timeout=PATIENCE) is Settlement.CONFIRMED

    def refused(self) -> None:
        self.uncertain()
        # The gap is told only to who asks before the session is over.
        with suppress(nervix_ffi.InterruptedReadError, nervix_ffi.ClosedError):
            self.consumer.next(timeout=PATIENCE)
        with pytest.raises(nervix_ffi.ClosedError):
            self.consumer.next(timeout=PATIENCE)


class Completion(Waiter):
    """A question for completions that waits for its answer."""

    def begin(self) -> None:
        self.place.hold("SuggestRequest")
        self.call = Running(lambda: self.session.suggest("SHOW ", timeout=PATIENCE))
        self.place.held()

    def went_on(self) -> None:
        self.node.control("release")
        assert self.call.result() is not None

    def lost(self) -> None:
        self.told()
        assert self.session.suggest("SHOW ", timeout=PATIENCE) is not None

    def told(self) -> None:
        with pytest.raises(nervix_ffi.TransportError) as caught:
            self.call.result()
        assert "\n" not in str(caught.value)

    def refused(self) -> None:
        self.told()


WAITERS = [Command, Commit, Rows, Subscribing, Ticks, Attach, Outcome, Closing, Opening, Read, Settling, Completion]


@pytest.mark.rule("T-2", "T-5", "T-6", "D-5", "E-2", "E-3", "X-3", "X-5", "S-7", "K-5", "P-5", "P-8", "EC-5", "EC-6")
@pytest.mark.rule("B-1", "B-7", "B-9", "B-14", "B-15", "B-16", "N-4", "N-6", "N-7", "N-8")
@pytest.mark.parametrize("name", BREAKAGES)
def test_who_waits_is_told_or_goes_on(everywhere: list[Servers], name: str) -> None:
    """Side by side, since most of it is waiting for the next session."""
    breakage = BREAKAGES[name]
    with ThreadPoolExecutor(len(WAITERS)) as threads:
        tried = {
            waiter.__name__: threads.submit(broken, servers, breakage, waiter)
            for servers, waiter in zip(everywhere, WAITERS)
            if not (waiter is Attach and breakage.end is End.CONDEMNED)
        }
    for waiting, one in tried.items():
        if (failure := one.exception()) is not None:
            raise AssertionError(f"{waiting}: {failure}") from failure


@pytest.mark.rule("T-6", "K-5")
@pytest.mark.parametrize("name", [name for name, one in BREAKAGES.items() if one.end is End.CONDEMNED])
def test_who_attaches_is_told(servers: Servers, name: str) -> None:
    broken(servers, BREAKAGES[name], Attach)


def broken(servers: Servers, breakage: Breakage, waiter: type[Waiter]) -> None:
    """Has a call wait, breaks what it waits on, and sees what it comes to."""
    server, other = servers.pair(breakage.secure)
    options = {"request_timeout": HASTE} if breakage.silent else {}
    with Place(server, **options) as place:
        waiting = waiter(place)
        waiting.begin()
        # What a server over TLS says first cannot be told from the rest, so that it is at its first byte.
        then = [Plan(act, after=(TO_CLIENT, 1) if breakage.secure else None) for act in breakage.then]
        if breakage.astray:
            then.append(Plan(upstream=other.node.uri))
        # Over TLS those that follow come to no session.
        place.losing = 1 + (0 if breakage.secure else len(breakage.then))
        place.proxy.plan(*then)
        place.proxy.do(breakage.act)
        lines = place.proxy.lines
        if breakage.end is End.NOTHING:
            waiting.went_on()
            assert len(lines) == 1
            # It is a connection that will not last, and once it is gone another one is opened.
            place.proxy.do(close)
        elif breakage.end is End.CONDEMNED:
            waiting.condemned()
        elif breakage.end is End.LOST:
            waiting.lost()
        else:
            waiting.refused()
            with pytest.raises(nervix_ffi.ClosedError):
                place.session.suggest("SHOW ", timeout=PATIENCE)
            # Nobody asks again with the same credentials.
            assert len(lines) == 1 + len(then)
        if breakage.end is not End.REFUSED:
            assert place.session.execute("SHOW CREATE RELAY news;", timeout=PATIENCE).completed
            # One connection after the one that broke and those that did not come to anything; a haste may replace more of them.
            assert len(lines) == 2 + len(then) or (breakage.silent and len(lines) > 2)
    place.over()


# ---- leaving


#: What is done to an open connection alone.
ALONE = {name: one for name, one in BREAKAGES.items() if not one.then and not one.astray and not one.secure}


@pytest.mark.rule("X-7", "N-4")
@pytest.mark.parametrize("name", ALONE)
def test_a_session_is_closed_at_once_whatever_broke(servers: Servers, name: str) -> None:
    with Place(servers.plain) as place:
        rows, command = Rows(place), Command(place)
        rows.begin()
        command.begin()
        # There is no way back, so that the command cannot be recovered first.
        place.node.control("accept", mode="refuse")
        try:
            place.proxy.do(BREAKAGES[name].act)
            started = time.monotonic()
            place.session.close()
            took = time.monotonic() - started
        finally:
            place.node.control("accept", mode="accept")
        # Generous: it waits for nobody.
        assert took < 2.0, took
        print(f"\nclosed in {took * 1000:.1f} ms")
        # Who was told before is told what broke, and everybody else that the session was closed.
        with pytest.raises((nervix_ffi.ClosedError, nervix_ffi.UncertainError)) as caught:
            command.call.result()
        assert caught.value.reference == command.execution.reference
        with suppress(nervix_ffi.ClosedError):
            assert isinstance(rows.call.result(), Interrupted)
        assert place.executed(command.execution) == 1
    place.over()


LEAVE = """
import sys, threading, nervix_ffi

def wait(call):
    while True:
        try:
            call()
        except nervix_ffi.InterruptedReadError:
            pass
        except nervix_ffi.ClosedError:
            return

uri, domain, number = sys.argv[1:]
calls = []
for _ in range(int(number)):
    session = nervix_ffi.connect(uri, domain=domain, timeout=30)
    subscription = session.subscribe("news", timeout=30)
    consumer = session.open_consumer("out", "id U64, note STRING OPTIONAL", credit_bytes=1 << 20, timeout=30)
    calls += [subscription.next, consumer.next, session.next_clock_event]
for call in calls:
    threading.Thread(target=wait, args=(call,), daemon=True).start()
print("OPEN", flush=True)
sys.stdin.read()
"""


@pytest.mark.rule("X-7")
def test_a_process_ends_with_sessions_that_broke_in_every_way(servers: Servers) -> None:
    server = servers.plain
    with Place(server) as place:
        first = len(server.proxy.lines)
        child = python(LEAVE, server.proxy.uri, place.domain, str(len(ALONE)))
        expect_line(child, "OPEN")
        wait(server.node, parked_reads={"exactly": len(ALONE)})
        for number, breakage in enumerate(ALONE.values()):
            server.proxy.do(breakage.act, server.proxy.lines[first + number])
        started = time.monotonic()
        assert finish(child) == ("", "")
        assert child.returncode == 0
        took = time.monotonic() - started
        print(f"\nended in {took:.2f} s")
        # Generous: a call that does not come back within a second is left to the system.
        assert took < 10.0
    place.over()


# ---- connecting


@dataclass(frozen=True)
class Start:
    """What the server says first, and what connecting comes to."""

    act: Act | None
    error: type[nervix_ffi.Error] | None
    #: How many connections that takes.
    connections: int = 1
    words: str = "."
    secure: bool = False


STARTS = {
    "close": Start(close, nervix_ffi.ConnectError),
    "abort": Start(abort, nervix_ffi.ConnectError),
    "silence": Start(Line.mute, nervix_ffi.DeadlineError),
    "garbage": Start(say(GARBAGE, last=True), nervix_ffi.ConnectError),
    "GOAWAY without us": Start(say(go_away(NO_STREAM, 0), last=True), nervix_ffi.ConnectError),
    "GOAWAY with us": Start(say(go_away(STREAM, 0)), None),
    "GOAWAY with us and close": Start(ends(go_away(STREAM, 0), FIN), nervix_ffi.ConnectError),
    **{f"RST_STREAM {code}": Start(say(reset_stream(code), last=True), nervix_ffi.ConnectError) for code in (0, 7, 8)},
    **{
        f"grpc-status {code}": Start(say(answer(200, grpc_status=str(code)), last=True), nervix_ffi.ConnectError)
        for code in (0, 12, 13, 16)
    },
    "grpc-status 14": Start(say(answer(200, grpc_status="14"), last=True), None, 2),
    "HTTP 401": Start(say(answer(401), last=True), nervix_ffi.ConnectError),
    "HTTP 404": Start(say(answer(404), last=True), nervix_ffi.ConnectError, words="404"),
    "HTTP 503": Start(say(answer(503), last=True), None, 2),
    "no TLS where TLS was": Start(None, nervix_ffi.ConnectError, words="does not speak TLS", secure=True),
    "TLS where none was": Start(None, nervix_ffi.ConnectError, words="speaks TLS"),
}


@pytest.mark.rule("T-2", "T-4", "T-5")
@pytest.mark.parametrize("name", STARTS)
def test_who_connects_is_told_or_gets_through(servers: Servers, name: str) -> None:
    start = STARTS[name]
    server, other = servers.pair(start.secure)
    options = {"username": "ada", "password": "correct-horse-battery", **server.trust}
    if start.error is nervix_ffi.DeadlineError:
        options["timeout"] = HASTE
    proxy = server.proxy
    proxy.fresh(Plan(start.act, upstream=other.node.uri if start.act is None else None))
    if start.error is None:
        session = connect(server.node, proxy.uri, **options)
    else:
        with pytest.raises(start.error, match=start.words) as caught:
            connect(server.node, proxy.uri, **options)
        said = str(caught.value)
        assert "correct-horse" not in said
        assert "\n" not in said
        assert len(proxy.lines) == start.connections
        # The next call finds everything as it was.
        session = connect(server.node, proxy.uri, **{**options, "timeout": PATIENCE})
    with session:
        assert session.execute("SHOW CLUSTER STATUS;", timeout=PATIENCE).completed
    assert len(proxy.lines) == start.connections + (start.error is not None)
    proxy.settled()
    assert leave_nothing(server.node)["sessions"]["ended"]["end_stream"] == 0
