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
from typing import Protocol

__all__ = ["Interruptible", "interruptible"]


class Interruptible(Protocol):
    """A call that can be made to come back early."""

    def interrupt(self) -> None:
        """Makes the call come back so that signal handlers run. Any thread, any number of times."""


class _Watcher:
    """The wakeup descriptor of one process, and the thread that reads it."""

    def __init__(self) -> None:
        # Reentrant, because a signal handler may itself make a call that waits.
        self._lock = threading.RLock()
        self._reader, self._writer = socket.socketpair()
        self._reader.setblocking(False)
        self._writer.setblocking(False)
        self._running: Interruptible | None = None
        self._previous = -1
        threading.Thread(target=self._watch, name="nervix_ffi signals", daemon=True).start()

    def begin(self, call: Interruptible) -> tuple[Interruptible | None, int]:
        """Takes the wakeup descriptor for ``call``. Returns what ``end`` needs. Raises ValueError where Python forbids it."""
        with self._lock:
            outer, self._running = self._running, call
            own = self._writer.fileno()
            try:
                before = signal.set_wakeup_fd(own, warn_on_full_buffer=False)
            except ValueError:
                self._running = outer
                raise
            if before != own:
                self._previous = before
            return outer, before

    def end(self, saved: tuple[Interruptible | None, int]) -> None:
        """Gives the wakeup descriptor back."""
        outer, before = saved
        with self._lock:
            self._running = outer
            try:
                signal.set_wakeup_fd(before, warn_on_full_buffer=False)
            except (ValueError, OSError):
                signal.set_wakeup_fd(-1)  # Its owner closed it meanwhile.
            # What the watching thread has not read yet belongs to the descriptor that was there before.
            self._drain()

    def _drain(self) -> None:
        while True:
            try:
                data = self._reader.recv(4096)
            except OSError:
                return
            if not data:
                return
            if self._previous >= 0:
                with contextlib.suppress(OSError):
                    os.write(self._previous, data)
            if self._running is not None:
                self._running.interrupt()

    def _watch(self) -> None:
        readable = select.poll()
        readable.register(self._reader.fileno(), select.POLLIN)
        while True:
            readable.poll()
            with self._lock:
                self._drain()


_watcher: _Watcher | None = None


def _forget() -> None:
    global _watcher
    _watcher = None  # Its thread did not survive the fork, and its lock may be held by a thread that did not either.


os.register_at_fork(after_in_child=_forget)


class interruptible:  # noqa: N801 - used as a statement
    """``with interruptible(call):`` around a wait in C. Does nothing outside of the main thread."""

    __slots__ = ("_call", "_saved", "_watcher")

    def __init__(self, call: Interruptible) -> None:
        self._call = call
        self._watcher: _Watcher | None = None
        self._saved: tuple[Interruptible | None, int] = (None, -1)

    def __enter__(self) -> None:
        global _watcher
        if threading.get_ident() != threading.main_thread().ident:
            return
        if _watcher is None:
            try:
                _watcher = _Watcher()
            except RuntimeError:
                return  # The interpreter is on its way out and starts no threads: the call just waits.
        try:
            self._saved = _watcher.begin(self._call)
        except ValueError:
            return  # The main thread of a subinterpreter receives no signals.
        self._watcher = _watcher

    def __exit__(self, *_: object) -> None:
        if self._watcher is not None:
            self._watcher.end(self._saved)
