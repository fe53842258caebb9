"""Completions of a command that is being typed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from nervix_ffi._library import ffi, lib
from nervix_ffi._native import check, read_bytes
from nervix_ffi.enums import CompletionKind, CompletionStatus, read

if TYPE_CHECKING:
    from nervix_ffi._ffi import CData

__all__ = ["Suggestion", "Suggestions", "read_suggestions"]


@dataclass(frozen=True)
class Suggestion:
    """One completion: ``value`` to show, and the edit that applies it.

    The edit replaces the characters from ``start`` to ``end`` of the text that was completed with ``replacement``.
    """

    kind: CompletionKind | int
    value: str
    start: int
    end: int
    replacement: str

    def apply(self, text: str) -> str:
        """``text``, which is the text that was completed, with the edit made."""
        return text[: self.start] + self.replacement + text[self.end :]


@dataclass(frozen=True)
class Suggestions:
    """A page of completions. ``continuation`` asks for the next one; None when there is none."""

    status: CompletionStatus | int
    items: tuple[Suggestion, ...]
    continuation: str | None


def read_suggestions(suggestions: CData, text: str) -> Suggestions:
    """A copy of a page of the library; the caller still owns that one."""
    kind = ffi.new("nx_completion_kind *")
    value, value_len = ffi.new("const uint8_t **"), ffi.new("size_t *")
    replacement, replacement_len = ffi.new("const uint8_t **"), ffi.new("size_t *")
    start, end = ffi.new("uint32_t *"), ffi.new("uint32_t *")
    data = text.encode("utf-8")

    def characters(offset: int) -> int:
        return len(data[:offset].decode("utf-8", "ignore"))

    items = []
    for index in range(lib.nx_suggestions_count(suggestions)):
        check(lib.nx_suggestions_at(suggestions, index, kind, value, value_len, start, end, replacement, replacement_len))
        items.append(
            Suggestion(
                kind=read(CompletionKind, int(kind[0])),
                value=read_bytes(value, value_len).decode("utf-8", "replace"),
                start=characters(int(start[0])),
                end=characters(int(end[0])),
                replacement=read_bytes(replacement, replacement_len).decode("utf-8", "replace"),
            )
        )
    continuation = None
    if lib.nx_suggestions_continuation(suggestions, value, value_len):
        continuation = read_bytes(value, value_len).decode("utf-8", "replace")
    return Suggestions(read(CompletionStatus, lib.nx_suggestions_status(suggestions)), tuple(items), continuation)
