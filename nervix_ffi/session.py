"""Sessions: connecting, commands, subscriptions, clocks, producers, consumers, completion."""

from __future__ import annotations

import os
import re
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, MutableSequence
from contextlib import suppress
from dataclasses import replace
from decimal import Decimal
from functools import partial
from typing import TYPE_CHECKING, Literal

from nervix_ffi._clockpump import ClockPump
from nervix_ffi._endpoint import open_endpoint
from nervix_ffi._handle import TOKEN, Handle, blocking
from nervix_ffi._library import extension, ffi, lib, library
from nervix_ffi._native import NULL, Out, check, encode, optional, read_text
from nervix_ffi._pump import Pump
from nervix_ffi._told import inline
from nervix_ffi._unbroken import Release, ending, own
from nervix_ffi.cancel import MOMENT, Cancel, Limit
from nervix_ffi.clock import Clock, DomainClock, read_clock
from nervix_ffi.clock_events import ClockEvent
from nervix_ffi.completion import Suggestions, read_suggestions
from nervix_ffi.consumer import CONSUMER, Consumer
from nervix_ffi.enums import Disposition, TransactionState
from nervix_ffi.errors import (
    CancelledError,
    ClosedError,
    CommandFailed,
    CommandNotCompleted,
    ConnectError,
    DeadlineError,
    Error,
    InvalidArgumentError,
    ReferenceExpired,
    RejectedError,
    TransportError,
    UncertainError,
    UnsupportedError,
)
from nervix_ffi.events import Event
from nervix_ffi.fields import FieldsLike
from nervix_ffi.outcome import Outcome, TransactionPreview, TransactionStatus, read_outcome
from nervix_ffi.producer import PRODUCER, Producer
from nervix_ffi.subscription import Subscription, statement_of, subscribe_statement
from nervix_ffi.transaction import END, Transaction, nothing, transaction_error

if TYPE_CHECKING:
    from nervix_ffi._ffi import CData

__all__ = ["Execution", "Session", "connect"]

#: Statements that move something the session has to know of: the selected domain, and the clocks it follows.
_USE = re.compile(r"\s*USE\s+([^\s;]+)\s*;?\s*", re.IGNORECASE)
_BEGIN = re.compile(r"\bBEGIN\b", re.IGNORECASE)
_ATTACH = re.compile(r"\s*ATTACH\s+DOMAIN\s+CLOCK\s*;?\s*", re.IGNORECASE)
_DETACH = re.compile(r"\s*DETACH\s+DOMAIN\s+CLOCK\s*;?\s*", re.IGNORECASE)

_DELETE = re.compile(r"\s*DELETE\s+SUBSCRIPTION\s+(\w+)\s*;?\s*", re.IGNORECASE)

#: What a producer or a consumer asks for unless told otherwise: batches outstanding, and bytes of their IPC streams.
DEFAULT_BATCHES = 16
DEFAULT_BYTES = 8 * 1024 * 1024

#: How long going back to the selected domain may take, in seconds; nothing is asked of a server for it.
SELECT_PATIENCE = 10.0

#: How often a call that waits for another thread to finish a transaction looks at its own limit, in seconds.
SETTLE_LOOK = 0.02

#: How long a command waits for another thread's call to say that it has begun a transaction, and how often it looks, in seconds.
OUTSIDE_PATIENCE, OUTSIDE_LOOK = 2.0, 0.001


class Execution:
    """One logical command: its text, the domain selected when it was prepared, and its reference.

    Running it again recovers what it did instead of doing it twice. After UncertainError, CancelledError or DeadlineError run the
    same object again; a new one for the same text is another command (B-1).
    """

    def __init__(
        self, session: Session, query: str, domain: str | None, pointer: CData, transaction: Transaction | None = None
    ) -> None:
        self._session = session
        #: The transaction that it is of, or that was under way when it was prepared.
        self._transaction: Callable[[], Transaction | None] = nothing if transaction is None else weakref.ref(transaction)
        self._handle = Handle("execution", pointer)
        self.query = query
        #: Whether the session took note of its completion.
        self._noted = False
        #: The domain that it is of: the one that was selected when it was prepared, as far as ``connect`` and USE told.
        self.domain = domain
        self.reference = read_text(lambda place, size: lib.nx_execution_reference(pointer, place, size))

    def __repr__(self) -> str:
        return f"<Execution {self.reference} of {self.query!r}>"

    def __enter__(self) -> Execution:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def release(self) -> None:
        """Lets go of it. Running it afterwards raises ClosedError."""
        self._handle.close()

    def run(self, *, timeout: float | None = None, cancel: Cancel | None = None, check: bool = True) -> Outcome:
        """Runs the command, or recovers what it did, and returns its outcome.

        ``timeout`` is in seconds. With ``check``, an outcome that is not COMPLETED is raised: CommandFailed for FAILED,
        UncertainError for OUTCOME_UNKNOWN, its ReferenceExpired for EXECUTION_REFERENCE_EXPIRED, CommandNotCompleted for any other.
        Raises UncertainError, DeadlineError or CancelledError when the command may have happened (the error names ``reference``
        and carries this ``execution``), ClosedError, ConnectError, TransportError, RejectedError or ProtocolError.
        KeyboardInterrupt, or what another signal's handler raises, gets the same two attributes.
        """
        return self._session._run(self, Limit(timeout, cancel), check)


class Session:
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
        self._handle = Handle("session", pointer)
        self._pump = Pump(partial(_read, self._handle, lib.nx_session_next_event, "nx_event", lib.nx_event_release))
        self._clocks = ClockPump(
            partial(_read, self._handle, lib.nx_session_next_clock_event, "nx_clock_event", lib.nx_clock_event_release)
        )
        self._domain = domain
        #: The transaction that is under way, if it was begun as an object.
        self._transaction: Callable[[], Transaction | None] = nothing
        #: The domain of the transaction that was begun as an object and is not known to be over, whether anybody keeps that or not.
        self._held_domain: str | None = None
        #: That transaction's identity, if it is of a block, which is to be ended when nobody keeps it.
        self._held_block: TransactionStatus | None = None
        #: The transactions whose blocks ended before they did, the oldest first.
        self._unsettled: list[Transaction] = []
        #: Who wants to finish them, the one whose turn it is first: a mark of the call, and its thread.
        self._settlers: dict[object, int] = {}
        #: Calls of BEGIN that go on right now.
        self._beginnings: dict[object, None] = {}
        #: Transactions that somebody keeps, and that may have begun.
        self._asked: weakref.WeakSet[Transaction] = weakref.WeakSet()
        #: Whether BEGIN was ever called as a plain command: then what the session holds is known to the host alone.
        self._plain_begin = False
        #: Held while a command is prepared, and all the while in which another domain is selected for one.
        self._selecting = threading.RLock()

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

    @property
    def domain(self) -> str | None:
        """The domain of later commands: that of the transaction under way, or what ``connect``, ``use`` or USE selected."""
        return self._held_domain or self._domain

    def close(self) -> None:
        """Closes the session; calls that wait in it raise ClosedError. Never waits; closing again does nothing.

        What was read from it stays valid. Producers, consumers and deliveries go on, and keep the connection until the last of
        them is released.
        """
        self._handle.close()
        self._pump.close()
        self._clocks.close()

    # ---- commands

    def prepare(
        self,
        query: str,
        *,
        reference: str | None = None,
        position: int | None = None,
        preview: TransactionPreview | None = None,
        timeout: float | None = None,
        cancel: Cancel | None = None,
    ) -> Execution:
        """Fixes a command: its text, the selected domain and a new reference. Sends nothing.

        With ``reference``, that of a command of an earlier session, running it recovers what that one did (E-3): text, selected
        domain, ``preview`` and ``position`` must be the same; ``position`` is the transaction position that it was sent with, the
        accepted operations before it, absent outside a transaction (E-2). ``preview`` goes with COMMIT. Raises InvalidArgumentError
        for an empty text, one that has no UTF-8, or a reference that is no UUIDv7; UnsupportedError when the library lacks the
        ``transactions`` extension and any of the three is given.
        """
        if isinstance(query, str) and _BEGIN.search(query):
            self._plain_begin = True
        return self._prepare(query, Limit(timeout, cancel), reference, position, preview)

    def execute(self, query: str, *, timeout: float | None = None, cancel: Cancel | None = None, check: bool = True) -> Outcome:
        """Prepares a command and runs it: see ``Execution.run``. An error's ``execution`` is the command to run again."""
        if isinstance(query, str) and _BEGIN.search(query):
            self._plain_begin = True
        return self._execute(query, Limit(timeout, cancel), check)

    def _execute(self, query: str, limit: Limit, check: bool, transaction: Transaction | None = None) -> Outcome:
        """Prepares a command and runs it, in the transaction if one is given."""
        self._settle(limit)
        execution = self._prepare(query, limit, transaction=transaction)
        outcome = self._carry_out(execution, limit, check)
        execution.release()
        return outcome

    def use(self, domain: str, *, timeout: float | None = None, cancel: Cancel | None = None) -> Outcome:
        """Selects the domain of later commands."""
        if not isinstance(domain, str):
            raise TypeError(f"domain is the name of a domain (str), not {type(domain).__name__}")
        return self.execute(f"USE {domain};", timeout=timeout, cancel=cancel)

    def transaction(
        self, domain: str | None = None, *, timeout: float | None = None, cancel: Cancel | None = None
    ) -> Transaction:
        """A transaction of a domain (the selected one, unless named), for a ``with`` block.

        The block commits at its end, and reverts when it raises; see Transaction. ``timeout`` (seconds) and ``cancel`` bound its begin
        and the commit at its end, each. A domain that is named is selected until the transaction is over, and stays so if none was
        selected before.
        """
        return Transaction(self, self._named(domain, "a transaction"), timeout, cancel)

    def _prepare(
        self,
        query: str,
        limit: Limit,
        reference: str | None = None,
        position: int | None = None,
        preview: TransactionPreview | None = None,
        transaction: Transaction | None = None,
    ) -> Execution:
        data = encode(query, "the command")
        held = transaction or self._transaction()
        plain = reference is None and position is None and preview is None
        if not plain and not extension("transactions"):
            raise UnsupportedError(
                f"a given reference, position or preview needs a library with the transactions extension, which {library().path} lacks"
            )
        if position is not None and (not isinstance(position, int) or isinstance(position, bool)):
            raise TypeError(f"position is a number of operations (int), not {type(position).__name__}")
        if position is not None and not 0 <= position < 2**64:
            raise InvalidArgumentError(f"position is a number of operations, 0 or more; {position} is not")
        if preview is not None and not isinstance(preview, TransactionPreview):
            raise TypeError(f"preview is a TransactionPreview, as tx.preview, not {type(preview).__name__}")
        known, known_len = optional(reference, "the reference")
        place = NULL if position is None else ffi.new("uint64_t *", position)
        shown = TransactionPreview("", 0, b"") if preview is None else preview
        name, name_len = optional(None if preview is None else shown.transaction, "the preview's transaction")
        basis = NULL if preview is None else shown.basis

        self._handle.check()  # Before the lock, which a child of a fork may have inherited taken.
        with self._selecting, Out("nx_execution", lib.nx_execution_free) as out:
            limits = _unless_over(limit)
            scope = self.domain if held is None else held.domain
            if plain and extension("domains"):
                # Whatever the library has selected by now: what is named here is what a caller was told.
                self._prepare_as(scope, self._bound(query, held, transaction), data, limit, out)
            elif plain:
                blocking(self._handle, lib.nx_session_prepare, limits, data, len(data), TOKEN, out.place)
            else:
                blocking(
                    self._handle,
                    lib.nxx_session_prepare,
                    limits,
                    data,
                    len(data),
                    known,
                    known_len,
                    place,
                    name,
                    name_len,
                    shown.position,
                    basis,
                    len(shown.basis),
                    TOKEN,
                    out.place,
                )
            return Execution(self, query, scope, out.take(), held)

    def _prepare_as(self, domain: str | None, transaction: str | None, query: bytes, limit: Limit, out: Out) -> None:
        """Has the library prepare a command of a domain, or of the one that it has selected, and of one transaction alone if named."""
        scope, scope_len = optional(domain, "the domain")
        bound, bound_len = optional(transaction, "the transaction")
        arguments = (scope, scope_len, bound, bound_len, query, len(query), TOKEN, out.place)
        blocking(self._handle, lib.nxx_session_prepare_in, _unless_over(limit), *arguments)

    def _bound(self, query: str, held: Transaction | None, transaction: Transaction | None) -> str | None:
        """The transaction outside of which a command must not take effect: one that it was called for or ends, or one of another
        domain, where nobody wants it once that is over.
        """
        if held is None:
            return None
        wanted = transaction is not None or held.domain != self._domain or END.fullmatch(statement_of(query))
        return held.id if wanted else None

    def _run(self, execution: Execution, limit: Limit, check: bool) -> Outcome:
        self._settle(limit, execution)
        return self._carry_out(execution, limit, check)

    def _settle(self, limit: Limit, execution: Execution | None = None) -> None:
        """Finishes the transactions that blocks left behind, so that what comes next does not become part of one.

        Raises TransportError, DeadlineError, CancelledError or ClosedError when it cannot: then nothing else was sent.
        """
        self._handle.check()
        if self._held_block is not None and self._transaction() is None:
            # A signal came before its block could end it, and nobody has it any more.
            self._unsettled.append(Transaction._left_behind(self, self._held_block))
            self._held_domain = self._held_block = None
        # What comes while a transaction is under way is part of that one, and the library holds no other.
        if not self._unsettled or self._held_domain is not None or limit.is_over():
            return
        thread = threading.get_ident()
        if thread in list(self._settlers.values()):
            # Called by a signal's handler in the middle of it.
            raise _not_sent(self._unsettled[0], None, execution)
        mark = object()
        # Given back in C: a signal may arrive anywhere.
        with ending(map(self._settlers.pop, (mark,), (None,))):
            self._settlers[mark] = thread
            while next(iter(list(self._settlers))) is not mark:
                if limit.is_over():
                    return
                time.sleep(SETTLE_LOOK)
            if execution is None or not any(left._asks(execution) for left in self._unsettled):
                self._settle_all(limit, execution)

    def _settle_all(self, limit: Limit, execution: Execution | None) -> None:
        """Finishes one after the other. The library says of some only what became of them once another one is over."""
        problem: tuple[Transaction, Error | None] | None = None
        waiting = list(self._unsettled)
        while waiting:
            left = waiting.pop(0)
            before = len(self._unsettled)
            try:
                left._settle(limit)
            except Error as failure:
                problem = (left, failure)
            except BaseException as interruption:
                if execution is not None:
                    _remember(interruption, execution, sent=False)
                raise
            else:
                if not left._settled:
                    problem = problem or (left, None)
            self._unsettled[:] = [one for one in self._unsettled if not one._settled]
            if len(self._unsettled) < before and problem is not None:
                waiting, problem = list(self._unsettled), None
        if problem is not None:
            left, cause = problem
            try:
                raise _not_sent(left, cause, execution) from cause
            finally:
                # Whose traceback has this frame: the two would wait for the garbage collector.
                del problem, cause

    def _execute_in_place(self, execution: Execution, limit: Limit, out: Out, aside: bool) -> bool:
        """Makes the call, so that a command of no transaction does not become part of one that the host does not know of. Whether
        the call was resumed after a signal.
        """
        plain = not extension("outside") or self._plain_begin or aside or END.fullmatch(statement_of(execution.query)) is not None
        until: float | None = None
        settled = reverted = False
        while True:
            outside = not plain and self._held_domain is None
            function = lib.nxx_session_execute_outside if outside else lib.nx_session_execute
            try:
                return blocking(self._handle, function, limit, execution._handle, TOKEN, out.place)
            except RejectedError as failure:
                if failure._held is None:
                    raise
                until = until or time.monotonic() + OUTSIDE_PATIENCE
                if self._held_domain is not None:
                    # Known by now: the command becomes part of it.
                    continue
                if self._unsettled and not settled:
                    settled = True
                    self._settle(limit, execution)
                elif not reverted and not self._others_begin(execution):
                    # Of a block that is over, whatever it was told: nobody is left to end it.
                    reverted = True
                    self._revert(failure._held, limit)
                elif not self._beginnings or time.monotonic() > until:
                    raise
            # Another thread's call has begun it, and learns that right now.
            time.sleep(OUTSIDE_LOOK)

    def _revert(self, transaction: str, limit: Limit) -> None:
        """Ends a transaction that nobody has to end, and no other, whatever others begin meanwhile."""
        with Out("nx_execution", lib.nx_execution_free) as out:
            self._prepare_as(None, transaction, b"REVERT;", limit, out)
            execution = Execution(self, "REVERT;", None, out.take())
        self._carry_out(execution, limit, False, aside=True)

    def _is_without_owner(self, held: TransactionStatus) -> bool:
        """Whether a transaction that a server says this session holds is one that nobody here begins, runs or has to end."""
        known = (
            not extension("domains")
            or self._held_domain is not None
            or self._unsettled
            or self._beginnings
            or self._asked
            or self._plain_begin
        )
        return held.state == TransactionState.OPEN and not known

    def _others_begin(self, execution: Execution) -> bool:
        """Whether the transaction that the library holds may be one that somebody begins, or asked to begin, beside this call."""
        own = execution._transaction()
        return len(self._beginnings) > (_BEGIN.search(execution.query) is not None) or any(
            one is not own for one in list(self._asked)
        )

    def _carry_out(self, execution: Execution, limit: Limit, check: bool, *, aside: bool = False) -> Outcome:
        """Runs a command. One that is carried out ``aside``, for another one that waits, is not what an interruption is about."""
        mark = object()
        # Until it is known here what began.
        with ending(map(self._beginnings.pop, (mark,), (None,))):
            if _BEGIN.search(execution.query):
                self._beginnings[mark] = None
            return self._carry_out_marked(execution, limit, check, aside)

    def _carry_out_marked(self, execution: Execution, limit: Limit, check: bool, aside: bool) -> Outcome:
        attaching = execution.domain is not None and _ATTACH.fullmatch(statement_of(execution.query)) is not None
        followed = attaching and self._follows(execution.domain)
        with Out("nx_outcome", lib.nx_outcome_free) as out:
            try:
                execution._handle.check()
                resumed = self._execute_in_place(execution, limit, out, aside)
            except Error as failure:
                failure.execution = execution
                failure.reference = failure.reference or execution.reference
                raise
            except BaseException as interruption:
                # Ctrl-C, or what another signal's handler raised.
                if not aside:
                    _remember(interruption, execution)
                raise
            outcome = read_outcome(out.pointer)
        if resumed and attaching and not followed and not outcome.completed and self._follows(execution.domain):
            # The attempt before the signal took effect, and this one is refused for it.
            outcome = replace(outcome, disposition=Disposition.COMPLETED)
        # In no variable when it is raised, for the frame is in its traceback: the two would wait for the garbage collector.
        refusals = [] if outcome.completed else [_not_completed(execution, outcome)]
        transaction = self._told_by(execution, outcome)
        if transaction is not None:
            transaction._learn(execution, outcome, *refusals)
        if not refusals:
            self._completed(execution)
        elif check:
            raise refusals.pop()
        return outcome

    def _told_by(self, execution: Execution, outcome: Outcome) -> Transaction | None:
        """The transaction that an outcome tells of: the one that it names, or that its command is of."""
        known = [one for one in (execution._transaction(), self._transaction()) if one is not None]
        named = outcome.transaction.id if outcome.transaction is not None else None
        return next((one for one in known if one.id == named is not None), known[0] if known else None)

    def _follows(self, domain: str | None) -> bool:
        return domain is not None and self.domain_clock(domain) is not None

    def _completed(self, execution: Execution) -> None:
        """Takes note of a command that completed, the first time that it is told."""
        if execution._noted:
            return
        execution._noted = True
        query = statement_of(execution.query)
        if match := _USE.fullmatch(query):
            self._domain = match[1]
        elif match := _DELETE.fullmatch(query):
            self._pump.deleted(match[1])
        elif execution.domain is not None and _DETACH.fullmatch(query):
            self._clocks.forget(execution.domain)
        elif END.fullmatch(query) and self._transaction() is None:
            # Of one that nobody keeps.
            self._held_domain = self._held_block = None

    def _prepare_in(self, domain: str, statement: str, limit: Limit) -> Execution:
        """Prepares a statement of a domain; the selected domain stays what it was, if there was one."""
        if not extension("domains"):
            return self._prepare(statement, limit) if domain == self.domain else self._prepare_selecting(domain, statement, limit)
        with Out("nx_execution", lib.nx_execution_free) as out:
            self._prepare_as(domain, None, encode(statement, "the command"), limit, out)
            return Execution(self, statement, domain, out.take())

    def _prepare_selecting(self, domain: str, statement: str, limit: Limit) -> Execution:
        """Prepares a statement of a domain by selecting that one meanwhile; other threads prepare nothing in the meantime."""
        # Before the lock, which the end of a transaction takes as well.
        self._settle(limit)
        with self._selecting:
            selected = self._domain
            try:
                self._carry_out(self._prepare(f"USE {domain};", limit), limit, True)
                return self._prepare(statement, limit)
            finally:
                if selected is not None:
                    # Whatever ended the call: what comes after it must not land in the other domain.
                    self._carry_out(self._prepare(f"USE {selected};", Limit(None, None)), Limit(SELECT_PATIENCE, None), True)

    def _in_domain(self, domain: str, statement: str, limit: Limit, *, check: bool) -> Outcome:
        """Runs a statement of a domain; the selected domain stays what it was, if there was one."""
        return self._run(self._prepare_in(domain, statement, limit), limit, check)

    def _named(self, domain: str | None, what: str) -> str:
        if domain is None:
            domain = self.domain
        if domain is not None and not isinstance(domain, str):
            raise TypeError(f"domain is the name of a domain (str), not {type(domain).__name__}")
        if domain is None:
            raise InvalidArgumentError(f"{what} is of a domain, and none is selected; name it, or select one with use()")
        return domain

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
        the server refuses, and whatever ``Execution.run`` raises.
        """
        statement = subscribe_statement(source, where=where, name=name, delivery=delivery, sample_rate=sample_rate)
        since = self._pump.sorted() if not self._pump.inherited else 0
        outcome = self.execute(statement, timeout=timeout, cancel=cancel)
        if outcome.subscription is None or outcome.schema is None:
            raise InvalidArgumentError(f"the command completed and opened no subscription: {statement}")
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


def _unless_over(limit: Limit) -> Limit:
    """The limit of a call that sends nothing: one that is over already is left for the run to report, with the reference."""
    return Limit(None, None) if limit.is_over() else limit


def _remember(interruption: BaseException, execution: Execution, *, sent: bool = True) -> None:
    """Has an exception that is none of ours carry the command that it interrupted, as ours do."""
    with suppress(AttributeError, TypeError):
        vars(interruption).update(execution=execution, reference=execution.reference)
    if hasattr(interruption, "add_note"):
        what = "may have happened, or may still happen" if sent else "was not sent this time"
        interruption.add_note(
            f"The command with reference {execution.reference} {what}: run this exception's execution again to learn its outcome."
        )


def _not_sent(transaction: Transaction, failure: Error | None, execution: Execution | None) -> Error:
    """Tells that a command had to wait for the end of a transaction, which did not come."""
    name = f"the transaction {transaction.id or ''}".rstrip()
    message = (
        f"nothing was sent, because {name} of an earlier block holds the session and could not be ended yet: "
        "call again later, or connect anew"
    )
    told = type(failure) if isinstance(failure, (DeadlineError, CancelledError, ClosedError, ConnectError)) else TransportError
    error = told(message)
    error._unsent = True
    error.execution = execution
    error.reference = None if execution is None else execution.reference
    return error


def _not_completed(execution: Execution, outcome: Outcome) -> Error:
    failure: Error
    if outcome.disposition in (Disposition.OUTCOME_UNKNOWN, Disposition.EXECUTION_REFERENCE_EXPIRED):
        if outcome.disposition == Disposition.OUTCOME_UNKNOWN:
            uncertain = UncertainError(
                f"the server does not know what became of the command with reference {outcome.reference}; it may have happened: "
                f"run the same execution again to learn it ({inline(outcome.message)})"
            )
        else:
            uncertain = ReferenceExpired(
                f"the cluster does not know any more what became of the command with reference {outcome.reference}; it may have "
                f"happened: look for what it would have changed before you run it as another command ({inline(outcome.message)})"
            )
        uncertain.outcome = outcome
        uncertain.reference = outcome.reference
        failure = uncertain
    elif (kind := transaction_error(outcome)) is not None:
        failure = kind(execution.query, outcome)
    elif outcome.disposition == Disposition.FAILED:
        failure = CommandFailed(execution.query, outcome)
    else:
        failure = CommandNotCompleted(execution.query, outcome)
    failure.execution = execution
    return failure


def _milliseconds(seconds: float, what: str) -> int:
    if not isinstance(seconds, (int, float)):
        raise TypeError(f"{what} is a number of seconds or None, not {type(seconds).__name__}")
    value = round(float(seconds) * 1000) if seconds == seconds and abs(seconds) < 1e12 else 0
    if value < 1:
        raise InvalidArgumentError(f"{what} is a number of seconds, at least 0.001; {seconds!r} is not")
    return value


def _options(
    seeds: Iterable[str],
    request_timeout: float | None,
    retry_timeout: float | None,
    ca_file: str | bytes | os.PathLike[str] | os.PathLike[bytes] | None,
) -> Handle | None:
    """The options of a connect; None for a library that has none, which goes without."""
    if isinstance(seeds, (str, bytes)) or not isinstance(seeds, Iterable):
        raise TypeError(f"seeds is a sequence of server origins (str), not {type(seeds).__name__}")
    servers = [encode(seed, "each of seeds") for seed in seeds]
    authorities = None if ca_file is None else os.fsencode(ca_file)
    if authorities is not None and not (extension("connect_options") and extension("ca_file")):
        raise UnsupportedError(
            f"ca_file needs a library with the ca_file extension, which {library().path} lacks; connect without it to trust what "
            "the system trusts"
        )
    if not extension("connect_options"):
        if servers or request_timeout is not None or retry_timeout is not None:
            raise UnsupportedError(
                "seeds, request_timeout and retry_timeout need a library with the connect_options extension, which "
                f"{library().path} lacks; connect without them"
            )
        return None
    options = Handle("connect options", own(lib.nxx_connect_options_new, (), lib.nxx_connect_options_free))
    with options as pointer:
        for server in servers:
            check(lib.nxx_connect_options_add_seed(pointer, server, len(server)))
        if request_timeout is not None:
            check(lib.nxx_connect_options_request_timeout(pointer, _milliseconds(request_timeout, "request_timeout")))
        if retry_timeout is not None:
            check(lib.nxx_connect_options_retry_timeout(pointer, _milliseconds(retry_timeout, "retry_timeout")))
        if authorities is not None:
            check(lib.nxx_connect_options_ca_file(pointer, authorities, len(authorities)))
    return options


def connect(
    server: str,
    *,
    username: str | None = None,
    password: str | None = None,
    domain: str | None = None,
    seeds: Iterable[str] = (),
    request_timeout: float | None = None,
    retry_timeout: float | None = None,
    ca_file: str | bytes | os.PathLike[str] | os.PathLike[bytes] | None = None,
    timeout: float | None = None,
    cancel: Cancel | None = None,
) -> Session:
    """Opens a session.

    ``server`` is an http or https origin, for example ``http://127.0.0.1:47391``; the port is 47391 when left out. An https
    server's certificate is checked, against the host name of its address, wherever the session is opened or led (T-2); a session
    that begins with https is never led to http. Trusted are the certificate authorities of the system, or, with ``ca_file``, those
    whose PEM certificates that file holds, and no others; with an http server it goes for the https servers that the session
    may be redirected to. ``username`` and ``password`` come both or not at
    all. ``domain`` is the domain of later commands. ``seeds`` are more servers to try, now and after a loss of the connection;
    ``request_timeout`` bounds the wait for one reply and ``retry_timeout`` one call with all its retries and redirects (seconds,
    120 each unless given); a connection that carries nothing any more is given up within two request timeouts. The outcome of a
    batch, a delivery and the close of a producer wait for others and have no time to come in: give those calls a ``timeout``.
    ``timeout`` bounds this call, in seconds.

    Raises InvalidArgumentError for a malformed origin, half a pair of credentials or a ``ca_file`` that cannot be used (nothing
    is sent then), ConnectError when no server answers, none has a certificate to be trusted, or the credentials are refused,
    DeadlineError, CancelledError, and UnsupportedError when the library lacks the options asked for.
    """
    limit = Limit(timeout, cancel)
    origin = encode(server, "the server")
    scope, scope_len = optional(domain, "the domain")
    user, user_len = optional(username, "the username")
    secret, secret_len = optional(password, "the password")
    options = _options(seeds, request_timeout, retry_timeout, ca_file)
    credentials = (origin, len(origin), scope, scope_len, user, user_len, secret, secret_len)
    with Out("nx_session", lib.nx_session_free) as out:
        if options is None:
            blocking(None, lib.nx_session_connect, limit, *credentials, TOKEN, out.place)
        else:
            blocking(None, lib.nxx_session_connect, limit, *credentials, options, TOKEN, out.place)
        return Session(out.take(), domain)
