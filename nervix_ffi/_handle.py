"""Native objects with a lifetime, and calls that wait on them.

Owns when an object is freed: once, when nobody is inside of it any more, never by a child of a fork. Must not know what the
objects are.
"""

from __future__ import annotations

import atexit
import math
import os
import threading
import time
import weakref
from collections.abc import Callable
from functools import partial
from itertools import starmap
from typing import TYPE_CHECKING, TypeAlias

from nervix_ffi._interrupt import interruptible
from nervix_ffi._library import ffi, lib
from nervix_ffi._native import NULL, check, take_error
from nervix_ffi.cancel import Limit
from nervix_ffi.enums import ErrorKind
from nervix_ffi.errors import ClosedError, Error

if TYPE_CHECKING:
    from nervix_ffi._ffi import CData

__all__ = ["Handle", "blocking", "borrowed", "closed_error", "leaving", "process"]

#: How long the interpreter's exit waits for calls in other threads to come back, in seconds.
EXIT_GRACE = 1.0

_leaving = threading.Condition()
_exiting = False
_busy: set[Handle] = set()
_process = os.getpid()


def process() -> int:
    """The identity of this process, without asking the system each time."""
    return _process


def leaving() -> bool:
    """Whether the interpreter is on its way out."""
    return _exiting


def closed_error(message: str) -> ClosedError:
    """The error for a closed object. While the interpreter exits, a daemon thread is ended instead, by SystemExit.

    It was in a call that the exit ended, and what it would print about that is no news to anyone.
    """
    if _exiting and threading.current_thread().daemon:
        raise SystemExit
    return ClosedError(message)


class Token:
    """The cancellation token of one call."""

    __slots__ = ("_lock", "interrupted", "pointer")

    def __init__(self, limit: Limit) -> None:
        self._lock = threading.RLock()
        self.interrupted = False
        remaining = limit.remaining()
        if remaining is None:
            self.pointer = lib.nx_cancel_new()
        else:
            place = ffi.new("nx_cancel **")
            check(lib.nx_cancel_with_deadline(math.ceil(remaining * 1000), place))
            self.pointer = place[0]

    def trigger(self) -> None:
        """Ends the call. Any thread, also after the call is over."""
        with self._lock:
            if self.pointer != NULL:
                lib.nx_cancel_trigger(self.pointer)

    def interrupt(self) -> None:
        """Ends the call so that signal handlers run."""
        self.interrupted = True
        self.trigger()

    def free(self) -> None:
        """Frees the token; once."""
        with self._lock:
            pointer, self.pointer = self.pointer, NULL
        lib.nx_cancel_free(pointer)


class Handle:
    """One native object: freed once, by the last one to leave it after ``close``.

    ``with handle as pointer:`` holds it open for as long as the block lasts, and raises ClosedError when it was closed, or when
    this process is a child that inherited it.
    """

    __slots__ = ("__weakref__", "_free", "_inside", "_lock", "_open", "_pid", "_pointer", "_tokens", "what")

    def __init__(self, what: str, pointer: CData, free: Callable[[CData], object]) -> None:
        self.what = what
        self._pointer = pointer
        self._free = free
        self._pid = _process
        self._lock = threading.RLock()
        self._open = True
        self._inside = 0
        self._tokens: set[Token] = set()

    @property
    def closed(self) -> bool:
        """Whether it can be used no longer."""
        return not self._open or self._pid != _process

    def __enter__(self) -> CData:
        if self._pid != _process:
            raise ClosedError(
                f"the {self.what} belongs to the process that this one was forked from; open one of your own after the fork"
            )
        with self._lock:
            if not self._open:
                raise closed_error(f"the {self.what} was closed")
            self._inside += 1
            return self._pointer

    def __exit__(self, *_: object) -> None:
        if self._pid != _process:
            return
        with self._lock:
            self._inside -= 1
            pointer = self._swap() if not self._open else NULL
        if pointer != NULL:
            self._free(pointer)
            if _exiting:
                with _leaving:
                    _busy.discard(self)
                    _leaving.notify_all()

    def close(self) -> None:
        """Closes it: calls that wait in it are cancelled, and the last one to leave frees it. Never waits; any thread."""
        if self._pid != _process:
            return
        with self._lock:
            self._open = False
            pointer = self._swap()
            tokens = tuple(self._tokens)
        for token in tokens:
            token.trigger()
        if pointer != NULL:
            self._free(pointer)

    def _swap(self) -> CData:
        if self._inside:
            return NULL
        pointer, self._pointer = self._pointer, NULL
        return pointer

    def _began(self, token: Token) -> None:
        with self._lock:
            self._tokens.add(token)
            closed = not self._open
        with _leaving:
            _busy.add(self)
        if closed:
            token.trigger()

    def _ended(self, token: Token) -> None:
        with self._lock:
            self._tokens.discard(token)
            idle = not self._tokens
        if idle and not _exiting:
            with _leaving:
                _busy.discard(self)


def _reset() -> None:
    global _leaving, _busy, _process
    _leaving, _busy, _process = threading.Condition(), set(), os.getpid()


os.register_at_fork(after_in_child=_reset)


# Exit hooks run last first: with a finalizer made before, ours runs before all finalizers.
weakref.finalize(Handle, lambda: None).detach()


@atexit.register
def _leave() -> None:
    """At exit, ends the calls of daemon threads and gives them a moment to come back; what stays is the system's."""
    global _exiting
    _exiting = True
    with _leaving:
        handles = tuple(_busy)
    for handle in handles:
        handle.close()
    deadline = time.monotonic() + EXIT_GRACE
    with _leaving:
        while _busy and (remaining := deadline - time.monotonic()) > 0:
            _leaving.wait(remaining)


#: A call that is ready to be made: it returns an error of the library, or NULL.
Call: TypeAlias = "partial[CData]"


def _once(handle: Handle | None, call: Callable[[CData, CData], Call], token: Token, errors: list[CData]) -> None:
    """Makes the call once and puts what it returns into ``errors``."""
    if handle is None:
        made = call(NULL, token.pointer)
        with interruptible(token):
            errors.extend(starmap(made, _NO_ARGUMENTS))
        return
    with handle as pointer:
        made = call(pointer, token.pointer)
        handle._began(token)
        try:
            with interruptible(token):
                errors.extend(starmap(made, _NO_ARGUMENTS))
        finally:
            handle._ended(token)


#: Calling through starmap puts the result into the list before Python runs any signal handler, so that none is lost.
_NO_ARGUMENTS: tuple[tuple[()]] = ((),)


def borrowed(pointer: CData, length: int, retained: CData, release: Callable[[CData], object]) -> memoryview:
    """A read-only view of borrowed bytes. ``retained`` is a reference of the view's own to what they lie in (B-3, B-15)."""
    if not length:
        release(retained)
        return memoryview(b"")
    owner, current = process(), process

    def drop(_: CData) -> None:
        if current() == owner:
            release(retained)

    return memoryview(ffi.buffer(ffi.gc(pointer, drop), length)).toreadonly()


def blocking(handle: Handle | None, call: Callable[[CData, CData], Call], limit: Limit) -> bool:
    """Makes a call that may wait. ``call(object, token)`` prepares it.

    It ends with the limit, with ``handle.close`` on another thread (ClosedError), or with a signal whose handler raises. After a
    signal whose handler does not raise it is made again for the time that is left; the return value says whether it was. Raises
    the exception of any error.
    """
    resumed = False
    while True:
        token = Token(limit)
        errors: list[CData] = []
        try:
            limit.listen(token.trigger)
            try:
                _once(handle, call, token, errors)
            finally:
                limit.unlisten(token.trigger)
        except BaseException:
            if errors:
                lib.nx_error_free(errors.pop())
            raise
        finally:
            token.free()
        error = errors.pop()
        if error == NULL:
            return resumed
        failure: Error = take_error(error)
        if failure.kind == ErrorKind.CANCELLED:
            if handle is not None and handle.closed:
                closed = closed_error(f"the {handle.what} was closed while the call waited: {failure}")
                closed.reference = failure.reference
                raise closed
            if token.interrupted and not limit.triggered:
                resumed = True
                continue
        raise failure
