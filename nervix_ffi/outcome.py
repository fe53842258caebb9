"""What became of a command: outcomes, and the diagnostics that point into its text.

An outcome is a copy; nothing of the library is kept.
"""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING

from nervix_ffi._library import extension, ffi, lib
from nervix_ffi._native import Out, check, read_bytes, read_text
from nervix_ffi._told import CUT, cut, harmless, told
from nervix_ffi.enums import Disposition, Origin, TransactionState, read
from nervix_ffi.schema import Schema, read_schema

if TYPE_CHECKING:
    from nervix_ffi._ffi import CData

__all__ = [
    "Diagnostic",
    "OpenedSubscription",
    "Outcome",
    "StatementOutcome",
    "TransactionAdmission",
    "TransactionPreview",
    "TransactionStatus",
    "read_outcome",
]


@dataclass(frozen=True)
class Diagnostic:
    """A remark of the server on a command.

    ``span`` is the part of the command that it is about, as byte offsets into its UTF-8 (start, end), None when it is about none
    in particular. An empty span is a place where something is missing.
    """

    message: str
    span: tuple[int, int] | None = None

    def draw(self, query: str, *, message: bool = True) -> str:
        """The message, with the line of ``query`` that it is about and a mark under the part in question.

        Of a long line only what is around that part. Without ``message``, the line and the mark alone.
        """
        if self.span is None:
            return told(self.message) if message else ""
        data = query.encode("utf-8", "surrogatepass")
        start = min(self.span[0], len(data))
        end = max(start, min(self.span[1], len(data)))
        line_start = data.rfind(b"\n", 0, start) + 1
        line_end = data.find(b"\n", start)
        if line_end < 0:
            line_end = len(data)
        end = min(end, line_end)
        number = data.count(b"\n", 0, start) + 1
        before = _shown(data[max(line_start, start - 8 * BEFORE) : start])
        if len(before) > BEFORE:
            before = CUT + before[1 - BEFORE :]
        marked = cut(_shown(data[start : min(end, start + 8 * MARKED)]), MARKED)
        whole = len(marked) < MARKED or not marked.endswith(CUT)
        after = "" if not whole else cut(_shown(data[end : min(line_end, end + 8 * AFTER)]), AFTER)
        margin = f"{number} | "
        drawn = (
            f"{margin}{before}{marked}{after}\n{' ' * (len(margin) - 2)}| {' ' * _width(before)}{'^' * max(1, _width(marked))}"
        )
        return f"{told(self.message)}\n{drawn}" if message else drawn


#: How many diagnostics of an outcome are drawn.
DRAWN = 20

#: How many characters of a line are shown before, of and behind the part in question.
BEFORE, MARKED, AFTER = 60, 60, 40


def _shown(data: bytes) -> str:
    return harmless(data.decode("utf-8", "replace").replace("\t", "    "))


def _width(text: str) -> int:
    """Columns on a terminal."""
    return sum(
        0 if unicodedata.combining(character) else 2 if unicodedata.east_asian_width(character) in "WF" else 1
        for character in text
    )


@dataclass(frozen=True)
class StatementOutcome:
    """What became of one statement of a command that has several."""

    disposition: Disposition | int
    already_existed: bool
    message: str
    diagnostics: tuple[Diagnostic, ...]


@dataclass(frozen=True)
class OpenedSubscription:
    """The subscription that a command opened."""

    name: str
    generation: int


@dataclass(frozen=True)
class TransactionPreview:
    """What a transaction would carry out at one position: two that are equal stand for the same (X-4).

    ``basis`` is a digest of 32 bytes.
    """

    transaction: str
    position: int
    basis: bytes


@dataclass(frozen=True)
class TransactionAdmission:
    """An accepted append: the number of the operation, counted from 1, and the preview with it (X-3)."""

    operation: int
    preview: TransactionPreview


@dataclass(frozen=True)
class TransactionStatus:
    """How a transaction stood when the outcome was made.

    ``accepted`` and ``applied`` count operations. They and ``state`` tell nothing about any one command: its own outcome does
    (X-3). ``failing_operation`` (from 1) and ``error`` are there when the state is FAILED.
    """

    id: str
    domain: str
    state: TransactionState | int
    accepted: int
    applied: int
    failing_operation: int | None = None
    error: str | None = None


@dataclass(frozen=True)
class Outcome:
    """What a server decided about a command (E-6).

    ``reference`` is the execution reference that the command ran under. ``subscription`` and ``schema`` are there when it opened a
    subscription. ``origin``, ``already_existed``, ``statements`` and ``decided_locally`` are None where the loaded library
    cannot tell; ``origin`` also when no server answered. ``statements`` is empty for a single statement. ``transaction`` is the
    one that the session holds or that the command ended, ``admission`` what an append was accepted as; both are None where there
    is none, and where the library cannot tell.
    """

    disposition: Disposition | int
    message: str
    reference: str | None
    diagnostics: tuple[Diagnostic, ...] = ()
    subscription: OpenedSubscription | None = None
    schema: Schema | None = None
    origin: Origin | int | None = None
    already_existed: bool | None = None
    statements: tuple[StatementOutcome, ...] | None = None
    decided_locally: bool | None = None
    transaction: TransactionStatus | None = None
    admission: TransactionAdmission | None = None

    @property
    def completed(self) -> bool:
        """Whether the command completed."""
        return self.disposition == Disposition.COMPLETED

    def describe(self, query: str) -> str:
        """The outcome for a person, with the first diagnostics drawn under ``query``, each of them once.

        However much a server says, this is a text that a person reads: ``diagnostics`` and ``statements`` have all of it.
        """
        disposition = self.disposition
        name = disposition.name if isinstance(disposition, Disposition) else f"disposition {disposition}"
        head = f"the command ended {name}" + (f": {told(self.message)}" if self.message else "")
        of_statements = (statement.diagnostics for statement in self.statements or ())
        remarks = list(dict.fromkeys(chain(self.diagnostics, *of_statements)))
        drawn = [remark.draw(query, message=remark.message != self.message) for remark in remarks[:DRAWN]]
        more = f"{CUT} and {len(remarks) - DRAWN} more" if len(remarks) > DRAWN else ""
        return "\n".join([head, *filter(None, [*drawn, more])])


class _DiagnosticPlaces:
    """Out-parameters of one diagnostic."""

    def __init__(self) -> None:
        self.message, self.length = ffi.new("const uint8_t **"), ffi.new("size_t *")
        self.has_span, self.start, self.end = ffi.new("bool *"), ffi.new("uint32_t *"), ffi.new("uint32_t *")

    def read(self) -> Diagnostic:
        span = (int(self.start[0]), int(self.end[0])) if self.has_span[0] else None
        return Diagnostic(read_bytes(self.message, self.length).decode("utf-8", "replace"), span)


def _diagnostics(outcome: CData) -> tuple[Diagnostic, ...]:
    found = []
    for index in range(lib.nx_outcome_diagnostic_count(outcome)):
        out = _DiagnosticPlaces()
        check(lib.nx_outcome_diagnostic(outcome, index, out.message, out.length, out.has_span, out.start, out.end))
        found.append(out.read())
    return tuple(found)


def _statement(outcome: CData, index: int) -> StatementOutcome:
    disposition, existed = ffi.new("nx_disposition *"), ffi.new("bool *")
    message, length, count = ffi.new("const uint8_t **"), ffi.new("size_t *"), ffi.new("size_t *")
    check(lib.nxx_outcome_statement(outcome, index, disposition, existed, message, length, count))
    total: int = count[0]
    found = []
    for number in range(total):
        out = _DiagnosticPlaces()
        check(
            lib.nxx_outcome_statement_diagnostic(
                outcome, index, number, out.message, out.length, out.has_span, out.start, out.end
            )
        )
        found.append(out.read())
    return StatementOutcome(
        disposition=read(Disposition, int(disposition[0])),
        already_existed=bool(existed[0]),
        message=read_bytes(message, length).decode("utf-8", "replace"),
        diagnostics=tuple(found),
    )


def _transaction(outcome: CData) -> TransactionStatus | None:
    name, name_len = ffi.new("const uint8_t **"), ffi.new("size_t *")
    domain, domain_len = ffi.new("const uint8_t **"), ffi.new("size_t *")
    state, accepted, applied = ffi.new("nxx_transaction_state *"), ffi.new("uint64_t *"), ffi.new("uint64_t *")
    if not lib.nxx_outcome_transaction(outcome, name, name_len, domain, domain_len, state, accepted, applied):
        return None
    failing, error, error_len = ffi.new("uint64_t *"), ffi.new("const uint8_t **"), ffi.new("size_t *")
    failed = lib.nxx_outcome_transaction_failure(outcome, failing, error, error_len)
    return TransactionStatus(
        id=read_bytes(name, name_len).decode("utf-8", "replace"),
        domain=read_bytes(domain, domain_len).decode("utf-8", "replace"),
        state=read(TransactionState, int(state[0])),
        accepted=int(accepted[0]),
        applied=int(applied[0]),
        failing_operation=int(failing[0]) if failed else None,
        error=read_bytes(error, error_len).decode("utf-8", "replace") if failed else None,
    )


def _admission(outcome: CData) -> TransactionAdmission | None:
    operation, position = ffi.new("uint64_t *"), ffi.new("uint64_t *")
    name, name_len = ffi.new("const uint8_t **"), ffi.new("size_t *")
    basis, basis_len = ffi.new("const uint8_t **"), ffi.new("size_t *")
    if not lib.nxx_outcome_admission(outcome, operation, name, name_len, position, basis, basis_len):
        return None
    preview = TransactionPreview(
        read_bytes(name, name_len).decode("utf-8", "replace"), int(position[0]), read_bytes(basis, basis_len)
    )
    return TransactionAdmission(int(operation[0]), preview)


def read_outcome(outcome: CData) -> Outcome:
    """A copy of an outcome of the library; the caller still owns that one."""
    pointer, length, number = ffi.new("const uint8_t **"), ffi.new("size_t *"), ffi.new("uint64_t *")
    reference = subscription = schema = origin = existed = statements = locally = None
    if lib.nx_outcome_execution_reference(outcome, pointer, length):
        reference = read_bytes(pointer, length).decode("utf-8", "replace")
    if lib.nx_outcome_subscription(outcome, pointer, length, number):
        subscription = OpenedSubscription(read_bytes(pointer, length).decode("utf-8", "replace"), int(number[0]))
        with Out("nx_schema", lib.nx_schema_free) as out:
            check(lib.nx_outcome_schema(outcome, out.place))
            schema = read_schema(out.pointer)
    if extension("outcome_origin"):
        place = ffi.new("nxx_origin *")
        if lib.nxx_outcome_origin(outcome, place):
            origin = read(Origin, int(place[0]))
        existed = lib.nxx_outcome_already_existed(outcome)
        locally = lib.nxx_outcome_decided_locally(outcome)
    if extension("outcome_statements"):
        statements = tuple(_statement(outcome, index) for index in range(lib.nxx_outcome_statement_count(outcome)))
    transactions = extension("transactions")
    return Outcome(
        disposition=read(Disposition, lib.nx_outcome_disposition(outcome)),
        message=read_text(lambda place, size: lib.nx_outcome_message(outcome, place, size)),
        reference=reference,
        diagnostics=_diagnostics(outcome),
        subscription=subscription,
        schema=schema,
        origin=origin,
        already_existed=existed,
        statements=statements,
        decided_locally=locally,
        transaction=_transaction(outcome) if transactions else None,
        admission=_admission(outcome) if transactions else None,
    )
