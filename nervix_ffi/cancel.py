"""Cancel: ends waits from outside, once or after a time."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from nervix_ffi.errors import InvalidArgumentError

__all__ = ["Cancel", "Limit"]

#: Waits longer than this many seconds (a century) are as good as endless.
_ENDLESS = 100.0 * 365 * 86400


def deadline_of(timeout: float | None) -> float | None:
    """The monotonic instant ``timeout`` seconds from now. Raises InvalidArgumentError for a negative number or NaN."""
    if timeout is None:
        return None
    seconds = float(timeout)
    if not seconds >= 0:
        raise InvalidArgumentError(f"a timeout is a number of seconds, 0 or more, or None for no limit; {timeout!r} is neither")
    return None if seconds > _ENDLESS else time.monotonic() + seconds


class Cancel:
    """Ends the calls that it is given to.

    ``Cancel()`` ends them with CancelledError once ``trigger`` was called, from any thread. ``Cancel(timeout=2.5)`` also ends
    them with DeadlineError 2.5 seconds after it was made. Both stick: later calls end at once. Ending a wait never undoes work
    that a server admitted.
    """

    def __init__(self, timeout: float | None = None) -> None:
        self._deadline = deadline_of(timeout)
        self._lock = threading.RLock()
        self._triggered = False
        self._listeners: list[Callable[[], None]] = []

    def trigger(self) -> None:
        """Ends every call that has this token, now and later. Any thread, any number of times."""
        with self._lock:
            self._triggered = True
            listeners = tuple(self._listeners)
        for listener in listeners:
            listener()

    @property
    def triggered(self) -> bool:
        """Whether ``trigger`` was called."""
        return self._triggered

    @property
    def remaining(self) -> float | None:
        """Seconds until the deadline, 0.0 when it is over, None without one."""
        return None if self._deadline is None else max(0.0, self._deadline - time.monotonic())

    def __repr__(self) -> str:
        state = "triggered" if self._triggered else "not triggered"
        return f"<Cancel {state}, remaining={self.remaining}>"

    def _listen(self, listener: Callable[[], None]) -> None:
        with self._lock:
            self._listeners.append(listener)
            triggered = self._triggered
        if triggered:
            listener()

    def _unlisten(self, listener: Callable[[], None]) -> None:
        with self._lock:
            self._listeners.remove(listener)


class Limit:
    """How long one public call may take: a deadline fixed when the call was made, and a Cancel."""

    __slots__ = ("cancel", "deadline")

    def __init__(self, timeout: float | None, cancel: Cancel | None) -> None:
        deadline = deadline_of(timeout)
        if cancel is not None and cancel._deadline is not None:
            deadline = cancel._deadline if deadline is None else min(deadline, cancel._deadline)
        self.deadline = deadline
        self.cancel = cancel

    @classmethod
    def until(cls, deadline: float | None, cancel: Cancel) -> Limit:
        """A limit with a deadline that was fixed before."""
        limit = cls(None, cancel)
        limit.deadline = deadline
        return limit

    @property
    def triggered(self) -> bool:
        """Whether the Cancel was triggered."""
        return self.cancel is not None and self.cancel.triggered

    def remaining(self) -> float | None:
        """Seconds left, 0.0 when over, None without a deadline."""
        return None if self.deadline is None else max(0.0, self.deadline - time.monotonic())

    def listen(self, listener: Callable[[], None]) -> None:
        """Calls ``listener`` when the Cancel is triggered, at once when it was."""
        if self.cancel is not None:
            self.cancel._listen(listener)

    def unlisten(self, listener: Callable[[], None]) -> None:
        """Ends what ``listen`` began."""
        if self.cancel is not None:
            self.cancel._unlisten(listener)
