"""Crossing into the library and back: text, borrowed values, handed-out objects, errors.

Owns the conversions between Python values and the interface's conventions. Must not know sessions or events.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from nervix_ffi._library import ffi, lib
from nervix_ffi.enums import ErrorKind, OpenRefusal, read
from nervix_ffi.errors import Error, InvalidArgumentError, error_class

if TYPE_CHECKING:
    from nervix_ffi._ffi import CData

__all__ = ["NULL", "Out", "check", "encode", "optional", "read_bytes", "read_text", "take_error"]

NULL: CData = ffi.NULL

_MAYBE = "run the same execution again to learn what became of it"


def encode(text: str, what: str) -> bytes:
    """UTF-8 of ``text``. Raises InvalidArgumentError, naming ``what``, for text that has none."""
    if not isinstance(text, str):
        raise TypeError(f"{what} is text (str), not {type(text).__name__}")
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError as failure:
        raise InvalidArgumentError(
            f"{what} cannot be sent as UTF-8: it has a lone surrogate at index {failure.start}; pass well-formed text"
        ) from None


def optional(text: str | None, what: str) -> tuple[CData | bytes, int]:
    """Pointer and length of an optional text."""
    if text is None:
        return NULL, 0
    data = encode(text, what)
    return data, len(data)


def read_bytes(pointer: CData, length: CData) -> bytes:
    """A copy of borrowed bytes, from the out-parameters that they were written to."""
    size: int = length[0]
    return ffi.buffer(pointer[0], size)[:] if size else b""


def read_text(call: Callable[[CData, CData], object]) -> str:
    """The text that ``call`` writes as pointer and length."""
    pointer, length = ffi.new("const uint8_t **"), ffi.new("size_t *")
    call(pointer, length)
    return read_bytes(pointer, length).decode("utf-8", "replace")


def take_error(error: CData) -> Error:
    """The exception for an error of the library, which is freed."""
    try:
        kind = read(ErrorKind, lib.nx_error_kind_of(error))
        message = read_text(lambda pointer, length: lib.nx_error_message(error, pointer, length))
        pointer, length = ffi.new("const uint8_t **"), ffi.new("size_t *")
        reference = None
        if lib.nx_error_execution_reference(error, pointer, length):
            reference = read_bytes(pointer, length).decode("utf-8", "replace")
        refusal = ffi.new("nx_open_refusal *")
        refused = lib.nx_error_open_refusal(error, refusal)
    finally:
        lib.nx_error_free(error)
    if reference is not None and kind in (ErrorKind.UNCERTAIN, ErrorKind.DEADLINE, ErrorKind.CANCELLED):
        message = f"{message} (the command with reference {reference} may have happened: {_MAYBE})"
    failure = error_class(kind)(message)
    failure.kind = kind
    failure.reference = reference
    if refused:
        failure.refusal = read(OpenRefusal, int(refusal[0]))
    return failure


def check(error: CData) -> None:
    """Raises the exception for ``error``, unless it is NULL."""
    if error != NULL:
        raise take_error(error)


class Out:
    """The place of an object that the library hands out. Leaving the block frees an object that was not taken."""

    __slots__ = ("_free", "place")

    def __init__(self, c_type: str, free: Callable[[CData], object]) -> None:
        self.place = ffi.new(f"{c_type} **")
        self._free = free

    def __enter__(self) -> Out:
        return self

    def __exit__(self, *_: object) -> None:
        pointer: CData = self.place[0]
        if pointer != NULL:
            self.place[0] = NULL
            self._free(pointer)

    @property
    def pointer(self) -> CData:
        """The object, still owned by this place."""
        pointer: CData = self.place[0]
        return pointer

    def take(self) -> CData:
        """The object, owned by the caller from here on."""
        pointer: CData = self.place[0]
        self.place[0] = NULL
        return pointer
