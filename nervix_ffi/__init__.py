"""A client of Nervix over the shared client library.

``connect`` opens a Session; a Session runs commands and subscribes to relays; a Subscription yields events, and the Rows among
them become Python values or Arrow batches. Every failure is an ``Error``. The rules that this package follows are named where
they bind, for example (B-1).
"""

from nervix_ffi._library import Library, library
from nervix_ffi.cancel import Cancel
from nervix_ffi.column import Column
from nervix_ffi.completion import Suggestion, Suggestions
from nervix_ffi.enums import (
    CellState,
    CompletionKind,
    CompletionStatus,
    Disposition,
    EndReason,
    ErrorKind,
    EventKind,
    OpenRefusal,
    Origin,
    Part,
    SkipCause,
    Type,
)
from nervix_ffi.errors import (
    CancelledError,
    ClosedError,
    CommandFailed,
    CommandNotCompleted,
    ConnectError,
    DeadlineError,
    Error,
    EventOverflowError,
    InterruptedReadError,
    InvalidArgumentError,
    ProtocolError,
    RejectedError,
    ReopenRequiredError,
    TransportError,
    TypeMismatchError,
    UncertainError,
    UnsupportedError,
)
from nervix_ffi.events import (
    DeliveryLost,
    Ended,
    Event,
    Interrupted,
    Overflow,
    RestorationFailed,
    Rows,
    RowsSkipped,
)
from nervix_ffi.outcome import Diagnostic, OpenedSubscription, Outcome, StatementOutcome
from nervix_ffi.schema import Field, Level, Schema
from nervix_ffi.session import Execution, Session, connect
from nervix_ffi.subscription import Subscription
from nervix_ffi.values import REDACTED, Redacted, Value, from_datetime, to_datetime

__version__ = "0.1.0"

__all__ = [
    "REDACTED",
    "Cancel",
    "CancelledError",
    "CellState",
    "ClosedError",
    "Column",
    "CommandFailed",
    "CommandNotCompleted",
    "CompletionKind",
    "CompletionStatus",
    "ConnectError",
    "DeadlineError",
    "DeliveryLost",
    "Diagnostic",
    "Disposition",
    "EndReason",
    "Ended",
    "Error",
    "ErrorKind",
    "Event",
    "EventKind",
    "EventOverflowError",
    "Execution",
    "Field",
    "Interrupted",
    "InterruptedReadError",
    "InvalidArgumentError",
    "Level",
    "Library",
    "OpenRefusal",
    "OpenedSubscription",
    "Origin",
    "Outcome",
    "Overflow",
    "Part",
    "ProtocolError",
    "Redacted",
    "RejectedError",
    "ReopenRequiredError",
    "RestorationFailed",
    "Rows",
    "RowsSkipped",
    "Schema",
    "Session",
    "SkipCause",
    "StatementOutcome",
    "Subscription",
    "Suggestion",
    "Suggestions",
    "TransportError",
    "Type",
    "TypeMismatchError",
    "UncertainError",
    "UnsupportedError",
    "Value",
    "connect",
    "from_datetime",
    "library",
    "to_datetime",
]
