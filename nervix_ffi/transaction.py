"""Transactions: statements that are checked one by one and carried out together.

Owns what a ``with`` block does at its end, and which outcome tells what about the transaction. Positions, attaching again and
repetition are the library's.
"""

from __future__ import annotations

import weakref
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from nervix_ffi._library import extension, library
from nervix_ffi._statement import ENDS, recognise
from nervix_ffi._told import inline
from nervix_ffi.cancel import Cancel, Limit
from nervix_ffi.enums import Disposition, ErrorKind, StatementKind, TransactionState
from nervix_ffi.errors import (
    CommandFailed,
    CommandNotCompleted,
    Error,
    InvalidArgumentError,
    PreviewStale,
    TransactionError,
    TransactionExpired,
    TransactionFailed,
    TransactionFinished,
    TransactionTakenOver,
    UncertainError,
    UnsupportedError,
)
from nervix_ffi.outcome import Outcome, TransactionAdmission, TransactionPreview, TransactionStatus

if TYPE_CHECKING:
    from types import TracebackType

    from nervix_ffi._commands import Commands
    from nervix_ffi._held import Current
    from nervix_ffi.execution import Execution

__all__ = ["Transaction", "ends", "transaction_error"]

#: How long the end of a block waits for a revert, in seconds. One that did not come about by then is not given up: see ``_settle``.
REVERT_PATIENCE = 2.0

#: How often a revert is made anew at most, before whoever waits for it is told.
REVERTS = 3

#: After these a command may have happened.
_MAYBE = (ErrorKind.UNCERTAIN, ErrorKind.DEADLINE, ErrorKind.CANCELLED, ErrorKind.CLOSED)

#: Dispositions that do not tell what became of a command.
_UNKNOWN = (Disposition.OUTCOME_UNKNOWN, Disposition.EXECUTION_REFERENCE_EXPIRED)

#: States in which it is not over.
_OPEN = (TransactionState.OPEN, TransactionState.COMMITTING)


class Transaction:
    """A transaction of a session, made by ``Session.transaction``.

    ``with session.transaction("shop") as tx:`` begins it. Each ``tx.execute`` is checked against what was accepted before it, and
    changes nothing yet (X-3). Leaving the block commits it; a block that raises reverts it instead. The session holds it meanwhile,
    so whatever else the session runs that is no read becomes part of it, and subscriptions, clocks, producers, consumers and USE are
    refused (L-3). After a lost connection or a change of leader the library attaches the transaction again, unless it is over or
    another session has it (D-5, X-6).

    A block that cannot revert now, or does not know what became of its commit, leaves that to the session: it finishes it before it
    runs anything else, so that nothing else becomes part of the transaction. A command of a session that holds one which no object
    stands for any more is refused before it is sent (RejectedError), where the library has the ``outside`` extension: REVERT it.
    Whoever runs BEGIN as a plain command keeps account of that transaction alone.

    It expires when nothing is appended for the server's idle timeout, 15 minutes by default (X-8). Where the library lacks the
    ``transactions`` extension, ``id``, ``status``, ``admission`` and ``preview`` stay None.
    """

    def __init__(self, session: Commands, domain: str, timeout: float | None, cancel: Cancel | None) -> None:
        self._session = session
        #: The domain to select at the end, where the library does not do that.
        self._selected: str | None = None
        self._beginning: Execution | None = None
        self._reverting: Execution | None = None
        self._timeout = timeout
        self._cancel = cancel
        self._begun = False
        self._done = False
        self._left = False
        #: Its block is over, or ends.
        self._block_over = False
        self._in_block = False
        #: BEGIN was never sent.
        self._unsent = False
        #: The host asked to revert it.
        self._given_up = False
        #: Its commits of unknown outcome, the first one first.
        self._commits: list[Execution] = []
        #: What ended it, to be raised by whatever is called next: no error that was raised, which would hold its frames.
        self._failure: tuple[type[TransactionError], str, Outcome, Execution] | None = None
        #: The domain that it is of.
        self.domain = domain
        #: How it stood when an outcome last reported it.
        self.status: TransactionStatus | None = None
        #: What the newest ``execute`` was accepted as.
        self.admission: TransactionAdmission | None = None

    def __repr__(self) -> str:
        state = "finished" if self.finished else "open" if self._begun else "not begun"
        return f"<Transaction {inline(self.id or '')} of {inline(self.domain)}, {state}>"

    @property
    def id(self) -> str | None:
        """Its identity (X-1)."""
        return None if self.status is None else self.status.id

    @property
    def preview(self) -> TransactionPreview | None:
        """What a commit would carry out, as the newest ``execute`` was told; None before the first.

        Keep the one that was reviewed and pass it to ``commit`` (X-4).
        """
        return None if self.admission is None else self.admission.preview

    @property
    def finished(self) -> bool:
        """Whether it is known to be over: committed, reverted, failed, expired, or taken over by another session."""
        return self._done

    @classmethod
    def _left_behind(cls, session: Commands, status: TransactionStatus) -> Transaction:
        """One whose block ended before it did, and that nobody keeps."""
        left = cls(session, status.domain, None, None)
        left._begun = left._block_over = True
        left.status = status
        return left

    def __enter__(self) -> Transaction:
        self._in_block = True
        try:
            self.begin(timeout=self._timeout, cancel=self._cancel)
        except BaseException as failure:
            if not isinstance(failure, Error) or failure.kind in _MAYBE:
                self._let_go()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, failure: BaseException | None, _: TracebackType | None) -> None:
        if kind is not None:
            # What the block raised is the news.
            self._let_go()
        elif self._failure is not None:
            # A block that went on after this would end as if all were well.
            self._let_go()
            raise self._news()
        elif self._given_up and not self._done:
            # It was to be reverted, and is not to be committed for the answer that did not come.
            self._let_go()
        elif self._condemned is not None:
            self._let_go()
            raise self._uncertain(self._condemned)
        elif not self._done:
            try:
                self.commit(timeout=self._timeout, cancel=self._cancel)
            except BaseException:
                self._let_go()
                raise

    def _let_go(self) -> None:
        """Ends it without a commit, unless one may have happened; what this takes longer than a moment is done before the session
        runs anything else.
        """
        self._block_over = True
        self._session._held.knows(self)
        if self._settled:
            return
        session = self._session
        if self not in session._held.left:
            session._held.left.append(self)
        self._pass()
        if self._deciding is None:
            patience = REVERT_PATIENCE if self._timeout is None else min(REVERT_PATIENCE, self._timeout)
            with suppress(Error):
                session._settle(Limit(patience, None))

    def _pass(self) -> None:
        """It is under way no longer; another one may be by now."""
        self._session._held.passed(self)

    @property
    def _settled(self) -> bool:
        """Whether nothing of it can be left in the session."""
        if self._failure is not None:
            return self._left
        return self._done or not (self._begun or (self._beginning is not None and not self._unsent))

    @property
    def _deciding(self) -> Execution | None:
        """The commit that tells what became of it."""
        return next(iter(self._commits), None)

    def _begins_by(self, execution: Execution) -> bool:
        """Whether that is its BEGIN, and it is not known what became of it."""
        return execution is self._beginning and not self._begun

    def _asks(self, execution: Execution) -> bool:
        """Whether running this is how to learn what became of it."""
        asked = [*self._commits, self._reverting, None if self._begun else self._beginning]
        return any(one is not None and one.reference == execution.reference for one in asked)

    def _settle(self, limit: Limit) -> None:
        """Finishes what the block could not: learns whether it began and what its commit did, and reverts it when it is open.

        Raises what running a command raises, and then something is left to do.
        """
        session = self._session
        if self._condemned is not None:
            return
        if not self._begun and self._beginning is not None:
            begun = session._carry_out(self._beginning, limit, False, aside=True)
            if begun.disposition != Disposition.COMPLETED:
                if begun.disposition != Disposition.OUTCOME_UNKNOWN:
                    self._finish()
                return
        for commit in list(self._commits):
            if self._done:
                break
            if commit._condemned:
                return
            told = session._carry_out(commit, limit, False, aside=True)
            if told.disposition == Disposition.EXECUTION_REFERENCE_EXPIRED:
                # Nobody will ever know; what is still open is let go of.
                self._forget(commit)
        for _ in range(REVERTS):
            # Refused, it may have been made for an older position: what nobody waited for was accepted meanwhile.
            if self._failure is None and not self._done and not self._commits and self._condemned is None:
                self._conclude(session._carry_out(self._revert(limit), limit, False, aside=True))
        if self._failure is not None:
            self._leave(limit)

    def _forget(self, commit: Execution) -> None:
        self._commits[:] = [one for one in self._commits if one is not commit]
        commit._kept = False

    def _conclude(self, reverted: Outcome) -> None:
        """Takes what became of the revert of what a block left."""
        if reverted.disposition == Disposition.EXECUTION_REFERENCE_EXPIRED:
            # To revert it once more does no harm.
            self._reverting = None
        elif reverted.disposition != Disposition.OUTCOME_UNKNOWN:
            status = reverted.transaction
            if reverted.completed or status is None or status.state not in _OPEN:
                self._finish()

    def _revert(self, limit: Limit, query: str = "REVERT;") -> Execution:
        """The REVERT of it; one that may have happened is asked about, and never made a second time (E-3)."""
        if self._reverting is None:
            self._reverting = self._session._prepare(query, limit, transaction=self)
            self._reverting._kept = True
        return self._reverting

    def _decides(self, execution: Execution) -> bool:
        """Takes note of a commit or a revert that is about to be sent, by whatever call. Whether it is new."""
        if not self._begun or self._done or self._failure is not None:
            return False
        kind = execution._statement.kind
        if kind == StatementKind.REVERT:
            self._given_up = execution._kept = True
            if self._reverting is None:
                self._reverting = execution
                return True
        elif kind == StatementKind.COMMIT and execution not in self._commits:
            execution._kept = True
            self._commits.append(execution)
            return True
        return False

    def _undecided(self, execution: Execution, failure: BaseException, new: bool, over: bool) -> None:
        """Takes note of a commit or a revert that is known not to have happened, as it was never sent, or was refused.

        ``new`` and ``over`` say whether this was its first call, and whether the time of that was over before.
        """
        if extension("repetitions"):
            unhappened = execution._never_sent
        else:
            unhappened = new and (over or (isinstance(failure, Error) and failure._unsent))
        if isinstance(failure, Error) and not failure._unsent:
            unhappened |= failure.kind not in _MAYBE and not isinstance(failure, CommandNotCompleted)
        if not unhappened:
            return
        if execution in self._commits:
            self._forget(execution)
        elif execution is self._reverting:
            self._reverting = None
            execution._kept = False

    @property
    def _condemned(self) -> Execution | None:
        """What tells how it stands, or ends it, if the server found that malformed or oversized: nothing of ours sends it again,
        only whoever calls it anew (T-6).
        """
        asked = self._deciding or self._reverting or (None if self._begun else self._beginning)
        return asked if not self._done and asked is not None and asked._condemned else None

    def begin(self, *, timeout: float | None = None, cancel: Cancel | None = None) -> Outcome:
        """Begins it; a ``with`` block does. Raises CommandFailed when the domain is missing or the session holds a transaction,
        and whatever ``Execution.run`` raises. After UncertainError, DeadlineError, CancelledError or Ctrl-C it may have begun: run
        the error's ``execution`` again to learn that, or call this again, and ``revert`` to let go of it; a ``with`` block does both
        by itself.
        """
        limit = Limit(timeout, cancel)
        try:
            return self._begin(limit)
        except CommandFailed as failure:
            held = failure.outcome.transaction
            if held is None or held.state != TransactionState.OPEN or not extension("domains"):
                raise
            if self._session._held.is_somebodys(self, 0):
                raise
        # The server knows of one of a block that is over, and that nobody here was told of.
        self._session._revert(held.id, limit)
        return self._begin(limit)

    def _begin(self, limit: Limit) -> Outcome:
        session = self._session
        self._check_new()
        # What an earlier block left is no concern of this one.
        session._settle(limit, self._beginning)
        self._check_new()
        if self._beginning is None:
            if not extension("domains") and self.domain != session.domain:
                self._selected = session.domain
                session._carry_out(session._prepare(f"USE {self.domain};", limit), limit, True)
            self._beginning = session._prepare_in(self.domain, "BEGIN;", limit)
            self._beginning._transaction = weakref.ref(self)
            self._beginning._kept, self._beginning._plain = True, False
            self._unsent = True
        beginning, over = self._beginning, limit.is_over()
        session._held.asks(self)
        try:
            return session._carry_out(beginning, limit, True)
        except Error as failure:
            self._unsent = self._is_unsent(beginning, over or failure._unsent)
            if self._unsent:
                # There is nothing to revert.
                session._held.knows(self)
                self._back()
            raise
        except BaseException:
            self._unsent = self._is_unsent(beginning, over)
            raise

    def _is_unsent(self, beginning: Execution, this_time: bool) -> bool:
        """Whether BEGIN was never sent; ``this_time`` is what is known of the last call alone."""
        return beginning._never_sent if extension("repetitions") else self._unsent and this_time

    def _check_new(self) -> None:
        if self._begun or self._done or self._block_over:
            raise InvalidArgumentError("a transaction begins once; make another one with session.transaction()")

    def _has_begun(self) -> None:
        session = self._session
        self._begun = True
        session._held.knows(self)
        if not self._block_over:
            session._held.begun(self, self._in_block)

    def execute(self, query: str, *, timeout: float | None = None, cancel: Cancel | None = None, check: bool = True) -> Outcome:
        """Appends a statement, or several, or runs a read at once. ``timeout`` is in seconds.

        The outcome says that it was accepted, not that it was carried out (X-3). A refused statement raises CommandFailed, and
        leaves the transaction as it was; of several, those before the refused one stay accepted (``outcome.statements``, E-7).
        Raises TransactionTakenOver, TransactionExpired or TransactionFinished when it is over, and whatever ``Execution.run``
        raises. After UncertainError run the error's ``execution`` again before anything else, or let the block revert: the statement
        may have been accepted, and a commit without ``expected_preview`` would then carry it out. What was never sent is refused
        once the transaction is over (CommandFailed): where the library has the ``domains`` extension, it does not take effect
        outside of it.
        """
        if not isinstance(query, str):
            raise TypeError(f"query is the text of a statement (str), not {type(query).__name__}")
        kind = recognise(query).kind
        if kind == StatementKind.COMMIT:
            return self._decide(query, None, Limit(timeout, cancel), check)
        if kind == StatementKind.REVERT:
            return self._give_up(query, Limit(timeout, cancel), check)
        self._check()
        return self._session._execute(query, Limit(timeout, cancel), check, self)

    def commit(
        self,
        *,
        expected_preview: TransactionPreview | None = None,
        timeout: float | None = None,
        cancel: Cancel | None = None,
    ) -> Outcome:
        """Carries out everything that was accepted, in order. ``timeout`` is in seconds.

        With ``expected_preview``, only if the transaction is still what that preview showed: otherwise PreviewStale is raised,
        nothing was applied, and the transaction stays open (X-4); catch it inside of the block to go on. Without it, the newest
        preview is expected. A commit whose outcome is unknown is asked about again, as it was. Raises
        UnsupportedError for a preview when the library lacks the ``transactions`` extension; TransactionFailed when an operation
        failed; TransactionTakenOver, TransactionExpired or TransactionFinished when it is over; and whatever ``Execution.run``
        raises. After UncertainError the commit may have happened: nothing is reverted, and running the error's ``execution``
        again tells (X-5).
        """
        return self._decide("COMMIT;", expected_preview, Limit(timeout, cancel), True)

    def revert(self, *, timeout: float | None = None, cancel: Cancel | None = None) -> Outcome:
        """Ends it without carrying anything out. ``timeout`` is in seconds. Raises what ``execute`` raises, and InvalidArgumentError
        while the outcome of a commit is unknown.
        """
        return self._give_up("REVERT;", Limit(timeout, cancel), True)

    def _give_up(self, query: str, limit: Limit, check: bool) -> Outcome:
        if self._failure is not None:
            with suppress(Error):
                self._leave(Limit(REVERT_PATIENCE, None))
        self._check()
        if self._deciding is not None:
            raise InvalidArgumentError(
                f"the commit may have happened (reference {self._deciding.reference}): commit again to learn what became of it"
            )
        self._given_up = True
        outcome = self._session._run(self._revert(limit, query), limit, check)
        if outcome.completed:
            self._finish()
        return outcome

    def _decide(self, query: str, preview: TransactionPreview | None, limit: Limit, check: bool) -> Outcome:
        if preview is not None and not isinstance(preview, TransactionPreview):
            raise TypeError(f"expected_preview is a TransactionPreview, as tx.preview, not {type(preview).__name__}")
        self._check()
        if self._reverting is not None:
            raise InvalidArgumentError(
                f"the revert may have happened (reference {self._reverting.reference}): revert again to learn what became of it"
            )
        if preview is not None and not extension("transactions"):
            raise UnsupportedError(
                f"committing against a preview needs a library with the transactions extension, which {library().path} lacks; "
                "commit without expected_preview"
            )
        # A commit that may have happened is asked about, and never made a second time (E-3).
        execution = self._deciding or self._session._prepare(query, limit, preview=preview, transaction=self)
        return self._session._run(execution, limit, check)

    def _learn(self, execution: Execution, outcome: Outcome, failure: Error | None = None) -> None:
        """Takes what the outcome of any command of the session tells of this transaction."""
        if outcome.disposition not in _UNKNOWN:
            execution._kept = False
        ended = execution in self._commits or execution._statement.kind in ENDS
        if self._begins_by(execution):
            if failure is None:
                self.status = outcome.transaction
                if self.status is not None:
                    # As the server calls it.
                    self.domain = self.status.domain
                self._has_begun()
            elif outcome.disposition not in _UNKNOWN:
                self._beginning = None
                self._session._held.knows(self)
                self._back()
            if not self._begun:
                return
        if outcome.disposition not in _UNKNOWN and (execution is self._reverting or execution in self._commits):
            if failure is None:
                self._finish()
            elif execution is self._reverting and outcome.statements:
                # One of several statements was refused: those behind it, and so the revert, were never made (E-7).
                self._given_up = False
            if execution is self._reverting:
                self._reverting = None
            self._forget(execution)
        status, before = outcome.transaction, self.status
        if status is not None and (before is None or (status.id == before.id and status.accepted >= before.accepted)):
            self.status = status
            if status.state not in _OPEN:
                if failure is None and not ended and self._failure is None and not self._done:
                    # Told by a command that itself completed, as a read does: the end of the block tells it.
                    over = replace(outcome, disposition=Disposition.FAILED, message="the transaction is over")
                    self._failure = (transaction_error(over) or TransactionFinished, execution.query, over, execution)
                self._finish()
        admission, newest = outcome.admission, self.admission
        if (
            admission is not None
            and admission.preview.transaction == self.id
            and (newest is None or admission.operation > newest.operation)
        ):
            self.admission = admission
        if isinstance(failure, TransactionError) and not isinstance(failure, PreviewStale):
            self._failure = (type(failure), execution.query, outcome, execution)
            self._finish()

    def _uncertain(self, execution: Execution) -> UncertainError:
        """What is told where the host was told before, and asked no more."""
        uncertain = UncertainError(
            f"the outcome of {inline(execution.query)} with reference {execution.reference} is not known, it may have happened, and "
            "the server found it malformed or oversized: run the same execution again to learn its outcome"
        )
        uncertain.execution = execution
        uncertain.reference = execution.reference
        return uncertain

    def _news(self) -> TransactionError:
        """What ended it, as an error."""
        assert self._failure is not None
        kind, query, outcome, execution = self._failure
        news = kind(query, outcome)
        news.execution = execution
        return news

    def _check(self) -> None:
        if self._failure is not None:
            raise self._news()
        if not self._begun:
            raise InvalidArgumentError("the transaction has not begun; use it as a context manager, or call begin()")
        if self._done:
            raise InvalidArgumentError("the transaction is finished; make another one with session.transaction()")

    def _finish(self) -> None:
        """Nothing of it is left to do; the session's domain is what it was before."""
        if self._done:
            return
        self._done = True
        self._beginning = None
        self._pass()
        if self._begun and self._session._domain is None:
            # As in the library, which has it selected.
            self._session._domain = self.domain
        self._back()

    def _back(self) -> None:
        """Selects the domain that was selected before, where the library does not do that with the end of the transaction."""
        # Refused while the library holds on to a lost transaction: then it follows when that is left.
        with suppress(Error):
            self._select_again(Limit(REVERT_PATIENCE, None))

    def _select_again(self, limit: Limit) -> None:
        session = self._session
        if self._selected is not None and self._selected != session.domain:
            session._carry_out(session._prepare(f"USE {self._selected};", limit), limit, False, aside=True)

    @property
    def _is_bound(self) -> bool:
        """Whether what is called for it can reach no other transaction."""
        return self.id is not None and extension("domains")

    def _leave(self, limit: Limit) -> None:
        """Makes the session forget a transaction that another one has, or that ended while it was not attached."""
        session = self._session
        if not self._left and (self._is_bound or session._held.transaction() is None):
            session._carry_out(session._prepare("REVERT;", limit, transaction=self), limit, False, aside=True)
            self._select_again(limit)
        # Otherwise what the session holds by now is another one.
        self._left = True


def ends(outcome: Outcome, current: Current) -> bool:
    """Whether the outcome of a COMMIT or REVERT says that this transaction is over."""
    status, known = outcome.transaction, current.status
    if status is None or known is None:
        return outcome.completed
    return status.id == known.id and status.state not in _OPEN


def transaction_error(outcome: Outcome) -> type[TransactionError] | None:
    """What kind of news about the session's transaction an outcome is, if it is any."""
    if outcome.disposition == Disposition.PREVIEW_STALE:
        return PreviewStale
    if outcome.disposition == Disposition.TRANSACTION_TAKEN_OVER:
        return TransactionTakenOver
    if outcome.disposition != Disposition.FAILED or outcome.transaction is None:
        return None
    kinds: dict[int, type[TransactionError]] = {
        TransactionState.EXPIRED: TransactionExpired,
        TransactionState.FAILED: TransactionFailed,
        TransactionState.COMMITTED: TransactionFinished,
        TransactionState.REVERTED: TransactionFinished,
    }
    return kinds.get(outcome.transaction.state)
