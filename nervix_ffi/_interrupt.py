"""Lets Ctrl-C, and any other signal with a Python handler, reach a call that waits inside the library.

Python runs handlers only between bytecodes, so a call that waits in C would sit a signal out. While the main thread is in such a
call, the process's wakeup descriptor is ours: one watching thread reads what arrives, passes it on to the descriptor that was
there before, and triggers the running call's token. Must not know what the calls are.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import threading
from collections.abc import Iterable
from functools import partial
from itertools import chain, starmap
from typing import Protocol

from nervix_ffi._unbroken import putting, run

__all__ = ["Attention", "Interruptible", "attention"]


class Interruptible(Protocol):
    """A call that can be made to come back early."""

    def interrupt(self) -> None:
        """Makes the call come back so that signal handlers run. Any thread, any number of times."""


_set_descriptor = partial(signal.set_wakeup_fd, warn_on_full_buffer=False)


class _Watcher:
    """The wakeup descriptor of one process, and the thread that reads it."""

    def __init__(self) -> None:
        # Reentrant, because a signal handler may itself make a call that waits.
        self.lock = threading.RLock()
        self._reader, self._writer = socket.socketpair()
        self._reader.setblocking(False)
        self._writer.setblocking(False)
        self.own = self._writer.fileno()
        #: The calls of the main thread that may be running: the newest, and those below it whose handlers made it.
        self.calls: tuple[Interruptible, ...] = ()
        self.previous = -1
        threading.Thread(target=self._watch, name="nervix_ffi signals", daemon=True).start()

    def drain(self) -> None:
        """Serves what arrived. The lock is held."""
        while True:
            try:
                data = self._reader.recv(4096)
            except OSError:
                return
            if not data:
                return
            if self.previous >= 0:
                with contextlib.suppress(OSError):
                    os.write(self.previous, data)
            for call in self.calls:
                call.interrupt()

    def _watch(self) -> None:
        readable = select.poll()
        readable.register(self._reader.fileno(), select.POLLIN)
        while True:
            readable.poll()
            with self.lock:
                self.drain()


_watcher: _Watcher | None = None


def _forget() -> None:
    global _watcher
    _watcher = None  # Its thread did not survive the fork, and its lock may be held by a thread that did not either.


os.register_at_fork(after_in_child=_forget)


class Attention:
    """The wakeup descriptor, taken for one call.

    ``begin`` and ``end`` go around the call; ``ending`` are the steps that give the descriptor back where a signal handler raised
    before ``end`` did.
    """

    __slots__ = ("_below", "_saved", "_watcher")

    def __init__(self, watcher: _Watcher) -> None:
        self._watcher = watcher
        self._below = watcher.calls
        self._saved: list[int] = []

    def ending(self) -> Iterable[object]:
        """The steps that give the descriptor back if it was taken."""
        return chain(putting(self._watcher, "calls", self._below), map(_set_descriptor, self._saved))

    def begin(self, call: Interruptible) -> None:
        """Takes the descriptor."""
        watcher = self._watcher
        with watcher.lock:
            watcher.calls = (*self._below, call)
            try:
                run(map(self._saved.append, starmap(_set_descriptor, ((watcher.own,),))))
            except ValueError:
                return  # The main thread of a subinterpreter receives no signals.
            if self._saved[0] != watcher.own:
                watcher.previous = self._saved[0]

    def end(self) -> None:
        """Gives the descriptor back."""
        watcher = self._watcher
        with watcher.lock:
            if not self._saved:
                return
            try:
                _set_descriptor(self._saved[0])
            except (ValueError, OSError):
                _set_descriptor(-1)  # Its owner closed it meanwhile.
            self._saved.clear()
            watcher.calls = self._below
            # What the watching thread has not read yet belongs to the descriptor that was there before.
            watcher.drain()


def attention() -> Attention | None:
    """What a call of the main thread needs so that signals reach it; None in other threads, which receive none."""
    global _watcher
    if threading.get_ident() != threading.main_thread().ident:
        return None
    if _watcher is None:
        try:
            _watcher = _Watcher()
        except RuntimeError:
            return None  # The interpreter is on its way out and starts no threads: the call just waits.
    return Attention(_watcher)
