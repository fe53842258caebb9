"""Sessions: subscriptions, clocks, producers, consumers, completion.

Owns what goes over a session beside its commands. Must not know how those are run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, MutableSequence
from decimal import Decimal
from functools import partial
from typing import TYPE_CHECKING, Literal

from nervix_ffi._clockpump import ClockPump
from nervix_ffi._commands import Commands
from nervix_ffi._endpoint import open_endpoint
from nervix_ffi._handle import TOKEN, Handle, blocking
from nervix_ffi._library import lib
from nervix_ffi._native import Out, encode, optional
from nervix_ffi._pump import Pump
from nervix_ffi._unbroken import Release
from nervix_ffi.cancel import MOMENT, Cancel, Limit
from nervix_ffi.clock import Clock, DomainClock, read_clock
from nervix_ffi.clock_events import ClockEvent
from nervix_ffi.completion import Suggestions, read_suggestions
from nervix_ffi.consumer import CONSUMER, Consumer
from nervix_ffi.enums import StatementKind
from nervix_ffi.errors import (
    CommandFailed,
    InvalidArgumentError,
)
from nervix_ffi.events import Event
from nervix_ffi.execution import Execution
from nervix_ffi.fields import FieldsLike
from nervix_ffi.outcome import Outcome
from nervix_ffi.producer import PRODUCER, Producer
from nervix_ffi.subscription import Subscription, subscribe_statement

if TYPE_CHECKING:
    from nervix_ffi._ffi import CData

__all__ = ["Session"]


#: What a producer or a consumer asks for unless told otherwise: batches outstanding, and bytes of their IPC streams.
DEFAULT_BATCHES = 16
DEFAULT_BYTES = 8 * 1024 * 1024


class Session(Commands):
    """A session with a Nervix cluster. Made by ``connect``.

    Usable from several threads; its commands run one after the other. No session of the server survives the loss of its connection:
    the object opens another one, recovers commands under their reference, and opens subscriptions again with a gap reported. Nothing
    is rolled back by closing it.

    Its memory is bounded whatever the server sends and whoever reads nothing (C-7, S-8): events that were not read take 128 events and
    8 MiB a subscription (or one event of up to 12 MiB) and 64 MiB a session, and of each followed clock the newest of each kind waits;
    2 MiB are on their way, and a frame of up to 4 MiB is put together from its pieces; replies in parts take 64 MiB each and 256 MiB
    together, and once read, one that says the same many times in few bytes (F-3 lets it, eightfold) may take some 25 times its size.
    What waits to be sent is bounded by the 64 requests in flight and by the credit of each producer. Where one reader reads past
    what another subscription's is to have, 1024 events and 16 MiB of frames and texts more wait for that one.
    """

    def __init__(self, pointer: CData, domain: str | None = None) -> None:
        super().__init__(Handle("session", pointer), domain)
        self._pump = Pump(partial(_read, self._handle, lib.nx_session_next_event, "nx_event", lib.nx_event_release))
        self._clocks = ClockPump(
            partial(_read, self._handle, lib.nx_session_next_clock_event, "nx_clock_event", lib.nx_clock_event_release)
        )

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Session {'closed' if self.closed else 'open'}>"

    @property
    def closed(self) -> bool:
        """Whether it was closed, or belongs to the process that this one was forked from."""
        return self._handle.closed

    def close(self) -> None:
        """Closes the session; calls that wait in it raise ClosedError. Never waits; closing again does nothing.

        What was read from it stays valid. Producers, consumers and deliveries go on, and keep the connection until the last of
        them is released.
        """
        self._handle.close()
        self._pump.close()
        self._clocks.close()

    def _note(self, execution: Execution) -> None:
        kind, domain = execution._statement.kind, execution.domain
        if kind == StatementKind.UNSUBSCRIBE:
            self._pump.deleted(execution._statement.name)
        # Unless another thread had it attached again meanwhile.
        if kind == StatementKind.DETACH_CLOCK and domain is not None and not self._follows(domain):
            self._clocks.forget(domain)
        super()._note(execution)

    # ---- subscriptions

    def subscribe(
        self,
        source: str,
        *,
        where: str | None = None,
        name: str | None = None,
        delivery: Literal["BLOCKING", "DROPPING"] | None = None,
        sample_rate: float | Decimal | None = None,
        timeout: float | None = None,
        cancel: Cancel | None = None,
    ) -> Subscription:
        """Subscribes to a relay of the selected domain.

        ``source`` is the relay's name, or a whole CREATE SUBSCRIPTION statement, which goes without the other options. ``where``
        is the condition that rows must meet, as a statement spells it; ``name`` the subscription's name, unique in the session
        (made up when absent); ``delivery`` BLOCKING to hold the relay back when reading is slow, DROPPING (the server's default)
        to lose rows instead, reported; ``sample_rate`` the share of batches to take, above 0 and up to 1. ``timeout`` is in
        seconds. Rows that passed before it opened, or while it is interrupted, are not delivered. Raises CommandFailed when
        the server refuses, and whatever ``Execution.run`` raises. After UncertainError, DeadlineError, CancelledError or Ctrl-C it
        may be open: ``session.subscription(error.execution.run())`` has it.
        """
        statement = subscribe_statement(source, where=where, name=name, delivery=delivery, sample_rate=sample_rate)
        since = self._pump.sorted() if not self._pump.inherited else 0
        outcome = self.execute(statement, timeout=timeout, cancel=cancel)
        return self._subscription(outcome, since)

    def subscription(self, outcome: Outcome) -> Subscription:
        """The subscription that a command of this session opened, from its outcome.

        For a CREATE SUBSCRIPTION that was run as a command: the ``execution`` of a ``subscribe`` that was given up, run again.
        Take it before the session's events are read past it, and once: two objects of one subscription take each other's events.
        Raises InvalidArgumentError for an outcome that tells of none.
        """
        return self._subscription(outcome, 0)

    def _subscription(self, outcome: Outcome, since: int) -> Subscription:
        if outcome.subscription is None or outcome.schema is None:
            raise InvalidArgumentError("the command opened no subscription")
        return Subscription(self, outcome.subscription.name, outcome.subscription.generation, outcome.schema, since)

    def next_event(self, *, timeout: float | None = None, cancel: Cancel | None = None) -> Event:
        """The next event of any subscription that is not read through its Subscription object.

        A Subscription takes its events from here from the first time that it is read. Waits through losses of the connection.
        Raises DeadlineError after ``timeout`` seconds (0 takes what has arrived), CancelledError, or ClosedError.
        """
        event = self._pump.next(self._pump.unclaimed, Limit(timeout, cancel, MOMENT))
        assert event is not None, "the channel of the session itself is never over"
        return event

    def events(self, *, cancel: Cancel | None = None) -> Iterator[Event]:
        """The events that ``next_event`` returns, without end; raises what it raises."""
        while True:
            yield self.next_event(cancel=cancel)

    # ---- clocks

    def _follows(self, domain: str | None) -> bool:
        return domain is not None and self.domain_clock(domain) is not None

    def attach_clock(self, domain: str | None = None, *, timeout: float | None = None, cancel: Cancel | None = None) -> Clock:
        """Follows the clock of a domain (the selected one, unless named) and returns it, ready to be read (B-11).

        A clock that the session follows already is returned without asking. Several at once are fine, one of each domain. After
        DeadlineError or CancelledError call it again. Raises CommandFailed when the server refuses, and whatever ``execute`` raises.
        """
        limit = Limit(timeout, cancel)
        self._settle(limit)
        name = self._named(domain, "a clock")
        if not self._follows(name):
            try:
                self._in_domain(name, "ATTACH DOMAIN CLOCK;", limit, check=True)
            except CommandFailed:
                # An attach that an earlier call gave up waiting for may have taken effect meanwhile.
                if not self._follows(name):
                    raise
        return Clock(self, name)

    def domain_clock(self, domain: str | None = None) -> DomainClock | None:
        """The clock of a domain (the selected one, unless named) as the session knows it now; None when it follows none.

        Never waits. It is never older than an event that was read. Raises InvalidArgumentError for what is no name of a domain.
        """
        return read_clock(self, self._named(domain, "a clock"))

    def next_clock_event(self, *, timeout: float | None = None, cancel: Cancel | None = None) -> ClockEvent:
        """The next event of any followed clock that is not read through its Clock object.

        A session that follows none waits. Raises DeadlineError after ``timeout`` seconds (0 takes what has arrived), CancelledError,
        or ClosedError.
        """
        event = self._clocks.next(self._clocks.unclaimed, Limit(timeout, cancel, MOMENT))
        assert event is not None, "the queue of the session itself is never over"
        return event

    def clock_events(self, *, cancel: Cancel | None = None) -> Iterator[ClockEvent]:
        """The events that ``next_clock_event`` returns, without end; raises what it raises."""
        while True:
            yield self.next_clock_event(cancel=cancel)

    # ---- producers and consumers

    def open_producer(
        self,
        ingestor: str,
        fields: FieldsLike,
        *,
        domain: str | None = None,
        credit_batches: int = DEFAULT_BATCHES,
        credit_bytes: int = DEFAULT_BYTES,
        timeout: float | None = None,
        cancel: Cancel | None = None,
    ) -> Producer:
        """Opens a producer of a client ingestor in a domain (the selected one, unless named).

        ``fields`` are exactly those that are expected of it, in order (B-12): Fields, a text like
        ``"id U32, tags VEC<STRING> OPTIONAL, secret STRING SENSITIVE"``, types by name, or an Arrow schema. ``credit_batches`` (up
        to 1,024) and ``credit_bytes`` (up to 32 MiB, of Arrow IPC streams) are asked for. Raises OpenRefused with a ``refusal`` when
        the server refuses, also while the session holds a transaction; InvalidArgumentError for malformed fields or credit;
        DeadlineError after ``timeout`` seconds, CancelledError, TransportError or ProtocolError when the session ended before it was
        answered, or ClosedError.
        """
        limit = Limit(timeout, cancel)
        self._settle(limit)
        scope = self._named(domain, "an ingestor")
        return Producer(
            self, scope, ingestor, open_endpoint(PRODUCER, self, scope, ingestor, fields, credit_batches, credit_bytes, limit)
        )

    def open_consumer(
        self,
        emitter: str,
        fields: FieldsLike,
        *,
        domain: str | None = None,
        credit_batches: int = DEFAULT_BATCHES,
        credit_bytes: int = DEFAULT_BYTES,
        settle: Literal["manual", "auto"] = "manual",
        timeout: float | None = None,
        cancel: Cancel | None = None,
    ) -> Consumer:
        """Opens a consumer of a client emitter in a domain (the selected one, unless named).

        ``fields`` and credit as for ``open_producer``; ``credit_bytes`` must hold one batch of the emitter's maximum. With
        ``settle="auto"`` the ``with`` block of a delivery acknowledges it, or retries it when the block raises; by default nothing
        is settled by itself. Raises what ``open_producer`` raises.
        """
        if settle not in ("manual", "auto"):
            raise InvalidArgumentError(f"settle is 'manual' or 'auto', not {settle!r}")
        limit = Limit(timeout, cancel)
        self._settle(limit)
        scope = self._named(domain, "an emitter")
        return Consumer(
            self,
            scope,
            emitter,
            open_endpoint(CONSUMER, self, scope, emitter, fields, credit_batches, credit_bytes, limit),
            settle,
        )

    # ---- completion

    def suggest(
        self,
        text: str,
        cursor: int | None = None,
        *,
        page_size: int = 20,
        continuation: str | None = None,
        timeout: float | None = None,
        cancel: Cancel | None = None,
    ) -> Suggestions:
        """Completions of ``text`` at ``cursor``, a position in characters (its end when absent).

        ``page_size`` is 1 to 100; ``continuation`` comes from the page before. Raises InvalidArgumentError for a cursor outside of the
        text or another page size.
        """
        data = encode(text, "the text to complete")
        at = len(text) if cursor is None else cursor
        for value, what in ((at, "cursor"), (page_size, "page_size")):
            if isinstance(value, bool) or not isinstance(value, int):
                raise TypeError(f"{what} is an int, not {type(value).__name__}")
        if not 0 <= at <= len(text):
            raise InvalidArgumentError(f"the cursor {at} is outside of the text, which has {len(text)} characters")
        if not 1 <= page_size <= 100:
            raise InvalidArgumentError(f"a page has 1 to 100 completions, not {page_size}")
        token_text, token_len = optional(continuation, "the continuation")
        offset = len(text[:at].encode("utf-8"))
        with Out("nx_suggestions", lib.nx_suggestions_free) as out:
            blocking(
                self._handle,
                lib.nx_session_suggest,
                Limit(timeout, cancel),
                *(data, len(data), offset, page_size, token_text, token_len, TOKEN, out.place),
            )
            return read_suggestions(out.pointer, text)


def _read(
    handle: Handle,
    function: Callable[..., CData],
    c_type: str,
    release: Release,
    limit: Limit,
    landed: MutableSequence[CData],
) -> None:
    """Waits for something that a session reports, and puts it into ``landed``."""
    with Out(c_type, release, landed) as out:
        blocking(handle, function, limit, TOKEN, out.place, out=out)
