"""Commands of a session: prepared, run, and kept apart from transactions that they are no part of.

Owns the selected domain, and the order in which what a block left is finished. Must not know rows, clocks or endpoints.
"""

from __future__ import annotations

import threading
import time
import weakref
from abc import ABC, abstractmethod
from dataclasses import replace

from nervix_ffi._handle import TOKEN, Handle, blocking
from nervix_ffi._held import Held, nothing
from nervix_ffi._library import extension, ffi, lib, library
from nervix_ffi._native import NULL, Out, encode, optional
from nervix_ffi._statement import ENDS, Statement, recognise
from nervix_ffi._told import inline
from nervix_ffi._unbroken import ending
from nervix_ffi.cancel import Cancel, Limit
from nervix_ffi.enums import Disposition, StatementKind
from nervix_ffi.errors import (
    CancelledError,
    ClosedError,
    ConnectError,
    DeadlineError,
    Error,
    InvalidArgumentError,
    RejectedError,
    TransportError,
    UnsupportedError,
)
from nervix_ffi.execution import Execution, not_completed, remember
from nervix_ffi.outcome import Outcome, TransactionPreview, read_outcome
from nervix_ffi.transaction import Transaction, ends

__all__ = ["Commands"]


#: How long going back to the selected domain may take, in seconds; nothing is asked of a server for it.
SELECT_PATIENCE = 10.0

#: How often a call that waits for another thread to finish a transaction looks at its own limit, in seconds.
SETTLE_LOOK = 0.02

#: How long a command waits for another thread's call to say that it has begun a transaction, and how often it looks, in seconds.
OUTSIDE_PATIENCE, OUTSIDE_LOOK = 2.0, 0.001


class Commands(ABC):
    """What a session is to its commands."""

    def __init__(self, handle: Handle, domain: str | None) -> None:
        self._handle = handle
        self._domain = domain
        self._held = Held()
        #: Held while a command is prepared, and all the while in which another domain is selected for one.
        self._selecting = threading.RLock()

    @property
    def domain(self) -> str | None:
        """The domain of later commands: that of the transaction under way, or what ``connect``, ``use`` or USE selected."""
        return self._held.domain or self._domain

    @abstractmethod
    def _follows(self, domain: str | None) -> bool:
        """Whether the session follows the clock of a domain."""

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
        return self._prepare(query, Limit(timeout, cancel), reference, position, preview)

    def execute(self, query: str, *, timeout: float | None = None, cancel: Cancel | None = None, check: bool = True) -> Outcome:
        """Prepares a command and runs it: see ``Execution.run``. An error's ``execution`` is the command to run again."""
        return self._execute(query, Limit(timeout, cancel), check)

    def _execute(self, query: str, limit: Limit, check: bool, transaction: Transaction | None = None) -> Outcome:
        """Prepares a command and runs it, in the transaction if one is given."""
        statement = recognise(query)
        self._settle(limit, ends=statement.kind in ENDS)
        execution = self._prepare(query, limit, transaction=transaction, statement=statement)
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
        statement: Statement | None = None,
    ) -> Execution:
        data = encode(query, "the command")
        statement = statement or recognise(query)
        held = transaction or self._held.transaction()
        if reference is not None and (held is None or preview is None or preview.transaction != held.id):
            # It was sent before: as part of another one, or of none.
            held = None
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
                self._prepare_as(scope, self._bound(statement, held, transaction), data, limit, out)
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
            return Execution(self, query, scope, out.take(), held, given=reference is not None, statement=statement)

    def _prepare_as(self, domain: str | None, transaction: str | None, query: bytes, limit: Limit, out: Out) -> None:
        """Has the library prepare a command of a domain, or of the one that it has selected, and of one transaction alone if named."""
        scope, scope_len = optional(domain, "the domain")
        bound, bound_len = optional(transaction, "the transaction")
        arguments = (scope, scope_len, bound, bound_len, query, len(query), TOKEN, out.place)
        blocking(self._handle, lib.nxx_session_prepare_in, _unless_over(limit), *arguments)

    def _bound(self, statement: Statement, held: Transaction | None, transaction: Transaction | None) -> str | None:
        """The transaction outside of which a command must not take effect: one that it was called for or ends, or one of another
        domain, where nobody wants it once that is over.
        """
        if held is None:
            return None
        wanted = transaction is not None or held.domain != self._domain or statement.kind in ENDS
        return held.id if wanted else None

    def _run(self, execution: Execution, limit: Limit, check: bool) -> Outcome:
        self._settle(limit, execution, ends=execution._statement.kind in ENDS)
        return self._carry_out(execution, limit, check)

    def _settle(self, limit: Limit, execution: Execution | None = None, *, ends: bool = False) -> None:
        """Finishes the transactions that blocks left behind, so that what comes next does not become part of one. What itself
        ``ends`` one goes ahead where only the host may do that.

        Raises TransportError, DeadlineError, CancelledError or ClosedError when it cannot: then nothing else was sent.
        """
        self._handle.check()
        current = self._held.current
        if current is not None and not current.over:
            kept = current.transaction()
            if kept is None and current.of_block and current.status is not None:
                # A signal came before its block could end it, and nobody has it any more.
                self._held.left.append(Transaction._left_behind(self, current.status))
                current.over = True
            elif kept is not None and kept._block_over:
                # Or in the middle of that.
                if kept not in self._held.left:
                    self._held.left.append(kept)
                current.over = True
        # What comes while a transaction is under way is part of that one, and the library holds no other.
        if not self._held.left or self._held.domain is not None or limit.is_over():
            return
        thread = threading.get_ident()
        if thread in list(self._held.settlers.values()):
            # Called by a signal's handler in the middle of it.
            raise _not_sent(self._held.left[0], None, execution)
        mark = object()
        # Given back in C: a signal may arrive anywhere.
        with ending(map(self._held.settlers.pop, (mark,), (None,))):
            self._held.settlers[mark] = thread
            while next(iter(list(self._held.settlers))) is not mark:
                if limit.is_over():
                    return
                time.sleep(SETTLE_LOOK)
            asked = execution is not None and any(left._asks(execution) for left in self._held.left)
            if not asked and not (ends and any(left._condemned is not None for left in self._held.left)):
                self._settle_all(limit, execution)

    def _settle_all(self, limit: Limit, execution: Execution | None) -> None:
        """Finishes one after the other. The library says of some only what became of them once another one is over."""
        problem: tuple[Transaction, Error | None] | None = None
        self._held.left[:] = [one for one in self._held.left if not one._settled]
        waiting = list(self._held.left)
        while waiting:
            left = waiting.pop(0)
            before = len(self._held.left)
            try:
                left._settle(limit)
            except Error as failure:
                problem = (left, failure)
            except BaseException as interruption:
                if execution is not None:
                    remember(interruption, execution, sent=False)
                raise
            else:
                if not left._settled:
                    problem = problem or (left, None)
            self._held.left[:] = [one for one in self._held.left if not one._settled]
            if len(self._held.left) < before and problem is not None:
                waiting, problem = list(self._held.left), None
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
        plain = not extension("outside") or self._held.plain_begin or aside or execution._statement.kind in ENDS
        until: float | None = None
        settled = reverted = False
        while True:
            outside = not plain and self._held.transaction() is None
            function = lib.nxx_session_execute_outside if outside else lib.nx_session_execute
            try:
                return blocking(self._handle, function, limit, execution._handle, TOKEN, out.place)
            except RejectedError as failure:
                if failure._held is None:
                    raise
                until = until or time.monotonic() + OUTSIDE_PATIENCE
                if self._held.transaction() is not None:
                    # Known by now: the command becomes part of it.
                    continue
                if self._held.left and not settled:
                    settled = True
                    self._settle(limit, execution)
                elif not reverted and not self._held.is_somebodys(execution._transaction(), execution._statement.begins):
                    # Of a block that is over, whatever it was told: nobody is left to end it.
                    reverted = True
                    self._revert(failure._held, limit)
                elif time.monotonic() > until or not (self._held.beginnings or self._held.transaction() is not None):
                    # In this order: a call that has begun one says so before it ends.
                    raise
            # Another thread's call has begun it, and learns that right now.
            time.sleep(OUTSIDE_LOOK)

    def _revert(self, transaction: str, limit: Limit) -> None:
        """Ends a transaction that nobody has to end, and no other, whatever others begin meanwhile."""
        with Out("nx_execution", lib.nx_execution_free) as out:
            self._prepare_as(None, transaction, b"REVERT;", limit, out)
            execution = Execution(self, "REVERT;", None, out.take())
        self._carry_out(execution, limit, False, aside=True)

    def _carry_out(self, execution: Execution, limit: Limit, check: bool, *, aside: bool = False) -> Outcome:
        """Runs a command. One that is carried out ``aside``, for another one that waits, is not what an interruption is about."""
        mark = object()
        # Until it is known here what began.
        with ending(map(self._held.beginnings.pop, (mark,), (None,))):
            if execution._statement.begins:
                self._held.beginnings[mark] = None
                if execution._plain:
                    self._held.plain_begin = True
            return self._carry_out_marked(execution, limit, check, aside)

    def _carry_out_marked(self, execution: Execution, limit: Limit, check: bool, aside: bool) -> Outcome:
        attaching = execution.domain is not None and execution._statement.kind == StatementKind.ATTACH_CLOCK
        followed = attaching and self._follows(execution.domain)
        current = self._held.current
        of = execution._transaction()
        new, over = False, limit.is_over()
        if not (over or aside or execution._ran or execution._given):
            execution._ran = True
            if execution._transaction is nothing and (held := self._held.transaction()) is not None:
                # It was prepared before that began, and becomes a part of it.
                execution._transaction, of = weakref.ref(held), held
        with Out("nx_outcome", lib.nx_outcome_free) as out:
            try:
                execution._handle.check()
                if of is not None:
                    new = of._decides(execution)
                resumed = self._execute_in_place(execution, limit, out, aside)
            except Error as failure:
                if of is not None:
                    of._undecided(execution, failure, new, over)
                failure.execution = execution
                failure.reference = failure.reference or execution.reference
                execution._condemned |= failure._condemned
                if isinstance(failure, ClosedError):
                    failure.args = (f"{failure}{execution._elsewhere()}",)
                raise
            except BaseException as interruption:
                # Ctrl-C, or what another signal's handler raised.
                if of is not None:
                    of._undecided(execution, interruption, new, over)
                if not aside:
                    remember(interruption, execution)
                raise
            outcome = read_outcome(out.pointer)
        if resumed and attaching and not followed and not outcome.completed and self._follows(execution.domain):
            # The attempt before the signal took effect, and this one is refused for it.
            outcome = replace(outcome, disposition=Disposition.COMPLETED)
        # In no variable when it is raised, for the frame is in its traceback: the two would wait for the garbage collector.
        refusals = [] if outcome.completed else [not_completed(execution, outcome)]
        transaction = self._told_by(execution, outcome)
        if transaction is not None:
            transaction._learn(execution, outcome, *refusals)
        if execution._statement.kind in ENDS and current is not None and current.transaction() is None and ends(outcome, current):
            # Of one that nobody keeps.
            current.over = True
        if outcome.completed and execution._statement.begins and transaction is None:
            # Nobody stands for it, whoever called it first.
            self._held.plain_begin = True
        if not refusals:
            if not execution._noted:
                execution._noted = True
                self._note(execution)
        elif check:
            raise refusals.pop()
        return outcome

    def _told_by(self, execution: Execution, outcome: Outcome) -> Transaction | None:
        """The transaction that an outcome tells of: the one that it names, or that its command is of."""
        of = execution._transaction()
        if of is not None and of._begins_by(execution):
            # Whatever that names, it is what it begins, or what stands in its way.
            return of
        known = [one for one in (of, self._held.transaction()) if one is not None]
        if outcome.transaction is None:
            return of
        return next((one for one in (*known, *self._held.left) if one.id == outcome.transaction.id), None)

    def _note(self, execution: Execution) -> None:
        """Takes note of a command that completed, the first time that it is told."""
        if execution._statement.kind == StatementKind.USE:
            self._domain = execution._statement.name

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


def _unless_over(limit: Limit) -> Limit:
    """The limit of a call that sends nothing: one that is over already is left for the run to report, with the reference."""
    return Limit(None, None) if limit.is_over() else limit


def _not_sent(transaction: Transaction, failure: Error | None, execution: Execution | None) -> Error:
    """Tells that a command had to wait for the end of a transaction, which did not come."""
    name = f"the transaction {inline(transaction.id or '')}".rstrip()
    advice = "call again later, or connect anew"
    if (asked := transaction._condemned) is not None:
        again = "" if asked._statement.begins else "commit or revert it again, or "
        advice = (
            f"the server found its {inline(asked.query)} malformed or oversized, which may have happened and is not sent again by "
            f"itself; {again}run the execution with reference {asked.reference}, or connect anew"
        )
    message = f"nothing was sent, because {name} of an earlier block holds the session and could not be ended yet: {advice}"
    told = type(failure) if isinstance(failure, (DeadlineError, CancelledError, ClosedError, ConnectError)) else TransportError
    error = told(message)
    error._unsent = True
    error.execution = execution
    error.reference = None if execution is None else execution.reference
    return error
