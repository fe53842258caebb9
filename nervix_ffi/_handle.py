"""Native objects with a lifetime, and calls that wait on them.

Owns when an object is released: once, when it was closed or collected and nobody is inside of it any more, never by a child of a
fork, and whatever signal arrives. Must not know what the objects are.
"""

from __future__ import annotations

import atexit
import math
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, starmap
from typing import TYPE_CHECKING, Final, TypeVar

from nervix_ffi._interrupt import attention
from nervix_ffi._library import ffi, lib
from nervix_ffi._native import NULL, Out, read_error
from nervix_ffi._unbroken import Release, after_fork, dropping, ending, own, run
from nervix_ffi.cancel import Limit
from nervix_ffi.enums import ErrorKind
from nervix_ffi.errors import ClosedError, ConnectError, Error, TransportError

if TYPE_CHECKING:
    from nervix_ffi._ffi import CData

__all__ = ["TOKEN", "Handle", "blocking", "borrowed", "closed_error", "forked_error", "leaving", "process"]

T = TypeVar("T")

#: How long the interpreter's exit waits for calls in other threads to come back, in seconds.
EXIT_GRACE = 1.0

_exiting = False
_process = os.getpid()


def process() -> int:
    """The identity of this process, without asking the system each time."""
    return _process


def leaving() -> bool:
    """Whether the interpreter is on its way out."""
    return _exiting


def _end_daemon() -> None:
    """While the interpreter exits, ends a daemon thread by SystemExit.

    It was in a call that the exit ended, and what it would print about that is no news to anyone.
    """
    if _exiting and threading.current_thread().daemon:
        raise SystemExit


def closed_error(message: str) -> ClosedError:
    """The error for a closed object, except for daemon threads while the interpreter exits, which end."""
    _end_daemon()
    return ClosedError(message)


def forked_error(what: str) -> ClosedError:
    """The error for an object that a child of a fork inherited."""
    return ClosedError(f"the {what} belongs to the process that this one was forked from; open one of your own after the fork")


class Token:
    """The cancellation token of one call."""

    __slots__ = ("interrupted", "pointer", "thread")

    def __init__(self, limit: Limit) -> None:
        self.interrupted = False
        self.thread = threading.get_ident()
        remaining = limit.remaining()
        if remaining is None:
            self.pointer = own(lib.nx_cancel_new, (), lib.nx_cancel_free)
            return
        with Out("nx_cancel", lib.nx_cancel_free) as out:
            error = lib.nx_cancel_with_deadline(math.ceil(remaining * 1000), out.place)
            if error != NULL:
                raise read_error(ffi.gc(error, dropping(lib.nx_error_free)))
            self.pointer = out.take()

    def trigger(self) -> None:
        """Ends the call. Any thread, also after the call is over."""
        lib.nx_cancel_trigger(self.pointer)

    def interrupt(self) -> None:
        """Ends the call so that signal handlers run."""
        self.interrupted = True
        self.trigger()


class Handle:
    """One native object, released by the last one to leave it after ``close`` or after the handle is gone.

    What is inside of it is whoever holds the object that ``with handle as pointer:`` gives, or a call that was made with the handle
    as an argument. Both raise ClosedError when it was closed, or when this process is a child that inherited it.
    """

    __slots__ = ("__weakref__", "_box", "_process", "_tokens", "what")

    def __init__(self, what: str, owned: CData) -> None:
        self.what = what
        #: The one reference of the handle's own. Calls take theirs from here in C, and keep it in no frame.
        self._box = [owned]
        self._process = _process
        self._tokens: dict[Token, None] = {}
        _remember(self)

    @property
    def closed(self) -> bool:
        """Whether it can be used no longer."""
        return not self._box or self._process != _process

    def check(self) -> None:
        """Raises ClosedError when it can be used no longer."""
        if self._process != _process:
            raise forked_error(self.what)
        if not self._box:
            raise closed_error(f"the {self.what} was closed")

    def __enter__(self) -> CData:
        self.check()
        try:
            return self._box[0]
        except IndexError:
            raise closed_error(f"the {self.what} was closed") from None

    def __exit__(self, *_: object) -> None:
        pass  # Who holds the object is inside.

    def call(self, function: Callable[..., T], *arguments: object, out: Out | None = None) -> T:
        """Makes a call that does not wait, with the object as its first argument. It keeps the object in no frame.

        What the call hands out is in ``out.landed``, if there is ``out``.
        """
        self.check()
        results: list[T] = []
        run(
            chain(
                map(results.append, map(function, self._box, *_columns(arguments))),
                () if out is None else out.landing(),
            )
        )
        if not results:
            raise closed_error(f"the {self.what} was closed")
        return results[0]

    def close(self) -> None:
        """Closes it: calls that wait in it are cancelled, and the last one to leave releases it. Never waits; any thread."""
        if self._process != _process:
            return
        self._box.clear()
        for token in self._tokens.copy():
            token.trigger()


def _columns(arguments: tuple[object, ...]) -> list[Iterable[object]]:
    """What ``zip`` makes the arguments of one call of; a closed handle among them leaves nothing to call."""
    return [argument._box if isinstance(argument, Handle) else (argument,) for argument in arguments]


#: The calls that wait.
_busy: dict[Token, None] = {}

#: Every handle, and some that are gone, so that the interpreter's exit closes what is still open. There is no lock: each step is
#: one call into C.
_known: dict[weakref.ref[Handle], None] = {}
_room = 1024


def _remember(handle: Handle) -> None:
    global _room
    _known[weakref.ref(handle)] = None
    if len(_known) > _room:
        _room = 2 * len(_known)  # So that an interrupted look is not taken again at once.
        for gone in [known for known in _known.copy() if known() is None]:
            _known.pop(gone, None)
        _room = 2 * len(_known) + 1024


def _reset() -> None:
    global _process, _busy, _known
    after_fork()
    _process, _busy, _known = os.getpid(), {}, {}


os.register_at_fork(after_in_child=_reset)


# Exit hooks run last first: with a finalizer made before, ours runs before all finalizers.
weakref.finalize(Handle, lambda: None).detach()


@atexit.register
def _leave() -> None:
    """At exit, closes what is open and gives the calls of other threads a moment to come back; what stays is the system's."""
    global _exiting
    _exiting = True
    for known in _known.copy():
        if (handle := known()) is not None:
            handle.close()
    deadline = time.monotonic() + EXIT_GRACE
    this = threading.get_ident()
    while others := [token for token in _busy.copy() if token.thread != this]:
        for token in others:
            token.trigger()
        if time.monotonic() > deadline:
            return
        time.sleep(0.002)


#: Stands for the token of a call among its arguments.
TOKEN: Final = object()


def borrowed(pointer: CData, length: int, retain: Callable[[CData], CData], owner: CData, release: Release) -> memoryview:
    """A read-only view of borrowed bytes, which holds a reference of its own to what they lie in (B-3, B-15)."""
    if not length:
        return memoryview(b"")
    kept = [own(retain, (owner,), release)]
    # The end of the view's life ends that of the list, which goes without any bytecode.
    return memoryview(ffi.buffer(ffi.gc(pointer, kept.append), length)).toreadonly()


def blocking(
    handle: Handle | None, function: Callable[..., CData], limit: Limit, *arguments: object, out: Out | None = None
) -> bool:
    """Makes a call that may wait, with the handle, if any, as its first argument and the call's token where TOKEN is.

    It ends with the limit, with ``handle.close`` on another thread (ClosedError), or with a signal whose handler raises. After a
    signal whose handler does not raise it is made again for the time that is left; the return value says whether it was. Raises
    the exception of any error, and ConnectError or TransportError where no descriptor is left to learn of signals by. What the call
    hands out is in ``out.landed`` in any case, also when a signal handler raised.
    """
    resumed = False
    while True:
        if handle is not None:
            handle.check()
        token = Token(limit)
        errors: list[CData] = []
        tokens = None if handle is None else handle._tokens
        try:
            watch = attention()
        except OSError as failure:
            raise _unwatched(handle, failure) from failure
        with ending(
            map(_busy.pop, (token,), (None,)),
            () if tokens is None else map(tokens.pop, (token,), (None,)),
            limit.unlistening(token),
            () if watch is None else watch.ending(),
        ):
            _busy[token] = None
            if tokens is not None:
                tokens[token] = None
            limit.listen(token, token.trigger)
            if _exiting:
                _end_daemon()
            if watch is not None:
                watch.begin(token)
            columns = _columns(tuple(token.pointer if argument is TOKEN else argument for argument in arguments))
            if handle is not None:
                columns.insert(0, handle._box)
            # In one piece: the object is taken, the call made, and what it returns and hands out put where it is not lost.
            run(
                chain(
                    map(errors.append, map(ffi.gc, starmap(function, zip(*columns)), (dropping(lib.nx_error_free),))),
                    () if out is None else out.landing(),
                )
            )
            if watch is not None:
                watch.end()
        interrupted = token.interrupted
        del token, columns  # What is raised holds this frame.
        if not errors:
            closed = handle if handle is not None and handle.closed else next(_handles(arguments), handle)
            raise closed_error(f"the {closed.what if closed is not None else 'object'} was closed")
        if errors[0] == NULL:
            return resumed
        # In no variable, for the frame that raises it is in its traceback: the two would wait for the garbage collector.
        failures = [read_error(errors.pop())]
        if failures[0].kind == ErrorKind.CANCELLED:
            if handle is not None and handle.closed:
                raise _closed_meanwhile(handle, failures.pop())
            if interrupted and not limit.triggered:
                resumed = True
                continue
        _end_daemon()
        raise failures.pop()


def _unwatched(handle: Handle | None, failure: OSError) -> Error:
    """The error of a call that was not made, since Ctrl-C would not end it."""
    kind = ConnectError if handle is None else TransportError
    error = kind(
        f"nothing was sent, since signals could not be watched for: {failure.strerror}; close some files or connections, or allow "
        "more (ulimit -n), and make the call again"
    )
    error._unsent = True
    return error


def _closed_meanwhile(handle: Handle, failure: Error) -> ClosedError:
    ended = closed_error(f"the {handle.what} was closed while the call waited: {failure}")
    ended.reference = failure.reference
    return ended


def _handles(arguments: tuple[object, ...]) -> Iterator[Handle]:
    return (argument for argument in arguments if isinstance(argument, Handle) and argument.closed)
