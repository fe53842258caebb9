"""Crossing into the library and back: text, borrowed values, handed-out objects, errors.

Owns the conversions between Python values and the interface's conventions. Must not know sessions or events.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, MutableSequence
from typing import TYPE_CHECKING

from nervix_ffi._library import extension, ffi, lib
from nervix_ffi._told import inline
from nervix_ffi._unbroken import Release, dropping, place_for, taken
from nervix_ffi.enums import ErrorKind, OpenRefusal, read
from nervix_ffi.errors import Error, InvalidArgumentError, error_class

if TYPE_CHECKING:
    from nervix_ffi._ffi import CData

__all__ = ["NULL", "Out", "check", "encode", "optional", "read_bytes", "read_error", "read_text"]

NULL: CData = ffi.NULL

_MAYBE = "run the same execution again to learn what became of it"
_OVERFLOW = "read them as they come, in a thread that does nothing else, or have the server send fewer (WHERE, BATCH SAMPLE RATE)"


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


def read_error(error: CData) -> Error:
    """The exception for an error of the library; the caller still owns that one."""
    kind = read(ErrorKind, lib.nx_error_kind_of(error))
    message = read_text(lambda pointer, length: lib.nx_error_message(error, pointer, length))
    pointer, length = ffi.new("const uint8_t **"), ffi.new("size_t *")
    reference = None
    if lib.nx_error_execution_reference(error, pointer, length):
        reference = read_bytes(pointer, length).decode("utf-8", "replace")
    refusal = ffi.new("nx_open_refusal *")
    refused = lib.nx_error_open_refusal(error, refusal)
    failure = error_class(kind)(_advised(inline(message), kind, reference))
    failure.kind = kind
    failure.reference = reference
    if extension("outside"):
        failure._unsent = lib.nxx_error_unsent(error)
        failure._condemned = lib.nxx_error_condemned(error)
        if lib.nxx_error_held_transaction(error, pointer, length):
            failure._held = read_bytes(pointer, length).decode("utf-8", "replace")
    if refused:
        failure.refusal = read(OpenRefusal, int(refusal[0]))
    return failure


def _advised(message: str, kind: ErrorKind | int, reference: str | None) -> str:
    """The message, naming the reference, and with what to do unless it says so itself."""
    if kind == ErrorKind.OVERFLOW:
        return f"{message} (events were lost: {_OVERFLOW})"
    if reference is None or kind not in (ErrorKind.UNCERTAIN, ErrorKind.DEADLINE, ErrorKind.CANCELLED):
        return message
    if "same execution" in message or "not sent" in message:
        return message if reference in message else f"{message} (reference {reference})"
    return f"{message} (the command with reference {reference} may have happened: {_MAYBE})"


def check(error: CData) -> None:
    """Raises the exception for ``error``, unless it is NULL."""
    if error != NULL:
        with ffi.gc(error, dropping(lib.nx_error_free)) as owned:
            raise read_error(owned)


class Out:
    """The place of an object that the library hands out. Leaving the block releases an object that was not taken.

    ``landing`` takes the object out of the place in one piece with the call that puts it there, and into ``landed``.
    """

    __slots__ = ("_free", "landed", "place")

    def __init__(self, c_type: str, free: Release, landed: MutableSequence[CData] | None = None) -> None:
        self.place = place_for(c_type, free)
        self._free = free
        self.landed: MutableSequence[CData] = [] if landed is None else landed

    def __enter__(self) -> Out:
        return self

    def __exit__(self, *_: object) -> None:
        ffi.release(self.place)

    @property
    def pointer(self) -> CData:
        """The object, still owned by this place."""
        pointer: CData = self.place[0]
        return pointer

    def landing(self) -> Iterator[None]:
        """The steps that move the object, if there is one, to ``landed``."""
        return map(self.landed.append, taken(self.place, self._free))

    def take(self) -> CData:
        """The object, released when the last reference to it is gone. There must be one."""
        return next(taken(self.place, self._free))
