"""The values that the interface gives its enumerations.

A value that a newer library adds is not an error: ``read`` hands out an ``int`` where no member has it.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TypeVar

__all__ = [
    "AckWindow",
    "Admission",
    "BatchDefect",
    "CellState",
    "ClockEndReason",
    "ClockEventKind",
    "ClockState",
    "CompletionKind",
    "CompletionStatus",
    "Disposition",
    "EndReason",
    "EndpointState",
    "ErrorKind",
    "EventKind",
    "OpenRefusal",
    "Origin",
    "Part",
    "ProcessingFailure",
    "ReopenReason",
    "Settlement",
    "SkipCause",
    "StatementKind",
    "SubmissionRefusal",
    "SubmissionResult",
    "SubmissionUncertainty",
    "TransactionState",
    "Type",
]


class ErrorKind(IntEnum):
    """What kind of failure an error is."""

    INVALID_ARGUMENT = 1
    CONNECT = 2
    TRANSPORT = 3
    UNCERTAIN = 4
    REJECTED = 5
    DEADLINE = 6
    CANCELLED = 7
    OVERFLOW = 8
    PROTOCOL = 9
    TYPE = 10
    CLOSED = 11
    INTERRUPTED = 12
    REOPEN_REQUIRED = 13


class Disposition(IntEnum):
    """What a server decided about a command (E-6)."""

    COMPLETED = 1
    FAILED = 2
    NOT_LEADER = 3
    TRANSACTION_DETACHED = 4
    TRANSACTION_TAKEN_OVER = 5
    OUTCOME_UNKNOWN = 6
    EXECUTION_REFERENCE_CONFLICT = 7
    EXECUTION_REFERENCE_EXPIRED = 8
    PREVIEW_STALE = 9


class CompletionStatus(IntEnum):
    """Whether completions could be looked up."""

    READY = 1
    MISSING_CONTEXT = 2
    STALE_CONTEXT = 3
    LOOKUP_FAILED = 4


class CompletionKind(IntEnum):
    """What a completion is: text to insert, or a request to list a local folder."""

    TEXT = 1
    LOCAL_DIRECTORY_LOOKUP = 2


class Type(IntEnum):
    """The type of a field, or of one level of a list field."""

    U8 = 1
    I8 = 2
    U16 = 3
    I16 = 4
    U32 = 5
    I32 = 6
    U64 = 7
    I64 = 8
    F32 = 9
    F64 = 10
    BOOL = 11
    STRING = 12
    BYTES = 13
    DATETIME = 14
    FIXED_LIST = 15
    LIST = 16


class Part(IntEnum):
    """The rows of a batch, or its branch key."""

    ROWS = 1
    BRANCH_KEY = 2


class CellState(IntEnum):
    """Whether a cell holds a value, holds none, or is withheld (R-4)."""

    VALUE = 1
    NULL = 2
    REDACTED = 3


class EventKind(IntEnum):
    """What a subscription event is."""

    ROWS = 1
    DELIVERY_LOST = 2
    ROWS_SKIPPED = 3
    ENDED = 4
    INTERRUPTED = 5
    CONSUMER_OVERFLOW = 6
    RESTORATION_FAILED = 7


class ClockEventKind(IntEnum):
    """What a clock event is (B-9)."""

    STATE = 1
    TICK = 2
    ENDED = 3
    INTERRUPTED = 4
    RESTORATION_FAILED = 5


class ClockState(IntEnum):
    """What a domain's clock does. Only a paced one has a period, and only a paced or an unpaced one has time."""

    STOPPED = 1
    UNINSTALLED = 2
    UNPACED = 3
    PACED = 4


class ClockEndReason(IntEnum):
    """Why the server ended the attachment of a clock."""

    DOMAIN_REMOVED = 1


class OpenRefusal(IntEnum):
    """Why a server refused to open a producer or a consumer."""

    DOMAIN_NOT_FOUND = 1
    DOMAIN_STOPPED = 2
    ENDPOINT_NOT_FOUND = 3
    NOT_CLIENT_ENDPOINT = 4
    ENDPOINT_UNAVAILABLE = 5
    SCHEMA_MISMATCH = 6
    TOO_MANY_ENDPOINTS = 7
    SESSION_CAPACITY_EXHAUSTED = 8
    NODE_CAPACITY_EXHAUSTED = 9
    INVALID_LIMITS = 10
    IN_TRANSACTION = 11


class EndpointState(IntEnum):
    """What a producer or a consumer is in.

    INTERRUPTED: its attachment was lost, and the next call that needs one restores it. REOPEN_REQUIRED: the handle is over.
    """

    ACTIVE = 1
    INTERRUPTED = 2
    RESTORING = 3
    REOPEN_REQUIRED = 4
    CLOSED = 5


class ReopenReason(IntEnum):
    """Why a producer or a consumer has to be opened anew (B-16)."""

    DOMAIN_STOPPED = 1
    ENDPOINT_REMOVED = 2
    SCHEMA_CHANGED = 3
    CONTRACT_CHANGED = 4
    GENERATION_CHANGED = 5
    PROTOCOL_VIOLATED = 6
    REFUSED = 7


class AckWindow(IntEnum):
    """How many batches an endpoint has outstanding: one, or up to a number."""

    SEQUENTIAL = 1
    PARALLEL = 2


class Admission(IntEnum):
    """Whether an ingestor takes batches now (P-6)."""

    OPEN = 1
    SUSPENDED = 2


class SubmissionResult(IntEnum):
    """What became of a submitted batch (P-5).

    Neither PROCESSING_FAILED nor OUTCOME_UNKNOWN says that the batch had no effect (B-14).
    """

    NOT_ADMITTED = 1
    COMPLETED = 2
    PROCESSING_FAILED = 3
    OUTCOME_UNKNOWN = 4


class SubmissionRefusal(IntEnum):
    """Why a batch was not admitted."""

    INVALID_BATCH = 1
    SUSPENDED = 2
    BUSY = 3
    DRAINING = 4
    PRODUCER_ENDED = 5
    CREDIT_EXCEEDED = 6


class BatchDefect(IntEnum):
    """What is wrong with a batch that was refused as invalid."""

    MALFORMED = 1
    UNEXPECTED_MESSAGE = 2
    COMPRESSED = 3
    SCHEMA_MISMATCH = 4
    NOT_ONE_BATCH = 5
    TOO_MANY_ROWS = 6
    TOO_LARGE = 7
    INVALID_DATA = 8


class ProcessingFailure(IntEnum):
    """Why the graph did not complete a batch that was admitted."""

    ACK_TIMED_OUT = 1
    REJECTED = 2


class SubmissionUncertainty(IntEnum):
    """Why nobody knows what became of a batch."""

    INTERRUPTED = 1
    OWNER_LOST = 2
    SESSION_LOST = 3


class Settlement(IntEnum):
    """What became of an acknowledgement, a retry or a rejection (EC-4)."""

    CONFIRMED = 1
    STALE_REFERENCE = 2
    WRONG_CONSUMER = 3
    INVALID_REASON = 4
    CONSUMER_ENDED = 5


class Origin(IntEnum):
    """Whether an outcome was decided by this run of the command or recovered from an earlier one."""

    EXECUTED = 1
    RECOVERED = 2


class TransactionState(IntEnum):
    """What became of a transaction so far."""

    OPEN = 1
    COMMITTING = 2
    COMMITTED = 3
    FAILED = 4
    REVERTED = 5
    EXPIRED = 6


class StatementKind(IntEnum):
    """What a text asks for, as far as a session keeps account of it."""

    OTHER = 0
    BEGIN = 1
    COMMIT = 2
    REVERT = 3
    USE = 4
    SUBSCRIBE = 5
    UNSUBSCRIBE = 6
    ATTACH_CLOCK = 7
    DETACH_CLOCK = 8


class EndReason(IntEnum):
    """Why a generation of a subscription ended."""

    RELAY_REMOVED = 1
    RELAY_CHANGED = 2


class SkipCause(IntEnum):
    """Why rows were skipped."""

    FILTER_FAILED = 1
    DOMAIN_TIME_UNAVAILABLE = 2
    ENCODING_FAILED = 3


#: The C name of each enumeration and the prefix of its constants.
C_NAMES: dict[type[IntEnum], tuple[str, str]] = {
    ErrorKind: ("nx_error_kind", "NX_ERROR_"),
    Disposition: ("nx_disposition", "NX_DISPOSITION_"),
    CompletionStatus: ("nx_completion_status", "NX_COMPLETION_"),
    CompletionKind: ("nx_completion_kind", "NX_COMPLETION_"),
    Type: ("nx_type", "NX_TYPE_"),
    Part: ("nx_part", "NX_PART_"),
    CellState: ("nx_cell_state", "NX_CELL_"),
    EventKind: ("nx_event_kind", "NX_EVENT_"),
    ClockEventKind: ("nx_clock_event_kind", "NX_CLOCK_EVENT_"),
    ClockState: ("nx_clock_state", "NX_CLOCK_"),
    ClockEndReason: ("nx_clock_end_reason", "NX_CLOCK_END_"),
    OpenRefusal: ("nx_open_refusal", "NX_OPEN_"),
    EndpointState: ("nx_endpoint_state", "NX_ENDPOINT_"),
    ReopenReason: ("nx_reopen_reason", "NX_REOPEN_"),
    AckWindow: ("nx_ack_window", "NX_ACK_"),
    Admission: ("nx_admission", "NX_ADMISSION_"),
    SubmissionResult: ("nx_submission_result", "NX_SUBMISSION_"),
    SubmissionRefusal: ("nx_submission_refusal", "NX_REFUSAL_"),
    BatchDefect: ("nx_batch_defect", "NX_DEFECT_"),
    ProcessingFailure: ("nx_processing_failure", "NX_FAILURE_"),
    SubmissionUncertainty: ("nx_submission_uncertainty", "NX_UNCERTAINTY_"),
    Settlement: ("nx_settlement", "NX_SETTLEMENT_"),
    Origin: ("nxx_origin", "NXX_ORIGIN_"),
    TransactionState: ("nxx_transaction_state", "NXX_TRANSACTION_"),
    EndReason: ("nxx_end_reason", "NXX_END_"),
    SkipCause: ("nxx_skip_cause", "NXX_SKIP_"),
    StatementKind: ("nxx_statement_kind", "NXX_STATEMENT_"),
}

E = TypeVar("E", bound=IntEnum)


def read(kind: type[E], value: int) -> E | int:
    """The member of ``kind`` with ``value``, or the number itself when this version knows none."""
    try:
        return kind(value)
    except ValueError:
        return int(value)
