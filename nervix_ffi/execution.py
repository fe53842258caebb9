"""One command: its text, its reference, and what is told of it when it did not complete.

Owns the errors of outcomes. Must not know how a session runs commands, nor transactions beyond their news.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from nervix_ffi._handle import Handle
from nervix_ffi._held import nothing
from nervix_ffi._library import extension, ffi, lib
from nervix_ffi._native import read_bytes, read_text
from nervix_ffi._statement import Statement, recognise
from nervix_ffi._told import inline
from nervix_ffi.cancel import Cancel, Limit
from nervix_ffi.enums import Disposition
from nervix_ffi.errors import (
    ClosedError,
    CommandFailed,
    CommandNotCompleted,
    Error,
    ReferenceExpired,
    UncertainError,
)
from nervix_ffi.outcome import Outcome, TransactionPreview
from nervix_ffi.transaction import transaction_error

if TYPE_CHECKING:
    from nervix_ffi._commands import Commands
    from nervix_ffi._ffi import CData
    from nervix_ffi.transaction import Transaction

__all__ = ["Execution", "not_completed", "remember"]


class Execution:
    """One logical command: its text, the domain selected when it was prepared, and its reference.

    Running it again recovers what it did instead of doing it twice. After UncertainError, CancelledError or DeadlineError run the
    same object again; a new one for the same text is another command (B-1).
    """

    def __init__(
        self,
        session: Commands,
        query: str,
        domain: str | None,
        pointer: CData,
        transaction: Transaction | None = None,
        given: bool = False,
        statement: Statement | None = None,
    ) -> None:
        self._session = session
        #: The transaction that it is of, or that was under way when it was prepared.
        self._transaction: Callable[[], Transaction | None] = nothing if transaction is None else weakref.ref(transaction)
        self._handle = Handle("execution", pointer)
        self.query = query
        self._statement = statement or recognise(query)
        #: The server found it malformed or oversized.
        self._condemned = False
        #: It was run, and may have been sent.
        self._ran = False
        #: A transaction asks what became of it.
        self._kept = False
        #: The host asked for it, and no transaction object did.
        self._plain = True
        #: Its reference is one that it had before.
        self._given = given
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

    @property
    def position(self) -> int | None:
        """Its place in a transaction, the number of operations before it, once it was sent in one; None for any other, and where
        the library lacks the ``repetitions`` extension. What repeats it in another session is prepared with it (E-2).
        """
        with self._handle as pointer:
            position = ffi.new("uint64_t *")
            there = extension("repetitions") and lib.nxx_execution_position(pointer, position)
            return int(position[0]) if there else None

    @property
    def preview(self) -> TransactionPreview | None:
        """What a COMMIT was to find, once it was sent with that: as ``position``, for what repeats it in another session."""
        with self._handle as pointer:
            name, name_len, position = ffi.new("const uint8_t **"), ffi.new("size_t *"), ffi.new("uint64_t *")
            basis, basis_len = ffi.new("const uint8_t **"), ffi.new("size_t *")
            places = (name, name_len, position, basis, basis_len)
            if not (extension("repetitions") and lib.nxx_execution_preview(pointer, *places)):
                return None
            transaction = read_bytes(name, name_len).decode("utf-8", "replace")
            return TransactionPreview(transaction, int(position[0]), read_bytes(basis, basis_len))

    @property
    def _never_sent(self) -> bool:
        """Whether it is known that it was never sent, by whatever call."""
        with suppress(ClosedError), self._handle as pointer:
            return extension("repetitions") and not lib.nxx_execution_sent(pointer)
        return False

    def _elsewhere(self) -> str:
        """How another session asks about it, to be told behind what ended this one; nothing where that is not to be asked."""
        if self._never_sent or not extension("transactions"):
            return ""
        given = [f"reference={self.reference!r}"]
        with suppress(ClosedError):
            if self.position is not None:
                given.append(f"position={self.position}")
            if self.preview is not None:
                given.append("preview=error.execution.preview")
        return f"; in another session prepare(query, {', '.join(given)}) makes what to run to learn that"

    def release(self) -> None:
        """Lets go of it. Running it afterwards raises ClosedError.

        What a transaction needs to learn how it stands, its BEGIN, COMMIT or REVERT of unknown outcome, stays until that is known.
        """
        if not self._kept:
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


def remember(interruption: BaseException, execution: Execution, *, sent: bool = True) -> None:
    """Has an exception that is none of ours carry the command that it interrupted, as ours do."""
    with suppress(AttributeError, TypeError):
        vars(interruption).update(execution=execution, reference=execution.reference)
    if hasattr(interruption, "add_note"):
        what = "may have happened, or may still happen" if sent else "was not sent this time"
        interruption.add_note(
            f"The command with reference {execution.reference} {what}: run this exception's execution again to learn its outcome."
        )


def not_completed(execution: Execution, outcome: Outcome) -> Error:
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
