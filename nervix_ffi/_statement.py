"""What a command asks for, as far as a session keeps account of it.

Owns the question; the answer is the library's, where it has one. Must not know what is done about it.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from nervix_ffi._library import extension, ffi, lib
from nervix_ffi._native import encode, read_bytes
from nervix_ffi.enums import StatementKind, read

__all__ = ["ENDS", "Statement", "recognise", "statement_of"]

#: What ends a transaction.
ENDS = (StatementKind.COMMIT, StatementKind.REVERT)

_COMMENTS = re.compile(r"(?:\s|//[^\n]*(?:\n|$))*")
_BEGIN = re.compile(r"\bBEGIN\b", re.IGNORECASE)
#: The plain spellings, for a library that does not say.
_PLAIN = {
    StatementKind.BEGIN: r"BEGIN",
    StatementKind.COMMIT: r"COMMIT",
    StatementKind.REVERT: r"REVERT",
    StatementKind.USE: r"USE\s+([^\s;]+)",
    StatementKind.UNSUBSCRIBE: r"DELETE\s+SUBSCRIPTION\s+(\w+)",
    StatementKind.ATTACH_CLOCK: r"ATTACH\s+DOMAIN\s+CLOCK",
    StatementKind.DETACH_CLOCK: r"DETACH\s+DOMAIN\s+CLOCK",
}
_LAST = re.compile(r";\s*(COMMIT|REVERT)\s*;?\s*$", re.IGNORECASE)
#: What holds no statement.
_APART = re.compile(r"'[^']*'|//[^\n]*")
_PATTERNS = {kind: re.compile(rf"\s*{plain}\s*;?\s*", re.IGNORECASE) for kind, plain in _PLAIN.items()}


class Statement(NamedTuple):
    """What a text asks for, whether it begins a transaction, alone or among others, and the name that it gives."""

    kind: StatementKind | int
    begins: bool
    name: str


def recognise(query: str) -> Statement:
    """What a text asks for. Raises InvalidArgumentError for one that cannot be sent."""
    data = encode(query, "the command")
    if not extension("statements"):
        return _recognise_plain(query)
    begins, name, length = ffi.new("bool *"), ffi.new("const uint8_t **"), ffi.new("size_t *")
    kind = lib.nxx_statement(data, len(data), begins, name, length)
    return Statement(read(StatementKind, kind), bool(begins[0]), read_bytes(name, length).decode("utf-8"))


def _recognise_plain(query: str) -> Statement:
    statement = statement_of(query)
    begins = _BEGIN.search(query) is not None
    for kind, pattern in _PATTERNS.items():
        if match := pattern.fullmatch(statement):
            return Statement(kind, begins, match[1] if match.lastindex else "")
    if match := _LAST.search(_APART.sub(" ", statement)):
        return Statement(StatementKind[match[1].upper()], begins, "")
    return Statement(StatementKind.OTHER, begins, "")


def statement_of(query: str) -> str:
    """A command without the blanks and comments before and behind it, as far as they are on lines of their own."""
    rest = query[_COMMENTS.match(query).end() :]  # type: ignore[union-attr]
    head, mark, tail = rest.partition(";")
    return head + mark if _COMMENTS.fullmatch(tail) else rest
