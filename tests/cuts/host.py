"""The scripted host: a careful user of the package, in one thread, who notes what it was told.

Owns the script and the care: after an uncertain command it runs the same execution again, after an interruption it reads on, and it
never submits a batch twice. Must not judge what it noted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar

import nervix_ffi
from nervix_ffi import ClockChanged, ClockEnded, ClockInterrupted, ClockState, ClockTick, EndpointState
from nervix_ffi.testing import LoopbackNode

from ..endpoints import FIELDS, emitter, ingestor
from ..support import PATIENCE
from .places import Fault, Journal, faults

T = TypeVar("T")

#: Seconds that a call may take, and a command with all its repetitions, while nobody can be reached.
AWAY = 0.25

#: How long the host looks for something that need not come, in seconds.
GLANCE = 0.1

#: After these the host asks again. That the command may have happened is what the first two say.
AGAIN = (nervix_ffi.UncertainError, nervix_ffi.DeadlineError, nervix_ffi.ConnectError, nervix_ffi.TransportError)

#: The rows of the three batches. Notes of different lengths tell their streams apart by size.
BATCHES = [(1, 2), (3,), (4, 5, 6)]


def graph(domain: str) -> list[str]:
    """The statements of a domain with two relays, one of which an ingestor fills and an emitter empties."""
    return [
        f"CREATE PACED DOMAIN {domain} WITH PERIOD 100ms SKEW 10ms;",
        f"CREATE SCHEMA row ({FIELDS});",
        "CREATE RELAY news SCHEMA row UNBRANCHED;",
        "CREATE RELAY watched SCHEMA row UNBRANCHED;",
        ingestor("held", "watched"),
        emitter("out", "watched"),
        "START;",
    ]


@dataclass
class Command:
    """A command that the host ran: how often it was told that nobody knows, and what it was told in the end."""

    query: str
    references: list[str | None] = field(default_factory=list)
    uncertain: int = 0
    #: How often it was run again, whatever the reason.
    again: int = 0
    outcome: nervix_ffi.Outcome | None = None


@dataclass(eq=False)
class Held:
    """Something that outlives a session, from the step in which it was opened to the one in which it is closed."""

    kind: str
    name: str
    opened: int
    closing: int | None = None
    gaps: int = 0
    #: How many of them were reported before this step.
    before: int = 0

    def during(self, step: int) -> bool:
        """Whether it was there before this step, and still is after it."""
        return self.opened < step and (self.closing is None or self.closing > step)


@dataclass
class Made:
    """A fault that was made, in which step and to which session (0 for none that was open), and what was lost with it for certain."""

    what: str
    step: int
    session: int
    held: list[Held] = field(default_factory=list)


@dataclass
class Attempt:
    """A delivery that the host got: its rows, and what it learned of its settlement."""

    identity: str
    reference: str
    ids: list[int]
    told: str = "nothing"


@dataclass
class Story:
    """What a host was told, to be judged."""

    commands: list[Command] = field(default_factory=list)
    held: dict[str, Held] = field(default_factory=dict)
    made: list[Made] = field(default_factory=list)
    #: The rows of each subscription in the order of reading, with their generation; None for a gap.
    rows: dict[str, list[tuple[int, int] | None]] = field(default_factory=dict)
    ticks: list[tuple[int, int] | None] = field(default_factory=list)
    attempts: list[Attempt] = field(default_factory=list)
    submissions: dict[int, nervix_ffi.SubmissionOutcome] = field(default_factory=dict)
    #: Which ids were published into the relay `news`.
    published: list[int] = field(default_factory=list)
    transactions: list[str] = field(default_factory=list)


class Host:
    """One run of the script."""

    def __init__(self, node: LoopbackNode, number: int, uris: list[str], faults: Sequence[Fault] = (), **options: Any) -> None:
        self.node = node
        self.options = options
        self.domain = f"run{number}"
        #: Ids of rows are unique among all runs, since the node tells batches apart by their content.
        self.base = number * 1000
        self.uris = uris
        self.away = any(fault.away for fault in faults)
        self.patience = AWAY if self.away else PATIENCE
        self.story = Story()
        self.journal = Journal(node)
        self.batches_before = len(node.batches())
        #: The step that the script is at, and how many rows of `news` were published.
        self.now = 0
        self.news = 0
        #: What arrived and was not looked at, and what was taken and is not settled.
        self.due: nervix_ffi.Delivery | None = None
        self.taken: nervix_ffi.Delivery | None = None
        self.subscriptions: dict[str, nervix_ffi.Subscription] = {}
        self.submitted: dict[int, nervix_ffi.Submission] = {}
        #: What is released in the end.
        self.opened: list[Callable[[], None]] = []

    # ---- the script

    def run(self) -> Story:
        """Runs the script from the first connection to the last."""
        script: list[Callable[[], object]] = [
            self.connect,
            self.attach,
            lambda: self.subscribe("news", "BLOCKING"),
            lambda: self.subscribe("watched", "DROPPING"),
            lambda: self.command("CREATE SCHEMA outside (id U32);"),
            self.open_producer,
            self.open_consumer,
            self.publish,
            self.tick,
            self.park,
            lambda: self.submit(0),
            lambda: self.finish(0),
            lambda: self.submit(1),
            lambda: self.finish(1, back=1),
            lambda: self.submit(2),
            self.take,
            self.begin,
            lambda: self.append("CREATE SCHEMA made (id U32);"),
            lambda: self.append("CREATE RELAY made_rows SCHEMA made UNBRANCHED; CREATE RELAY more_rows SCHEMA made UNBRANCHED;"),
            lambda: self.command("SHOW CREATE SCHEMA outside;"),
            self.peek,
            self.publish,
            self.tick,
            self.commit,
            lambda: self.finish(2),
            lambda: self.command("CREATE RELAY after SCHEMA made UNBRANCHED;"),
            self.publish,
            lambda: self.delete("watched"),
            self.close_producer,
            self.close_consumer,
            lambda: self.turn("STOP;", ClockState.STOPPED),
            lambda: self.turn("START;", ClockState.PACED),
            self.tick,
            self.detach,
            lambda: self.delete("news"),
        ]
        try:
            for step in script:
                self.now += 1
                step()
                self.look()
        finally:
            self.back()
            for let_go in reversed(self.opened):
                let_go()
        self.look()
        return self.story

    # ---- care

    def back(self) -> None:
        """Whoever was away can be reached again."""
        if self.away:
            self.node.control("accept", mode="accept")
            self.away = False
            self.patience = PATIENCE

    def waited(self, failure: Exception) -> None:
        """A wait was in vain, which it may be only while nobody can be reached."""
        if not self.away:
            raise AssertionError(f"step {self.now} hung: {failure}") from failure
        self.back()

    def again(self, call: Callable[[], T]) -> T:
        """Makes a call that leaves nothing behind when it fails, until it does not fail."""
        while True:
            try:
                return call()
            except (nervix_ffi.ConnectError, nervix_ffi.TransportError, nervix_ffi.UncertainError):
                # What a lost session may have held of it ended with that session.
                self.back()
            except nervix_ffi.DeadlineError as failure:
                self.waited(failure)

    def carefully(self, call: Callable[[], nervix_ffi.Outcome], query: str) -> nervix_ffi.Outcome:
        """Runs a command, and the same execution again for as long as nobody knows what became of it."""
        command = Command(query)
        self.story.commands.append(command)
        execution: nervix_ffi.Execution | None = None
        while command.outcome is None:
            try:
                command.outcome = call() if execution is None else execution.run(timeout=self.patience)
                command.references.append(command.outcome.reference)
            except AGAIN as failure:
                execution = failure.execution
                command.again += 1
                command.references += [failure.reference, None if execution is None else execution.reference]
                command.uncertain += isinstance(failure, nervix_ffi.UncertainError)
                if isinstance(failure, nervix_ffi.DeadlineError):
                    self.waited(failure)
                else:
                    self.back()
        return command.outcome

    def look(self) -> None:
        """Notes the faults that were made in this step, and has those who lost a session learn of the gap."""
        new = self.journal.more()
        for entry in new:
            entry["step"] = self.now
        for entry in self.faults_among(new):
            made = Made(entry["what"], self.now, entry["session"])
            self.story.made.append(made)
            if made.what == "cut":
                if made.session:
                    self.node.wait(timeout=PATIENCE, session_over=made.session)
                # What of it was back after an earlier fault is not for the host to know.
                if len(self.story.made) == 1:
                    made.held = [one for one in self.story.held.values() if self.holds(one, entry)]
                    self.learn(made.held)
        for one in self.story.held.values():
            one.before = one.gaps

    def faults_among(self, new: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """The faults that were made since the last look, which the journal's new entries tell of."""
        return list(faults(new))

    def holds(self, one: Held, fault: dict[str, Any]) -> bool:
        """Whether a session that was lost just now held something that the host knows of and was not closing."""
        if not one.during(self.now) or one.kind == "transaction":
            return False
        opens = [
            entry
            for entry in self.journal.entries
            if entry["number"] < fault["number"] and entry["what"] == "frame" and opens_it(entry, one, self.domain)
        ]
        # One that is just moving to another session, or back, may or may not be there yet.
        return bool(opens) and opens[-1]["session"] == fault["session"] and opens[-1]["step"] < self.now

    def learn(self, held: list[Held]) -> None:
        """Reads until each of them reported a gap, unless it did in this step."""
        for one in held:
            while one.gaps == one.before:
                if one.kind == "subscription":
                    self.read(one.name, PATIENCE)
                elif one.kind == "clock":
                    self.hear(PATIENCE)
                elif one.kind == "consumer":
                    self.glance(PATIENCE)
                else:
                    # A producer has no events: its state and its submissions tell.
                    assert self.producer.state != EndpointState.ACTIVE
                    assert all(submission.done() for submission in self.producer.pending())
                    one.gaps += 1

    # ---- sessions and commands

    def connect(self) -> None:
        """Opens the session."""
        retry = AWAY if self.away else None

        def connect() -> nervix_ffi.Session:
            return nervix_ffi.connect(
                self.uris[0], seeds=self.uris[1:], domain=self.domain, retry_timeout=retry, timeout=PATIENCE, **self.options
            )

        self.session = self.again(connect)
        self.opened.append(self.session.close)
        if self.away:
            self.node.control("accept", mode="refuse")

    def command(self, query: str) -> nervix_ffi.Outcome:
        """Runs a command of the session."""
        return self.carefully(lambda: self.session.execute(query, timeout=self.patience), query)

    def begin(self) -> None:
        """Begins a transaction: one whose BEGIN was uncertain and happened is reverted, and another one begun."""
        while True:
            self.transaction = self.session.transaction()
            begun = self.carefully(lambda: self.transaction.begin(timeout=self.patience), "BEGIN;")
            assert begun.completed
            assert begun.transaction is not None
            self.story.transactions.append(begun.transaction.id)
            if self.transaction.status is not None:
                break
            self.command("REVERT;")
        self.keep("transaction", "transaction")

    def append(self, query: str) -> None:
        """Appends statements."""
        self.carefully(lambda: self.transaction.execute(query, timeout=self.patience), query)

    def commit(self) -> None:
        """Commits what was reviewed."""
        self.let_go("transaction")
        preview = self.transaction.preview
        assert preview is not None
        self.carefully(lambda: self.transaction.commit(expected_preview=preview, timeout=self.patience), "COMMIT;")

    def keep(self, kind: str, name: str) -> Held:
        """Notes that something was opened."""
        held = Held(kind, name, self.now)
        self.story.held[name] = held
        return held

    def let_go(self, name: str) -> None:
        """Notes that something is being closed."""
        self.story.held[name].closing = self.now

    # ---- subscriptions

    def subscribe(self, relay: str, delivery: Any) -> None:
        """Subscribes under the relay's name."""
        self.story.rows[relay] = []
        self.subscriptions[relay] = self.again(
            lambda: self.session.subscribe(relay, name=relay, delivery=delivery, timeout=self.patience)
        )
        self.keep("subscription", relay)

    def read(self, name: str, timeout: float) -> None:
        """Reads one event of a subscription, if one comes."""
        event = self.subscriptions[name].next(timeout=timeout)
        if isinstance(event, nervix_ffi.Rows):
            self.story.rows[name] += [(event.generation, number) for number in ids_of(event)]
        elif isinstance(event, nervix_ffi.Interrupted):
            self.story.held[name].gaps += 1
            self.story.rows[name].append(None)
        else:
            raise AssertionError(f"{event} of {name}")

    def publish(self) -> None:
        """Publishes a row of `news` and reads it. What was published into a gap is published again, as another row."""
        rows = self.story.rows["news"]
        disturbed = self.story.held["news"].gaps > 0 or bool(self.story.made)
        while True:
            self.news += 1
            number = self.base + self.news
            self.node.control("publish", domain=self.domain, relay="news", rows=[{"id": number, "note": "news"}])
            self.story.published.append(number)
            before = self.story.held["news"].gaps
            while self.story.held["news"].gaps == before:
                try:
                    self.read("news", GLANCE if disturbed else self.patience)
                except nervix_ffi.DeadlineError as failure:
                    if disturbed:
                        break
                    self.waited(failure)
                    disturbed = True
                    break
                if rows and rows[-1] is not None and rows[-1][1] == number:
                    return
            self.back()
            disturbed = True

    def delete(self, name: str) -> None:
        """Reads what is there, and deletes a subscription."""
        self.let_go(name)
        with suppress(nervix_ffi.DeadlineError):
            while True:
                self.read(name, 0)
        subscription = self.subscriptions.pop(name)
        self.again(lambda: subscription.delete(timeout=self.patience))

    # ---- the clock

    def attach(self) -> None:
        """Follows the domain's clock."""
        self.clock = self.again(lambda: self.session.attach_clock(timeout=self.patience))
        assert self.clock.read().pacing is not None
        self.keep("clock", "clock")
        self.restored = True

    def hear(self, timeout: float) -> Any:
        """Hears one event of the clock, if one comes."""
        event = self.clock.next(timeout=timeout)
        if isinstance(event, ClockTick):
            assert self.restored, "a tick came before the clock that it is of"
            self.story.ticks.append((event.generation, event.tick.id))
        elif isinstance(event, ClockInterrupted):
            self.story.held["clock"].gaps += 1
            self.story.ticks.append(None)
            self.restored = False
        elif isinstance(event, ClockChanged):
            self.restored = True
        else:
            assert not isinstance(event, ClockEnded)
            raise AssertionError(f"{event}")
        return event

    def hear_until(self, heard: Callable[[Any], bool]) -> None:
        """Hears until something is heard, through gaps."""
        while True:
            try:
                if heard(self.hear(self.patience)):
                    return
            except nervix_ffi.DeadlineError as failure:
                self.waited(failure)

    def tick(self) -> None:
        """Lets a period pass, and hears the tick of it."""
        newest = max((tick for tick in self.story.ticks if tick is not None), default=(0, 0))
        self.node.control("clock", advance="100ms")
        self.hear_until(lambda event: isinstance(event, ClockTick) and (event.generation, event.tick.id) > newest)
        read = self.clock.read()
        if read.tick is None:
            # The session was lost after the tick, and that is yet to be heard.
            assert isinstance(self.hear(self.patience), ClockInterrupted)
        else:
            assert (read.generation, read.tick.id) >= newest

    def turn(self, query: str, state: ClockState) -> None:
        """Stops or starts the domain, and hears that its clock changed."""
        self.command(query)
        while self.clock.read().state != state:
            self.hear_until(lambda event: isinstance(event, ClockChanged))

    def detach(self) -> None:
        """Follows the clock no longer."""
        self.let_go("clock")
        self.again(lambda: self.clock.detach(timeout=self.patience))
        assert self.session.domain_clock() is None

    # ---- producers and consumers

    def open_producer(self) -> None:
        """Opens the producer."""
        self.producer = self.again(lambda: self.session.open_producer("held", FIELDS, timeout=self.patience))
        self.opened.append(self.producer.release)
        self.keep("producer", "held")

    def open_consumer(self) -> None:
        """Opens the consumer."""
        self.consumer = self.again(lambda: self.session.open_consumer("out", FIELDS, timeout=self.patience))
        self.opened.append(self.consumer.release)
        self.keep("consumer", "out")

    def ids(self, batch: int) -> list[int]:
        """The ids of a batch's rows."""
        return [self.base + number for number in BATCHES[batch]]

    def submit(self, batch: int) -> None:
        """Submits a batch, once."""
        rows = [{"id": number, "note": "x" * 300 * 4**batch} for number in self.ids(batch)]
        self.submitted[batch] = self.again(lambda: self.producer.submit(rows, timeout=self.patience))

    def glance(self, timeout: float) -> None:
        """Waits for a delivery, which is kept for later."""
        try:
            self.due = self.consumer.next(timeout=timeout)
        except nervix_ffi.InterruptedReadError:
            self.story.held["out"].gaps += 1

    def park(self) -> None:
        """Waits for a delivery while there is none, so that the read stays with the node."""
        self.peek()
        assert self.due is None

    def peek(self) -> None:
        """Waits for a delivery that need not come. A consumer that is not attached is not attached inside a transaction."""
        with suppress(nervix_ffi.DeadlineError):
            self.glance(0.02)

    def retained(self) -> int:
        """How many batches the emitter has not been told the end of."""
        told: str = self.node.control("execute", domain=self.domain, statement="DESCRIBE EMITTER out;")["message"]
        return int(dict(line.split(": ", 1) for line in told.splitlines())["retained batches"])

    def idle(self) -> bool:
        """Whether no delivery can come any more: every submission has its outcome, and the emitter holds nothing."""
        return all(submission.done() for submission in self.submitted.values()) and self.retained() == 0

    def next(self) -> nervix_ffi.Delivery | None:
        """The next delivery; None once none can come."""
        while True:
            if self.due is None:
                if self.idle():
                    return None
                try:
                    self.glance(self.patience)
                except nervix_ffi.DeadlineError as failure:
                    self.waited(failure)
            if (delivery := self.due) is not None:
                self.due = None
                attempt = Attempt(delivery.identity.hex(), delivery.reference.hex(), ids_of(delivery.batch()))
                self.story.attempts.append(attempt)
                return delivery

    def take(self) -> None:
        """Takes a delivery and leaves it unsettled."""
        self.taken = self.next()

    def settle(self, delivery: nervix_ffi.Delivery, back: bool) -> bool:
        """Settles a delivery, and notes what it was told. Whether it was acknowledged, for certain."""
        attempt = next(one for one in self.story.attempts if one.reference == delivery.reference.hex())
        with delivery:
            while True:
                try:
                    (delivery.retry if back else delivery.ack)(timeout=self.patience)
                    attempt.told = "given back" if back else "acknowledged"
                except nervix_ffi.UncertainError:
                    attempt.told = "perhaps given back" if back else "perhaps acknowledged"
                except nervix_ffi.RejectedError:
                    attempt.told = "revoked"
                except nervix_ffi.DeadlineError as failure:
                    self.waited(failure)
                    continue
                break
        if back:
            # The emitter's backoff passes.
            self.node.control("clock", advance="50ms")
        return attempt.told == "acknowledged"

    def finish(self, batch: int, back: int = 0) -> None:
        """Settles what is delivered until nothing is left, giving it back so often, and takes the outcome of a batch."""
        taken, self.taken = self.taken, None
        while (delivery := taken or self.next()) is not None:
            taken = None
            if self.settle(delivery, back > 0):
                # The outcome of the batch that it was made of follows, and then there may be nothing to read any more.
                ids = self.story.attempts[-1].ids
                for number, submission in self.submitted.items():
                    if self.ids(number) == ids:
                        submission.result(timeout=PATIENCE, check=False)
            back -= 1
        self.story.submissions[batch] = self.submitted[batch].result(timeout=PATIENCE, check=False)

    def close_producer(self) -> None:
        """Closes the producer."""
        self.let_go("held")
        self.again(lambda: self.producer.close(timeout=self.patience))

    def close_consumer(self) -> None:
        """Closes the consumer."""
        self.let_go("out")
        self.again(lambda: self.consumer.close(timeout=self.patience))
        assert self.due is None
        if not self.away:
            # A session that was left for the leader ends with what was kept there, and no frame goes to it any more.
            self.node.wait(timeout=PATIENCE, sessions={"exactly": 1})


def ids_of(rows: nervix_ffi.Rows | nervix_ffi.Batch) -> list[int]:
    """The ids of some rows."""
    return [number for number in rows.column("id").to_list() if isinstance(number, int)]


def opens_it(entry: dict[str, Any], one: Held, domain: str) -> bool:
    """Whether a request opens something."""
    kind, name = entry["kind"], entry.get("name", "")
    if one.kind == "subscription":
        return bool(kind == "SubscribeRequest" and f"SUBSCRIPTION {one.name} " in name)
    wanted = {
        "clock": ("AttachDomainClockRequest", domain),
        "producer": ("OpenIngestorRequest", one.name),
        "consumer": ("OpenEmitterRequest", one.name),
        "transaction": ("AttachTransactionRequest", name),
    }
    return (kind, name) == wanted[one.kind]
