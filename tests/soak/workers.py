"""The eight threads, and what each does over and over."""

from __future__ import annotations

import itertools
import os
import random
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import pyarrow

import nervix_ffi
from nervix_ffi import (
    ClockChanged,
    ClockInterrupted,
    ClockTick,
    Disposition,
    Error,
    Rows,
    Settlement,
    SubmissionResult,
    TransactionState,
)

from .calls import AGAIN, ENDLESS, PATIENCE, PERHAPS, REFUSED, Calls
from .graph import BEAT, DOMAIN, EMITTER, FIELDS, INGESTOR, RELAY, note

if TYPE_CHECKING:
    from .run import Soak

#: Seconds between two turns of a thread, at most: what the machine has to spare for others.
PAUSE = 0.04

DELIVERIES: list[Literal["BLOCKING", "DROPPING"] | None] = ["BLOCKING", "DROPPING", None]


class Worker:
    """A thread that takes its turns until the soak ends, and then ends what it began."""

    name: ClassVar[str]

    def __init__(self, soak: Soak) -> None:
        self.soak = soak
        self.node = soak.node
        self.books = soak.books
        self.dice = random.Random(f"{self.name} {soak.seed}")
        self.calls = Calls(soak.books, self.dice, soak.canceller)
        self.last = time.monotonic()
        self.thread = threading.Thread(target=self._run, name=self.name, daemon=True)

    def _run(self) -> None:
        try:
            self.begin()
            while not self.soak.ending.is_set():
                self.turn()
                self.last = time.monotonic()
                self.soak.ending.wait(self.dice.uniform(0, PAUSE))
            self.end()
        except BaseException:
            self.books.wrong(f"{self.name} ended:\n{traceback.format_exc()}")
            self.soak.failed.set()
            self.soak.fed.set()

    def begin(self) -> None:
        """Comes before the first turn."""

    def turn(self) -> None:
        """Does one thing."""
        raise NotImplementedError

    def end(self) -> None:
        """Comes after the last turn, when nothing goes wrong any more."""

    def until(self, call: Callable[[], Any]) -> Any:
        """Calls until it is neither given up nor refused for now."""
        since = time.monotonic()
        while True:
            try:
                return call()
            except Error as failure:
                if failure.kind not in AGAIN:
                    raise
                if time.monotonic() - since > ENDLESS:
                    raise
                self.books.did(f"tried again: {type(failure).__name__}")
                time.sleep(0.02)


class Commander(Worker):
    """Creates and drops models, each of its own name, and sees that each happened once."""

    name = "commander"

    def begin(self) -> None:
        self._numbers = itertools.count(1)
        self._alive: deque[str] = deque()

    def command(self, statement: str) -> nervix_ffi.Outcome:
        with self.until(lambda: self.soak.shared.prepare(statement)) as execution:
            outcome = self.calls.outcome(execution)
        self.books.did("command")
        return outcome

    def change(self, statement: str) -> None:
        outcome = self.command(statement)
        if not outcome.completed or outcome.already_existed:
            self.books.wrong(f"{statement} was to happen once: {outcome}")
        self.books.expect_executed(outcome.reference)

    def turn(self) -> None:
        if len(self._alive) < 20 and self.dice.random() < 0.6:
            name = f"c{next(self._numbers)}"
            self.change(f"CREATE SCHEMA {name} (id U32);")
            self._alive.append(name)
            self.see(name)
        elif self._alive:
            name = self._alive.popleft()
            self.change(f"DROP SCHEMA {name};")
            if self.soak.exists(name):
                self.books.wrong(f"schema {name} is there after it was dropped")

    def see(self, name: str) -> None:
        shown = self.command(f"SHOW CREATE SCHEMA {name};")
        if not shown.completed or name not in shown.message:
            self.books.wrong(f"schema {name} was made and is not shown: {shown}")

    def end(self) -> None:
        for name in self._alive:
            self.see(name)
            self.change(f"DROP SCHEMA {name};")


class Undo(Exception):
    """Ends the block of a transaction without a commit."""


class Transactor(Worker):
    """Begins transactions, and commits, reverts or abandons them."""

    name = "transactor"

    def begin(self) -> None:
        self._session = self.soak.connect()
        self._numbers = itertools.count(1)

    def turn(self) -> None:
        number = next(self._numbers)
        names = [f"t{number}_{index}" for index in range(self.dice.randint(1, 4))]
        appended: list[str] = []
        plan = self.dice.choice(["block", "block", "commit", "preview", "revert", "raise"])
        committed = False
        try:
            with self._session.transaction(timeout=PATIENCE) as tx:
                for name in names:
                    appended.append(self.append(tx, f"CREATE SCHEMA {name} (id U32);"))
                self.forbidden()
                if plan == "raise":
                    raise Undo
                if plan == "revert":
                    self.decided(lambda: tx.revert(**self.calls.limits()))
                elif plan != "block":
                    preview = tx.preview if plan == "preview" else None
                    committed = self.decided(lambda: tx.commit(expected_preview=preview, **self.calls.limits()))
                if plan != "block" and not committed and not tx.finished:
                    raise Undo
            committed = committed or plan == "block"
        except Undo:
            self.books.did("transaction reverted")
        except nervix_ffi.TransactionError as failure:
            self.books.did(f"transaction lost: {type(failure).__name__}")
            if failure.status is not None and failure.status.state == TransactionState.COMMITTED:
                self.books.wrong(f"a transaction is called committed by what is no outcome of a commit: {failure}")
        except nervix_ffi.CommandFailed as failure:
            # A session that was lost, and whose attach was refused, is without its transaction.
            if not any(told in str(failure) for told in ("holds no transaction", "not held any more")):
                raise
            self.books.did("transaction not attached again")
        except Error as failure:
            outcome = self.calls.recovered(failure)
            query = "" if failure.execution is None else failure.execution.query
            committed = outcome is not None and outcome.completed and query.startswith("COMMIT")
            if outcome is not None and outcome.completed and query.startswith("BEGIN"):
                # It began all the same, and the block was not there to end it.
                self.until(lambda: self._session.execute("REVERT;", timeout=PATIENCE, check=False))
                self.books.did("transaction begun too late")
        if committed:
            self.books.did("transaction committed")
        self.check(names, appended, committed)

    def append(self, tx: nervix_ffi.Transaction, statement: str) -> str:
        try:
            outcome = tx.execute(statement, **self.calls.limits())
        except nervix_ffi.CommandNotCompleted:
            raise
        except Error as failure:
            found = self.calls.completed(failure)
            if found is None:
                raise Undo from None
            outcome = found
        assert outcome.reference is not None
        if outcome.admission is None:
            self.books.wrong(f"an append was completed and not admitted: {outcome}")
        self.books.did("append")
        return outcome.reference

    def decided(self, call: Callable[[], nervix_ffi.Outcome]) -> bool:
        """Whether a commit or revert completed; what became of it is found out first."""
        try:
            return call().completed
        except nervix_ffi.CommandNotCompleted:
            raise
        except Error as failure:
            return self.calls.completed(failure) is not None

    def forbidden(self) -> None:
        if self.dice.random() < 0.3:
            statement = self.dice.choice(["ATTACH DOMAIN CLOCK;", f"CREATE SUBSCRIPTION no TO {RELAY};", f"USE {BEAT};"])
            outcome = self._session.execute(statement, timeout=PATIENCE, check=False)
            if outcome.disposition != Disposition.FAILED:
                self.books.wrong(f"{statement} went through while a transaction was held: {outcome}")

    def check(self, names: list[str], appended: list[str], committed: bool) -> None:
        for reference in appended:
            self.books.expect_executed(reference)
            self.books.expect_applied(reference, int(committed))
        for name in names:
            if self.soak.exists(name) != committed:
                self.books.wrong(
                    f"schema {name} is {'not ' if committed else ''}there, and its transaction did{'' if committed else ' not'} commit"
                )
            if committed:
                self.soak.execute(f"DROP SCHEMA {name};")

    def end(self) -> None:
        self._session.close()


class Subscriber(Worker):
    """Reads a relay whose rows count up: two that are not neighbours have a gap between them."""

    name = "subscriber"

    def turn(self) -> None:
        try:
            subscription = self.soak.shared.subscribe(RELAY, delivery=self.dice.choice(DELIVERIES), **self.calls.limits())
        except nervix_ffi.CommandFailed:
            self.books.did("subscription refused")
            return
        except Error as failure:
            outcome = self.calls.recovered(failure)
            if outcome is not None and outcome.subscription is not None:
                name = outcome.subscription.name
                self.delete(lambda: self.soak.shared.execute(f"DELETE SUBSCRIPTION {name};", timeout=PATIENCE))
            return
        self.books.did("subscription")
        self.read(subscription, until=time.monotonic() + self.dice.uniform(0.5, 6.0))
        if self.dice.random() < 0.1:
            subscription.close()
            self.delete(lambda: self.soak.shared.execute(f"DELETE SUBSCRIPTION {subscription.name};", timeout=PATIENCE))
        else:
            self.delete(lambda: subscription.delete(**self.calls.limits()))
            subscription.close()

    def delete(self, call: Callable[[], object]) -> None:
        with suppress(nervix_ffi.CommandFailed):
            try:
                call()
            except nervix_ffi.CommandNotCompleted:
                raise
            except Error as failure:
                if self.calls.recovered(failure) is None:
                    self.until(call)

    def read(self, subscription: nervix_ffi.Subscription, until: float) -> None:
        last: int | None = None
        gap = True
        while time.monotonic() < until and not self.soak.ending.is_set():
            try:
                event = subscription.next(timeout=0.5)
            except nervix_ffi.DeadlineError:
                continue
            self.last = time.monotonic()
            if not isinstance(event, Rows):
                self.books.gap(type(event).__name__)
                if isinstance(event, nervix_ffi.Ended):
                    self.books.wrong(f"a subscription ended by itself: {event!r}")
                    return
                gap = True
                continue
            for number in self.numbers(event):
                if last is not None and (number <= last or (not gap and number != last + 1)):
                    self.books.wrong(f"row {number} follows row {last} in {event!r}, gap: {gap}")
                last, gap = number, False

    def numbers(self, event: Rows) -> list[int]:
        way = self.dice.randrange(3)
        self.books.did("rows read", len(event))
        with event:
            if way == 0:
                batch = event.to_arrow()
                rows = batch.to_pylist()
            elif way == 1:
                rows = pyarrow.record_batch(event).to_pylist()
            else:
                rows = event.rows()
        for row in rows:
            if row["note"] != f"row {row['id']}" or row["value"] != (None if row["id"] % 2 else row["id"]):
                self.books.wrong(f"a row is not what was published: {row}")
        return [row["id"] for row in rows]


class Clockwork(Worker):
    """Follows a paced clock, reads its ticks and sleeps by it."""

    name = "clockwork"

    def turn(self) -> None:
        try:
            clock = self.soak.shared.attach_clock(BEAT, **self.calls.limits())
        except nervix_ffi.CommandFailed:
            self.books.did("clock refused")
            return
        except Error as failure:
            # As documented: call it again.
            if failure.kind in PERHAPS and failure.execution is not None:
                self.calls.recovered(failure)
            elif failure.kind not in (*PERHAPS, *REFUSED):
                raise
            return
        self.books.did("clock attached")
        until = time.monotonic() + self.dice.uniform(0.5, 5.0)
        if self.dice.random() < 0.5:
            self.ticks(clock, until)
        else:
            self.sleeps(clock, until)
        while True:
            try:
                clock.detach(**self.calls.limits())
                return
            except nervix_ffi.CommandFailed:
                self.books.did("clock detach refused")
            except Error as failure:
                if self.calls.recovered(failure) is not None:
                    clock.close()
                    return

    def ticks(self, clock: nervix_ffi.Clock, until: float) -> None:
        generation = newest = 0
        while time.monotonic() < until and not self.soak.ending.is_set():
            try:
                event = clock.next(timeout=0.5)
            except nervix_ffi.DeadlineError:
                continue
            if isinstance(event, ClockInterrupted):
                self.books.gap("ClockInterrupted")
                newest = 0
            elif isinstance(event, ClockChanged):
                if event.generation < generation:
                    self.books.wrong(f"the clock went back from generation {generation}: {event}")
                if event.generation != generation or event.pacing is None:
                    newest = 0
                generation = event.generation
            elif isinstance(event, ClockTick):
                if event.generation < generation or (event.generation == generation and event.tick.id <= newest):
                    self.books.wrong(f"after tick {newest} of generation {generation} came {event}")
                generation, newest = event.generation, event.tick.id
                self.books.did("tick")

    def sleeps(self, clock: nervix_ffi.Clock, until: float) -> None:
        while time.monotonic() < until and not self.soak.ending.is_set():
            try:
                now = clock.read()
            except nervix_ffi.ClosedError:
                self.books.wrong("the clock is followed no longer, and nobody ended it")
                return
            with now:
                if now.pacing is None:
                    self.soak.ending.wait(0.05)
                    continue
                center = now.logical_time_at() + self.dice.randrange(0, 300_000_000)
                try:
                    came = now.sleep_until(center, timeout=self.dice.choice([PATIENCE, 0.05]))
                except nervix_ffi.DeadlineError:
                    continue
                self.books.did("sleep" if came else "sleep broken off")
                if came and now.logical_time_at() < center:
                    self.books.wrong(f"a sleep ended {center - now.logical_time_at()} ns too early")


class Feeder(Worker):
    """Submits batches of rows that no other batch has, and learns what became of each."""

    name = "feeder"

    def begin(self) -> None:
        self._out: deque[tuple[nervix_ffi.Submission, tuple[int, ...]]] = deque()
        self._producer = self.open()

    def open(self) -> nervix_ffi.Producer:
        opened: nervix_ffi.Producer = self.until(
            lambda: self.soak.traffic.open_producer(
                INGESTOR, FIELDS, domain=DOMAIN, credit_batches=self.dice.randint(2, 16), **self.calls.limits()
            )
        )
        self.books.did("producer")
        return opened

    def turn(self) -> None:
        rows = tuple(itertools.islice(self.soak.rows, self.dice.randint(1, 24)))
        try:
            submission = self._producer.submit(self.data(rows), **self.calls.limits())
        except (nervix_ffi.DeadlineError, nervix_ffi.CancelledError, nervix_ffi.TransportError):
            self.books.never(rows, "it was not submitted in time")
            self.books.did("batch not submitted")
        except nervix_ffi.ReopenRequiredError as failure:
            self.books.never(rows, f"the producer has to be reopened: {failure}")
            self.reopen()
        else:
            self._out.append((submission, rows))
            self.books.did("batch")
        while self._out and (self._out[0][0].done() or len(self._out) >= self._producer.grant.batches):
            if not self.take(*self._out[0]):
                break
            self._out.popleft()
        if self.dice.random() < 0.005:
            self.reopen()

    def data(self, rows: tuple[int, ...]) -> Any:
        values = [{"id": row, "note": note(row)} for row in rows]
        if self.dice.random() < 0.5:
            return values
        schema = pyarrow.schema([pyarrow.field("id", pyarrow.uint64(), nullable=False), ("note", pyarrow.string())])
        return pyarrow.RecordBatch.from_pylist(values, schema)

    def take(self, submission: nervix_ffi.Submission, rows: tuple[int, ...]) -> bool:
        """Takes an outcome and enters it. False when it is not there yet."""
        try:
            outcome = submission.result(check=False, **self.calls.limits())
        except (nervix_ffi.DeadlineError, nervix_ffi.CancelledError):
            return False
        result = outcome.result
        self.books.did(f"batch {getattr(result, 'name', result)}")
        if result == SubmissionResult.COMPLETED:
            self.books.completed(rows)
        elif result == SubmissionResult.NOT_ADMITTED:
            self.books.never(rows, f"not admitted: {outcome}")
        elif "may have" not in outcome.describe():
            self.books.wrong(f"an outcome that nobody knows does not say so: {outcome.describe()}")
        return True

    def reopen(self) -> None:
        """Lets go of the producer and opens another one; the outcomes of the old one come all the same."""
        old = self._producer
        while self._out:
            if self.take(*self._out[0]):
                self._out.popleft()
        with suppress(nervix_ffi.DeadlineError, nervix_ffi.CancelledError, nervix_ffi.ReopenRequiredError):
            old.close(**self.calls.limits())
        if old.pending():
            self.books.wrong(f"submissions are pending whose outcomes were taken: {old.pending()}")
        old.release()
        self._producer = self.open()

    def end(self) -> None:
        self.reopen()
        self._producer.close(timeout=PATIENCE)
        self._producer.release()
        self.soak.fed.set()


class Taker(Worker):
    """Takes deliveries, and acknowledges, returns, rejects or leaves them."""

    name = "taker"

    def begin(self) -> None:
        self._consumer = self.open()

    def session(self) -> nervix_ffi.Session:
        return self.soak.traffic

    def open(self) -> nervix_ffi.Consumer:
        opened: nervix_ffi.Consumer = self.until(
            lambda: self.session().open_consumer(
                EMITTER, FIELDS, domain=DOMAIN, credit_batches=self.dice.randint(1, 8), **self.calls.limits()
            )
        )
        self.books.did("consumer")
        return opened

    def turn(self) -> None:
        if self.dice.random() < 0.003:
            self.reopen()
        self.take(0.5)

    def take(self, seconds: float) -> bool:
        """Takes one delivery, if one comes in time."""
        try:
            delivery = self._consumer.next(timeout=seconds)
        except nervix_ffi.DeadlineError:
            return False
        except nervix_ffi.InterruptedReadError:
            self.books.gap("InterruptedReadError")
            return True
        except nervix_ffi.ReopenRequiredError:
            self.reopen()
            return True
        with delivery:
            over = self.books.delivered(delivery.identity, self.rows(delivery))
            self.decide(delivery, over)
        return True

    def rows(self, delivery: nervix_ffi.Delivery) -> tuple[int, ...]:
        ways: list[Callable[[], list[dict[str, Any]]]] = [
            delivery.rows,
            lambda: delivery.to_arrow().to_pylist(),
            lambda: pyarrow.record_batch(delivery).to_pylist(),
        ]
        rows = self.dice.choice(ways)()
        for row in rows:
            if row["note"] != note(row["id"]):
                self.books.wrong(f"a row is not what was submitted: {row}")
        return tuple(row["id"] for row in rows)

    def decide(self, delivery: nervix_ffi.Delivery, over: bool) -> None:
        # One that is over is acknowledged, since that must not be confirmed.
        throw = 0.0 if over or self.soak.ending.is_set() else self.dice.random()
        if throw < 0.8:
            self.settle(delivery, "acknowledged", lambda **limits: delivery.ack(check=False, **limits))
        elif throw < 0.9:
            with suppress(
                nervix_ffi.UncertainError, nervix_ffi.RejectedError, nervix_ffi.DeadlineError, nervix_ffi.CancelledError
            ):
                self.books.did("delivery given back")
                delivery.retry(check=False, **self.calls.limits())
        elif throw < 0.93:
            self.settle(delivery, "rejected", lambda **limits: delivery.reject("no good", check=False, **limits))
        else:
            self.books.did("delivery left")

    def settle(self, delivery: nervix_ffi.Delivery, how: str, call: Callable[..., Settlement | int]) -> None:
        before = self.books.settling(delivery.identity)
        sent = False
        while True:
            try:
                settlement = call(**self.calls.limits())
            except (nervix_ffi.DeadlineError, nervix_ffi.CancelledError) as failure:
                self.books.did(f"settlement given up: {type(failure).__name__}")
                sent = True
                continue
            except nervix_ffi.UncertainError as failure:
                self.books.did("settlement uncertain")
                if "may" not in str(failure):
                    self.books.wrong(f"an uncertain settlement's error does not say so: {failure}")
                return
            except nervix_ffi.RejectedError:
                self.books.did("settlement too late")
                if not sent and not before:
                    self.books.not_settled(delivery.identity)
                return
            if settlement == Settlement.CONFIRMED:
                self.books.did(f"delivery {how}")
                self.books.settled(delivery.identity, delivery.reference)
            else:
                self.books.did(f"settlement {getattr(settlement, 'name', settlement)}")
            return

    def reopen(self) -> None:
        with suppress(nervix_ffi.DeadlineError, nervix_ffi.CancelledError, nervix_ffi.ReopenRequiredError):
            self._consumer.close(**self.calls.limits())
        self._consumer.release()
        self._consumer = self.open()

    def end(self) -> None:
        # Until nobody submits any more, and what was left has come again.
        while not self.books.problems and (not self.soak.fed.is_set() or self.take(4.0)):
            self.take(0.2)
            self.last = time.monotonic()
        self._consumer.close(timeout=PATIENCE)
        self._consumer.release()


class OtherTaker(Taker):
    """Takes deliveries on a session of its own, which it drops now and then with whatever it holds."""

    name = "other taker"

    def begin(self) -> None:
        self._session = self.soak.connect()
        super().begin()

    def session(self) -> nervix_ffi.Session:
        return self._session

    def turn(self) -> None:
        if self.dice.random() < 0.005:
            self._session.close()
            self._consumer.release()
            self._session = self.soak.connect()
            self._consumer = self.open()
            self.books.did("session replaced")
        self.take(0.5)

    def end(self) -> None:
        super().end()
        self._session.close()


class Visitor(Worker):
    """Opens sessions, does one thing and leaves in one of the ways there are."""

    name = "visitor"

    def turn(self) -> None:
        if self.dice.random() < 0.04:
            self.fork()
            return
        session = self.soak.connect()
        self.books.did("session")
        visit = self.dice.choice(
            [self.show, self.suggest, self.subscribe, self.follow, self.produce, self.consume, self.transact]
        )
        try:
            visit(session)
        except Error as failure:
            if failure.kind not in AGAIN and not isinstance(failure, nervix_ffi.CommandFailed):
                raise
            self.books.did(f"visit broken off: {type(failure).__name__}")
        if self.dice.random() < 0.7:
            session.close()

    def show(self, session: nervix_ffi.Session) -> None:
        with session.prepare("LIST DOMAINS;") as execution:
            if DOMAIN not in self.calls.outcome(execution).message:
                self.books.wrong(f"LIST DOMAINS does not list {DOMAIN}")

    def suggest(self, session: nervix_ffi.Session) -> None:
        session.suggest("CREATE RE", **self.calls.limits())

    def subscribe(self, session: nervix_ffi.Session) -> None:
        subscription = session.subscribe(RELAY, delivery="DROPPING", **self.calls.limits())
        with suppress(nervix_ffi.DeadlineError):
            subscription.next(timeout=1.0)
        if self.dice.random() < 0.5:
            subscription.delete(**self.calls.limits())

    def follow(self, session: nervix_ffi.Session) -> None:
        clock = session.attach_clock(BEAT, **self.calls.limits())
        with suppress(nervix_ffi.DeadlineError):
            clock.next(timeout=0.3)

    def produce(self, session: nervix_ffi.Session) -> None:
        producer = session.open_producer(INGESTOR, FIELDS, domain=DOMAIN, **self.calls.limits())
        if self.dice.random() < 0.5:
            producer.close(**self.calls.limits())

    def consume(self, session: nervix_ffi.Session) -> None:
        consumer = session.open_consumer(EMITTER, FIELDS, domain=DOMAIN, **self.calls.limits())
        if self.dice.random() < 0.5:
            consumer.close(**self.calls.limits())

    def transact(self, session: nervix_ffi.Session) -> None:
        with suppress(Undo), session.transaction(**self.calls.limits()):
            raise Undo

    def fork(self) -> None:
        """A child that uses nothing of ours, and a session of its own."""
        self.books.did("fork")
        child = os.fork()
        if child == 0:
            os._exit(self.in_child())
        deadline = time.monotonic() + 3 * PATIENCE
        while time.monotonic() < deadline:
            ended, status = os.waitpid(child, os.WNOHANG)
            if ended:
                if status != 0:
                    self.books.wrong(f"a forked child ended with status {status}")
                return
            time.sleep(0.02)
        os.kill(child, 9)
        os.waitpid(child, 0)
        self.books.wrong("a forked child did not come back")

    def in_child(self) -> int:
        try:
            self.soak.shared.execute("LIST DOMAINS;", timeout=PATIENCE)
            return 3
        except nervix_ffi.ClosedError:
            pass
        except BaseException:
            return 4
        try:
            with self.soak.connect_once(timeout=5.0) as session:
                session.execute("LIST DOMAINS;", timeout=5.0)
        except Error as failure:
            return 0 if failure.kind in AGAIN else 5
        except BaseException:
            return 6
        return 0


WORKERS: list[type[Worker]] = [Commander, Transactor, Subscriber, Clockwork, Feeder, Taker, OtherTaker, Visitor]
