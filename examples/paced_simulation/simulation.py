"""A run of the simulation: plans readings by the domain's clock, submits them, and consumes what comes out.

The planning is the main thread's. Threads of their own follow the clock, take outcomes, and run the consumers, all on one session.
Domain time is never computed here: centers, waits and windows are the clock's.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from records import Effects, Ledger, Reading, time_text

import nervix_ffi
from nervix_ffi import (
    Cancel,
    Clock,
    ClockChanged,
    ClockEnded,
    ClockInterrupted,
    ClockRestorationFailed,
    ClockState,
    ClockTick,
    Consumer,
    Delivery,
    DomainClock,
    Endpoint,
    Fields,
    OpenRefusal,
    Producer,
    ReopenReason,
    Session,
    Submission,
    SubmissionOutcome,
)

READING = Fields.parse("reading_id STRING, sensor STRING, tick U64, occurred_at DATETIME, value I64")
OBSERVED = Fields.parse(
    "reading_id STRING, sensor STRING, tick U64, occurred_at DATETIME, admitted_at DATETIME, timestamp_source STRING, value I64"
)
REJECTED = Fields.parse("reading_id STRING, occurred_at DATETIME, error_code STRING, error_message STRING")

#: Seconds to wait for a clock to be installed, an endpoint to become available, or one answer.
PATIENCE = 30.0

#: Seconds between two attempts to open an endpoint that is unavailable.
AGAIN = 0.2

#: After these a handle waits for the next START.
GENERATION_REASONS = {ReopenReason.DOMAIN_STOPPED: "domain_stopped", ReopenReason.GENERATION_CHANGED: "generation_changed"}


#: What the summary counts, in its order.
SUMMARY = (
    "readings",
    "completed",
    "not_admitted",
    "processing_failed",
    "outcome_unknown",
    "effects",
    "rejection_notices",
    "duplicates",
    "generations",
    "ticks_observed",
    "inspections",
    "credit_waits",
    "peak_outstanding_bytes",
    "consumers_joined",
    "consumers_left",
)


class Unusable(Exception):
    """The graph, the domain or the command line does not fit."""


class GenerationOver(Exception):
    """The generation that ran is over. The argument is the reason."""


class Failed(Exception):
    """A thread of the run failed; the cause says how."""


def word(value: Any) -> str:
    """A member of an enumeration as the report spells it."""
    return str(getattr(value, "name", value)).lower()


def say(line: str) -> None:
    """One line of the report."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


class Watch:
    """Follows the clock of the domain: what it is now, or that it is lost for now."""

    def __init__(self, session: Session, domain: str, run: Simulation) -> None:
        self._run = run
        try:
            self._clock: Clock = session.attach_clock(domain, timeout=PATIENCE)
        except nervix_ffi.CommandFailed as failure:
            raise Unusable(f"the clock of {domain} cannot be attached: {failure}") from failure
        self.first = self._clock.read()
        self._lost = False
        self._thread = threading.Thread(target=run.guarded(self._follow), name="clock", daemon=True)

    def start(self) -> None:
        """Starts following. What the clock was when it was attached has been read before."""
        self._thread.start()

    def _follow(self) -> None:
        for event in self._clock:
            with self._run.changed:
                if isinstance(event, ClockTick):
                    self._run.counts["ticks_observed"] += 1
                    self._lost = False
                elif isinstance(event, ClockChanged):
                    self._lost = False
                    say_clock(event)
                elif isinstance(event, ClockInterrupted):
                    self._lost = True
                    say(f"INTERRUPTED clock domain={event.domain}")
                elif isinstance(event, ClockRestorationFailed):
                    say("CLOCK restoration_failed")
                elif isinstance(event, ClockEnded):
                    say("CLOCK ended")
                self._run.changed.notify_all()

    def read(self) -> DomainClock | None:
        """The clock, once it is known; None when the domain is gone."""
        with self._run.changed:
            while self._lost:
                self._run.wait()
        try:
            return self._clock.read()
        except nervix_ffi.ClosedError:
            return None

    def paced(self, old: int, patience: float) -> DomainClock | None:
        """The paced clock of another generation, once there is one; None when the domain is gone or the time is over."""
        deadline = time.monotonic() + patience
        while True:
            clock = self.read()
            if clock is None or (clock.paced and clock.generation != old):
                return clock
            with self._run.changed:
                remaining = deadline - time.monotonic()
                if remaining <= 0:
                    return None
                self._run.wait(min(remaining, AGAIN))

    def detach(self) -> None:
        """Follows no longer."""
        with contextlib.suppress(nervix_ffi.Error):
            self._clock.detach(timeout=PATIENCE)
        self._clock.close()


def say_clock(clock: DomainClock | ClockChanged) -> None:
    pacing = clock.pacing
    if pacing is None:
        say(f"CLOCK state={word(clock.state)}")
        return
    say(
        f"CLOCK generation={clock.generation} state=paced period={pacing.period} skew={pacing.skew} "
        f"origin={time_text(pacing.logical_origin)} anchor={time_text(pacing.utc_anchor)} rate={pacing.time_rate}"
    )


class Worker:
    """One consumer in a thread of its own. ``effects`` makes the effects of rows; each is applied once, then acknowledged."""

    def __init__(
        self, run: Simulation, name: str, emitter: str, fields: Fields, effects: Callable[[Consumer, list[Any]], list[Any]]
    ) -> None:
        self.run = run
        self.name = name
        self.emitter = emitter
        self.fields = fields
        self.effects = effects
        self.delay = 0.0
        self.leave_after: int | float | None = None
        #: The generation it reads in; 0 while it has no consumer.
        self.generation = 0
        #: Whether it has yet to come.
        self.away = False
        self.over = False
        self._consumer: Consumer | None = None
        self._stopping = False
        self._handling = threading.Lock()
        self._thread = threading.Thread(target=run.guarded(self._work), name=f"consumer {name}", daemon=True)

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def close(self) -> None:
        """Ends the consumer. What it has not acknowledged comes again, perhaps to another."""
        with self.run.changed:
            self._stopping = True
            consumer = self._consumer
            self.run.changed.notify_all()
        # The delivery in hand is finished first: its acknowledgement may have ended the run and be unanswered.
        finished = self._handling.acquire(timeout=PATIENCE)
        try:
            if consumer is not None:
                with contextlib.suppress(nervix_ffi.Error):
                    consumer.close(timeout=PATIENCE)
                consumer.release()
        finally:
            if finished:
                self._handling.release()
        self._thread.join(PATIENCE)

    def _work(self) -> None:
        try:
            if self.delay:
                say(f"CONSUMER delayed consumer={self.name} delay={self.delay:g}s")
                self._sleep(self.delay)
            consumer = self._open("opened")
            deadline = time.monotonic() + self.leave_after if isinstance(self.leave_after, float) else None
            taken = 0
            while consumer is not None:
                try:
                    left = None if deadline is None else max(0.0, deadline - time.monotonic())
                    delivery = consumer.next(timeout=left)
                except nervix_ffi.DeadlineError:
                    return self._leave(consumer)
                except nervix_ffi.InterruptedReadError:
                    say(f"INTERRUPTED consumer={self.name}")
                    continue
                except nervix_ffi.ReopenRequiredError as failure:
                    consumer = self._reopen(failure)
                    continue
                except nervix_ffi.ClosedError:
                    if self._stopping:
                        return None
                    raise
                with delivery, self._handling:
                    self._handle(consumer, delivery)
                taken += 1
                if taken == self.leave_after and not isinstance(self.leave_after, float):
                    return self._leave(consumer)
        finally:
            with self.run.changed:
                self.over = True
                self.run.changed.notify_all()
        return None

    def _sleep(self, duration: float) -> None:
        deadline = time.monotonic() + duration
        with self.run.changed:
            while not self._stopping and (remaining := deadline - time.monotonic()) > 0:
                self.run.changed.wait(remaining)

    def _open(self, what: str) -> Consumer | None:
        options = self.run.options
        consumer: Consumer | None = self.run.open(
            lambda: self.run.session.open_consumer(
                self.emitter,
                self.fields,
                domain=options.domain,
                credit_batches=options.credit_batches,
                credit_bytes=options.credit_bytes,
                timeout=PATIENCE,
            ),
            f"CONSUMER unavailable consumer={self.name} emitter={self.emitter}",
            lambda: self._stopping,
        )
        if consumer is None:
            return None
        with self.run.changed:
            self._consumer, self.generation, self.away = consumer, consumer.generation, False
            if what == "opened" and self.fields == OBSERVED:
                self.run.counts["consumers_joined"] += 1
            say(f"CONSUMER {what} consumer={self.name} emitter={self.emitter} {credit_of(consumer)}")
            self.run.changed.notify_all()
        return consumer

    def _reopen(self, failure: nervix_ffi.ReopenRequiredError) -> Consumer | None:
        """After the handle is over: another one, at once or after the next START; None when none is wanted."""
        say(f"CONSUMER reopen_required consumer={self.name} reason={word(failure.reason)}")
        old, over = self.generation, failure.reason in GENERATION_REASONS
        while True:
            with self.run.changed:
                self.generation = 0
                while over and self.run.generation == old:
                    if self._stopping or not self.run.options.follow_generations:
                        return None
                    self.run.changed.wait()
                old = self.run.generation
            try:
                return self._open("reopened")
            except GenerationOver:
                over = True

    def _leave(self, consumer: Consumer) -> None:
        with contextlib.suppress(nervix_ffi.Error):
            consumer.close(timeout=PATIENCE)
        self.run.count("consumers_left")
        say(f"CONSUMER left consumer={self.name}")

    def _handle(self, consumer: Consumer, delivery: Delivery) -> None:
        identity = delivery.identity.hex()
        rows = delivery.rows()
        if self.run.options.processing_time:
            say(f"PROCESSING consumer={self.name} identity={identity}")
            self._sleep(self.run.options.processing_time)
        applied = self.run.effects.apply(self.effects(consumer, rows))
        duplicates = len(rows) - len(applied)
        self.run.count("duplicates", duplicates)
        say(f"DELIVERY consumer={self.name} identity={identity} rows={len(rows)} applied={len(applied)} duplicates={duplicates}")
        self.run.applied(applied)
        try:
            answer = word(delivery.ack(timeout=PATIENCE, check=False))
        except nervix_ffi.RejectedError:
            answer = "expired"  # Its attachment ended: it comes again, and is known by its readings' ids.
        except (nervix_ffi.UncertainError, nervix_ffi.DeadlineError):
            answer = "uncertain"
        except nervix_ffi.ClosedError:
            answer = "closed"
        say(f"ACK consumer={self.name} identity={identity} {answer}")


def credit_of(endpoint: Endpoint) -> str:
    return f"generation={endpoint.generation} batches={endpoint.grant.batches} bytes={endpoint.grant.bytes}"


class Simulation:
    """One run of the driver."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.changed = threading.Condition(threading.RLock())
        self.counts: Counter[str] = Counter()
        self.cancel = Cancel()
        self.session: Session
        self.ledger: Ledger
        self.effects: Effects
        self.generation = 0
        self._failure: BaseException | None = None
        self._producer: Producer | None = None
        self._watch: Watch
        self._workers: list[Worker] = []
        #: The bytes of each submission whose outcome is awaited.
        self._outstanding: dict[Submission, int] = {}
        self._rejections_expected: set[str] = set()
        self._rejections_seen: set[str] = set()
        self._next_inspection = time.monotonic()

    # ---- what threads share

    def guarded(self, call: Callable[[], object]) -> Callable[[], None]:
        """The call for a thread of its own, whose failure ends the run."""

        def run() -> None:
            try:
                call()
            except BaseException as failure:
                with self.changed:
                    self._failure = self._failure or failure
                    self.changed.notify_all()
                self.cancel.trigger()

        return run

    def wait(self, timeout: float | None = None) -> None:
        """Waits for a change, with the lock held. Raises what a thread failed with."""
        self._check()
        self.changed.wait(timeout)
        self._check()

    def _check(self) -> None:
        if isinstance(self._failure, Unusable):
            raise self._failure
        if self._failure is not None:
            raise Failed(" ".join(str(self._failure).split())) from self._failure

    def count(self, name: str, by: int = 1) -> None:
        """Counts something for the summary."""
        with self.changed:
            self.counts[name] += by

    def applied(self, effects: Iterable[dict[str, Any]]) -> None:
        """Takes note of effects that were applied now."""
        with self.changed:
            for effect in effects:
                if effect["kind"] == "reading":
                    self.counts["effects"] += 1
                    continue
                self.counts["rejection_notices"] += 1
                self._rejections_seen.add(effect["reading_id"])
                say(
                    f"REJECTED reading_id={effect['reading_id']} occurred_at={effect['occurred_at']} "
                    f"error_code={effect['error_code']} error_message={effect['error_message']}"
                )
            self.changed.notify_all()

    def open(self, call: Callable[[], Any], unavailable: str, unwanted: Callable[[], bool]) -> Any:
        """Opens an endpoint, again while it is unavailable. None when it is not wanted any more.

        Raises Unusable, or GenerationOver once the run was ready.
        """
        deadline = time.monotonic() + PATIENCE
        told = False
        while not unwanted():
            try:
                return call()
            except nervix_ffi.OpenRefused as refused:
                if refused.refusal == OpenRefusal.DOMAIN_STOPPED and self.counts["generations"]:
                    raise GenerationOver("domain_stopped") from refused
                if refused.refusal != OpenRefusal.ENDPOINT_UNAVAILABLE or time.monotonic() > deadline:
                    raise Unusable(str(refused)) from refused
            except nervix_ffi.InvalidArgumentError as failure:
                raise Unusable(str(failure)) from failure
            if not told:
                say(unavailable)
                told = True
            time.sleep(AGAIN)
        return None

    # ---- the run

    def run(self) -> int:
        """Runs the simulation and returns its exit status."""
        options = self.options
        try:
            self.ledger, self.effects = Ledger(options.ledger), Effects(options.effects)
            with (
                contextlib.closing(self.ledger),
                contextlib.closing(self.effects),
                nervix_ffi.connect(
                    options.server,
                    domain=options.domain,
                    username=options.username,
                    password=options.password,
                    timeout=PATIENCE,
                ) as self.session,
            ):
                say(f"CONNECTED server={options.server} domain={options.domain}")
                return self._run()
        except (Unusable, nervix_ffi.InvalidArgumentError) as failure:
            sys.stderr.write(f"error: {' '.join(str(failure).split())}\n")
            return 2

    def _run(self) -> int:
        self._watch = Watch(self.session, self.options.domain, self)
        clock = self._usable_clock()
        self.generation = clock.generation
        self._watch.start()
        try:
            self._start_workers()
            self._producer = self._open_producer()
            self._ready()
            try:
                self._plan(clock, self.options.replay)
            except GenerationOver as over:
                say(f"STOPPING reason={over}")
            except KeyboardInterrupt:
                say("STOPPING reason=interrupted")
            return self._finish()
        finally:
            self._close()

    def _usable_clock(self) -> DomainClock:
        clock: DomainClock | None = self._watch.first
        deadline = time.monotonic() + PATIENCE
        if clock is not None and clock.state == ClockState.UNINSTALLED:
            say("CLOCK unavailable")
        while clock is not None and clock.state == ClockState.UNINSTALLED and time.monotonic() < deadline:
            time.sleep(AGAIN)
            clock = self.session.domain_clock(self.options.domain)
        if clock is None or not clock.paced:
            state = "gone" if clock is None else word(clock.state)
            raise Unusable(f"the domain {self.options.domain} has no paced clock that runs: it is {state}")
        say_clock(clock)
        return clock

    def _start_workers(self) -> None:
        options = self.options
        rejections = Worker(self, "rejections", options.rejections, REJECTED, rejection_effects)
        outputs = [
            Worker(self, str(number), options.emitter, OBSERVED, reading_effects) for number in range(1, options.consumers + 1)
        ]
        for worker in outputs:
            worker.delay, worker.away = options.consumer_delay, options.consumer_delay > 0
        outputs[-1].leave_after = options.consumer_leave_after
        self._workers = [rejections, *outputs]
        for worker in self._workers:
            worker.start()
        self._await_workers()

    def _await_workers(self) -> None:
        """Waits until the consumers read in the running generation, so that no reading waits for one."""
        with self.changed:
            while any(not (worker.over or worker.away or worker.generation == self.generation) for worker in self._workers):
                self.wait()

    def _open_producer(self) -> Producer:
        options = self.options
        producer: Producer = self.open(
            lambda: self.session.open_producer(
                options.ingestor,
                READING,
                domain=options.domain,
                credit_batches=options.credit_batches,
                credit_bytes=options.credit_bytes,
                timeout=PATIENCE,
            ),
            f"PRODUCER unavailable ingestor={options.ingestor}",
            lambda: False,
        )
        return producer

    def _ready(self) -> None:
        producer = self._producer
        assert producer is not None
        grant = producer.grant
        say(
            f"PRODUCER opened ingestor={producer.name} {credit_of(producer)} max_batch_rows={grant.max_batch_rows} "
            f"max_batch_bytes={grant.max_batch_bytes}"
        )
        self.count("generations")
        say(f"READY generation={self.generation}")

    # ---- planning

    def _replay(self, clock: DomainClock) -> None:
        """Submits again what did not complete, unchanged, as far as the window admits its time."""
        ticks: dict[int, list[Reading]] = {}
        skipped: Counter[int] = Counter()
        for reading in self.ledger.incomplete():
            if reading.generation == self.generation:
                ticks.setdefault(reading.tick, []).append(reading)
            else:
                skipped[reading.generation] += 1
        for generation, number in skipped.items():
            say(f"REPLAY skipped generation={generation} readings={number}")
        for tick, readings in ticks.items():
            admissible = [reading for reading in readings if clock.admits(reading.occurred_at)]
            if len(admissible) < len(readings):
                say(f"REPLAY expired tick={tick} readings={len(readings) - len(admissible)}")
            if admissible:
                say(f"REPLAY tick={tick} readings={len(admissible)}")
                self._submit(tick, admissible, lambda: True, again=True)

    def _plan(self, clock: DomainClock, replay: bool) -> None:
        """Submits what is to be replayed, and then at the next centers of the clock."""
        center = self._first_center(clock)
        planned = 0
        while replay or planned < self.options.ticks:
            try:
                if replay:
                    replay = False
                    self._replay(clock)
                    center = self._first_center(clock)
                    continue
                if not clock.sleep_until(center, cancel=self.cancel):
                    clock = self._same_generation()
                    continue
                planned += 1
                self._tick(clock, center, planned)
                assert clock.pacing is not None
                center += clock.pacing.period
            except GenerationOver as over:
                clock = self._next_generation(over)
                center = self._first_center(clock)
            except nervix_ffi.CancelledError:
                self._check()
                raise

    def _first_center(self, clock: DomainClock) -> int:
        window = clock.admission_window()
        assert window is not None
        assert clock.pacing is not None
        return window[1] + clock.pacing.period

    def _same_generation(self) -> DomainClock:
        """The clock after a change of it. Raises GenerationOver when another generation runs, or none."""
        clock = self._watch.read()
        if clock is None:
            raise GenerationOver("domain_removed")
        if not clock.paced:
            raise GenerationOver("domain_stopped")
        if clock.generation != self.generation:
            raise GenerationOver("generation_changed")
        return clock

    def _next_generation(self, over: GenerationOver) -> DomainClock:
        """Waits for the next START and opens everything again. Raises GenerationOver when that is not wanted, or does not come."""
        while self.options.follow_generations:
            old = self.generation
            clock = self._watch.paced(old, self.options.deadline)
            if clock is None:
                break
            with self.changed:
                self.generation = clock.generation
                self.changed.notify_all()
            try:
                self._await_workers()
                self._producer = self._open_producer()
            except GenerationOver:
                continue
            say(f"REOPENED generation={self.generation} ingestor={self._producer.name} after={over}")
            self._ready()
            return clock
        raise over

    def _tick(self, clock: DomainClock, center: int, planned: int) -> None:
        options, pacing, window = self.options, clock.pacing, clock.admission_window()
        assert pacing is not None
        assert window is not None
        tick = (center - pacing.logical_origin) // pacing.period + 1
        readings = [
            Reading(
                reading_id=f"g{self.generation}-t{tick}-s{sensor}-{burst}",
                generation=self.generation,
                tick=tick,
                sensor=f"sensor-{sensor}",
                occurred_at=center,
                value=self.generation * 1_000_000 + tick * 100 + sensor * 10 + burst,
            )
            for sensor in range(options.sensors)
            for burst in range(options.burst)
        ]
        invalid = bool(options.invalid_every) and planned % options.invalid_every == 0
        if invalid:
            first = readings[0]
            readings[0] = Reading(
                first.reading_id, first.generation, tick, first.sensor, window[0] - pacing.skew - 1, first.value
            )
        say(f"SUBMIT tick={tick} occurred_at={time_text(center)} window={time_text(window[0])}..{time_text(window[1])}")

        def held() -> bool:
            now = clock.admission_window()
            return now is not None and now[0] <= center <= now[1]

        self._submit(tick, readings, held, refused={readings[0].reading_id} if invalid and options.timestamps == "at" else set())
        if isinstance(options.inspect_every, int):
            if planned % options.inspect_every == 0:
                self._inspect()
        elif options.inspect_every is not None and time.monotonic() >= self._next_inspection:
            self._next_inspection = time.monotonic() + options.inspect_every
            self._inspect()

    def _submit(
        self,
        tick: int,
        readings: Sequence[Reading],
        held: Callable[[], bool],
        *,
        refused: set[str] | None = None,
        again: bool = False,
    ) -> None:
        """Submits readings as one batch once there is credit, unless their center is no longer held by then."""
        rows = [reading.row() for reading in readings]
        noted = again
        while True:
            producer = self._producer
            assert producer is not None
            with producer.batch(rows) as batch:
                size = len(batch.ipc)
                if size > min(producer.grant.bytes, producer.grant.max_batch_bytes):
                    raise Unusable(f"a tick's readings take {size} bytes, more than one batch may have")
                try:
                    self._await_credit(producer, size)
                    if not held():
                        say(f"SKIPPED tick={tick} reason=behind_admission_window")
                        return
                    if not noted:
                        self.ledger.submitting(readings, self.options.ingestor, self.options.timestamps)
                        noted = True
                    submission = producer.submit(batch, cancel=self.cancel)
                except nervix_ffi.ReopenRequiredError as failure:
                    try:
                        self._reopen_producer(failure)
                    except GenerationOver:
                        self._not_sent(tick, readings, noted)
                        raise
                    continue
                except KeyboardInterrupt:
                    # The signal may have come right after the batch was taken.
                    taken = [one for one in producer.pending() if one not in self._outstanding]
                    if not taken:
                        self._not_sent(tick, readings, noted)
                        raise
                    self._submitted(tick, readings, size, taken[0], refused or set())
                    raise
                self._submitted(tick, readings, size, submission, refused or set())
                return

    def _await_credit(self, producer: Producer, size: int) -> None:
        with self.changed:
            told = False
            while True:
                held = [taken for one, taken in self._outstanding.items() if one.producer is producer]
                if len(held) < producer.grant.batches and sum(held) + size <= producer.grant.bytes:
                    return
                if not told:
                    told = True
                    self.counts["credit_waits"] += 1
                    say(f"WAITING credit outstanding_batches={len(held)} outstanding_bytes={sum(held)}")
                self.wait()

    def _submitted(self, tick: int, readings: Sequence[Reading], size: int, submission: Submission, refused: set[str]) -> None:
        say(f"SUBMITTED tick={tick} readings={len(readings)} bytes={size}")
        with self.changed:
            self._outstanding[submission] = size
            held = sum(self._outstanding.values())
            self.counts["readings"] += len(readings)
            self.counts["peak_outstanding_bytes"] = max(self.counts["peak_outstanding_bytes"], held)
        take = self.guarded(lambda: self._take_outcome(tick, readings, submission, refused))
        threading.Thread(target=take, name=f"outcome {submission.identity}", daemon=True).start()

    def _take_outcome(self, tick: int, readings: Sequence[Reading], submission: Submission, refused: set[str]) -> None:
        outcome: SubmissionOutcome = submission.result(check=False)
        result = word(outcome.result)
        causes = [
            word(cause) for cause in (outcome.refusal, outcome.defect, outcome.failure, outcome.uncertainty) if cause is not None
        ]
        self.ledger.ended(readings, result, " ".join(causes) or None)
        say(" ".join([f"OUTCOME tick={tick} readings={len(readings)} {result}", *causes]))
        with self.changed:
            if outcome.completed:
                self._rejections_expected |= refused
            self.counts[result] += len(readings)
            del self._outstanding[submission]
            self.changed.notify_all()

    def _not_sent(self, tick: int, readings: Sequence[Reading], noted: bool) -> None:
        if noted:
            self.ledger.ended(readings, "not_admitted", "not_sent")
        say(f"OUTCOME tick={tick} readings={len(readings)} not_admitted not_sent")
        self.count("readings", len(readings))
        self.count("not_admitted", len(readings))

    def _reopen_producer(self, failure: nervix_ffi.ReopenRequiredError) -> None:
        """Opens the producer again in the running generation. The old handle stays for its outcomes."""
        if failure.reason in GENERATION_REASONS:
            raise GenerationOver(GENERATION_REASONS[ReopenReason(failure.reason)])
        self._producer = self._open_producer()
        if self._producer.generation != self.generation:
            raise GenerationOver("generation_changed")
        say(f"REOPENED generation={self.generation} ingestor={self._producer.name} reason={word(failure.reason)}")

    def _inspect(self) -> None:
        """Prints what the server says about the endpoints."""
        options = self.options
        ingestor = self._described(f"INGESTOR {options.ingestor}")
        emitter = self._described(f"EMITTER {options.emitter}")
        self.count("inspections")
        shown = ("source", "schema", "owner", "status", "admission", "producers", "outstanding_batches", "outstanding_bytes")
        say(" ".join([f"INSPECT {options.ingestor}", *(f"{key}={ingestor.get(key)}" for key in (*shown, "admitted_batches"))]))
        retained = (f"{key}={emitter.get(key)}" for key in ("consumers", "retained_batches"))
        say(" ".join([f"INSPECT emitter={options.emitter}", *retained]))

    def _described(self, what: str) -> dict[str, str]:
        message = self.session.execute(f"DESCRIBE {what};", timeout=PATIENCE).message
        pairs = (line.partition(":") for line in message.splitlines())
        return {key.strip().replace(" ", "_"): value.strip() for key, _, value in pairs}

    # ---- the end

    def _finish(self) -> int:
        """Waits for outcomes and notices, closes everything, prints the summary, and returns the exit status."""
        deadline = time.monotonic() + self.options.deadline
        with self.changed:
            while self._outstanding and (remaining := deadline - time.monotonic()) > 0:
                self.wait(remaining)
            outstanding = len(self._outstanding)
            told = None
            while (missing := self._rejections_expected - self._rejections_seen) and (
                remaining := deadline - time.monotonic()
            ) > 0:
                if told != len(missing):
                    told = len(missing)
                    say(f"WAITING notices outstanding={told}")
                self.wait(remaining)
            if missing:
                say(f"NOTICES missing={len(missing)}")
        self._close()
        say(" ".join(["SUMMARY", *(f"{name}={self.counts[name]}" for name in SUMMARY)]))
        if outstanding or missing:
            what = f"{outstanding} outcomes" if outstanding else f"{len(missing)} notices"
            sys.stderr.write(f"error: {what} were outstanding at the deadline\n")
            return 1
        return 0 if self.counts["completed"] == self.counts["readings"] else 3

    def _close(self) -> None:
        """Closes producer, consumers and clock; again is a no-op."""
        if self._producer is not None:
            with contextlib.suppress(nervix_ffi.Error):
                self._producer.close(timeout=0 if self._outstanding else PATIENCE)
            self._producer = None
        for worker in self._workers:
            worker.close()
        self._workers = []
        self._watch.detach()


def reading_effects(consumer: Consumer, rows: list[Any]) -> list[Any]:
    """The effects of observed readings."""
    return [
        {
            "kind": "reading",
            **{name: row[name] for name in ("reading_id", "sensor", "tick")},
            **{name: time_text(row[name]) for name in ("occurred_at", "admitted_at")},
            **{name: row[name] for name in ("timestamp_source", "value")},
            "generation": consumer.generation,
        }
        for row in rows
    ]


def rejection_effects(_: Consumer, rows: list[Any]) -> list[Any]:
    """The effects of notices about refused readings."""
    return [
        {
            "kind": "rejection",
            "reading_id": row["reading_id"],
            "occurred_at": time_text(row["occurred_at"]),
            "error_code": row["error_code"],
            "error_message": row["error_message"],
        }
        for row in rows
    ]
