"""The exceptions: one class an error kind, from one table, and those that Python alone raises.

Owns the mapping from the interface's kinds to classes. Must not know how an error was come by.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from nervix_ffi._told import told
from nervix_ffi.enums import ErrorKind, OpenRefusal, ReopenReason, Settlement

if TYPE_CHECKING:
    from nervix_ffi.batch import Batch
    from nervix_ffi.execution import Execution
    from nervix_ffi.outcome import Diagnostic, Outcome, TransactionStatus
    from nervix_ffi.producer import Submission, SubmissionOutcome

__all__ = [
    "ERROR_CLASSES",
    "CancelledError",
    "ClosedError",
    "CommandFailed",
    "CommandNotCompleted",
    "ConnectError",
    "DeadlineError",
    "Error",
    "EventOverflowError",
    "InterruptedReadError",
    "InvalidArgumentError",
    "NotAdmitted",
    "OpenRefused",
    "OutcomeUnknown",
    "PreviewStale",
    "ProcessingFailed",
    "ProtocolError",
    "ReferenceExpired",
    "RejectedError",
    "ReopenRequiredError",
    "SettlementFailed",
    "SubmissionNotCompleted",
    "TransactionError",
    "TransactionExpired",
    "TransactionFailed",
    "TransactionFinished",
    "TransactionTakenOver",
    "TransportError",
    "TypeMismatchError",
    "UncertainError",
    "UnsupportedError",
    "error_class",
]


class Error(Exception):
    """A failure that this package reports.

    ``kind`` is what kind it is, or None when it has none. ``reference`` is the execution reference of the command that failed,
    when the error ended one; the command may have happened, and running the same ``execution`` again tells (B-1). ``submission``
    is the batch that a call of a producer handed over, or that a ``result`` was of; it is None when nothing was submitted, and
    otherwise the batch must not be submitted again: ``submission.result`` tells what becomes of it (B-14). ``batch`` is what was made
    of the data of a call that submitted nothing, None where it came to none: submit that one, for an iterator or a stream was read
    for it. ``refusal`` says why an open was refused, and ``reason`` why a handle has to be opened again.
    """

    kind: ErrorKind | int | None = None
    reference: str | None = None
    refusal: OpenRefusal | int | None = None
    reason: ReopenReason | int | None = None
    execution: Execution | None = None
    submission: Submission | None = None
    batch: Batch | None = None

    #: Nothing of the command was ever sent, as far as is known.
    _unsent: bool = False
    #: It was not, as the session holds this transaction.
    _held: str | None = None
    #: The server found the command malformed or oversized: nothing but the host sends it again.
    _condemned: bool = False

    def __str__(self) -> str:
        # It may name what a server named.
        return told(super().__str__())

    def __reduce__(self) -> tuple[object, ...]:
        # These belong to a session or to memory of this process: they stay behind when the error is pickled.
        state = {name: value for name, value in self.__dict__.items() if name not in ("execution", "submission", "batch")}
        return (type(self), self.args, state)


class InvalidArgumentError(Error, ValueError):
    """An argument is not what the call takes. Nothing was sent."""

    kind = ErrorKind.INVALID_ARGUMENT


class ConnectError(Error):
    """No session could be opened: no server answered, or the credentials were refused."""

    kind = ErrorKind.CONNECT


class TransportError(Error):
    """The session failed after it had opened."""

    kind = ErrorKind.TRANSPORT


class UncertainError(Error):
    """Work was admitted and its outcome is unknown: the command may have happened.

    Run the same ``execution`` again to learn what became of it; preparing a new one could make it happen twice (B-1).
    """

    kind = ErrorKind.UNCERTAIN
    outcome: Outcome | None = None


class ReferenceExpired(UncertainError):
    """The cluster keeps no record of the command any more, 15 minutes after it was prepared, by default (E-4).

    This is no outcome of the command: it may have happened. Look for what it would have changed; running the same ``execution``
    again will not tell.
    """


class RejectedError(Error):
    """What was asked for was refused, and this attempt admitted nothing. It says nothing of an earlier one."""

    kind = ErrorKind.REJECTED


class OpenRefused(RejectedError):
    """The server refused to open a producer or a consumer, and nothing was attached. ``refusal`` says why (B-12)."""


class DeadlineError(Error, TimeoutError):
    """The time was over before the call came back.

    A command may have happened: run the same ``execution`` again (B-1). A batch was submitted when there is a ``submission``, and
    not otherwise (B-14): submit the ``batch`` then.
    """

    kind = ErrorKind.DEADLINE


class CancelledError(Error):
    """The call was cancelled.

    A command may have happened: run the same ``execution`` again (B-1). A batch was submitted when there is a ``submission``, and
    not otherwise (B-14): submit the ``batch`` then.
    """

    kind = ErrorKind.CANCELLED


class EventOverflowError(Error):
    """Events could not be kept, and some are lost.

    Read them as they come, in a thread that does nothing else, or have the server send fewer: ``where``, ``sample_rate``.
    """

    kind = ErrorKind.OVERFLOW


class ProtocolError(Error):
    """The server broke the protocol, and the session ended. The next call opens a new one."""

    kind = ErrorKind.PROTOCOL


class TypeMismatchError(Error, TypeError):
    """A value was read as what it is not."""

    kind = ErrorKind.TYPE


class ClosedError(Error):
    """The object was closed or released, or its session cannot come back. Connect anew.

    A command that was waited for may have happened: ``reference`` names it, and in another session
    ``prepare(query, reference=...)``, with the ``position`` and ``preview`` of the error's ``execution``, makes what to run to learn
    that (E-2, E-3).
    """

    kind = ErrorKind.CLOSED


class InterruptedReadError(Error):
    """An attachment ended; the next read goes on with a restored one.

    No delivery that was read before can be settled any more, and what they carried is delivered again (B-16).
    """

    kind = ErrorKind.INTERRUPTED


class ReopenRequiredError(Error):
    """The handle is over; open a new one after checking what it opens now.

    ``reason`` says why, and ``refusal`` how the server refused when the reason is REFUSED (B-16).
    """

    kind = ErrorKind.REOPEN_REQUIRED


class UnsupportedError(Error, NotImplementedError):
    """The library that is loaded lacks the extension that the call needs."""


#: The class of each error kind.
ERROR_CLASSES: dict[ErrorKind, type[Error]] = {
    ErrorKind.INVALID_ARGUMENT: InvalidArgumentError,
    ErrorKind.CONNECT: ConnectError,
    ErrorKind.TRANSPORT: TransportError,
    ErrorKind.UNCERTAIN: UncertainError,
    ErrorKind.REJECTED: RejectedError,
    ErrorKind.DEADLINE: DeadlineError,
    ErrorKind.CANCELLED: CancelledError,
    ErrorKind.OVERFLOW: EventOverflowError,
    ErrorKind.PROTOCOL: ProtocolError,
    ErrorKind.TYPE: TypeMismatchError,
    ErrorKind.CLOSED: ClosedError,
    ErrorKind.INTERRUPTED: InterruptedReadError,
    ErrorKind.REOPEN_REQUIRED: ReopenRequiredError,
}


def error_class(kind: ErrorKind | int) -> type[Error]:
    """The class of an error kind; Error itself for a kind that this version does not know."""
    return ERROR_CLASSES[kind] if isinstance(kind, ErrorKind) else Error


class CommandNotCompleted(Error):
    """A server answered a command and did not complete it. ``outcome`` is its answer, ``query`` the text of the command."""

    def __init__(self, query: str, outcome: Outcome) -> None:
        super().__init__(query, outcome)
        self.query = query
        self.outcome = outcome
        self.reference = outcome.reference

    @property
    def diagnostics(self) -> Sequence[Diagnostic]:
        """What the server says about parts of the command."""
        return self.outcome.diagnostics

    def __str__(self) -> str:
        return self.outcome.describe(self.query)


class CommandFailed(CommandNotCompleted):
    """A command ended FAILED. Its message shows each diagnostic under the statement that it is about."""


class TransactionError(CommandNotCompleted):
    """A command was not completed because of how the session's transaction stands. ``status`` is how, where a server said so."""

    @property
    def status(self) -> TransactionStatus | None:
        """How the transaction stood."""
        return self.outcome.transaction


class PreviewStale(TransactionError):
    """The transaction is not what the preview showed. Nothing was applied, and it stays open (X-4).

    Review what it holds now before committing it against another preview.
    """


class TransactionTakenOver(TransactionError):
    """Another session has the transaction now, and may commit or revert it. It is never taken back by itself."""


class TransactionFinished(TransactionError, CommandFailed):
    """The transaction is over. That says nothing about a command of it whose outcome is unknown: run that again (X-6)."""


class TransactionExpired(TransactionFinished):
    """Nothing was appended for the server's idle timeout, and the transaction is over without being carried out (X-8)."""


class TransactionFailed(TransactionFinished):
    """An operation of the transaction failed when it was committed. ``status`` says which, and why."""


class SubmissionNotCompleted(Error):
    """A submitted batch was not completed. ``outcome`` is what became of it (B-14)."""

    def __init__(self, outcome: SubmissionOutcome) -> None:
        super().__init__(outcome)
        self.outcome = outcome

    def __str__(self) -> str:
        return self.outcome.describe()


class NotAdmitted(SubmissionNotCompleted):
    """A batch was not admitted; it had no effect."""


class ProcessingFailed(SubmissionNotCompleted):
    """A batch was admitted and the graph did not complete it. It may have had effects (B-14)."""


class OutcomeUnknown(SubmissionNotCompleted):
    """Nobody knows what became of a batch. It may have been processed; send it again only if that does no harm (B-14)."""


class SettlementFailed(Error):
    """A delivery was not settled as asked. ``settlement`` says why; it comes again unless it was settled before (B-15)."""

    def __init__(self, message: str, settlement: Settlement | int) -> None:
        super().__init__(message, settlement)
        self.settlement = settlement

    def __str__(self) -> str:
        return str(self.args[0])
